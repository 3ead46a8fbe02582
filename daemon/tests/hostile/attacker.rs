//! A guest process that writes its messages by hand.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_guest_driver::transport::submission::Submission;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_test_vmm::context::LoopbackContext;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::daemon::NEVER;
use crate::daemon::until;

/// Where the device page lies.
pub(crate) const PAGE_VA: u64 = 0x10_0000;
/// Where these tests map what they need.
pub(crate) const DATA_VA: u64 = 0x100_0000;

/// A frame.
pub(crate) fn frame(opcode: u32, slot: u32, sequence: u64, body: &[u8]) -> Vec<u8> {
    let size = (size_of::<FrameHeader>() + body.len()).next_multiple_of(8);
    let header = FrameHeader { magic: MAGIC, size: u32::try_from(size).unwrap(), opcode, slot, sequence };
    let mut bytes = [header.as_bytes(), body].concat();
    bytes.resize(size, 0);
    bytes
}

/// The process, with one context.
pub(crate) struct Attacker {
    pub(crate) context: LoopbackContext,
    pub(crate) page_blob: Blob,
    pub(crate) page: SharedMemory,
    sequence: Cell<u64>,
}

impl Attacker {
    /// With an open device.
    pub(crate) fn new(vm: &Arc<LoopbackVm>) -> Self {
        let attacker = Self::without_device(vm);
        assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
        attacker
    }

    /// With a device page, and no device in it.
    pub(crate) fn without_device(vm: &Arc<LoopbackVm>) -> Self {
        let context = vm.open("attacker").unwrap();
        let page_blob = context.create_blob(BlobMemory::Vram, device_page::DEVICE_PAGE_BYTES).unwrap();
        let page = context.map(&page_blob).unwrap();
        Self { context, page_blob, page, sequence: Cell::new(0) }
    }

    pub(crate) fn vm(&self) -> &Arc<LoopbackVm> {
        self.context.vm()
    }

    pub(crate) fn id(&self) -> u32 {
        self.context.id()
    }

    /// A right CREATE_DEVICE.
    pub(crate) fn create_device(&self) -> CreateDevice {
        let page_resource = self.page_blob.resource_id();
        CreateDevice { protocol_version: PROTOCOL_VERSION, page_resource, page_offset: 0, page_va: PAGE_VA }
    }

    /// CREATE_DEVICE; `None` when the command itself is refused.
    pub(crate) fn open_device(&self, create: &CreateDevice) -> Option<Status> {
        let (sequence, submission) = self.start(message::CREATE_DEVICE, 0, create.as_bytes());
        submission.wait(Some(NEVER)).ok()?;
        Some(self.response(0, sequence).0)
    }

    /// The next sequence number.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    /// Sends a message without waiting for its answer.
    pub(crate) fn start(&self, opcode: u32, slot: u32, body: &[u8]) -> (u64, Submission) {
        let sequence = self.sequence();
        let ring = u8::try_from(slot).unwrap();
        (sequence, self.context.submit(&frame(opcode, slot, sequence, body), Some(ring)).unwrap())
    }

    /// The answer in a slot.
    pub(crate) fn response(&self, slot: u32, sequence: u64) -> (Status, Vec<u8>) {
        let at = device_page::response(slot);
        assert_eq!(self.page.word(at).unwrap().load(Ordering::Acquire), sequence, "no answer in slot {slot}");
        let mut header = [0; size_of::<ResponseHeader>()];
        self.page.read(at, &mut header).unwrap();
        let header = ResponseHeader::read_from_bytes(&header).unwrap();
        let mut payload = vec![0; header.payload_bytes as usize];
        self.page.read(at + size_of::<ResponseHeader>() as u64, &mut payload).unwrap();
        (Status::from_word(header.status).unwrap(), payload)
    }

    /// Sends a message, and waits for its answer.
    pub(crate) fn message(&self, opcode: u32, body: &[u8]) -> (Status, Vec<u8>) {
        let (sequence, submission) = self.start(opcode, 1, body);
        submission.wait(Some(NEVER)).unwrap();
        self.response(1, sequence)
    }

    pub(crate) fn status(&self, opcode: u32, body: &[u8]) -> Status {
        self.message(opcode, body).0
    }

    pub(crate) fn named(&self, opcode: u32, handle: Handle) -> Status {
        self.status(opcode, Named { handle }.as_bytes())
    }

    fn created<T: FromBytes>(&self, opcode: u32, body: &[u8]) -> T {
        let (status, payload) = self.message(opcode, body);
        assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&payload));
        T::read_from_bytes(&payload).unwrap_or_else(|_| panic!("a payload of {} bytes", payload.len()))
    }

    /// A context on the copy node.
    pub(crate) fn create_context(&self) -> Handle {
        self.create_context_on(1)
    }

    pub(crate) fn create_context_on(&self, node: u32) -> Handle {
        let create = CreateContext { node, engine_affinity: 1, flags: 0, reserved: 0 };
        self.created::<Created>(message::CREATE_CONTEXT, create.as_bytes()).handle
    }

    /// A queue of a context.
    pub(crate) fn create_queue(&self, context: Handle, flags: u32) -> QueueCreated {
        self.created(message::CREATE_QUEUE, CreateQueue { context, flags, reserved: 0 }.as_bytes())
    }

    /// MAP_MEMORY, writable.
    pub(crate) fn map(&self, resource: u32, offset: u64, va: u64, size: u64) -> Status {
        let map = MapMemory { resource, flags: message::MAP_WRITABLE, offset, va, size };
        self.status(message::MAP_MEMORY, map.as_bytes())
    }

    /// UNMAP_MEMORY, until the engines have let go.
    pub(crate) fn unmap(&self, va: u64, size: u64) -> Status {
        let (status, payload) = self.message(message::UNMAP_MEMORY, UnmapMemory { va, size }.as_bytes());
        if status == Status::Ok {
            let fence = Paging::read_from_bytes(&payload).unwrap().fence;
            let word = self.page.word(device_page::PAGING_FENCE).unwrap();
            until("the paging fence rises", || word.load(Ordering::Acquire) >= fence);
        }
        status
    }

    /// Memory mapped for CPU and GPU.
    pub(crate) fn memory(&self, va: u64, bytes: u64) -> (Blob, SharedMemory) {
        let blob = self.context.create_blob(BlobMemory::Vram, bytes).unwrap();
        let memory = self.context.map(&blob).unwrap();
        assert_eq!(self.map(blob.resource_id(), 0, va, bytes), Status::Ok);
        (blob, memory)
    }

    /// A word of the device page.
    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.page.word(offset).unwrap().load(Ordering::Acquire)
    }

    /// The device status, once it is in error.
    pub(crate) fn fault(&self) -> u64 {
        until("the device is put in error", || {
            self.word(device_page::DEVICE_STATUS) != device_page::DEVICE_ACTIVE
        });
        self.word(device_page::DEVICE_STATUS)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.word(device_page::DEVICE_STATUS) == device_page::DEVICE_ACTIVE
    }
}
