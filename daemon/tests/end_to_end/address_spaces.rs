//! Address spaces of guest processes, and the device that has one only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::driver_caps;
use campanile_test_vmm::vm::LoopbackVm;

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::until;

const PAGE: u64 = 4096;
const SECRET: u64 = 0x5ec2_e700_0000;

// conformance: one arrangement, address spaces that engines take turns in, shows each of these
#[test]
fn mcdm_34_mcdm_35_mcdm_36_mcdm_38_processes_share_an_engine_and_each_has_its_own_addresses() {
    let daemon = Daemon::steady(64);
    let vm = daemon.vm(0);
    let mut queues: Vec<_> = (0..3)
        .map(|_| {
            let (guest, context) = copy_guest(&vm);
            RawQueue::new(&guest, context)
        })
        .collect();
    let memories: Vec<_> = queues.iter().map(|queue| queue.guest.vram(PAGE)).collect();
    assert!(memories.iter().all(|memory| memory.va == memories[0].va), "the same address in each");
    for queue in &queues {
        queue.connect().unwrap();
    }
    for round in 0..100u32 {
        for (index, queue) in (0u32..).zip(&mut queues) {
            queue.submit(&fill(memories[0].va, PAGE, round * 10 + index));
        }
        for (index, (queue, memory)) in (0u64..).zip(queues.iter().zip(&memories)) {
            queue.wait(queue.value);
            let one = u64::from(round) * 10 + index;
            assert_eq!(memory.word(0).load(Ordering::Acquire), one << 32 | one);
        }
    }
    // What an engine knows of an address space is one number.
    let mut roots = EngineView::of(&daemon).roots();
    roots.sort_unstable();
    roots.dedup();
    assert_eq!(roots.len(), 3);
}

type Packets = fn(u64, u64) -> CommandBuffer;
/// From an address that a process had, one that it has, and that of a page table.
type Address = fn(u64, u64, u64) -> u64;

/// What packets do to a foreign address, given one of the process's own.
const WAYS: [(&str, Packets); 5] = [
    ("copied from", |foreign, own| copy(foreign, own, PAGE)),
    ("copied to", |foreign, own| copy(own, foreign, PAGE)),
    ("filled", |foreign, _| fill(foreign, PAGE, 0x0bad_0bad)),
    ("signalled", |foreign, _| {
        let mut commands = CommandBuffer::new();
        commands.signal(foreign, 1).unwrap();
        commands
    }),
    ("waited for", |foreign, _| wait_for(foreign, 1)),
];

/// A process with a connected ring.
fn process(vm: &Arc<LoopbackVm>) -> RawQueue {
    let (guest, context) = copy_guest(vm);
    let queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    queue
}

/// Runs packets in a ring; the status of the device after them.
fn outcome(queue: &mut RawQueue, commands: &CommandBuffer) -> u64 {
    queue.submit(commands);
    let status = || queue.guest.device_status();
    until("an end, good or bad", || queue.fence() == queue.value || status() != DEVICE_ACTIVE);
    status()
}

#[test]
fn mcdm_44_mcdm_54_no_address_leads_out_of_the_address_space_of_its_process() {
    let daemon = Daemon::steady(64);
    let vm = daemon.vm(0);
    let (victim, _context) = copy_guest(&vm);
    let secret = victim.vram(PAGE);
    let intact = || (0..PAGE).step_by(8).all(|at| secret.word(at).load(Ordering::Acquire) == SECRET + at);
    (0..PAGE).step_by(8).for_each(|at| secret.word(at).store(SECRET + at, Ordering::Release));
    let table = EngineView::of(&daemon).roots()[0] * PAGE;
    let addresses: [(&str, Address); 6] = [
        ("nowhere", |_, _, _| 0),
        ("at a page table, if it were physical", |_, _, table| table),
        ("where the victim has its secret, and the process had memory", |had, _, _| had),
        ("at the end of what it has, and beyond", |_, has, _| has + PAGE - 8),
        ("behind it", |_, has, _| has + PAGE),
        ("at the end of all addresses", |_, _, _| (1 << 47) - PAGE),
    ];
    for (where_it_is, address) in addresses {
        for (way, packets) in WAYS {
            let (guest, context) = copy_guest(&vm);
            let had = guest.vram(PAGE);
            assert_eq!(had.va, secret.va, "each process has its first memory there");
            let mut thief = RawQueue::new(&guest, context);
            thief.connect().unwrap();
            // Its last memory, so that nothing of its own lies behind it.
            let (loot, own) = (guest.vram(PAGE), guest.vram(PAGE));
            // The engine has it resolved when it goes.
            thief.run(&copy(had.va, loot.va, PAGE));
            guest.unmap(&had);
            own.word(PAGE - 8).store(1, Ordering::Release);
            let foreign = address(had.va, own.va, table);
            let is_word = matches!(way, "signalled" | "waited for");
            let status = outcome(&mut thief, &packets(foreign, loot.va));
            let is_own = is_word && where_it_is.starts_with("at the end of what");
            let expected = if is_own { DEVICE_ACTIVE } else { DEVICE_PAGE_FAULT };
            assert_eq!(status, expected, "an address {where_it_is}: {way}");
            let came = (0..PAGE).step_by(8).any(|at| loot.word(at).load(Ordering::Acquire) > 1);
            assert!(!came, "an address {where_it_is}: {way}, and data came");
            assert!(intact(), "an address {where_it_is}: {way}");
        }
        // As packets to run, by the kernel-mode path.
        let (thief, context) = copy_guest(&vm);
        let own = thief.vram(PAGE);
        let queue = thief.queue(context, 0).unwrap().queue;
        let foreign =
            if where_it_is.contains("had memory") { own.va + 16 * PAGE } else { address(0, own.va, table) };
        let submit = Submit { queue, buffer_va: foreign, length: 64, flags: 0 };
        thief.call(message::SUBMIT, &submit).unwrap();
        assert_eq!(thief.device_status(), DEVICE_PAGE_FAULT, "packets {where_it_is}");
    }
    assert_eq!((victim.device_status(), intact()), (DEVICE_ACTIVE, true));
}

