//! Memory that is taken out of an address space, and the engines that may still be at work in it.

use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::device_page::PAGING_FENCE;

use crate::processes::engine;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::until;

const PAGE: u64 = 4096;
/// More than a third of the video memory of a vGPU: it has two of these, and no third.
const BIG: u64 = 24 << 20;
/// Where the GPU sees one of them.
const VA: u64 = 1 << 32;

#[test]
fn mcdm_44_mcdm_54_what_is_unmapped_is_nobody_elses_until_each_engine_has_let_go_of_it() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let target = guest.vram(PAGE);
    let blob = guest.transport().create_blob(BlobMemory::Vram, BIG).unwrap();
    let map = MapMemory { resource: blob.resource_id(), flags: MAP_WRITABLE, offset: 0, va: VA, size: BIG };
    guest.ask::<Paging>(message::MAP_MEMORY, &map).unwrap();
    // The engine has found its way there.
    queue.run(&copy(VA, target.va, PAGE));
    let (other, _) = copy_guest(&vm);
    let _more = other.transport().create_blob(BlobMemory::Vram, BIG).unwrap();
    assert!(!other.can_have(BIG));

    // It may be in the middle of a copy, for all that the daemon sees.
    let stopped = Stopped::new(engine(&daemon));
    let paging: Paging = guest.ask(message::UNMAP_MEMORY, &UnmapMemory { va: VA, size: BIG }).unwrap();
    guest.transport().destroy_blob(blob).unwrap();
    for _ in 0..3 {
        // All that was to be done at once is done.
        guest.round_trip();
        other.round_trip();
        assert!(guest.load(PAGING_FENCE) < paging.fence, "an engine has not let go");
        assert!(!other.can_have(BIG), "given to another while an engine may write there");
    }

    drop(stopped);
    until("the paging fence", || guest.load(PAGING_FENCE) >= paging.fence);
    until("the memory", || other.can_have(BIG));
    assert_eq!((guest.device_status(), other.device_status()), (DEVICE_ACTIVE, DEVICE_ACTIVE));
    // What it had found before leads nowhere any more.
    target.word(0).store(1, Ordering::Release);
    queue.submit(&copy(VA, target.va, PAGE));
    until("a page fault", || guest.device_status() == DEVICE_PAGE_FAULT);
    assert_eq!(target.word(0).load(Ordering::Acquire), 1);
}
