//! One process after the other over a block, and what is said to each.

use campanile_protocol::named_profile::GpuProfile;
use std::os::fd::AsFd;
use std::path::PathBuf;

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_BLOCKED;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::power;
use campanile_protocol::packet::Fault;
use rustix::net::SendFlags;
use zerocopy::IntoBytes;

use super::ChannelError;
use super::EngineProcess;
use super::Launched;
use super::Memory;
use super::NodeKind;
use super::Request;
use super::Response;
use super::Start;
use crate::adapter::Adapter;
use crate::adapter::program::Program;
use crate::adapter::scheduling::Preemption;
use crate::adapter::scheduling::PreemptionReport;
use crate::dirty::method::Method;
use crate::engine::answers::Breach;
use crate::engine::channel::Channel;
use crate::engine::message::Local;
use crate::kernel::name::KernelName;
use crate::memory::vram::create_memfd;

/// A node whose engine is the test, at the other end of its channel.
fn bench() -> (EngineProcess, Channel) {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
    engine.seat(Launched { instance: None, channel: ours }.into());
    (engine, theirs)
}

fn started() -> Response {
    Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 4096, profile: None }
}

#[test]
fn an_engine_that_says_twice_that_it_has_started_is_told_to_begin_once() {
    let (mut engine, theirs) = bench();
    theirs.send(&started(), &[], &[], true).unwrap();
    theirs.send(&started(), &[], &[], true).unwrap();
    assert_eq!(engine.receive().unwrap(), Some(started()));
    assert!(matches!(engine.receive(), Err(ChannelError::Breach(Breach::StartedTwice))));
    let begin = theirs.receive::<Request>(false).unwrap().unwrap().message;
    assert_eq!(begin, Request::Begin { segments: 0 });
    assert!(theirs.receive::<Request>(false).unwrap().is_none(), "it begins once");
    engine.play(false);
}

#[test]
fn an_engine_answers_what_it_was_sent_and_nothing_else() {
    let (mut engine, theirs) = bench();
    theirs.send(&started(), &[], &[], true).unwrap();
    engine.receive().unwrap();
    let kernel = crate::kernel::name::KernelName { root: 1, handle: 2 };
    let gone = Response::KernelDestroyed { kernel };
    engine.request(&Request::DestroyKernel { kernel }, &[], &[]).unwrap();
    theirs.send(&gone, &[], &[], true).unwrap();
    theirs.send(&gone, &[], &[], true).unwrap();
    assert_eq!(engine.receive().unwrap(), Some(gone));
    assert!(matches!(engine.receive(), Err(ChannelError::Breach(Breach::Unasked(_)))));
    engine.play(false);
}

#[test]
fn tdr_57_a_spare_compiles_ahead_and_answers_once_it_has_taken_its_place() {
    let (mut engine, _theirs) = bench();
    let (ours, theirs) = Channel::pair().unwrap();
    engine.successor.put(Launched { instance: None, channel: ours });
    let name = |handle| KernelName { root: 1, handle };
    let ask = |engine: &mut EngineProcess, handle| engine.compile_ahead(name(handle), 1, None, b"a source");
    assert!(!ask(&mut engine, 1), "it is not open yet");
    theirs.send(&started(), &[], &[], true).unwrap();
    assert_eq!([1, 2, 1].map(|handle| ask(&mut engine, handle)), [true, true, false], "each once");
    assert_eq!(engine.compiled_ahead(), [name(1), name(2)]);
    let created = |handle| Response::KernelCreated {
        kernel: name(handle),
        workgroup: [1; 3],
        binding_count: 0,
        constant_bytes: 0,
    };
    for handle in [1, 2] {
        let asked = theirs.receive::<Request>(false).unwrap().unwrap();
        assert_eq!(
            asked.message,
            Request::CreateKernel { kernel: name(handle), language: 1, entry: None, alone: false }
        );
        assert_eq!(asked.bytes, b"a source");
        theirs.send(&created(handle), &[], &[], true).unwrap();
    }
    let next = engine.successor.take().unwrap();
    engine.seat(next);
    assert_eq!((engine.take_ahead(), engine.take_ahead()), (vec![name(1), name(2)], vec![]));
    assert_eq!(engine.compiled_ahead(), [], "of the next spare");
    for said in [started(), created(1), created(2)] {
        assert_eq!(engine.receive().unwrap(), Some(said));
    }
    theirs.send(&created(2), &[], &[], true).unwrap();
    assert!(matches!(engine.receive(), Err(ChannelError::Breach(Breach::Unasked(_)))));
    engine.play(false);
}

