use std::sync::Arc;

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::message::RunRecord;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::memory::page_table::reader::Intent;
use campanile_host_gpu::memory::page_table::reader::Miss;
use campanile_host_gpu::memory::page_table::reader::resolve_one;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE as PAGE;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::block::MAX_QUEUES;
use campanile_protocol::engine::residency::Wanted;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::SegmentId;

use super::LetGo;
use super::Memory;
use super::Released;
use crate::ids::GuestProcess;
use crate::vgpu::journal::Journal;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::segments::GuestSegment;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::device_page::DevicePage;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::paging_queue::PagingOperation;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::timeline::Token;

const OWNER: GuestProcess = GuestProcess::new(7);
const VA: u64 = FIRST_ADDRESS + (1 << 30);

fn memory() -> Memory {
    let length = 32 * PAGE;
    let quota = Quota { min: 0, max: 2 * length };
    let account = Arc::new(Account::new(quota, Pool::new(None, []).unwrap()));
    Memory::new(VideoMemory::new(length, length, Method::Off).unwrap(), account).unwrap()
}

fn journal() -> Journal {
    Journal::new("tested", LogLimit::new("tested"))
}

fn charge() -> Charge {
    Arc::new(Budget::default()).vm().charge(Kind::Blobs, 1).unwrap()
}

/// One process with a device in an address space of its own.
fn objects(memory: &mut Memory) -> (Objects, Root) {
    let mut objects = Objects::default();
    let mut process = Process::new(Arc::new(Budget::default()).process().unwrap()).unwrap();
    let root = memory.tables.create_root().unwrap();
    let page = DevicePage { allocation: AllocationId(0), offset: 0, va: 0, guest: None };
    process.device = Some(Device::new(page, root, 0));
    objects.processes.insert(OWNER, process);
    (objects, root)
}

/// An allocation of one page of video memory, where engines reach it.
fn placed(memory: &mut Memory) -> AllocationId {
    let allocation = memory.allocations.create_vram(PAGE).unwrap();
    assert!(matches!(memory.allocations.locate(allocation, 1), Spot::Segment(..)));
    allocation
}

fn mapping(allocation: AllocationId) -> GpuMapping {
    GpuMapping { size: PAGE, allocation, offset: 0, writable: true }
}

/// The same, charged to a budget of its own.
fn mapped(allocation: AllocationId) -> Mapped {
    Mapped { mapping: mapping(allocation), charge: charge() }
}

fn status<T>(refused: Result<T, Refused>) -> Option<Status> {
    refused.err().map(|refused| refused.status)
}

/// Evicts an allocation, and says what engines had to do before.
fn evict(memory: &mut Memory, allocation: AllocationId) -> LetGo {
    let leaving = memory.begin_eviction(allocation, &mut journal()).unwrap();
    assert_eq!((leaving.allocation, memory.allocations.spot(allocation)), (allocation, Spot::Moving));
    let released = memory.finish_relocation(allocation, leaving.target, &mut journal());
    assert_eq!((released, memory.allocations.spot(allocation)), (Released::Nothing, Spot::Evicted));
    leaving.let_go
}

#[test]
fn ums_82_a_segment_is_gone_with_the_last_reference_and_then_its_name_is_due() {
    let mut memory = memory();
    let ram = create_memfd("ram", PAGE).unwrap();
    let runs = vec![RunRecord { file: 0, offset: 0, length: PAGE }];
    let segment = GuestSegment::new(runs, vec![Arc::new(ram)], vec![(0, PAGE)]);
    let id = memory.segments.insert(segment, charge()).unwrap();
    let allocation = memory.allocations.create_guest(id, PAGE);
    memory.allocations.retain(allocation);
    memory.retired.insert(id.0, Token(5));
    assert_eq!(memory.release(allocation), Released::Nothing, "another refers to it");
    assert_eq!(memory.release(allocation), Released::Segment(id));
    assert!(memory.segments.get(id).is_some(), "engines may write to it until they are told");
    assert_eq!(memory.forget_segment(id), Some(Token(5)));
    assert!(memory.segments.get(id).is_none() && memory.retired.is_empty());
    assert_eq!(memory.forget_segment(SegmentId(9)), None);
}

#[test]
fn video_memory_that_is_free_again_is_looked_at_and_engines_are_told_nothing() {
    let mut memory = memory();
    let allocation = placed(&mut memory);
    memory.residency.is_due = false;
    assert_eq!(memory.release(allocation), Released::Nothing);
    assert!(memory.residency.is_due && memory.allocations.get(allocation).is_none());
}

#[test]
fn engines_must_let_go_of_what_moves_only_where_a_page_table_shows_it() {
    let mut memory = memory();
    let (_, root) = objects(&mut memory);
    let (shown, hidden) = (placed(&mut memory), placed(&mut memory));
    let mapped = memory.show_to_gpu(root, VA, mapping(shown));
    mapped.unwrap_or_else(|refused| panic!("{}", refused.text));
    assert_eq!(evict(&mut memory, shown), LetGo::EveryEngine);
    assert_eq!(evict(&mut memory, hidden), LetGo::WhatWasAsked);
    memory.hide_from_gpu(root, VA, &mapping(shown), &mut journal());
    assert!(!memory.residency.shown.contains(shown));
    assert_eq!(memory.residency.leaving, 0);
}

