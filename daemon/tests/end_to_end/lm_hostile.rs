//! State that lies, and engines that do not stand still.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_daemon::ids::FrontContext;
use campanile_daemon::migration::state;
use campanile_daemon::migration::state::State;
use campanile_daemon::vgpu::state::restore::install::RestoreError;
use campanile_daemon::vgpu::state::saved::bytes::Bytes;
use campanile_daemon::vgpu::tdr::policy::Policy;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_HUNG;
use proptest::prelude::any;
use proptest::strategy::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::change::changed;
use crate::moving::Movable;
use crate::moving::Moving;
use crate::moving::Shape;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::signals::kill;
use crate::slices::Long;
use crate::support::until;
use crate::tdr_support::hang_and;

/// A guest of which a state has something of nearly everything.
struct Rich {
    guest: std::sync::Arc<RawGuest>,
    _waiting: Vec<RawCall>,
    _queues: Vec<RawQueue>,
    _user: UserQueue,
    _compute: Context,
    _long: Long,
    _device: Device,
}

impl Rich {
    fn new(moving: &Moving) -> Self {
        let vm = moving.vm();
        let device = Device::open(vm.open("rich").unwrap()).unwrap();
        let long = Long::new(&device);
        let compute = device.create_context(Node::Compute).unwrap();
        let mut user = compute.create_user_queue(&QueueOptions::default()).unwrap();
        user.submit(&long.commands(false)).unwrap();
        let guest = RawGuest::open_in(&vm, BlobMemory::GuestRam);
        let context = guest.context(Node::Copy);
        let ram = guest.memory(BlobMemory::GuestRam, 64 << 10);
        let (arena, gate) = (guest.vram(8192), guest.vram(4096));
        let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
        for queue in &mut queues {
            queue.connect().unwrap();
            queue.submit(&fill(ram.va, 4096, 1));
            queue.submit(&wait_for(gate.va, 1));
        }
        let va = 0x4000_0000;
        let kind = native_fence::NATIVE_FENCE_DEFAULT;
        let create = CreateNativeFence { kind, initial_value: 5, va, ..Default::default() };
        let opened: NativeFenceOpened = guest.ask(native_fence::CREATE_NATIVE_FENCE, &create).unwrap();
        let value = NativeFenceValue { fence: opened.fence, value: 7 };
        let mut waiting = vec![guest.send(1, native_fence::WAIT_NATIVE_FENCE, &value)];
        let last = &queues[0];
        waiting.push(guest.wait_fence(2, last.created.queue, 2));
        let bell = message::Named { handle: queues[1].bell.doorbell };
        waiting.push(guest.send(3, message::DESTROY_DOORBELL, &bell));
        let queue = guest.queue(context, 0).unwrap().queue;
        for slot in 4..8 {
            let commands = wait_for(gate.va, 1);
            let offset = u64::from(slot) * 512;
            arena.memory.write(offset, commands.bytes()).unwrap();
            let length = u32::try_from(commands.bytes().len()).unwrap();
            let submit = Submit { queue, buffer_va: arena.va + offset, length, flags: 0 };
            waiting.push(guest.send(slot, message::SUBMIT, &submit));
        }
        let gone = guest.vram(8192);
        let unmap = message::UnmapMemory { va: gone.va, size: gone.size() };
        guest.call(message::UNMAP_MEMORY, &unmap).unwrap();
        let suspended = guest.context(Node::Copy);
        guest.name(message::SUSPEND_CONTEXT, suspended).unwrap();
        until("the dispatch", || long.started() > 10);
        Self {
            guest,
            _waiting: waiting,
            _queues: queues,
            _user: user,
            _compute: compute,
            _long: long,
            _device: device,
        }
    }
}

/// Has another session take this state. What came of it: refused as a whole, or taken as a whole.
fn try_restore(device: &mut Movable, bytes: &[u8], good: &State, starts: bool) -> bool {
    let Ok(changed) = state::decode(bytes) else { return false };
    let mut session = device.fresh_with_memory();
    match session.restore(&changed.session) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(session.is_fresh() && !session.is_frozen(), "{error}");
            // Nothing of it was applied, or this could not be.
            session.restore(&good.session).unwrap();
            assert_eq!(session.save().unwrap(), good.session);
            false
        }
        Ok(()) => {
            assert!(session.is_frozen());
            session.save().unwrap();
            if starts {
                session.thaw();
                session.freeze();
            }
            true
        }
    }
}

