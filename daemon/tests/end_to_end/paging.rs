//! Paging operations, in order with the work around them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::PAGING_FENCE;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use crate::operator::Operated;
use crate::processes::kill_engine_at_rest;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::raw::RawMemory;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::until;

const PAGE: u64 = 4096;

/// A process with an ordinary queue and packets for it.
struct Submitter {
    guest: Arc<RawGuest>,
    queue: Handle,
    arena: RawMemory,
    used: u64,
}

impl Submitter {
    fn new(guest: &Arc<RawGuest>, context: Handle) -> Self {
        let queue = guest.queue(context, 0).unwrap().queue;
        Self { guest: Arc::clone(guest), queue, arena: guest.vram(64 << 10), used: 0 }
    }

    /// Submits packets; done when its timeline has come to it.
    fn submit(&mut self, slot: u32, packets: &[u8]) -> RawCall {
        self.arena.memory.write(self.used, packets).unwrap();
        let (buffer_va, length) = (self.arena.va + self.used, packets.len().try_into().unwrap());
        self.used += (packets.len() as u64).next_multiple_of(8);
        let submit = Submit { queue: self.queue, buffer_va, length, flags: 0 };
        self.guest.send(slot, message::SUBMIT, &submit)
    }
}

fn unmap(guest: &RawGuest, va: u64, size: u64) -> u64 {
    guest.ask::<Paging>(message::UNMAP_MEMORY, &UnmapMemory { va, size }).unwrap().fence
}

fn map_at(guest: &RawGuest, memory: &RawMemory, va: u64) -> u64 {
    let map =
        MapMemory { resource: memory.resource(), flags: MAP_WRITABLE, offset: 0, va, size: memory.size() };
    guest.ask::<Paging>(message::MAP_MEMORY, &map).unwrap().fence
}

fn first(memory: &RawMemory) -> u64 {
    memory.word(0).load(Ordering::Acquire)
}

/// Two buffers that read one address, before and after what it leads to is changed; the first waits at `gate`.
struct Between {
    submitter: Submitter,
    gate: RawMemory,
    outs: [RawMemory; 2],
    calls: Vec<RawCall>,
    fences: [u64; 2],
}

impl Between {
    fn begin(guest: &Arc<RawGuest>, context: Handle) -> Self {
        let mut submitter = Submitter::new(guest, context);
        let (gate, old) = (guest.vram(PAGE), guest.vram(PAGE));
        let new = guest.unmapped_memory(BlobMemory::Vram, PAGE);
        let outs = [guest.vram(PAGE), guest.vram(PAGE)];
        old.word(0).store(1, Ordering::Release);
        new.word(0).store(2, Ordering::Release);
        let packets = |out: &RawMemory| {
            let read = copy(old.va, out.va, PAGE).bytes().to_vec();
            [wait_for(gate.va, 1).bytes(), &read, &read].concat()
        };
        let mut calls = vec![submitter.submit(1, &packets(&outs[0]))];
        let fences = [unmap(guest, old.va, PAGE), map_at(guest, &new, old.va)];
        calls.push(submitter.submit(2, &packets(&outs[1])));
        // More of the same, so that there is an order to keep.
        let last = unmap(guest, old.va, PAGE);
        assert!(fences[0] < fences[1] && fences[1] < last);
        guest.round_trip();
        assert!(guest.load(PAGING_FENCE) < fences[0], "the buffer before it is not done");
        Self { submitter, gate, outs, calls, fences: [fences[0], last] }
    }

    fn end(self) {
        let guest = Arc::clone(&self.submitter.guest);
        self.gate.word(0).store(1, Ordering::Release);
        for call in self.calls {
            call.finish().unwrap();
        }
        until("the last paging fence", || guest.load(PAGING_FENCE) >= self.fences[1]);
        assert_eq!(self.outs.each_ref().map(first), [1, 2], "each read what was mapped in its turn");
        assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    }
}

#[test]
fn mcdm_39_mcdm_40_a_change_comes_after_the_buffers_before_it_and_before_those_after_it() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    for _ in 0..3 {
        Between::begin(&guest, context).end();
    }
}

#[test]
fn tdr_58_paging_operations_keep_their_fences_and_their_order_over_a_reset() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let between = Between::begin(&guest, context);
    let pid = kill_engine_at_rest(&daemon);
    until("another engine", || crate::processes::engines(&daemon).iter().any(|engine| *engine != pid));
    assert!(guest.load(PAGING_FENCE) < between.fences[0]);
    between.end();
}

#[test]
fn mapping_a_free_address_waits_for_nobody() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut submitter = Submitter::new(&guest, context);
    let gate = guest.vram(PAGE);
    let waits = submitter.submit(1, wait_for(gate.va, 1).bytes());
    // A second queue, made while the first waits for it.
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    let mut open = campanile_guest_driver::commands::CommandBuffer::new();
    open.signal(gate.va, 1).unwrap();
    queue.run(&open);
    waits.finish().unwrap();
}

#[test]
fn work_of_another_process_does_not_wait_for_the_changes_of_one() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let between = Between::begin(&guest, context);
    let (other, other_context) = copy_guest(&vm);
    let target = other.vram(PAGE);
    Submitter::new(&other, other_context).submit(1, fill(target.va, PAGE, 3).bytes()).finish().unwrap();
    assert_eq!(first(&target), 3 << 32 | 3);
    between.end();
}