#[test]
fn what_is_held_or_on_the_move_does_not_leave_and_what_is_held_may_move() {
    let mut memory = memory();
    let allocation = placed(&mut memory);
    assert!(memory.allocations.can_leave(allocation) && memory.allocations.can_move(allocation));
    memory.allocations.get_mut(allocation).unwrap().holds = 1;
    assert!(!memory.allocations.can_leave(allocation) && memory.allocations.can_move(allocation));
    assert_eq!(memory.allocations.movable(false).len(), 1);
    assert!(memory.allocations.movable(true).is_empty(), "it is no save area");
    memory.drop_holds(allocation, 1);
    assert!(memory.allocations.can_leave(allocation));
    memory.allocations.get_mut(allocation).unwrap().pins = 1;
    assert!(!memory.allocations.can_move(allocation), "a device page");
    memory.allocations.get_mut(allocation).unwrap().pins = 0;
    let leaving = memory.begin_eviction(allocation, &mut journal()).unwrap();
    assert!(!memory.allocations.can_move(allocation) && matches!(leaving.target, Place::Host(_)));
}

#[test]
fn mcdm_39_a_range_is_mapped_at_once_or_as_a_change_behind_those_that_wait() {
    let mut memory = memory();
    let (mut objects, _) = objects(&mut memory);
    let allocation = placed(&mut memory);
    let at_once = memory.map_range(&mut objects, OWNER, VA, mapped(allocation));
    assert!(matches!(at_once, Ok(None)));
    let again = memory.map_range(&mut objects, OWNER, VA, mapped(allocation));
    assert_eq!(status(again), Some(Status::InvalidAddress), "it is taken");
    let device = objects.processes.get_mut(&OWNER).unwrap().device.as_mut().unwrap();
    let unmapped = device.mappings.remove(&VA).unwrap();
    let changes = vec![Change::Unmap(VA, unmapped)];
    device.paging.push(PagingOperation { value: 1, changes, charge: None });
    let late = memory.map_range(&mut objects, OWNER, VA, mapped(allocation));
    assert!(matches!(late, Ok(Some(Change::Map(VA, _)))), "what waits there leaves it first");
    let nothing = memory.map_range(&mut objects, GuestProcess::new(9), VA, mapped(allocation));
    assert_eq!(status(nothing), Some(Status::NoDevice));
}

#[test]
fn a_process_names_the_resources_that_it_has_attached_and_no_others() {
    let mut memory = memory();
    let (mut objects, _) = objects(&mut memory);
    let allocation = placed(&mut memory);
    let blob =
        Blob { allocation, is_vram: true, mappable: true, shown: Shown::No, name: None, charge: charge() };
    memory.blobs.insert(3, blob);
    let named = |memory: &Memory, objects: &Objects, context| {
        memory.attached_allocation(objects, context, 3).map_err(|refused| refused.status)
    };
    assert_eq!(named(&memory, &objects, OWNER), Err(Status::InvalidResource));
    objects.processes.get_mut(&OWNER).unwrap().attached.insert(3, charge());
    assert_eq!(named(&memory, &objects, OWNER), Ok(allocation));
    assert_eq!(named(&memory, &objects, GuestProcess::new(9)), Err(Status::NoDevice));
    memory.blobs.remove(&3);
    assert_eq!(named(&memory, &objects, OWNER), Err(Status::InvalidResource), "its name was given up");
}

#[test]
fn a_queue_that_comes_to_what_is_evicted_wants_it_and_one_that_finds_it_does_not() {
    let mut memory = memory();
    let (mut objects, root) = objects(&mut memory);
    let allocation = placed(&mut memory);
    let mapped = memory.map_range(&mut objects, OWNER, VA, mapped(allocation));
    assert!(matches!(mapped, Ok(None)));
    let wanted = |va, queue| Wanted { root: root.0, va, queue, token: 1 };
    assert!(!memory.demand(&wanted(VA, 0), &objects), "it is there");
    let _engines_let_go = evict(&mut memory, allocation);
    assert!(!memory.demand(&wanted(VA + PAGE, 0), &objects), "nothing is mapped there");
    for queue in [2 * u64::from(MAX_QUEUES), u64::MAX] {
        assert!(!memory.demand(&wanted(VA, queue), &objects), "an engine has no such queue");
    }
    assert!(memory.residency.wants.is_empty());
    assert!(memory.demand(&wanted(VA, 2 * u64::from(MAX_QUEUES) - 1), &objects));
    assert_eq!(memory.residency.wants.len(), 1);
}

#[test]
fn a_mapping_leads_to_its_own_part_of_an_allocation_wherever_that_goes() {
    let mut memory = memory();
    let (_, root) = objects(&mut memory);
    let allocation = memory.allocations.create_vram(4 * PAGE).unwrap();
    let part = GpuMapping { size: 2 * PAGE, allocation, offset: PAGE, writable: true };
    memory.show_to_gpu(root, VA, part).unwrap_or_else(|refused| panic!("{}", refused.text));
    let leads_to = |memory: &Memory| resolve_one(memory.tables.mapping(), root.0, VA, PAGE, Intent::Write);
    for _ in 0..2 {
        let Spot::Segment(segment, start) = memory.allocations.spot(allocation) else { panic!("nowhere") };
        let run = leads_to(&memory).unwrap();
        assert_eq!((run.segment, run.offset), (segment, start + PAGE));
        let leaving = memory.begin_eviction(allocation, &mut journal()).unwrap();
        assert_eq!(leads_to(&memory), Err(Miss::Moving(VA)));
        let _nothing = memory.finish_relocation(allocation, leaving.target, &mut journal());
        assert_eq!(leads_to(&memory), Err(Miss::Evicted(VA)));
        // Something else lies where it was.
        placed(&mut memory);
        assert!(memory.allocations.bring_back(allocation, 2));
        memory.remap(allocation, &mut journal());
    }
    memory.residency.is_due = false;
    memory.purge(&mut journal());
    assert_eq!(leads_to(&memory), Err(Miss::Evicted(VA)), "its contents are forgotten");
    assert!(memory.residency.is_due);
}