#[test]
fn what_a_spare_is_asked_ahead_is_bounded_by_number_and_by_what_its_channel_takes() {
    let (mut engine, _theirs) = bench();
    for source in [1, 60 << 10] {
        let (ours, theirs) = Channel::pair().unwrap();
        engine.successor.put(Launched { instance: None, channel: ours });
        theirs.send(&started(), &[], &[], true).unwrap();
        let asked = |handle| {
            if source == 1 {
                // It reads.
                while theirs.receive::<Request>(false).unwrap().is_some() {}
            }
            engine.compile_ahead(KernelName { root: 1, handle }, 1, None, &vec![0; source])
        };
        let asked = (0..1000).map(asked).filter(|is_asked| *is_asked).count();
        assert!(if source == 1 { asked == 256 } else { asked < 256 }, "{asked} of {source} bytes");
        engine.drop_spare();
    }
    engine.play(false);
}

#[test]
fn what_is_no_message_of_an_engine_is_an_error_and_no_more() {
    let mut long = vec![0; 64 << 10];
    long[..4].copy_from_slice(b"CPE1");
    for packet in [vec![0xff; 100], b"CPE1".to_vec(), long] {
        let (mut engine, theirs) = bench();
        rustix::net::send(&theirs, &packet, SendFlags::NOSIGNAL).unwrap();
        let why = engine.receive().unwrap_err();
        assert!(matches!(why, ChannelError::Malformed(_) | ChannelError::Truncated), "{why}");
        engine.play(false);
    }
    let (mut engine, theirs) = bench();
    theirs.send(&Request::Begin { segments: 0 }, &[], &[], true).unwrap();
    assert!(matches!(engine.receive(), Err(ChannelError::Malformed(_))), "a message of the daemon");
    theirs.send(&started(), &[], &[theirs.as_fd()], true).unwrap();
    assert!(matches!(engine.receive(), Err(ChannelError::Malformed(_))), "with a descriptor");
    drop(theirs);
    assert!(matches!(engine.receive(), Err(ChannelError::Closed)));
    engine.play(false);
}

#[test]
fn tdr_57_the_next_process_finds_the_tables_and_nothing_that_was_said_of_the_last() {
    let start = Start {
        node: NodeKind::Copy,
        vram_bytes: 4096,
        table_bytes: 4096,
        spin_microseconds: 0,
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
    };
    let [vram, tables, fences] = ["vram", "tables", "fences"].map(|name| create_memfd(name, 4096).unwrap());
    let memory =
        Memory { vram: &vram, tables: &tables, fences: &fences, local: None, code: None, tracker: None };
    // One that never answers.
    let program = Program::new(PathBuf::from("/usr/bin/yes"), Vec::new());
    let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
    engine.revive(&program, &start, memory).unwrap();
    let context = engine.create_context(0).unwrap();
    let fence = engine.suspend_context(context);
    engine
        .submit_command(campanile_protocol::engine::hw_queue::HwSubmission {
            fence_id: 3,
            ..Default::default()
        })
        .unwrap();
    assert!(matches!(engine.preempt_command(), Preemption::Requested(_)));
    let progress = Progress { steps: 3, is_exempt: false, work: Work::HwQueue };
    for (place, value) in [
        (block::POWER, power::HUNG),
        (block::GRANT, u64::MAX),
        (block::PROGRESS, progress.word()),
        (block::LAUNCHED, 9),
        (block::LAST_CONTEXT, 9),
    ] {
        engine.shared.store(place, value);
    }
    engine.hw_queue.snapshot();
    assert_eq!(engine.reset_engine().unwrap(), 3);
    engine.revive(&program, &start, memory).unwrap();
    for place in [block::GRANT, block::PROGRESS, block::LAUNCHED, block::LAST_CONTEXT] {
        assert_eq!(engine.shared.load(place), 0, "{place:#x}");
    }
    assert_eq!(engine.shared.load(block::POWER), power::ACTIVE);
    assert_eq!(engine.shared.load(block::context_report(context.get())), fence, "what was suspended is");
    assert!(engine.completed_command().is_some() && engine.preemption_report().is_some());
    // What the last one ran says nothing of the next reset.
    engine
        .submit_command(campanile_protocol::engine::hw_queue::HwSubmission {
            fence_id: 4,
            ..Default::default()
        })
        .unwrap();
    assert_eq!(engine.reset_engine().unwrap(), 3, "it ran nothing");
}

/// A node without a process, whose engine the test is.
struct Bench {
    engine: EngineProcess,
    ended: u64,
}

