//! A guest process that builds its control messages by hand, and so can say what the driver never would.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_guest_driver::transport::submission::Submission;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use campanile_test_vmm::context::LoopbackContext;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::support::NEVER;
use crate::support::until;

/// The body of CREATE_KERNEL for this text.
pub(crate) fn new_kernel(text: &str) -> Vec<u8> {
    let source_bytes = u32::try_from(text.len()).unwrap();
    let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes, reserved: 0 };
    [head.as_bytes(), text.as_bytes()].concat()
}

const PAGE_VA: u64 = 0x10_0000;
const FIRST_VA: u64 = 0x100_0000;

/// A guest process with a device.
#[derive(Debug)]
pub(crate) struct RawGuest<T = LoopbackContext> {
    transport: T,
    page: SharedMemory,
    page_resource: u32,
    sequence: AtomicU64,
    next_va: AtomicU64,
    /// Who uses response slot 0.
    calling: Mutex<()>,
}

/// Memory that CPU and GPU see.
#[derive(Debug)]
pub(crate) struct RawMemory {
    blob: Blob,
    pub(crate) memory: SharedMemory,
    pub(crate) va: u64,
}

impl RawMemory {
    pub(crate) fn resource(&self) -> u32 {
        self.blob.resource_id()
    }

    pub(crate) fn size(&self) -> u64 {
        self.blob.size()
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        self.memory.word(offset).unwrap()
    }
}

/// A message under way.
#[derive(Debug)]
pub(crate) struct RawCall<T = LoopbackContext> {
    guest: Arc<RawGuest<T>>,
    slot: u32,
    sequence: u64,
    submission: Submission,
}

impl<T: Transport> RawCall<T> {
    pub(crate) fn is_done(&self) -> bool {
        self.submission.is_done()
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>, Status> {
        self.submission.wait(Some(NEVER)).unwrap();
        self.guest.answer(self.slot, self.sequence)
    }
}

/// Sends one frame.
pub(crate) fn submit_frame(
    transport: &impl Transport,
    slot: u32,
    sequence: u64,
    opcode: u32,
    body: &[u8],
) -> Submission {
    let size = (size_of::<FrameHeader>() + body.len()).next_multiple_of(8);
    let header = FrameHeader { magic: MAGIC, size: u32::try_from(size).unwrap(), opcode, slot, sequence };
    let mut frame = header.as_bytes().to_vec();
    frame.extend_from_slice(body);
    frame.resize(size, 0);
    transport.submit(&frame, Some(u8::try_from(slot + 1).unwrap())).unwrap()
}

impl RawGuest {
    /// A process with its device page in video memory.
    pub(crate) fn open(vm: &Arc<LoopbackVm>) -> Arc<Self> {
        Self::open_in(vm, BlobMemory::Vram)
    }

    /// A process with its device page there.
    pub(crate) fn open_in(vm: &Arc<LoopbackVm>, memory: BlobMemory) -> Arc<Self> {
        Self::over(vm.open("raw").unwrap(), memory)
    }
}

impl<T: Transport> RawGuest<T> {
    /// A process that reaches the device that way, with its device page there.
    pub(crate) fn over(transport: T, memory: BlobMemory) -> Arc<Self> {
        let blob = transport.create_blob(memory, DEVICE_PAGE_BYTES).unwrap();
        let page = transport.map(&blob).unwrap();
        let guest = Self {
            transport,
            page,
            page_resource: blob.resource_id(),
            sequence: AtomicU64::new(1),
            next_va: AtomicU64::new(FIRST_VA),
            calling: Mutex::default(),
        };
        assert_eq!(guest.create_device(), Ok(Vec::new()));
        Arc::new(guest)
    }

    /// CREATE_DEVICE over the page of this process.
    pub(crate) fn create_device(&self) -> Result<Vec<u8>, Status> {
        self.call(message::CREATE_DEVICE, &self.device_over(self.page_resource))
    }

    /// The body of CREATE_DEVICE over another resource.
    pub(crate) fn device_over(&self, page_resource: u32) -> CreateDevice {
        CreateDevice { protocol_version: PROTOCOL_VERSION, page_resource, page_offset: 0, page_va: PAGE_VA }
    }

    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    pub(crate) fn page_resource(&self) -> u32 {
        self.page_resource
    }

    /// A kernel in WGSL.
    pub(crate) fn kernel(&self, text: &str) -> Handle {
        let answer = self.call(message::CREATE_KERNEL, &*new_kernel(text)).unwrap();
        KernelCreated::read_from_bytes(&answer).unwrap().kernel
    }

    /// A word of the device page.
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        self.page.word(offset).unwrap()
    }

    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    pub(crate) fn device_status(&self) -> u64 {
        self.load(device_page::DEVICE_STATUS)
    }

