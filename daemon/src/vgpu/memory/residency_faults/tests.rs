use std::sync::Arc;
use std::time::Instant;

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PAGE_SIZE as PAGE;

use super::Demand;
use super::Residency;
use super::Served;
use super::Waiter;
use super::Want;
use crate::ids::GuestProcess;
use crate::vgpu::memory::vidmm::allocations::Allocations;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Origin;

const ONE: AllocationId = AllocationId(1);
const OTHER: AllocationId = AllocationId(2);

/// A queue of address space 1, at a place of a buffer.
const fn demand(queue: u64, token: u64) -> Demand {
    Demand { name: (1, queue), token }
}

fn waiter(context: GuestProcess, allocations: &[AllocationId]) -> Waiter {
    let charge = Arc::new(Budget::default()).vm().charge(Kind::Paging, 1).unwrap();
    let origin = Origin { context, slot: 0, sequence: 1, ring: 1, item: None };
    Waiter { origin, root: Root(1), allocations: allocations.to_vec(), charge }
}

fn wanted(residency: &Residency) -> Vec<(u64, Option<(u64, u64)>)> {
    let of = |want: &Want| (want.allocation.0, want.demand.map(|by| (by.name.1, by.token)));
    residency.wants.iter().map(of).collect()
}

fn favoured(residency: &Residency) -> Option<(u64, u64)> {
    residency.favoured.map(|by| (by.name.1, by.token))
}

/// Brought back for a queue.
fn serve(residency: &mut Residency, by: Demand, allocations: &[AllocationId]) {
    residency.served.insert(by.name, Served { token: by.token, allocations: allocations.to_vec() });
}

#[test]
fn something_is_wanted_once_and_for_the_first_queue_that_came_to_it() {
    let mut residency = Residency::default();
    residency.want(ONE, None);
    assert!(std::mem::take(&mut residency.is_due));
    residency.want(ONE, Some(demand(3, 7)));
    residency.want(ONE, Some(demand(4, 8)));
    residency.want(OTHER, Some(demand(4, 8)));
    assert_eq!(wanted(&residency), [(1, Some((3, 7))), (2, Some((4, 8)))]);
    assert!(std::mem::take(&mut residency.is_due));
    residency.look_again();
    assert!(residency.is_due);
}

