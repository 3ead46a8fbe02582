//! Guest RAM that engines were told of and do not have yet: nothing of a guest's needs to wait for that, and nothing of it
//! comes to harm.
//!
//! Linux does not wait for the answer to RESOURCE_CREATE_BLOB before it goes on with a blob. What engines have to map of
//! these here takes them much longer than all that follows.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MEM_GUEST;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use campanile_test_vmm::raw::RawChain;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::raw::RawRam;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::raw::RawGuest;
use crate::raw::RawMemory;
use crate::support::Daemon;
use crate::support::NEVER;

/// Pieces of a blob, each of which an engine maps by itself.
const PIECES: u32 = 12 * 1024;
/// Where blobs are shown to the GPU.
const BLOB_VA: u64 = 0x40_0000_0000;
/// Numbers that the loopback VM does not give out by itself.
const FIRST_NUMBER: u32 = 0x1000_0000;

const DESCRIPTOR_NEXT: u16 = 1;
const DESCRIPTOR_WRITE: u16 = 2;

/// A guest that waits for as little as Linux does.
struct Hasty {
    vm: Arc<LoopbackVm>,
    guest: Arc<RawGuest>,
    context: u32,
    queue: Handle,
    /// What buffers write to.
    marks: RawMemory,
    number: AtomicU32,
    /// Commands, and the two pages that all blobs consist of, with a page between them.
    ram: RawRam,
}

impl Hasty {
    fn new(daemon: &Daemon) -> Self {
        let vm = daemon.vm(0);
        let guest = RawGuest::open(&vm);
        let queue = guest.queue(guest.context(Node::Copy), 0).unwrap().queue;
        let marks = guest.vram(PAGE_SIZE);
        let ram = vm.raw().ram((3 + 64) * PAGE_SIZE).unwrap();
        let (context, number) = (guest.transport().id(), AtomicU32::new(FIRST_NUMBER));
        Self { vm, guest, context, queue, marks, number, ram }
    }

    /// Sends RESOURCE_CREATE_BLOB for pages that alternate, so that each is a piece of its own.
    fn create(&self) -> (u32, RawChain) {
        let resource_id = self.number.fetch_add(1, Ordering::Relaxed);
        let head = CreateBlob {
            resource_id,
            memory: MEM_GUEST,
            flags: 0,
            entry_count: PIECES,
            blob_id: 0,
            size: u64::from(PIECES) * PAGE_SIZE,
        };
        let header = Header { kind: command::RESOURCE_CREATE_BLOB, ..Header::default() };
        let entries: Vec<MemEntry> = (0..PIECES)
            .map(|piece| MemEntry {
                address: self.ram.address() + u64::from(piece % 2) * 2 * PAGE_SIZE,
                length: u32::try_from(PAGE_SIZE).unwrap(),
                padding: 0,
            })
            .collect();
        let bytes = [header.as_bytes(), head.as_bytes(), entries.as_bytes()].concat();
        let at = 3 * PAGE_SIZE;
        self.ram.memory().write(at, &bytes).unwrap();
        let length = u32::try_from(bytes.len()).unwrap();
        let answer = at + u64::from(length).next_multiple_of(8);
        let chain = [
            RawDescriptor { address: self.ram.address() + at, length, flags: DESCRIPTOR_NEXT, next: 1 },
            RawDescriptor {
                address: self.ram.address() + answer,
                length: u32::try_from(size_of::<Header>()).unwrap(),
                flags: DESCRIPTOR_WRITE,
                next: 0,
            },
        ];
        (resource_id, self.vm.raw().chain(0, &chain).unwrap())
    }

    fn name(&self, kind: u32, context_id: u32, resource_id: u32) {
        let header = Header { kind, context_id, ..Header::default() };
        let bytes = [header.as_bytes(), ResourceName { resource_id, padding: 0 }.as_bytes()].concat();
        let answer = self.vm.raw().command(&bytes, 1024).unwrap();
        assert_eq!(Header::read_from_prefix(&answer).unwrap().0.kind, OK_NODATA);
    }

    /// Maps a blob, runs a kernel-mode buffer that lies in it, and unmaps it.
    fn use_blob(&self, resource: u32, mark: u32) {
        self.name(command::CTX_ATTACH_RESOURCE, self.context, resource);
        let mut commands = CommandBuffer::new();
        commands.fill(self.marks.va, 8, mark).unwrap();
        self.ram.memory().write(0, commands.bytes()).unwrap();
        let size = u64::from(PIECES) * PAGE_SIZE;
        let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va: BLOB_VA, size };
        self.guest.ask::<Paging>(message::MAP_MEMORY, &map).unwrap();
        let length = u32::try_from(commands.bytes().len()).unwrap();
        let submit = Submit { queue: self.queue, buffer_va: BLOB_VA, length, flags: 0 };
        self.guest.call(message::SUBMIT, &submit).unwrap();
        assert_eq!(self.guest.device_status(), device_page::DEVICE_ACTIVE);
        let word = self.marks.word(0).load(Ordering::Acquire);
        assert_eq!(word, u64::from(mark) << 32 | u64::from(mark));
        let unmap = UnmapMemory { va: BLOB_VA, size };
        self.guest.ask::<Paging>(message::UNMAP_MEMORY, &unmap).unwrap();
    }
}

#[test]
fn work_in_a_blob_that_engines_do_not_have_yet_waits_for_them() {
    let daemon = Daemon::steady(7);
    let hasty = Hasty::new(&daemon);
    for mark in 1..=4 {
        let (blob, created) = hasty.create();
        hasty.use_blob(blob, mark);
        created.wait(Some(NEVER)).unwrap();
        hasty.name(command::RESOURCE_UNREF, 0, blob);
    }
}

#[test]
fn a_blob_is_not_taken_for_created_by_the_late_answer_to_one_that_is_gone() {
    let daemon = Daemon::steady(7);
    let hasty = Hasty::new(&daemon);
    for mark in 1..=4 {
        let (gone, first) = hasty.create();
        hasty.name(command::RESOURCE_UNREF, 0, gone);
        // It could have the number of the other with engines.
        let (blob, created) = hasty.create();
        created.wait(Some(NEVER)).unwrap();
        hasty.use_blob(blob, mark);
        first.wait(Some(NEVER)).unwrap();
        hasty.name(command::RESOURCE_UNREF, 0, blob);
    }
}