#[test]
fn mcdm_54_a_process_maps_what_it_has_attached_and_stores_where_it_may() {
    let daemon = Daemon::steady(64);
    let vm = daemon.vm(0);
    let (victim, _context) = copy_guest(&vm);
    let secret = victim.vram(PAGE);
    secret.word(0).store(SECRET, Ordering::Release);
    // There is no way to name memory but by what the process has attached.
    let mut queue = process(&vm);
    let thief = Arc::clone(&queue.guest);
    let own = thief.unmapped_memory(BlobMemory::Vram, PAGE);
    for resource in [secret.resource(), 0, u32::MAX] {
        let map = message::MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va: own.va, size: PAGE };
        assert_eq!(thief.call(message::MAP_MEMORY, &map), Err(Status::InvalidResource));
    }
    // More of its own than there is.
    let map =
        |offset, size| message::MapMemory { resource: own.resource(), flags: 0, offset, va: own.va, size };
    for (offset, size) in [(0, 2 * PAGE), (PAGE, PAGE), (u64::MAX - PAGE + 1, PAGE), (0, 1 << 63)] {
        assert!(thief.call(message::MAP_MEMORY, &map(offset, size)).is_err(), "{offset:#x}, {size:#x}");
    }
    own.word(0).store(SECRET, Ordering::Release);
    thief.map(&own, 0).unwrap();
    let out = thief.vram(PAGE);
    assert_eq!(outcome(&mut queue, &copy(own.va, out.va, PAGE)), DEVICE_ACTIVE);
    assert_eq!(out.word(0).load(Ordering::Acquire), SECRET, "it may read");
    assert_eq!(outcome(&mut queue, &fill(own.va, PAGE, 1)), DEVICE_PAGE_FAULT, "and not write");
    assert_eq!(own.word(0).load(Ordering::Acquire), SECRET);
    assert_eq!((victim.device_status(), secret.word(0).load(Ordering::Acquire)), (DEVICE_ACTIVE, SECRET));
}

fn is_busy(refused: Result<Device, DriverError>) -> bool {
    matches!(refused, Err(DriverError::Refused { status: Status::Busy, .. }))
}

#[test]
fn mcdm_41_mcdm_42_mcdm_43_a_single_use_device_serves_one_process_at_a_time() {
    let daemon = Daemon::with_specs(&["vram=64M,single-use"], &[]);
    let vm = daemon.vm(0);
    let first = Device::open(vm.open("first").unwrap()).unwrap();
    let spaces = driver_caps::DRIVER_GPU_MMU | driver_caps::DRIVER_IOMMU;
    assert_eq!(first.capset().driver.flags & spaces, 0, "what it is known by");
    for _ in 0..3 {
        assert!(is_busy(Device::open(vm.open("second").unwrap())), "it fails, and does not wait");
    }
    first.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    drop(first);
    let second = Device::open(vm.open("second").unwrap()).unwrap();
    assert!(is_busy(Device::open(vm.open("first").unwrap())));
    // A process that dies leaves, too.
    let transport = vm.open("third").unwrap();
    drop(second);
    let third = RawGuest::open(&vm);
    assert!(is_busy(Device::open(transport)));
    drop(third);
    Device::open(vm.open("fourth").unwrap()).unwrap();
}
