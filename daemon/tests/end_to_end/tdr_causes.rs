//! What makes engines hang or die, and what does not.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_HUNG;
use rustix::process::Signal;

use crate::operator::Operated;
use crate::processes::EngineView;
use crate::processes::allow_no_more_memory;
use crate::processes::engine;
use crate::processes::engines;
use crate::processes::is_there;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::signals::Stopped;
use crate::signals::signal;
use crate::signals::stop_at_rest;
use crate::signals::try_signal;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_support::hang_and;

fn pid(operated: &Operated, node: usize) -> u32 {
    let status = operated.ask(&["status"]);
    let pid = status["vgpus"][0]["session"]["engines"][node]["pid"].as_u64();
    u32::try_from(pid.unwrap_or_else(|| panic!("no engine in {status}"))).unwrap()
}

#[test]
fn a_kernel_that_crashes_the_driver_or_uses_up_memory_costs_its_own_device_alone() {
    // The kernel's way when memory is out.
    engines_end_by(&[Signal::KILL], &[]);
    // A driver that crashes; an allocator that gives up. The first process of a pid namespace dies of its own crash, but of no
    // signal of another process for which it has no handler, so these engines have no such namespace.
    engines_end_by(&[Signal::SEGV, Signal::ABORT], &["--no-sandbox"]);
}

fn engines_end_by(causes: &[Signal], arguments: &[&str]) {
    // No timeout has a part in this.
    let operated = Operated::with(1, &[&["--tdr-timeout", "600000"], arguments].concat());
    let vm = operated.daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    for &cause in causes {
        let device = Device::open(vm.open("crashes").unwrap()).unwrap();
        let loss = hang_and(&device, || {
            let engine = pid(&operated, 0);
            // The first SIGSEGV takes away the handler that tells of stack overflows; a real one comes again by itself.
            until("its end", || {
                let _gone = try_signal(engine, cause);
                !is_there(engine)
            });
        });
        assert_eq!((loss.status, loss.is_collateral), (DEVICE_HUNG, false), "{cause:?}");
        let ticket = queue.submit(&CommandBuffer::new()).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
    }
    works.check().unwrap();
}