#[test]
fn lm_39_lm_40_state_that_lies_is_refused_or_taken_whole_and_harms_nobody() {
    let moving = Moving::start(&Shape { quota: 4 << 30, ..Shape::default() });
    let rich = Rich::new(&moving);
    moving.freeze();
    let good = moving.ask(|device| {
        let session = device.save();
        State { immutable: device.session().immutable(), session, ..State::default() }
    });
    let bytes = good.encode().unwrap();
    let mut runner = TestRunner::deterministic();
    let (mut taken, mut refused) = (0, 0);
    for round in 0..2000 {
        let seed = any::<u64>().new_tree(&mut runner).unwrap().current();
        let bytes = changed(&bytes, 16, seed).unwrap();
        let good = good.clone();
        if moving.ask(move |device| try_restore(device, &bytes, &good, round % 200 == 0)) {
            taken += 1;
        } else {
            refused += 1;
        }
    }
    // Bytes too: most are no state any more.
    let strategy = (0..bytes.len(), any::<u8>());
    for _ in 0..300 {
        let (place, byte) = strategy.new_tree(&mut runner).unwrap().current();
        let mut changed = bytes.clone();
        changed[place] ^= byte;
        let good = good.clone();
        moving.ask(move |device| try_restore(device, &changed, &good, false));
    }
    assert!(refused > 50 && taken > 5, "{refused} refused, {taken} taken");
    moving.thaw();
    assert_eq!(rich.guest.device_status(), DEVICE_ACTIVE);
    rich.guest.round_trip();
}

#[test]
fn lm_31_lm_32_lm_39_a_vgpu_that_is_in_use_takes_no_state() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, _) = copy_guest(&vm);
    moving.freeze();
    moving.ask(|device| {
        let saved = device.save();
        assert!(matches!(device.session().restore(&saved), Err(RestoreError::InUse)));
        let mut other = device.fresh_with_memory();
        other.restore(&saved).unwrap();
        assert!(other.is_frozen(), "it stands still until it is started");
        assert!(matches!(other.restore(&saved), Err(RestoreError::InUse)), "once");
        let mut started = device.fresh();
        started.create_context(FrontContext::new(7)).unwrap();
        assert!(matches!(started.restore(&saved), Err(RestoreError::InUse)));
    });
    moving.thaw();
    guest.round_trip();
}

/// A guest that runs one long buffer, on a vGPU whose engines must stand still in a moment.
fn hurried(limit: Duration) -> Moving {
    Moving::start(&Shape { freeze_limit: limit, ..Shape::default() })
}

#[test]
fn lm_64_an_engine_that_does_not_stand_still_in_time_costs_the_device_whose_work_it_ran_and_no_other() {
    let moving = hurried(Duration::from_millis(100));
    let vm = moving.vm();
    let device = Device::open(vm.open("hangs").unwrap()).unwrap();
    // One group that takes long: there is no place within it to stop at.
    let kernel = campanile_guest_driver::kernel::KernelSource::wgsl(
        "@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>>;
         @compute @workgroup_size(1) fn main() {
            atomicStore(&words[0], 1u);
            while atomicLoad(&words[1]) == 0u { }
         }",
    );
    let kernel = device.create_kernel(&kernel).unwrap();
    let words = device.create_buffer(4096).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1; 3], &[words.binding(0)], &[]).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let (bystander, copies) = copy_guest(&vm);
    let compute = bystander.context(Node::Compute);
    queue.submit(&commands).unwrap();
    until("the kernel", || words.memory().word(0).unwrap().load(Ordering::Acquire) == 1);
    moving.freeze();
    assert_eq!(moving.counters.freezes_forced.load(Ordering::Relaxed), 1);
    let saved = moving.ask(Movable::exchange);
    let status = |process: usize| saved.processes[process].device.as_ref().unwrap().status;
    assert_eq!((status(0), status(1)), (DEVICE_HUNG, DEVICE_ACTIVE));
    moving.thaw();
    assert_eq!(bystander.device_status(), DEVICE_ACTIVE);
    for context in [copies, compute] {
        let mut queue = RawQueue::new(&bystander, context);
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        queue.wait(queue.value);
    }
}

#[test]
fn lm_64_a_reset_is_over_before_anything_is_saved() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let device = Device::open(vm.open("moving").unwrap()).unwrap();
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(16 << 20);
    let long = Long::new(&device);
    let compute = device.create_context(Node::Compute).unwrap();
    let mut queue = compute.create_user_queue(&QueueOptions::default()).unwrap();
    let point = queue.submit(&long.commands(false)).unwrap();
    let mut raw = RawQueue::new(&guest, context);
    raw.connect().unwrap();
    for value in 1..=30 {
        raw.submit(&fill(target.va, target.size(), value));
    }
    until("the dispatch", || long.started() > 0);
    // The process of the copy engine goes away: its reset and the standstill are asked for at once.
    moving.engines().into_iter().for_each(kill);
    let saved = moving.migrate();
    let states: Vec<u64> =
        saved.processes.iter().map(|process| process.device.as_ref().unwrap().status).collect();
    // Who ran something has lost his device, or had just put it aside: whole or gone, and nothing between.
    if states[0] == DEVICE_ACTIVE {
        point.wait(Some(crate::support::NEVER)).unwrap();
        long.check();
    }
    if states[1] == DEVICE_ACTIVE {
        raw.wait(30);
        assert_eq!(target.word(target.size() - 8).load(Ordering::Acquire), 30 << 32 | 30);
    } else {
        assert_eq!(guest.device_status(), states[1]);
    }
}