    /// Puts a frame on its way; the outcome comes on the timeline of its response slot.
    fn submit(&self, slot: u32, opcode: u32, body: &[u8]) -> (Submission, u64) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        (submit_frame(&self.transport, slot, sequence, opcode, body), sequence)
    }

    fn answer(&self, slot: u32, sequence: u64) -> Result<Vec<u8>, Status> {
        let at = device_page::response(slot);
        assert_eq!(self.load(at), sequence, "slot {slot} has another answer");
        let mut head = [0; size_of::<ResponseHeader>()];
        self.page.read(at, &mut head).unwrap();
        let header = ResponseHeader::read_from_bytes(&head).unwrap();
        let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
        self.page.read(at + head.len() as u64, &mut payload).unwrap();
        match Status::from_word(header.status).unwrap() {
            Status::Ok => Ok(payload),
            status => Err(status),
        }
    }

    /// Sends a message, and waits for its answer and its work.
    pub(crate) fn call(
        &self,
        opcode: u32,
        body: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<Vec<u8>, Status> {
        let _slot = self.calling.lock().unwrap_or_else(PoisonError::into_inner);
        let (submission, sequence) = self.submit(0, opcode, body.as_bytes());
        submission.wait(Some(NEVER)).unwrap();
        self.answer(0, sequence)
    }

    /// Sends a message in a slot of its own, from 1 on.
    pub(crate) fn send(
        self: &Arc<Self>,
        slot: u32,
        opcode: u32,
        body: &(impl IntoBytes + Immutable + ?Sized),
    ) -> RawCall<T> {
        let (submission, sequence) = self.submit(slot, opcode, body.as_bytes());
        RawCall { guest: Arc::clone(self), slot, sequence, submission }
    }

    /// Sends a message that is answered by an `R`.
    pub(crate) fn ask<R: FromBytes + KnownLayout + Immutable>(
        &self,
        opcode: u32,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<R, Status> {
        Ok(R::read_from_bytes(&self.call(opcode, body)?).unwrap())
    }

    /// Names an object in a message without an answer.
    pub(crate) fn name(&self, opcode: u32, handle: Handle) -> Result<(), Status> {
        self.call(opcode, &Named { handle }).map(|_| ())
    }

    /// Waits in the daemon for a progress fence; slots from 1 on.
    pub(crate) fn wait_fence(self: &Arc<Self>, slot: u32, queue: Handle, value: u64) -> RawCall<T> {
        self.send(slot, message::WAIT_FENCE, &WaitFence { queue, value })
    }

    /// Memory that only the CPU sees yet.
    pub(crate) fn unmapped_memory(&self, kind: BlobMemory, bytes: u64) -> RawMemory {
        let blob = self.transport.create_blob(kind, bytes).unwrap();
        let memory = self.transport.map(&blob).unwrap();
        let va = self.next_va.fetch_add(blob.size(), Ordering::Relaxed);
        RawMemory { blob, memory, va }
    }

    /// Memory that CPU and GPU see.
    pub(crate) fn memory(&self, kind: BlobMemory, bytes: u64) -> RawMemory {
        let memory = self.unmapped_memory(kind, bytes);
        self.map(&memory, MAP_WRITABLE).unwrap();
        memory
    }

    /// Video memory.
    pub(crate) fn vram(&self, bytes: u64) -> RawMemory {
        self.memory(BlobMemory::Vram, bytes)
    }

    /// Shows memory to the GPU.
    pub(crate) fn map(&self, memory: &RawMemory, flags: u32) -> Result<(), Status> {
        let (resource, va, size) = (memory.resource(), memory.va, memory.size());
        let paging: Paging =
            self.ask(message::MAP_MEMORY, &MapMemory { resource, flags, offset: 0, va, size })?;
        self.wait_paging(paging);
        Ok(())
    }

    /// Hides memory from the GPU, and waits until no engine sees it any more.
    pub(crate) fn unmap(&self, memory: &RawMemory) {
        let unmap = UnmapMemory { va: memory.va, size: memory.size() };
        let paging = self.ask(message::UNMAP_MEMORY, &unmap).unwrap();
        self.wait_paging(paging);
    }

    fn wait_paging(&self, paging: Paging) {
        until("the paging fence", || self.load(device_page::PAGING_FENCE) >= paging.fence);
    }

    /// Gives the guest's own name for memory up.
    pub(crate) fn free(&self, memory: RawMemory) {
        self.transport.destroy_blob(memory.blob).unwrap();
    }

    /// Whether `bytes` of video memory can be had now; they are given back at once.
    pub(crate) fn can_have(&self, bytes: u64) -> bool {
        match self.transport.create_blob(BlobMemory::Vram, bytes) {
            Ok(blob) => {
                self.transport.destroy_blob(blob).unwrap();
                true
            }
            Err(TransportError::Refused { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn context(&self, node: Node) -> Handle {
        let create = CreateContext { node: node.ordinal(), engine_affinity: 1, flags: 0, reserved: 0 };
        self.ask::<Created>(message::CREATE_CONTEXT, &create).unwrap().handle
    }

    pub(crate) fn queue(&self, context: Handle, flags: u32) -> Result<QueueCreated, Status> {
        self.ask(message::CREATE_QUEUE, &CreateQueue { context, flags, reserved: 0 })
    }

    /// Puts the device in error: a buffer at an address where nothing is.
    pub(crate) fn lose(&self, context: Handle) {
        let queue = self.queue(context, 0).unwrap().queue;
        let submit = Submit { queue, buffer_va: 1 << 40, length: 8, flags: 0 };
        self.call(message::SUBMIT, &submit).unwrap();
        assert_eq!(self.device_status(), device_page::DEVICE_PAGE_FAULT);
    }

    /// After this, whatever was sent before has been handled.
    pub(crate) fn round_trip(&self) {
        self.call(message::QUERY_CAPS, &()).unwrap();
    }
}
