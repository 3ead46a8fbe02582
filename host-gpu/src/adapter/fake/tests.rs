//! The handle of an engine over a fake.

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::packet::Fault;

use super::Conduct;
use super::Fakes;
use crate::adapter::Adapter;
use crate::adapter::launcher::Memory;
use crate::adapter::process::EngineProcess;
use crate::adapter::scheduling::Preemption;
use crate::dirty::method::Method;
use crate::engine::channel::ChannelError;
use crate::engine::message::Local;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::ids::ContextIndex;
use crate::ids::ProcessIndex;
use crate::memory::vram::create_memfd;

const START: Start = Start {
    node: NodeKind::Copy,
    vram_bytes: 4096,
    table_bytes: 4096,
    spin_microseconds: 0,
    slice_microseconds: 0,
    sandbox: true,
    policy: String::new(),
    vulkan_device: None,
    profile: GpuProfile::Host,
    tracking: Method::Off,
    local: Local::Host,
    code_mib: 0,
    is_realtime: false,
    is_ahead: false,
};

/// An engine over fakes, of which one has come up.
fn engine(fakes: &Fakes) -> EngineProcess {
    let files = ["vram", "tables", "fences"].map(|name| create_memfd(name, 4096).unwrap());
    let [vram, tables, fences] = &files;
    let memory = Memory { vram, tables, fences, local: None, code: None, tracker: None };
    let mut engine = EngineProcess::spawn(fakes, &START, memory).unwrap();
    fakes.step(1);
    assert!(matches!(engine.receive(), Ok(Some(Response::Started { .. }))));
    engine
}

/// As work of process entry 0, which is made where it is not there.
fn submit(engine: &mut EngineProcess, fence_id: u64, context: ContextIndex) {
    if engine.shared.load(block::process(0)) == 0 {
        assert_eq!(engine.create_process(ProcessEntry::default()).unwrap(), ProcessIndex::new(0));
    }
    let suspends = engine.contexts.suspends(context);
    engine
        .submit_command(HwSubmission {
            fence_id,
            context: context.get(),
            suspends,
            ..HwSubmission::default()
        })
        .unwrap();
}

fn results(engine: &mut EngineProcess) -> Vec<(u64, u32)> {
    let next = || engine.completed_command().map(|result| (result.fence_id, result.fault));
    std::iter::from_fn(next).collect()
}

#[test]
fn a_fake_begins_when_it_is_told_acknowledges_and_answers() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    engine.page_tables.invalidate();
    engine.ask_acknowledgement();
    assert!(!engine.is_up_to_date());
    let kernel = crate::kernel::name::KernelName { root: 1, handle: 2 };
    engine.request(&Request::DestroyKernel { kernel }, &[], &[]).unwrap();
    fakes.step(0);
    assert_eq!(engine.receive().unwrap(), Some(Response::KernelDestroyed { kernel }));
    assert!(engine.is_up_to_date());
    assert_eq!(engine.page_tables.acknowledged(), 1);
    assert!(engine.receive().unwrap().is_none());
}

#[test]
fn buffers_run_in_order_and_those_of_a_suspended_context_are_handed_back() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    let context = engine.create_context(0).unwrap();
    submit(&mut engine, 1, context);
    submit(&mut engine, 2, context);
    fakes.step(1);
    assert_eq!(results(&mut engine), [(1, 0)]);
    let fence = engine.suspend_context(context);
    fakes.step(1);
    assert_eq!(results(&mut engine), [(2, HW_SUSPENDED)]);
    assert_eq!(engine.contexts.take_suspend_reports(), Ok(vec![context]));
    assert_eq!(engine.contexts.suspend_reported(context), fence);
    engine.resume_context(context);
    submit(&mut engine, 3, context);
    fakes.step(1);
    assert_eq!(results(&mut engine), [(3, 0)]);
    let ran: Vec<u64> = fakes.take_ran().iter().map(|ran| ran.submission.fence_id).collect();
    assert_eq!(ran, [1, 3]);
}

#[test]
fn pre_19_what_is_in_the_hardware_queue_is_put_back_and_that_is_reported_after_it() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    let context = engine.create_context(0).unwrap();
    submit(&mut engine, 1, context);
    submit(&mut engine, 2, context);
    assert_eq!(engine.preempt_command(), Preemption::Requested(1));
    fakes.step(1);
    assert_eq!(engine.preemption_report(), None, "results come before it");
    assert_eq!(results(&mut engine), [(1, 0), (2, HW_PREEMPTED)]);
    assert_eq!(
        engine.preemption_report().map(|report| (report.fence_id, report.last_completed)),
        Some((1, 1))
    );
}

#[test]
fn tdr_57_a_fake_that_hangs_is_ended_and_the_next_goes_on_over_its_block() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    let context = engine.create_context(0).unwrap();
    submit(&mut engine, 1, context);
    fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    fakes.step(9);
    assert!(results(&mut engine).is_empty());
    assert_eq!(engine.reset_engine().unwrap(), 1);
    assert_eq!((fakes.alive(), results(&mut engine)), (0, vec![(1, Fault::Driver as u32)]));
    let files = ["vram", "tables", "fences"].map(|name| create_memfd(name, 4096).unwrap());
    let [vram, tables, fences] = &files;
    engine
        .revive(&fakes, &START, Memory { vram, tables, fences, local: None, code: None, tracker: None })
        .unwrap();
    fakes.step(1);
    assert!(matches!(engine.receive(), Ok(Some(Response::Started { .. }))));
    submit(&mut engine, 2, context);
    fakes.step(1);
    assert_eq!((fakes.started(), results(&mut engine)), (2, vec![(2, 0)]));
}

#[test]
fn a_fake_that_dies_closes_its_channel_and_does_nothing_more() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    submit(&mut engine, 1, ContextIndex::new(0));
    fakes.conduct(NodeKind::Copy, Conduct::Dies);
    fakes.step(9);
    assert!(matches!(engine.receive(), Err(ChannelError::Closed)));
    assert!(results(&mut engine).is_empty());
    assert_eq!(engine.reset_engine().unwrap(), 0, "it ran nothing");
}

#[test]
fn a_buffer_does_not_run_in_the_address_space_of_the_process_after_its_own() {
    let fakes = Fakes::default();
    let mut engine = engine(&fakes);
    submit(&mut engine, 1, ContextIndex::new(0));
    engine.destroy_process(ProcessIndex::new(0));
    fakes.step(1);
    assert_eq!(results(&mut engine), [(1, Fault::PageFault as u32)]);
    assert!(fakes.take_ran().is_empty());
}
