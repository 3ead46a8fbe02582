//! The calls of TDR on an engine process of one's own, without a session around it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use campanile_protocol::named_profile::GpuProfile;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::ahead::Ahead;
use campanile_host_gpu::adapter::ahead::OpenedEngines;
use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::adapter::launcher::Memory;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::adapter::scheduling::Preemption;
use campanile_host_gpu::adapter::scheduling::PreemptionReport;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::packet::Fault;

const NEVER: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 20;

struct Bench {
    engine: EngineProcess,
    vram: std::fs::File,
    tables: std::fs::File,
    fences: std::fs::File,
    given: Given,
    program: Program,
    start: Start,
    given_back: Vec<u64>,
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "this never came: {what}");
        std::thread::yield_now();
    }
}

fn copy_start() -> Start {
    Start {
        node: NodeKind::Copy,
        vram_bytes: BYTES,
        table_bytes: BYTES,
        spin_microseconds: 600_000_000,
        slice_microseconds: 0,
        sandbox: true,
        policy: "fair".to_owned(),
        vulkan_device: None,
        profile: GpuProfile::Host,
        tracking: Method::Off,
        local: Local::Host,
        code_mib: 0,
        is_realtime: false,
        is_ahead: false,
    }
}

impl Bench {
    /// A copy engine that has come up, and was not given its node: it runs nothing yet.
    fn new() -> Self {
        let program = Program::new(PathBuf::from(env!("CARGO_BIN_EXE_campanile")), Vec::new());
        let start = copy_start();
        let [vram, tables] = ["vram", "tables"].map(|name| create_memfd(name, BYTES).unwrap());
        let fences = create_memfd("fences", u64::from(MAX_FENCES) * PAGE_SIZE).unwrap();
        let memory =
            Memory { vram: &vram, tables: &tables, fences: &fences, local: None, code: None, tracker: None };
        let engine = EngineProcess::spawn(&program, &start, memory).unwrap();
        let mut bench = Self {
            engine,
            vram,
            tables,
            fences,
            given: Given::default(),
            program,
            start,
            given_back: Vec::new(),
        };
        bench.wait_until_up();
        bench
    }

    fn wait_until_up(&mut self) {
        until("an engine that is up", || {
            matches!(self.engine.receive().unwrap(), Some(Response::Started { .. }))
        });
    }

    fn revive(&mut self) {
        let memory = Memory {
            vram: &self.vram,
            tables: &self.tables,
            fences: &self.fences,
            local: None,
            code: None,
            tracker: None,
        };
        self.engine.revive(&self.program, &self.start, memory).unwrap();
        self.given = Given::default();
        self.wait_until_up();
    }

    fn store(&self, offset: u64, value: u64) {
        self.engine.grant_handle().shared.word(offset).unwrap().store(value, Ordering::Release);
    }

    /// What the engine would say while it runs the hardware queue.
    fn claim_to_run(&self) {
        let progress = Progress { steps: 1, is_exempt: false, work: Work::HwQueue };
        self.store(block::PROGRESS, progress.word());
    }

    /// Takes the node back, once the engine has nothing to run.
    fn release(&mut self) {
        let handle = self.engine.grant_handle();
        let word = handle.shared.word(block::GRANT).unwrap();
        until("the node", || {
            let _revoked = self.given.revoke(word) || self.given.reclaim(word);
            handle.wake.signal();
            self.given.look(word).unwrap();
            !self.given.holds()
        });
    }

    /// Takes the results of a preemption, and its report.
    fn preemption(&mut self) -> PreemptionReport {
        let mut report = None;
        until("the report", || {
            while let Some(result) = self.engine.completed_command() {
                assert_eq!(result.fault, HW_PREEMPTED);
                self.given_back.push(result.fence_id);
            }
            report = self.engine.preemption_report();
            report.is_some()
        });
        report.unwrap()
    }

    /// A buffer of a process that does not exist: it ends at once, with a fault.
    fn submit(&mut self, fence_id: u64) {
        let submission = HwSubmission { fence_id, process: u32::MAX, ..HwSubmission::default() };
        self.engine.submit_command(submission).unwrap();
    }