#[test]
fn tdr_27_an_idle_engine_that_is_stopped_is_found_when_work_comes_and_costs_nobody_anything() {
    // Awake for the whole test: only the doorbell tells that there is work.
    let daemon = Daemon::with(&["--tdr-timeout", "250", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let idle = engine(&daemon);
    let stopped = stop_at_rest(idle);
    queue.run(&CommandBuffer::new());
    assert_eq!((guest.device_status(), queue.fence(), queue.status()), (DEVICE_ACTIVE, 2, CONNECTED));
    until("its end", || !is_there(idle));
    drop(stopped);
    // Idle for many timeouts, and asked many times, it is left alone.
    let after = engine(&daemon);
    let view = EngineView::of(&daemon);
    let asked = view.sequence();
    until("an engine that is asked", || view.sequence() >= asked + 5);
    assert_eq!(engine(&daemon), after);
    queue.run(&CommandBuffer::new());
}

#[test]
fn a_sleeping_engine_that_is_stopped_is_found_when_work_comes() {
    let daemon = Daemon::with(&["--tdr-timeout", "250"]);
    let vm = daemon.vm(0);
    let device = Device::open(vm.open("works").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut kernel_mode = context.create_kernel_queue().unwrap();
    let mut user = context.create_user_queue(&Default::default()).unwrap();
    for through_doorbell in [false, true] {
        until("an engine that sleeps", || {
            EngineView::of(&daemon).power() == campanile_protocol::handshake::power::ASLEEP
        });
        let asleep = engine(&daemon);
        let _stopped = Stopped::new(asleep);
        if through_doorbell {
            user.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        } else {
            let ticket = kernel_mode.submit(&CommandBuffer::new()).unwrap();
            kernel_mode.wait(ticket, Some(NEVER)).unwrap();
        }
        until("its end", || !is_there(asleep));
    }
    device.check().unwrap();
}

#[test]
fn fence_waits_in_a_circle_are_no_hang_and_their_owner_can_be_ended() {
    let daemon = Daemon::with(&["--tdr-timeout", "200", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let before = engine(&daemon);
    let gates = guest.vram(4096);
    let mut circle: Vec<RawQueue> = (0..2).map(|_| RawQueue::new(&guest, context)).collect();
    for (queue, (waits, signals)) in circle.iter_mut().zip([(0, 8), (8, 0)]) {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        let mut commands = wait_for(gates.va + waits, 1);
        commands.signal(gates.va + signals, 1).unwrap();
        queue.submit(&commands);
    }
    // Others run meanwhile, for many timeouts: the engine is asked for a sign of life in each.
    let (other, its_context) = copy_guest(&vm);
    let mut works = RawQueue::new(&other, its_context);
    assert_eq!(works.connect(), Ok(CONNECTED));
    let view = EngineView::of(&daemon);
    let asked = view.sequence();
    until("an engine that is asked", || view.sequence() >= asked + 10);
    works.run(&CommandBuffer::new());
    assert_eq!((engine(&daemon), guest.device_status()), (before, DEVICE_ACTIVE));
    assert_eq!([circle[0].fence(), circle[1].fence()], [0, 0]);
    guest.call(campanile_protocol::control::message::DESTROY_DEVICE, &()).unwrap();
    works.run(&CommandBuffer::new());
    assert_eq!((engine(&daemon), other.device_status()), (before, DEVICE_ACTIVE));
}

#[test]
fn a_compile_that_takes_too_long_is_refused_and_only_its_owner_pays() {
    let operated = Operated::with(1, &["--compile-timeout", "300"]);
    let vm = operated.daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let kernel = KernelSource::wgsl(crate::tdr_support::ENDLESS);
    let mut patient = Device::open(vm.open("compiles").unwrap()).unwrap();
    for round in 0..5 {
        let before = pid(&operated, 0);
        let stopped = Stopped::new(before);
        let refused = patient.create_kernel(&kernel).map(|_| ());
        match refused {
            Err(DriverError::Refused { status: Status::KernelRefused, text, .. }) => {
                assert!(text.contains("did not compile within 300ms"), "{round}: {text}");
            }
            other => panic!("{round}: {other:?}"),
        }
        drop(stopped);
        let ticket = queue.submit(&CommandBuffer::new()).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
        assert_ne!(pid(&operated, 0), before);
        if round < 4 {
            patient = patient.recreate().unwrap();
        }
    }
    works.check().unwrap();
    assert!(matches!(patient.recreate(), Err(DriverError::Refused { status: Status::Blocked, .. })));
}

/// A kernel that takes the driver's compiler seconds, and hundreds of megabytes: its time goes with the square of these
/// lines, of which it has nearly as many as a kernel may.
fn dear_kernel() -> String {
    let lines: String =
        (0..250).map(|line| format!("data[id.x * 7u + {line}u] = data[id.x + {line}u] * 3u;\n")).collect();
    format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ {lines} }}"
    )
}

#[test]
fn a_kernel_that_the_driver_compiles_and_compiles_is_refused_and_others_go_on() {
    let operated = Operated::with(1, &["--compile-timeout", "200"]);
    let vm = operated.daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let device = Device::open(vm.open("compiles").unwrap()).unwrap();
    match device.create_kernel(&KernelSource::wgsl(&dear_kernel())).map(|_| ()) {
        Err(DriverError::Refused { status: Status::KernelRefused, text, .. }) => {
            assert!(text.contains("did not compile within 200ms"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let ticket = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    works.check().unwrap();
}

#[test]
fn tdr_27_an_engine_that_compiles_for_long_what_there_was_before_it_is_not_reset_for_that() {
    let operated = Operated::with(1, &["--tdr-timeout", "50", "--compile-timeout", "600000"]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("works").unwrap()).unwrap();
    // It takes the compiler many such timeouts.
    let _kernel = device.create_kernel(&KernelSource::wgsl(&dear_kernel())).unwrap();
    let mut queue = device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let before = pid(&operated, 0);
    operated.ask(&["reset", "--vgpu", "v0", "--node", "compute"]);
    let ticket = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    device.check().unwrap();
    assert_ne!(pid(&operated, 0), before);
    let counters = &operated.ask(&["metrics"])["vgpus"][0]["counters"];
    assert_eq!(counters["engines_reset"].as_u64(), Some(1));
}

#[test]
fn an_engine_that_runs_out_of_memory_costs_the_process_that_used_it_up() {
    // Its limit can be changed from here only where it has the user of this process.
    let options = ["--tdr-timeout", "600000", "--compile-timeout", "600000", "--engine-user", "none"];
    let operated = Operated::with(1, &options);
    let vm = operated.daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let ticket = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    let device = Device::open(vm.open("greedy").unwrap()).unwrap();
    let engine = pid(&operated, 0);
    allow_no_more_memory(engine);
    match device.create_kernel(&KernelSource::wgsl(&dear_kernel())).map(|_| ()) {
        Err(DriverError::Refused { status: Status::KernelRefused, text, .. }) => {
            assert!(text.contains("the engine ended while it compiled this kernel"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    until("its end", || !is_there(engine));
    let ticket = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    works.check().unwrap();
}

#[test]
fn a_hang_while_another_reset_goes_on_is_one_more_reset() {
    let operated = Operated::with(1, &["--tdr-timeout", "200", "--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let device = Device::open(vm.open("hangs").unwrap()).unwrap();
    let copy_engine = pid(&operated, 1);
    let loss = hang_and(&device, || signal(copy_engine, Signal::STOP));
    assert_eq!(loss.status, DEVICE_HUNG);
    queue.run(&CommandBuffer::new());
    // One engine hangs while the next process of the other is on its way.
    let next = Device::open(vm.open("hangs").unwrap()).unwrap();
    let loss = hang_and(&next, || signal(pid(&operated, 1), Signal::KILL));
    assert_eq!(loss.status, DEVICE_HUNG);
    queue.run(&CommandBuffer::new());
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    let resets = operated.ask(&["metrics"])["vgpus"][0]["counters"]["engines_reset"].as_u64().unwrap();
    assert_eq!(resets, 4);
}

fn state_of_spare(operated: &Operated) -> String {
    operated.ask(&["status"])["vgpus"][0]["session"]["engines"][0]["spare"].as_str().unwrap().to_owned()
}

#[test]
fn a_spare_takes_the_place_of_an_engine_and_one_that_died_is_not_missed() {
    // Processes are counted: with a device's own memory one of them may be the copy engine, which moves what is closed.
    let host = ["--local-memory", "host"];
    let arguments = [&["--spares", "on", "--tdr-timeout", "200", "--tdr-debug", "3"], &host[..]].concat();
    let operated = Operated::with(1, &arguments);
    let vm = operated.daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    for round in 0..4 {
        until("an engine and its spare", || engines(&operated.daemon).len() == 2);
        let running = pid(&operated, 0);
        let spare = engines(&operated.daemon).into_iter().find(|pid| *pid != running).unwrap();
        until("a spare that waits", || state_of_spare(&operated) == "ready");
        if round == 2 {
            signal(spare, Signal::KILL);
            until("its end", || state_of_spare(&operated) == "none");
        }
        let loss = hang_and(&Device::open(vm.open("hangs").unwrap()).unwrap(), || ());
        assert_eq!(loss.status, DEVICE_HUNG);
        let ticket = queue.submit(&CommandBuffer::new()).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
        assert_eq!(pid(&operated, 0) == spare, round != 2, "round {round}");
    }
    drop((queue, works, vm));
    until("the end of all engines", || engines(&operated.daemon).is_empty());
}

#[test]
fn tdr_57_a_spare_that_has_compiled_ahead_runs_what_the_engine_before_it_ran() {
    let operated = Operated::with(1, &["--spares", "on", "--tdr-timeout", "200"]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("works").unwrap()).unwrap();
    let kernel = device
        .create_kernel(&KernelSource::wgsl(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
            @compute @workgroup_size(1) fn main() { data[0] += 1u; }",
        ))
        .unwrap();
    let buffer = device.create_buffer(4096).unwrap();
    let mut queue = device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let mut runs = 0;
    let mut run = || {
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [1; 3], &[buffer.binding(0)], &[]).unwrap();
        let ticket = queue.submit(&commands).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
        runs += 1;
        assert_eq!(buffer.memory().word(0).unwrap().load(Ordering::Acquire) & 0xffff_ffff, runs);
    };
    for _ in 0..3 {
        // While it works, its spare is asked for one kernel after the other.
        until("a spare with the kernel", || {
            run();
            let status = operated.ask(&["status"]);
            status["vgpus"][0]["session"]["engines"][0]["spare_kernels"] == 1
        });
        operated.ask(&["reset", "--vgpu", "v0", "--node", "compute"]);
        run();
    }
    device.check().unwrap();
}

#[test]
fn tdr_40_tdr_44_tdr_77_what_an_engine_says_after_its_reset_reaches_nobody() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for round in 1..=4 {
        let before = pid(&operated, 1);
        queue.submit(&CommandBuffer::new());
        // Refused while the process before it comes up.
        until("a reset", || operated.run(&["reset", "--vgpu", "v0", "--node", "copy"]).status.success());
        queue.wait(round);
        until("the end of the process that was reset", || !is_there(before));
        assert_eq!((queue.fence(), queue.read_pointer()), (round, round), "once each");
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    assert_eq!(guest.word(campanile_protocol::device_page::LOSS).load(Ordering::Relaxed), 0);
}