impl Bench {
    fn new(ids: &[u64]) -> Self {
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        engine.hw_queue.continue_fences(5, 5);
        // Submissions are taken as those of a process that lives.
        engine.play(true);
        let mut bench = Self { engine, ended: 0 };
        ids.iter().for_each(|id| bench.submit(*id));
        bench
    }

    fn submit(&mut self, fence_id: u64) {
        let submission = HwSubmission { fence_id, ..HwSubmission::default() };
        self.engine.submit_command(submission).unwrap();
    }

    /// The oldest buffer ends so.
    fn end(&mut self, fault: u32) {
        let result = HwResult { fault, ..HwResult::default() };
        let place = hw_queue::slot(self.ended) + hw_queue::RESULT;
        let bytes = result.as_bytes();
        self.engine.shared.write(place, bytes);
        self.ended += 1;
        self.store(block::HW_QUEUE_COMPLETED, self.ended);
    }

    fn store(&self, offset: u64, value: u64) {
        self.engine.shared.store(offset, value);
    }

    fn run(&self) {
        let progress = Progress { steps: 1, is_exempt: false, work: Work::HwQueue };
        self.store(block::PROGRESS, progress.word());
    }

    fn last_completed(&mut self) -> u64 {
        while self.engine.completed_command().is_some() {}
        self.engine.collect_debug_info().last_completed
    }
}

#[test]
fn tdr_53_tdr_56_pre_21_what_is_handed_back_does_not_advance_the_last_completed_id() {
    for fault in [HW_PREEMPTED, HW_SUSPENDED, HW_BLOCKED] {
        let mut bench = Bench::new(&[6, 7]);
        bench.end(0);
        assert_eq!(bench.last_completed(), 6);
        bench.end(fault);
        assert_eq!(bench.last_completed(), 6, "{fault:#x}");
        let report = PreemptionReport { fence_id: 1, last_completed: 6 };
        assert_eq!(bench.engine.preempt_command(), Preemption::Reported(report));
        bench.submit(8);
        bench.end(Fault::Driver as u32);
        assert_eq!(bench.last_completed(), 8, "a fault is an end");
    }
}

#[test]
fn tdr_47_tdr_54_the_aborted_buffer_is_the_oldest_that_is_not_done() {
    for collected in [false, true] {
        let mut bench = Bench::new(&[6, 7]);
        bench.end(0);
        if collected {
            assert_eq!(bench.last_completed(), 6);
        }
        bench.run();
        assert_eq!(bench.engine.reset_engine().unwrap(), 7, "collected: {collected}");
        assert_eq!(bench.last_completed(), 7);
    }
}

#[test]
fn tdr_47_tdr_53_a_reset_that_aborts_nothing_returns_what_completed_last() {
    // Nothing of the hardware queue ran; what ended is collected, or not yet.
    for (faults, last) in [
        (&[][..], 5),
        (&[0], 6),
        (&[HW_SUSPENDED], 5),
        (&[0, HW_SUSPENDED], 6),
        (&[HW_SUSPENDED, 0], 7),
        (&[HW_SUSPENDED, HW_PREEMPTED], 5),
    ] {
        for collected in [false, true] {
            let mut bench = Bench::new(&[6, 7]);
            faults.iter().for_each(|fault| bench.end(*fault));
            if collected {
                assert_eq!(bench.last_completed(), last);
            }
            assert_eq!(bench.engine.reset_engine().unwrap(), last, "{faults:x?}, collected: {collected}");
        }
    }
}

#[test]
fn tdr_48_a_queue_that_has_emptied_between_decision_and_reset_aborts_nothing() {
    let mut bench = Bench::new(&[6]);
    bench.run();
    let snapshot = bench.engine.hw_queue.snapshot();
    assert_eq!(snapshot.progress.work, Work::HwQueue);
    bench.end(0);
    assert_eq!(bench.engine.reset_engine().unwrap(), 6);
    // It ended as the engine said.
    assert_eq!(bench.engine.completed_command().map(|result| result.fault), Some(0));
    assert!(bench.engine.completed_command().is_none());
}

#[test]
fn tdr_83_an_engine_that_claims_to_have_done_more_than_it_was_given_aborts_within_that() {
    let mut bench = Bench::new(&[6, 7]);
    bench.store(block::HW_QUEUE_COMPLETED, u64::MAX);
    bench.run();
    let aborted = bench.engine.reset_engine().unwrap();
    assert!((5..=7).contains(&aborted), "{aborted}");
}
