//! Address spaces of guest processes, and the device that has one only.

use std::sync::atomic::Ordering;

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

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::support::Daemon;

const PAGE: u64 = 4096;

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

#[test]
fn mcdm_44_mcdm_54_addresses_are_virtual_and_lead_to_nobody_elses_memory() {
    let daemon = Daemon::steady(64);
    let vm = daemon.vm(0);
    let (victim, _context) = copy_guest(&vm);
    let secret = victim.vram(PAGE);
    secret.word(0).store(0x5ec2e7, Ordering::Release);
    // Addresses that would be physical, and one that is the victim's.
    let page_of_table = EngineView::of(&daemon).roots()[0] * PAGE;
    for address in [0, PAGE, page_of_table, 32 << 20, secret.va + (64 << 20), 1 << 62] {
        let (thief, context) = copy_guest(&vm);
        let loot = thief.vram(PAGE);
        assert_ne!(loot.va, address);
        let queue = thief.queue(context, 0).unwrap().queue;
        let submit = Submit { queue, buffer_va: address, length: 64, flags: 0 };
        thief.call(message::SUBMIT, &submit).unwrap();
        assert_eq!(thief.device_status(), DEVICE_PAGE_FAULT, "a buffer at {address:#x}");
        let (thief, context) = copy_guest(&vm);
        let loot = thief.vram(PAGE);
        let mut queue = RawQueue::new(&thief, context);
        queue.connect().unwrap();
        queue.submit(&copy(address, loot.va, PAGE));
        crate::support::until("the fault", || thief.device_status() == DEVICE_PAGE_FAULT);
        assert_eq!(loot.word(0).load(Ordering::Acquire), 0, "and no data came");
    }
    // There is no way to name memory but by what the process has attached.
    let (thief, _context) = copy_guest(&vm);
    let own = thief.unmapped_memory(BlobMemory::Vram, PAGE);
    let map = message::MapMemory {
        resource: secret.resource(),
        flags: MAP_WRITABLE,
        offset: 0,
        va: own.va,
        size: PAGE,
    };
    assert_eq!(thief.call(message::MAP_MEMORY, &map), Err(Status::InvalidResource));
    assert_eq!(victim.device_status(), DEVICE_ACTIVE);
    assert_eq!(secret.word(0).load(Ordering::Acquire), 0x5ec2e7);
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
