//! The device in D0 and D3.

use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::handshake;

use crate::operator::Operated;
use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::engines;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::signals::Stopped;
use crate::support::NEVER;
use crate::support::until;

const ADD_ONE: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = data[id.x] + 1u;
    }";

fn power(operated: &Operated) -> String {
    operated.ask(&["status"])["vgpus"][0]["session"]["power"].as_str().unwrap().to_owned()
}

fn enter(operated: &Operated, state: &str) {
    operated.ask(&["power", "--vgpu", "v0", state]);
}

#[test]
fn ums_123_contexts_are_suspended_before_doorbells_are_disconnected_and_both_before_d3() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let view = EngineView::of(&operated.daemon);
    let running = engine(&operated.daemon);
    let stopped = Stopped::new(running);
    std::thread::scope(|scope| {
        let ordered = scope.spawn(|| enter(&operated, "d3"));
        until("a suspend", || power(&operated) == "leaving D0");
        assert_eq!(queue.status(), CONNECTED, "the engine has not suspended its context");
        assert_eq!((view.suspend_reported(0), engine(&operated.daemon)), (0, running));
        drop(stopped);
        ordered.join().unwrap();
    });
    assert_eq!((queue.status(), power(&operated).as_str()), (RETRY, "D3"));
    assert_eq!(view.suspend_reported(0), 1);
    assert!(view.slots_in_use().is_empty());
    assert!(engines(&operated.daemon).is_empty());
}

#[test]
fn ums_124_ums_125_a_connect_wakes_the_device_and_nothing_is_lost() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let memory = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    let mut silent = RawQueue::new(&guest, context);
    for queue in [&mut queue, &mut silent] {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    for round in 1..=3 {
        enter(&operated, "d3");
        assert_eq!((queue.status(), silent.status()), (RETRY, RETRY));
        // Entries that nobody is told of: the engine finds them when it is back.
        silent.put(&fill(memory.va + 8, 8, round));
        silent.store_write_pointer();
        assert_eq!(queue.submit(&fill(memory.va, 8, round)), RETRY);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert_eq!(queue.ring(), CONNECTED);
        queue.wait(queue.value);
        silent.wait(silent.value);
        let value = u64::from(round) << 32 | u64::from(round);
        for word in [0, 8] {
            assert_eq!(memory.word(word).load(std::sync::atomic::Ordering::Acquire), value);
        }
        assert_eq!(power(&operated), "D0");
        assert_eq!(silent.connect(), Ok(CONNECTED));
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_125_a_driver_and_its_kernels_come_through_d3_on_both_ways_of_submission() {
    let operated = Operated::with(1, &[]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let kernel = device.create_kernel(&KernelSource::wgsl(ADD_ONE)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut ordinary = context.create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap();
    for round in 0..3u32 {
        let expected = 2 * round;
        user.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        enter(&operated, "d3");
        enter(&operated, "d3");
        assert!(engines(&operated.daemon).is_empty());
        let ticket = ordinary.submit(&commands).unwrap();
        ordinary.wait(ticket, Some(NEVER)).unwrap();
        let mut bytes = [0; 4096];
        data.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == (expected + 2).to_le_bytes()));
    }
    enter(&operated, "d3");
    enter(&operated, "d0");
    assert_eq!(power(&operated), "D0");
    // What needs no engine leaves it asleep, and can be ended there.
    enter(&operated, "d3");
    let buffer = device.create_buffer(4096).unwrap();
    drop((buffer, user, ordinary, context, kernel, data));
    device.check().unwrap();
    assert_eq!(power(&operated), "D3");
}

#[test]
fn a_device_whose_engines_sleep_for_long_goes_to_d3_by_itself() {
    let operated = Operated::with(1, &["--spin", "0", "--d3-after", "50"]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    for _ in 0..3 {
        queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        until("D3", || engines(&operated.daemon).is_empty());
    }
    assert_eq!(power(&operated), "D3");
    device.check().unwrap();
}

#[test]
fn a_guest_that_has_work_stops_the_way_to_d3() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let stopped = Stopped::new(engine(&operated.daemon));
    std::thread::scope(|scope| {
        let ordered = scope.spawn(|| operated.refusal(&["power", "--vgpu", "v0", "d3"]));
        until("a suspend", || power(&operated) == "leaving D0");
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert!(ordered.join().unwrap().contains("has woken it"));
    });
    drop(stopped);
    queue.run(&CommandBuffer::new());
    assert_eq!(power(&operated), "D0");
}

#[test]
fn ums_125_work_that_meets_the_device_anywhere_on_its_way_to_d3_is_not_lost() {
    let operated = Operated::with(1, &["--spin", "20", "--d3-after", "1"]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut transitions = 0;
    let mut round = 0u64;
    while transitions < 20 {
        // From nothing to more than it takes.
        let pause = Duration::from_micros(round * 97 % 4000);
        let begun = Instant::now();
        while begun.elapsed() < pause {
            std::hint::spin_loop();
        }
        let point = queue.submit(&CommandBuffer::new()).unwrap();
        // Looks at the fence alone: nothing is sent that could wake the device.
        until("a fence", || point.is_reached());
        round += 1;
        if round.is_multiple_of(50) {
            let metrics = operated.ask(&["metrics"]);
            transitions = metrics["vgpus"][0]["counters"]["d3_transitions"].as_u64().unwrap();
        }
    }
}

#[test]
fn ums_117_ums_124_what_an_engine_said_of_itself_is_not_said_of_the_process_that_comes_after_it() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let view = EngineView::of(&operated.daemon);
    for _ in 0..3 {
        enter(&operated, "d3");
        until("no engine", || engines(&operated.daemon).is_empty());
        // As one that was taken over could leave it.
        view.report_hung();
        std::thread::scope(|scope| {
            let ordered = scope.spawn(|| enter(&operated, "d0"));
            until("another process", || !engines(&operated.daemon).is_empty());
            // It has said nothing yet, or that it runs or naps.
            let stopped = Stopped::new(engine(&operated.daemon));
            assert_ne!(view.power(), handshake::power::HUNG);
            drop(stopped);
            ordered.join().unwrap();
        });
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        queue.wait(queue.value);
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    assert_eq!(operated.counter(0, "engines_reset"), 0, "nothing hung");
}