#[test]
fn messages_that_wait_are_those_of_their_device_and_want_all_that_they_name() {
    let mut residency = Residency::default();
    residency.add_waiter(waiter(GuestProcess::new(7), &[ONE, OTHER]));
    assert!(std::mem::take(&mut residency.is_due));
    residency.add_waiter(waiter(GuestProcess::new(9), &[]));
    assert!(residency.is_due, "one that names nothing is to be answered");
    residency.add_waiter(waiter(GuestProcess::new(7), &[ONE]));
    assert_eq!(wanted(&residency), [(1, None), (2, None)]);
    assert_eq!([7, 9, 8].map(|context| residency.waiter_count(GuestProcess::new(context))), [2, 1, 0]);
    let taken = residency.take_waiters(GuestProcess::new(7));
    assert_eq!(taken.iter().map(|waiter| waiter.allocations.len()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!([7, 9].map(|context| residency.waiter_count(GuestProcess::new(context))), [0, 1]);
}

#[test]
fn an_address_space_that_ends_leaves_what_was_brought_back_for_others() {
    let mut residency = Residency::default();
    serve(&mut residency, demand(3, 7), &[ONE]);
    serve(&mut residency, Demand { name: (2, 3), token: 7 }, &[ONE]);
    residency.forget_space(Root(1));
    assert_eq!(residency.served.keys().copied().collect::<Vec<_>>(), [(2, 3)]);
}

#[test]
fn what_was_brought_back_settles_until_its_queue_has_got_on() {
    let mut residency = Residency::default();
    residency.recent.push((ONE, demand(3, 7), Instant::now()));
    let settling = |id, by| residency.is_settling(id, by);
    assert!(settling(ONE, None) && settling(ONE, Some(demand(4, 7))), "for others it stays");
    assert!(settling(ONE, Some(demand(3, 7))), "it is where it was");
    assert!(!settling(ONE, Some(demand(3, 8))), "it has got on");
    assert!(settling(ONE, Some(demand(4, 8))), "another queue with another place has not");
    assert!(!settling(OTHER, None) && !settling(OTHER, Some(demand(3, 7))));
}

#[test]
fn what_serves_a_queue_does_so_at_the_place_that_it_was_brought_back_for() {
    let mut residency = Residency::default();
    serve(&mut residency, demand(3, 7), &[ONE]);
    assert!(residency.serves(ONE, Some(demand(3, 7))));
    for (id, by) in [(ONE, None), (OTHER, Some(demand(3, 7))), (ONE, Some(demand(3, 8)))] {
        assert!(!residency.serves(id, by), "{id:?} {by:?}");
    }
    assert!(!residency.serves(ONE, Some(demand(4, 7))));
}

#[test]
fn one_queue_is_favoured_until_it_wants_no_more_and_then_another_one() {
    let mut residency = Residency::default();
    assert!(residency.is_favoured(None) && residency.is_favoured(Some(demand(3, 7))), "as long as none is");
    residency.favour();
    assert_eq!(favoured(&residency), None, "none wants anything");
    residency.want(AllocationId(9), None);
    residency.want(ONE, Some(demand(3, 7)));
    residency.want(OTHER, Some(demand(4, 7)));
    residency.favour();
    assert_eq!(favoured(&residency), Some((3, 7)));
    assert!(residency.is_favoured(Some(demand(3, 8))) && !residency.is_favoured(Some(demand(4, 7))));
    assert!(!residency.is_favoured(None), "a message waits behind it");
    // It has got what it wanted, and not got on.
    residency.wants.retain(|want| want.allocation != ONE);
    residency.recent.push((ONE, demand(3, 7), Instant::now()));
    residency.favour();
    assert_eq!(favoured(&residency), Some((3, 7)));
    // It has got on, and wants more there: another queue's turn, and then its own.
    residency.recent.clear();
    residency.want(ONE, Some(demand(3, 8)));
    residency.favour();
    assert_eq!((favoured(&residency), residency.was_favoured), (Some((4, 7)), Some((1, 3))));
    residency.wants.retain(|want| want.allocation != OTHER);
    residency.favour();
    assert_eq!((favoured(&residency), residency.was_favoured), (Some((3, 8)), Some((1, 4))));
    // Alone, it is favoured again and again.
    residency.wants.clear();
    residency.want(ONE, Some(demand(3, 9)));
    residency.favour();
    assert_eq!((favoured(&residency), residency.was_favoured), (Some((3, 9)), Some((1, 3))));
    // What only looks alike keeps no favour: another queue at the same place, the same queue elsewhere.
    residency.wants.clear();
    residency.want(ONE, Some(demand(5, 9)));
    residency.recent.push((OTHER, demand(3, 1), Instant::now()));
    residency.favour();
    assert_eq!(favoured(&residency), Some((5, 9)));
    residency.wants.clear();
    residency.favour();
    assert_eq!(favoured(&residency), None, "none wants anything any more");
}

#[test]
fn a_queue_needs_at_its_place_what_was_brought_back_there_and_what_it_wants_now() {
    let quota = Quota { min: 0, max: 64 * PAGE };
    let account = Arc::new(Account::new(quota, Pool::new(None, []).unwrap()));
    let memory = VideoMemory::new(64 * PAGE, 64 * PAGE, Method::Off).unwrap();
    let mut allocations = Allocations::new(memory, account);
    let ids = [1, 2, 4, 8].map(|pages| allocations.create_vram(pages * PAGE).unwrap());
    allocations.get_mut(ids[3]).unwrap().is_area = true;
    let mut residency = Residency::default();
    serve(&mut residency, demand(3, 7), &ids);
    let needed = |by| residency.needed_with(&allocations, &Want { allocation: ids[0], demand: by }) / PAGE;
    assert_eq!(needed(Some(demand(3, 7))), 1 + 2 + 4, "itself once, and save areas lie elsewhere");
    assert_eq!([needed(None), needed(Some(demand(3, 8))), needed(Some(demand(4, 7)))], [1; 3]);
}