    /// Gives the engine its node, and takes the next result.
    fn run(&mut self) -> HwResult {
        let handle = self.engine.grant_handle();
        let word = handle.shared.word(block::GRANT).unwrap();
        until("a result", || {
            self.given.look(word).unwrap();
            let _given_before = self.given.give(word);
            handle.wake.signal();
            self.engine.hw_queue.stop_listening(Duration::from_millis(1))
        });
        self.engine.completed_command().unwrap()
    }
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

// conformance: two queries, asked at each step of one hang
#[test]
fn tdr_01_tdr_02_tdr_26_tdr_34_group_and_status_are_always_answered_and_say_what_they_must() {
    let mut bench = Bench::new();
    assert_eq!(bench.engine.query_dependent_engine_group(), 1 << 1);
    assert_eq!(bench.engine.query_engine_status(), 1, "nothing to do is no hang");
    bench.claim_to_run();
    assert_eq!(bench.engine.query_engine_status(), 1, "it has begun");
    assert_eq!(bench.engine.query_engine_status(), 0, "and stands still");
    bench.engine.reset_engine().unwrap();
    assert_eq!(bench.engine.query_dependent_engine_group(), 1 << 1);
    assert!(bench.engine.query_engine_status() <= 1);
}

#[test]
fn tdr_45_tdr_46_tdr_75_a_reset_returns_when_the_process_is_gone_and_its_node_takes_packets_again() {
    let mut bench = Bench::new();
    let pid = bench.engine.pid();
    assert_eq!(bench.engine.reset_engine().unwrap(), 0, "nothing was ever submitted");
    assert!(!is_there(pid));
    bench.revive();
    bench.submit(1);
    assert_eq!(bench.run().fence_id, 1);
    assert_eq!(bench.engine.collect_debug_info().last_completed, 1);
}

#[test]
fn tdr_47_a_reset_returns_the_id_of_the_buffer_that_ran_and_ends_it_alone() {
    let mut bench = Bench::new();
    bench.submit(7);
    bench.submit(8);
    bench.claim_to_run();
    assert_eq!(bench.engine.reset_engine().unwrap(), 7);
    let aborted = bench.engine.completed_command().unwrap();
    assert_eq!((aborted.fence_id, aborted.fault), (7, Fault::Driver as u32));
    assert!(bench.engine.completed_command().is_none(), "the one behind it was not begun");
    bench.revive();
    assert_eq!(bench.run().fence_id, 8);
}

#[test]
fn tdr_37_tdr_43_tdr_48_a_buffer_that_ends_between_snapshot_and_reset_is_the_last_completed() {
    let mut bench = Bench::new();
    bench.submit(7);
    bench.submit(8);
    bench.claim_to_run();
    let snapshot = bench.engine.hw_queue.snapshot();
    assert_eq!(snapshot.progress.work, Work::HwQueue, "whoever that is pays");
    // It gets done while the reset is prepared.
    bench.store(block::PROGRESS, 0);
    bench.store(block::HW_QUEUE_COMPLETED, 1);
    assert_eq!(bench.engine.reset_engine().unwrap(), 7);
    assert!(bench.engine.completed_command().is_some());
    assert!(bench.engine.completed_command().is_none(), "nothing else is aborted");
}

// conformance: the lines are the steps of one preemption: request, report, what comes back
#[test]
fn pre_19_pre_20_pre_21_pre_23_mcdm_28_what_is_not_begun_is_given_back_and_the_report_says_after_what() {
    let mut bench = Bench::new();
    bench.submit(7);
    assert_eq!(bench.run().fence_id, 7, "one that completes");
    bench.release();
    bench.submit(8);
    bench.submit(9);
    let Preemption::Requested(fence_id) = bench.engine.preempt_command() else {
        panic!("nothing to preempt")
    };
    assert_eq!(bench.engine.preempt_command(), Preemption::Requested(fence_id), "one stands for another");
    let report = bench.preemption();
    assert_eq!(report, PreemptionReport { fence_id, last_completed: 7 });
    assert!(!bench.engine.hw_queue.is_preempting());
    // The node is theirs again, under new ids.
    bench.submit(10);
    bench.submit(11);
    assert_eq!([bench.run().fence_id, bench.run().fence_id], [10, 11]);
    assert_eq!(bench.given_back, [8, 9]);
}

#[test]
fn pre_22_where_everything_has_completed_the_report_is_made_at_once() {
    let mut bench = Bench::new();
    let report = PreemptionReport { fence_id: 1, last_completed: 0 };
    assert_eq!(bench.engine.preempt_command(), Preemption::Reported(report));
    bench.submit(3);
    assert_eq!(bench.run().fence_id, 3);
    let report = PreemptionReport { fence_id: 2, last_completed: 3 };
    assert_eq!(bench.engine.preempt_command(), Preemption::Reported(report));
    assert_eq!(bench.engine.preemption_report(), None, "it was made");
    assert!(!bench.engine.hw_queue.is_preempting());
}

#[test]
fn pre_26_mcdm_33_the_report_comes_after_all_results_before_it() {
    let mut bench = Bench::new();
    for fence_id in [1, 3, 5] {
        bench.submit(fence_id);
        bench.submit(fence_id + 1);
        // Somebody else's turn comes between: whatever was done by then is done, and the rest is given back, in order.
        let handle = bench.engine.grant_handle();
        let word = handle.shared.word(block::GRANT).unwrap();
        bench.given.look(word).unwrap();
        let _given = bench.given.give(word);
        handle.wake.signal();
        let preemption = bench.engine.preempt_command();
        let (mut done, mut back) = (Vec::new(), Vec::new());
        until("both results", || {
            while let Some(result) = bench.engine.completed_command() {
                if result.fault == HW_PREEMPTED {
                    back.push(result.fence_id);
                } else {
                    assert!(back.is_empty(), "[preempted, complete] must not be");
                    done.push(result.fence_id);
                }
            }
            done.len() + back.len() == 2
        });
        assert_eq!([done, back].concat(), [fence_id, fence_id + 1]);
        if let Preemption::Requested(id) = preemption {
            until("the report", || {
                bench.engine.preemption_report().is_some_and(|report| report.fence_id == id)
            });
        }
        bench.release();
    }
}

#[test]
fn mcdm_24_the_hardware_queue_holds_two() {
    let mut bench = Bench::new();
    assert_eq!(HW_QUEUE_DEPTH, 2);
    bench.submit(1);
    bench.submit(2);
    let third = HwSubmission { fence_id: 3, process: u32::MAX, ..HwSubmission::default() };
    assert!(matches!(bench.engine.submit_command(third), Err(AdapterError::HwQueueFull)));
    assert_eq!(bench.run().fence_id, 1);
    bench.engine.submit_command(third).unwrap();
    assert_eq!([bench.run().fence_id, bench.run().fence_id], [2, 3]);
}

#[test]
fn mcdm_51_a_process_is_made_with_its_root_page_table_and_buffers_are_named_by_virtual_address() {
    let mut bench = Bench::new();
    let entry = ProcessEntry { root: 5, page_va: 0x10_0000, ..ProcessEntry::default() };
    let process = bench.engine.create_process(entry).unwrap();
    let shared = bench.engine.grant_handle().shared;
    let word = |offset| shared.word(block::process(process.get()) + offset).unwrap().load(Ordering::Acquire);
    assert!(word(0) != 0, "it lives");
    assert_eq!(word(8), 5, "its root page table is set");
    let submission = HwSubmission {
        fence_id: 1,
        process: process.get(),
        buffer_va: 0x7_0000,
        length: 64,
        ..HwSubmission::default()
    };
    bench.engine.submit_command(submission).unwrap();
    let result = bench.run();
    assert_eq!((result.fault, result.fault_va), (Fault::PageFault as u32, 0x7_0000), "no table leads there");
    bench.engine.destroy_process(process);
    assert_eq!(shared.word(block::process(process.get())).unwrap().load(Ordering::Acquire), 0);
}

#[test]
fn the_hardware_scheduling_group_is_there_but_for_the_switch_list() {
    let mut bench = Bench::new();
    // The engine chooses among contexts by itself, so its list is switched by what may run, and a context's state is
    // updated by its words in the shared block.
    bench.engine.setup_priority_bands(&Settings::default());
    let context = bench.engine.create_context(0).unwrap();
    let process = bench.engine.create_process(ProcessEntry::default()).unwrap();
    let queue = QueueEntry {
        ring_entries: 16,
        process: process.get(),
        context: context.get(),
        ..QueueEntry::default()
    };
    let queue = bench.engine.create_hw_queue(queue).unwrap();
    let urgent = Parameters { band: Band::Realtime, level: 9, ..Parameters::default() };
    bench.engine.set_scheduling_properties(context, &urgent);
    let shared = bench.engine.grant_handle().shared;
    let properties = shared.word(scheduling::properties(context.get()) + 8).unwrap().load(Ordering::Acquire);
    assert_eq!(properties.to_le_bytes()[..2], [3, 9], "band and level, as the engine reads them");
    let fence = bench.engine.suspend_context(context);
    until("the suspend", || bench.engine.contexts.suspend_reported(context) == fence);
    bench.engine.resume_context(context);
    // It counts no suspend, as a buffer that was handed over before one: it is handed back, and has not completed.
    bench.submit(1);
    let handed_back = bench.run();
    assert_eq!((handed_back.fence_id, handed_back.fault), (1, HW_SUSPENDED));
    assert_eq!(bench.engine.collect_debug_info().last_completed, 0);
    let submission = HwSubmission {
        fence_id: 2,
        process: u32::MAX,
        context: context.get(),
        suspends: fence,
        ..HwSubmission::default()
    };
    bench.engine.submit_command(submission).unwrap();
    let result = bench.run();
    assert_eq!(
        (result.fence_id, result.fault),
        (2, Fault::PageFault as u32),
        "of a process that does not exist"
    );
    let (_entries, overwritten) = bench.engine.schedule.log();
    assert_eq!(overwritten, 0);
    assert_eq!(bench.engine.reset_engine().unwrap(), 2);
    bench.revive();
    let submission = HwSubmission { fence_id: 3, ..submission };
    bench.engine.submit_command(submission).unwrap();
    let result = bench.run();
    assert_eq!((result.fence_id, result.fault), (3, Fault::PageFault as u32), "the engine is resumed");
    bench.engine.destroy_hw_queue(queue);
    bench.engine.destroy_context(context);
}

#[test]
fn a_process_that_was_opened_ahead_becomes_an_engine_and_one_that_is_not_needed_ends() {
    let program = Program::new(PathBuf::from(env!("CARGO_BIN_EXE_campanile")), Vec::new());
    let ahead = || {
        let ahead = Ahead::start(&program, &copy_start()).unwrap();
        ahead.wait(Instant::now() + NEVER).unwrap();
        ahead
    };
    let both = [ahead(), ahead()];
    let [first, second] = both.each_ref().map(Ahead::id);
    let engines = OpenedEngines::new(Arc::new(program.clone()), both.into());
    let [vram, tables] = ["vram", "tables"].map(|name| create_memfd(name, BYTES).unwrap());
    let fences = create_memfd("fences", u64::from(MAX_FENCES) * PAGE_SIZE).unwrap();
    let memory =
        Memory { vram: &vram, tables: &tables, fences: &fences, local: None, code: None, tracker: None };
    let mut engine = EngineProcess::spawn(&engines, &copy_start(), memory).unwrap();
    assert_eq!(engine.pid(), first);
    until("an engine that is up", || matches!(engine.receive().unwrap(), Some(Response::Started { .. })));
    assert_eq!(engines.end(), 1);
    let state = || std::fs::read_to_string(format!("/proc/{second}/stat"));
    until("the end of the other", || state().map_or(true, |state| state.contains(") Z ")));
}