/// Where golden states are.
fn golden(version: u32) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/golden/state-{version}.campanile"))
}

#[test]
#[ignore = "writes the golden state of this version: run it once, when a version is released"]
fn write_the_golden_state_of_this_version() {
    let moving = Moving::start(&Shape { quota: 4 << 30, ..Shape::default() });
    let _rich = Rich::new(&moving);
    moving.freeze();
    let state = moving.ask(|device| {
        let (immutable, session) = (device.session().immutable(), device.save());
        State { immutable, session, bundle: state::BundleId(1, 2), front: Bytes(vec![1, 2, 3]) }
    });
    moving.thaw();
    let path = golden(state::VERSION);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, state.encode().unwrap()).unwrap();
}

#[test]
fn lm_20_states_of_every_released_version_are_read_and_restored() {
    let moving = Moving::start(&Shape { quota: 4 << 30, ..Shape::default() });
    let vm = moving.vm();
    for version in 1..=state::VERSION {
        let bytes = std::fs::read(golden(version)).unwrap();
        assert_eq!(state::versions(&bytes).unwrap().0, version);
        let state = state::decode(&bytes).unwrap();
        assert_eq!((state.bundle, &state.front.0), (state::BundleId(1, 2), &vec![1, 2, 3]));
        let text = campanile_daemon::migration::inspect::describe(&bytes).unwrap();
        assert!(text.contains("2 guest processes") && text.contains("half run"), "{text}");
        // Its guest memory is nowhere: whose it was has lost his device, and the other goes on.
        let (same, lost) = moving.ask(move |device| {
            let mut session = device.fresh();
            session.restore(&state.session).unwrap();
            let same = session.save().unwrap() == state.session;
            session.set_guest_memory(std::sync::Arc::default());
            session.thaw();
            session.freeze();
            let deadline = std::time::Instant::now() + crate::support::NEVER;
            while !session.is_frozen() && std::time::Instant::now() < deadline {
                session.event();
            }
            let saved = session.save().unwrap();
            let status = |process: &campanile_daemon::vgpu::state::saved::process::SavedProcess| {
                process.device.as_ref().unwrap().status
            };
            (same, saved.processes.iter().map(status).collect::<Vec<_>>())
        });
        // A state of version 1 gets its save areas here.
        assert_eq!(same, version == state::VERSION, "version {version}");
        assert_eq!(lost, [DEVICE_ACTIVE, campanile_protocol::device_page::DEVICE_STOPPED]);
    }
    drop(vm);
}

#[test]
fn campanile_inspect_says_what_is_in_a_file_and_what_is_none() {
    let inspect = |path: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("inspect").arg(path).output().unwrap()
    };
    let said = inspect(&golden(1));
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.status.success() && text.contains("state of a vGPU") && text.contains("video memory: 64.00 MiB")
    );
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, b"something else").unwrap();
    let said = inspect(&other);
    let text = String::from_utf8(said.stderr).unwrap();
    assert!(!said.status.success() && text.contains("not the state of a vGPU"), "{text}");
}

#[test]
fn lm_55_a_process_that_hangs_the_gpu_too_often_is_blocked_wherever_it_is() {
    let moving = hurried(Duration::from_millis(100));
    let vm = moving.vm();
    let mut device = Device::open(vm.open("hangs").unwrap()).unwrap();
    let limit = Policy::default().process_limit();
    for round in 1..=limit {
        let hung = hang_and(&device, || {
            let saved = moving.migrate();
            assert_eq!(saved.processes[0].offences.len(), round);
        });
        assert_eq!(hung.status, DEVICE_HUNG);
        device = device.recreate().unwrap();
    }
    let last = hang_and(&device, || drop(moving.migrate()));
    let saved = moving.migrate();
    assert_eq!(saved.processes[0].blocked, Some(last.report));
    let why = device.recreate().unwrap_err().to_string();
    assert!(why.contains("this process hung the GPU more than"), "{why}");
    Device::open(vm.open("another").unwrap()).unwrap();
}
