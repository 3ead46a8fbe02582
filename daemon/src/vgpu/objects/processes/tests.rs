use std::collections::VecDeque;
use std::sync::Arc;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::QueueIndex;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::save_area::AreaKind;

use super::Objects;
use crate::ids::GuestProcess;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::MIN_BUDGET_BYTES;
use crate::vgpu::objects::device_page::DevicePage;
use crate::vgpu::objects::holds::Holds;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::WORK_BYTES;
use crate::vgpu::objects::process::Away;
use crate::vgpu::objects::process::Context;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::objects::timeline::Token;

const OWNER: GuestProcess = GuestProcess::new(7);
const ORIGIN: Origin = Origin { context: OWNER, slot: 0, sequence: 1, ring: 2, item: None };
const AT: EngineAddress = EngineAddress::new(0, NodeKind::Copy);

/// One process with a device that has nothing.
fn objects() -> Objects {
    within(&Arc::default())
}

/// The same, within a budget.
fn within(budget: &Arc<Budget>) -> Objects {
    let mut objects = Objects::default();
    let mut process = Process::new(budget.process().unwrap()).unwrap();
    let page = DevicePage { allocation: AllocationId(1), offset: 0, va: 0, guest: None };
    process.device = Some(Device::new(page, Root(1), 0));
    objects.processes.insert(OWNER, process);
    objects
}

fn status<T>(refused: Result<T, super::Refused>) -> Option<Status> {
    refused.err().map(|refused| refused.status)
}

fn due(objects: &mut Objects) -> Vec<u64> {
    std::mem::take(&mut objects.due).into_iter().map(|(token, _)| token.0).collect()
}

#[test]
fn a_device_is_found_by_its_process_and_one_that_is_lost_is_not_active() {
    let mut objects = objects();
    assert!(objects.active_device(OWNER).is_ok());
    objects.device_mut(OWNER).unwrap_or_else(|refused| panic!("{}", refused.text)).status =
        device_page::DEVICE_HUNG;
    assert!(objects.device(OWNER).is_ok());
    assert_eq!(status(objects.active_device(OWNER)), Some(Status::DeviceLost));
    assert!(objects.take_device(OWNER).is_some());
    for context in [OWNER, GuestProcess::new(8)] {
        assert_eq!(status(objects.device(context)), Some(Status::NoDevice), "{context}");
        assert_eq!(status(objects.device_mut(context)), Some(Status::NoDevice), "{context}");
    }
}

#[test]
fn a_fence_is_due_when_what_was_parked_before_it_has_ended() {
    let mut objects = objects();
    objects.fence(OWNER, 2, Token(1));
    assert_eq!(due(&mut objects), [1]);
    let parked = objects.park(ORIGIN).unwrap_or_else(|refused| panic!("{}", refused.text));
    objects.fence(OWNER, 2, Token(2));
    objects.fence(OWNER, 3, Token(3));
    assert_eq!(due(&mut objects), [3], "another timeline waits for nothing");
    objects.end_item(OWNER, 2, parked.item);
    assert_eq!(due(&mut objects), [2]);
}

#[test]
fn a_fence_of_no_process_or_of_one_that_is_detached_is_due_at_once() {
    let mut objects = objects();
    objects.park_end(ORIGIN);
    objects.processes.get_mut(&OWNER).unwrap().away =
        Some(Away { parked: Parked { token: 1, names: 2 }, is_gone: false });
    objects.fence(OWNER, 2, Token(1));
    objects.fence(GuestProcess::new(9), 2, Token(2));
    assert_eq!(due(&mut objects), [1, 2]);
}

#[test]
fn ums_128_fences_of_a_process_that_ends_are_due_and_the_next_gets_no_number_of_its_work() {
    let mut objects = objects();
    let first = objects.park_end(ORIGIN);
    objects.fence(OWNER, 2, Token(1));
    objects.remove(OWNER);
    assert_eq!(due(&mut objects), [1]);
    let next = self::objects().processes.remove(&OWNER).unwrap();
    objects.processes.insert(OWNER, next);
    let second = objects.park_end(ORIGIN);
    objects.fence(OWNER, 2, Token(2));
    objects.end_item(OWNER, 2, first.item);
    assert_eq!(due(&mut objects), [0; 0], "the end of the first is late, and ends nothing");
    objects.end_item(OWNER, 2, second.item);
    assert_eq!(due(&mut objects), [2]);
}

#[test]
fn ums_80_kernels_of_a_later_device_have_later_generations() {
    let mut objects = objects();
    let charge = || Arc::new(Budget::default()).vm().charge(Kind::Kernels, 1).unwrap();
    let source = || {
        let bytes = SourceBytes::new(&[0], charge());
        KernelSource { language: 1, entry: None, bytes, is_ending: false }
    };
    let kernels = |objects: &mut Objects| {
        let device = objects.processes.get_mut(&OWNER).unwrap().device.as_mut().unwrap();
        device.kernels.insert(source(), charge()).unwrap()
    };
    let first = kernels(&mut objects);
    let device = objects.take_device(OWNER).unwrap();
    let next = Device::new(device.page, device.root, objects.kernel_generation());
    objects.processes.get_mut(&OWNER).unwrap().device = Some(next);
    let second = kernels(&mut objects);
    assert!(second.generation() > first.generation() && second.index() == first.index());
}

#[test]
fn mcdm_06_what_is_parked_is_charged_to_its_process_until_it_ends() {
    let budget = Arc::new(Budget::new(MIN_BUDGET_BYTES));
    let mut objects = within(&budget);
    let held = || budget.standing().held.bytes;
    let before = held();
    assert_eq!(status(objects.charge(GuestProcess::new(9), Kind::Work, 1)), Some(Status::NoDevice));
    let parked = objects.park(ORIGIN).unwrap_or_else(|refused| panic!("{}", refused.text));
    assert_eq!(held(), before + WORK_BYTES);
    let rest = objects.charge(OWNER, Kind::Work, MIN_BUDGET_BYTES);
    assert_eq!(status(rest), Some(Status::OutOfResources));
    objects.end_item(OWNER, 2, parked.item);
    assert_eq!(held(), before);
}

#[test]
fn a_context_is_found_by_its_entry_in_the_table_of_its_own_engine() {
    let mut objects = objects();
    let charge = Arc::new(Budget::default()).vm().charge(Kind::Objects, 1).unwrap();
    let area = SaveArea { allocation: AllocationId(2), va: 0, kind: AreaKind::Context };
    let context = Context {
        at: AT,
        software_queue: VecDeque::new(),
        listed: false,
        is_parked: false,
        entry: Some(ContextIndex::new(4)),
        area,
        held: Holds::default(),
        queues: 0,
        scheduling: None,
    };
    let device = objects.processes.get_mut(&OWNER).unwrap().device.as_mut().unwrap();
    let handle: ContextHandle = ContextHandle::new(device.contexts.insert(context, charge).unwrap().get());
    assert_eq!(objects.all_contexts(), [(OWNER, handle)]);
    assert_eq!(objects.owner_of_entry(AT, ContextIndex::new(4)), Some((OWNER, handle)));
    assert_eq!(objects.owner_of_entry(AT, ContextIndex::new(5)), None);
    assert_eq!(objects.owner_of_entry(EngineAddress::new(0, NodeKind::Compute), ContextIndex::new(4)), None);
    assert_eq!(objects.owner_of_hw_queue(AT, QueueIndex::new(0)), None);
}