#[test]
fn a_device_that_ends_with_changes_that_wait_gives_all_its_memory_back() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    for _ in 0..3 {
        let (guest, context) = copy_guest(&vm);
        let mut submitter = Submitter::new(&guest, context);
        let gate = guest.vram(PAGE);
        let big = guest.memory(BlobMemory::Vram, 20 << 20);
        let _waits = submitter.submit(1, wait_for(gate.va, 1).bytes());
        unmap(&guest, big.va, big.size());
        guest.free(big);
    }
    let after = RawGuest::open(&vm);
    until("all memory", || after.can_have(60 << 20));
}

/// Video memory that the CPU does not see, mapped for the GPU.
pub(crate) fn hidden(guest: &RawGuest, bytes: u64, va: u64) -> u32 {
    let blob = guest.transport().create_blob(BlobMemory::Vram, bytes).unwrap();
    let resource = blob.resource_id();
    let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: bytes };
    guest.ask::<Paging>(message::MAP_MEMORY, &map).unwrap();
    resource
}

fn of_two(guest: &RawGuest, opcode: u32, argument: u32, resources: [u32; 2]) {
    let body = [List { count: 2, argument }.as_bytes(), resources.as_bytes()].concat();
    let body: [u8; 16] = body.try_into().unwrap();
    let paging: Paging = guest.ask(opcode, &body).unwrap();
    until("residency", || guest.load(PAGING_FENCE) >= paging.fence);
}

#[test]
fn ums_38_a_ring_and_its_control_are_resident_before_the_doorbell_is_made_and_may_leave_after() {
    // Rings may not lie in a device's own memory.
    let daemon = Daemon::with(&["--doorbells", "4", "--spin", "600000000", "--local-memory", "host"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (ring_va, control_va) = (1 << 32, 1 << 33);
    let ring_bytes = (u64::from(ENTRIES) * ring::RING_ENTRY_BYTES).next_multiple_of(PAGE);
    let both = [hidden(&guest, ring_bytes, ring_va), hidden(&guest, PAGE, control_va)];
    let queue = guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap();
    let visible = RawRing::new(&guest);
    let create = CreateDoorbell {
        ring_va,
        control_va,
        ring_resource: both[0],
        control_resource: both[1],
        ..visible.doorbell(queue.queue)
    };
    let make = || guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &create);
    of_two(&guest, memory::EVICT, EVICT_NOW, both);
    assert_eq!(make(), Err(Status::NotResident));
    of_two(&guest, memory::MAKE_RESIDENT, 0, both);
    let bell = make().unwrap();
    // The first entry and the write pointer are put there by copies: the CPU sees neither.
    let mut submitter = Submitter::new(&guest, context);
    let target = guest.vram(PAGE);
    let commands = fill(target.va, PAGE, 7);
    visible.arena.memory.write(0, commands.bytes()).unwrap();
    let entry = RingEntry {
        buffer_va: visible.arena.va,
        length: commands.bytes().len().try_into().unwrap(),
        flags: 0,
        fence_value: 1,
        reserved: 0,
    };
    visible.ring.memory.write(0, entry.as_bytes()).unwrap();
    visible.control.word(ring::CONTROL_WRITE_POINTER).store(1, Ordering::Release);
    for (from, to, bytes) in [(visible.ring.va, ring_va, 64), (visible.control.va, control_va, PAGE)] {
        submitter.submit(1, copy(from, to, bytes).bytes()).finish().unwrap();
    }
    // Twice is once more than they are held.
    of_two(&guest, memory::EVICT, EVICT_NOW, both);
    let before = info(&guest);
    assert!(before.evicted >= ring_bytes + PAGE);
    // The connect has the engine look at the ring, which comes back with all that it held.
    guest.name(message::CONNECT_DOORBELL, bell.doorbell).unwrap();
    until("the buffer", || guest.load(queue.fence_offset) == 1);
    assert_eq!(first(&target), 7 << 32 | 7);
    assert!(info(&guest).restores >= before.restores + 2);
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

fn info(guest: &RawGuest) -> memory::MemoryInfo {
    guest.ask(memory::QUERY_MEMORY, &()).unwrap()
}

#[test]
fn tdr_78_tdr_79_after_an_adapter_reset_video_memory_is_empty_and_nothing_is_copied() {
    let operated = Operated::with(1, &[]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (there, gone) = (1 << 32, 1 << 33);
    let both = [hidden(&guest, PAGE, there), hidden(&guest, PAGE, gone)];
    let mut submitter = Submitter::new(&guest, context);
    for va in [there, gone] {
        submitter.submit(1, fill(va, PAGE, 0x005e_c2e7).bytes()).finish().unwrap();
    }
    of_two(&guest, memory::EVICT, EVICT_NOW, both);
    of_two(&guest, memory::MAKE_RESIDENT, 0, [both[0], both[0]]);
    assert_eq!(info(&guest).evicted, PAGE);
    operated.ask(&["reset-adapter", "--vgpu", "v0"]);
    let after = info(&guest);
    assert_eq!(after.evicted, 0, "what was evicted is lost");
    guest.call(message::DESTROY_DEVICE, &()).unwrap();
    guest.create_device().unwrap();
    let context = guest.context(campanile_guest_driver::node::Node::Copy);
    let mut submitter = Submitter::new(&guest, context);
    let out = guest.vram(PAGE);
    for (resource, va) in both.into_iter().zip([there, gone]) {
        let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: PAGE };
        guest.ask::<Paging>(message::MAP_MEMORY, &map).unwrap();
        out.word(0).store(1, Ordering::Release);
        submitter.submit(1, copy(va, out.va, PAGE).bytes()).finish().unwrap();
        assert_eq!(first(&out), 0);
    }
    assert_eq!(info(&guest).restores, after.restores, "nothing was brought back");
}
