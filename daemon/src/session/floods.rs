//! Guests that ask for more and more of a vGPU whose engines never answer: each list ends with a status, all that was
//! charged comes back, and other processes go on meanwhile.

use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::session::budget::Amount;
use crate::session::budget::Budget;
use crate::session::budget::KINDS;
use crate::session::budget::Kind;
use crate::session::changing::STEPS;
use crate::session::config::Config;
use crate::session::memory::MAPPING_BYTES;
use crate::session::reply::Handled;
use crate::session::reply::Origin;
use crate::session::reply::Outcome;
use crate::session::residency_requests::HOLD_BYTES;
use crate::session::saved::bytes::Bytes;
use crate::session::saved::engine::SavedMessage;
use crate::session::saved::row::SavedOrigin;
use crate::session::state::Refusal;
use crate::session::state::Session;
use crate::session::testing::config;
use crate::session::testing::golden;
use crate::session::testing::session;

/// Bytes of the budget: three quarters of it are the pool.
const BYTES: u64 = 16 << 20;
const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);
const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);
/// The process that floods, and one that does not.
const GREEDY: u32 = 1;
const MODEST: u32 = 2;
const PAGE_VA: u64 = 0x10_0000;
const DATA_VA: u64 = 0x100_0000;

struct Guest {
    session: Session,
    budget: Arc<Budget>,
}

fn origin(context: u32) -> Origin {
    Origin { context, slot: 0, sequence: 1, ring: 0, item: None }
}

fn payload<T: FromBytes>(outcome: Outcome) -> T {
    match outcome {
        Ok(Handled::Now(payload)) => T::read_from_bytes(&payload).unwrap_or_else(|_| panic!("{payload:?}")),
        other => panic!("{other:?}"),
    }
}

/// Calls `make` until it is refused for want of room; how often it was not.
fn until_refused(limit: u32, mut make: impl FnMut(u32) -> Outcome) -> u32 {
    for index in 0..limit {
        if let Err(refused) = make(index) {
            assert_eq!(refused.status, Status::OutOfResources, "at {index}: {}", refused.text);
            return index;
        }
    }
    panic!("{limit} were given, and there is no end");
}

impl Guest {
    /// Two processes with devices.
    fn new() -> Self {
        let program = Program::new(PathBuf::from("/usr/bin/yes"), Vec::new());
        let budget = Arc::new(Budget::new(BYTES));
        let config = Config { program, budget: Arc::clone(&budget), ..config() };
        let session = session(&Arc::new(config));
        let mut guest = Self { session, budget };
        guest.open(GREEDY);
        guest.open(MODEST);
        guest
    }

    /// A process with a device whose page is the blob of the same number.
    fn open(&mut self, context: u32) {
        self.session.create_context(context).unwrap();
        self.session.create_vram_blob(context, DEVICE_PAGE_BYTES, false).unwrap();
        self.session.attach(context, context).unwrap();
        self.open_device(context).unwrap();
        assert!(self.session.active_device(context).is_ok());
    }

    fn open_device(&mut self, context: u32) -> Result<(), Refusal> {
        let (protocol_version, page_resource) = (PROTOCOL_VERSION, context);
        let create = CreateDevice { protocol_version, page_resource, page_offset: 0, page_va: PAGE_VA };
        self.session.open_device(origin(context), create.as_bytes())
    }

    /// An engine is there, and stands.
    fn come_up(&mut self, at: EngineAddress) {
        assert!(!self.session.ensure_engine(at).unwrap());
        self.session.engines[at.index()].came_up();
        self.stop(at);
    }

    fn stop(&self, at: EngineAddress) {
        let pid = self.session.engines[at.index()].process().unwrap().pid();
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }

    fn context(&mut self, of: u32) -> Handle {
        let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
        payload::<Created>(self.session.new_context(origin(of), create.as_bytes())).handle
    }

    fn queue(&mut self, of: u32, context: Handle) -> Handle {
        let create = CreateQueue { context, flags: 0, reserved: 0 };
        payload::<QueueCreated>(self.session.create_queue(origin(of), &create)).queue
    }

    fn submit(&mut self, of: u32, queue: Handle) -> Outcome {
        let submit = Submit { queue, buffer_va: DATA_VA, length: 8, flags: 0 };
        self.session.submit_buffer(origin(of), &submit)
    }

    /// A queue of a process, whose buffers are never done.
    fn stuck(&mut self, of: u32) -> Handle {
        let context = self.context(of);
        let queue = self.queue(of, context);
        (0..4).for_each(|_| drop(self.submit(of, queue).unwrap()));
        queue
    }

    /// A blob of one page that a process has.
    fn blob(&mut self, of: u32, resource: u32) {
        self.session.create_vram_blob(resource, PAGE_SIZE, false).unwrap();
        self.session.attach(of, resource).unwrap();
    }

    fn map(&mut self, of: u32, resource: u32, va: u64) -> Outcome {
        let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: PAGE_SIZE };
        self.session.map_memory(origin(of), &map)
    }

    fn unmap(&mut self, of: u32, va: u64) {
        let outcome = self.session.unmap_memory(origin(of), &UnmapMemory { va, size: PAGE_SIZE });
        assert!(outcome.is_ok(), "what ends something is never refused: {outcome:?}");
    }

    fn kernel(&mut self, of: u32, source_bytes: usize) -> Outcome {
        let bytes = u32::try_from(source_bytes).unwrap();
        let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes: bytes, reserved: 0 };
        let mut message = head.as_bytes().to_vec();
        message.resize(message.len() + source_bytes.next_multiple_of(8), b' ');
        self.session.create_kernel(origin(of), &message)
    }

    fn evict(&mut self, of: u32, resource: u32, count: u32) -> Outcome {
        let mut message = List { count, argument: EVICT_NOW }.as_bytes().to_vec();
        (0..count.next_multiple_of(2))
            .for_each(|at| message.extend(if at < count { resource } else { 0 }.to_le_bytes()));
        self.session.evict(origin(of), &message)
    }

    fn held(&self) -> Amount {
        self.budget.standing().held
    }

    fn held_of(&self, kind: Kind) -> Amount {
        self.budget.standing().kinds[kind as usize].1
    }

    /// The pool is used up, and not passed; the other process goes on with its own part; and all comes back.
    fn ends_full(mut self) {
        let held = self.held().bytes;
        assert!(held <= BYTES && held > BYTES / 2, "{held} bytes are held: {:?}", self.budget.standing());
        assert!(self.budget.standing().refused > 0);
        if self.session.engines[COPY.index()].is_running() {
            self.stuck(MODEST);
        }
        self.blobs_of_modest();
        self.session.reset();
        self.is_empty();
    }

    /// What the VM pays for is refused now, and nothing follows from that.
    fn blobs_of_modest(&mut self) {
        let before = self.held();
        if self.session.create_vram_blob(9_000_000, PAGE_SIZE, false).is_ok() {
            self.session.unref_blob(9_000_000).unwrap();
        }
        assert_eq!(self.held(), before);
        assert!(self.session.active_device(MODEST).is_ok());
    }

    fn is_empty(&self) {
        let Amount { bytes, items } = self.held();
        assert_eq!((bytes, items), (0, 0), "{:?}", self.budget.standing());
    }
}

#[test]
fn mcdm_06_buffers_behind_one_that_is_never_done_are_bounded() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let queue = guest.stuck(GREEDY);
    let given = until_refused(60_000, |_| guest.submit(GREEDY, queue));
    assert!(given > 40_000, "{given}");
    guest.ends_full();
}

#[test]
fn evictions_behind_a_buffer_that_is_never_done_are_bounded() {
    for count in [1, 1000] {
        let mut guest = Guest::new();
        guest.come_up(COPY);
        guest.stuck(GREEDY);
        guest.blob(GREEDY, 100);
        until_refused(60_000, |_| guest.evict(GREEDY, 100, count));
        guest.ends_full();
    }
}

#[test]
fn maps_and_unmaps_behind_a_buffer_that_is_never_done_are_bounded_and_unmaps_are_never_refused() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    guest.stuck(GREEDY);
    guest.blob(GREEDY, 100);
    until_refused(60_000, |_| {
        let mapped = guest.map(GREEDY, 100, DATA_VA);
        if mapped.is_ok() {
            guest.unmap(GREEDY, DATA_VA);
        }
        mapped
    });
    assert!(guest.held_of(Kind::Mappings).bytes > BYTES / 2);
    guest.ends_full();
}

/// Steps that it takes to map so many pages behind as many unmaps that wait.
fn cost_of_mapping_behind(count: u64) -> u64 {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    guest.blob(GREEDY, 100);
    let place = |index: u64| DATA_VA + index * PAGE_SIZE;
    (0..count).for_each(|index| drop(guest.map(GREEDY, 100, place(index)).unwrap()));
    guest.stuck(GREEDY);
    (0..count).for_each(|index| guest.unmap(GREEDY, place(index)));
    STEPS.set(0);
    (0..count).for_each(|index| drop(guest.map(GREEDY, 100, place(index)).unwrap()));
    let (steps, device) = (STEPS.get(), guest.session.active_device(GREEDY));
    assert_eq!(device.unwrap().paging.waiting().len() as u64, 2 * count, "all of them wait");
    steps
}

#[test]
fn mapping_behind_unmaps_that_wait_costs_little_for_each() {
    let (some, most) = (cost_of_mapping_behind(256), cost_of_mapping_behind(4096));
    assert!(some > 0);
    // Sixteen times as many: a list would be looked through sixteen times as long for each of them.
    assert!(most <= 16 * some * 2, "{some} steps for 256 mappings, and {most} for 4,096");
    assert!(most <= 4096 * 2 * 64, "{most} steps");
}

#[test]
fn mappings_are_bounded_and_come_back_when_engines_have_let_go() {
    let mut guest = Guest::new();
    guest.blob(GREEDY, 100);
    let before = guest.held();
    let given = until_refused(60_000, |index| guest.map(GREEDY, 100, DATA_VA + u64::from(index) * PAGE_SIZE));
    assert!(given > 10_000, "{given}");
    assert_eq!(guest.held().bytes - before.bytes, u64::from(given) * MAPPING_BYTES);
    // No engine is there that would have to.
    (0..given).for_each(|index| guest.unmap(GREEDY, DATA_VA + u64::from(index) * PAGE_SIZE));
    assert_eq!(guest.held(), before);
}

#[test]
fn messages_that_wait_for_an_engine_to_start_are_bounded() {
    let mut guest = Guest::new();
    // It never says that it has started.
    until_refused(60_000, |_| guest.kernel(GREEDY, 100 << 10));
    assert!(guest.held_of(Kind::Messages).bytes > BYTES / 2);
    let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    until_refused(60_000, |_| guest.session.new_context(origin(GREEDY), create.as_bytes()));
    for at in [COMPUTE, COPY] {
        guest.stop(at);
    }
    guest.ends_full();
}

#[test]
fn tiny_kernels_for_an_engine_that_does_not_read_are_bounded() {
    let mut guest = Guest::new();
    guest.come_up(COMPUTE);
    let given = until_refused(60_000, |_| guest.kernel(GREEDY, 1));
    assert!((100..1024).contains(&given), "{given}");
    assert!(guest.held_of(Kind::Kernels).bytes > BYTES / 2);
    guest.ends_full();
}

#[test]
fn kernels_of_devices_that_end_again_and_again_are_held_until_the_engine_has_heard_of_both() {
    let mut guest = Guest::new();
    guest.come_up(COMPUTE);
    let mut cycles = 0;
    loop {
        let mut given = 0;
        while given < 200 && guest.kernel(GREEDY, 1).is_ok() {
            given += 1;
        }
        guest.session.end_device(GREEDY);
        if given < 200 || guest.open_device(GREEDY).is_err() {
            break;
        }
        cycles += 1;
        assert!(cycles < 100, "there is no end");
        assert!(guest.held().bytes <= BYTES);
    }
    assert!(cycles > 1, "{cycles}");
    // The first went into the socket, which is as large as it is; all others are held.
    guest.ends_full();
}

#[test]
fn objects_of_many_processes_are_bounded() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let mut processes = vec![GREEDY];
    let refused = 'processes: loop {
        let of = *processes.last().unwrap();
        let context = guest.context(of);
        for index in 0..1000 {
            let create = CreateNativeFence {
                kind: NATIVE_FENCE_DEFAULT,
                reserved: 0,
                initial_value: 0,
                va: DATA_VA + index * PAGE_SIZE,
            };
            let fence = guest.session.create_native_fence(origin(of), &create);
            let create = CreateQueue { context, flags: 0, reserved: 0 };
            let queue = guest.session.create_queue(origin(of), &create);
            if let Err(why) = queue {
                break 'processes why.status;
            }
            drop(fence);
        }
        let next = 100 + u32::try_from(processes.len()).unwrap();
        assert!(next < 300, "there is no end");
        guest.open(next);
        processes.push(next);
    };
    assert_eq!(refused, Status::OutOfResources);
    assert!(guest.held_of(Kind::Objects).bytes > BYTES / 2);
    guest.ends_full();
}

#[test]
fn blobs_and_the_names_that_processes_have_for_them_are_bounded() {
    let mut guest = Guest::new();
    let mut blobs = 0;
    while let Ok(()) = guest.session.create_vram_blob(1000 + blobs, PAGE_SIZE, false) {
        blobs += 1;
        assert!(blobs < 60_000, "there is no end");
    }
    let last = guest.session.create_vram_blob(1000 + blobs, PAGE_SIZE, false);
    assert_eq!(last, Err(Refusal::OutOfMemory));
    (0..blobs / 2).for_each(|index| guest.session.unref_blob(1000 + index).unwrap());
    let left = blobs / 2..blobs;
    let mut names = 0;
    'processes: for process in 0..250 {
        let context = 100 + process;
        guest.session.create_context(context).unwrap();
        for resource in left.clone() {
            if let Err(refusal) = guest.session.attach(context, 1000 + resource) {
                assert_eq!(refusal, Refusal::OutOfMemory);
                break 'processes;
            }
            // Once more is the same name.
            guest.session.attach(context, 1000 + resource).unwrap();
            names += 1;
        }
    }
    assert!(names > 10_000 && names < 250 * blobs / 2, "{names}");
    guest.ends_full();
}

#[test]
fn what_is_held_resident_is_charged_once_and_comes_back_with_its_last_eviction() {
    let mut guest = Guest::new();
    guest.blob(GREEDY, 100);
    let before = guest.held();
    let mut message = List { count: 1, argument: 0 }.as_bytes().to_vec();
    message.extend([100u32, 0].as_bytes());
    for _ in 0..3 {
        assert!(guest.session.make_resident(origin(GREEDY), &message).is_ok());
        assert_eq!(guest.held_of(Kind::Paging), Amount { bytes: HOLD_BYTES, items: 1 });
    }
    for left in (0..3).rev() {
        guest.evict(GREEDY, 100, 1).unwrap();
        assert_eq!(guest.held_of(Kind::Paging).items, u64::from(left > 0));
    }
    assert_eq!(guest.held(), before);
}

#[test]
fn waits_are_charged_and_come_back_with_their_queue() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let context = guest.context(GREEDY);
    let queue = guest.queue(GREEDY, context);
    let before = guest.held_of(Kind::Work);
    let wait = WaitFence { queue, value: 7 };
    let given = until_refused(1000, |_| guest.session.wait_fence(origin(GREEDY), &wait));
    assert_eq!(guest.held_of(Kind::Work).items, before.items + u64::from(given));
    assert!(guest.session.destroy_queue(origin(GREEDY), &Named { handle: queue }).is_ok());
    assert_eq!(guest.held_of(Kind::Work), before);
}

#[test]
fn a_suspend_beyond_the_budget_suspends_nothing() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let context = guest.context(GREEDY);
    let queue = guest.queue(GREEDY, context);
    until_refused(60_000, |_| guest.submit(GREEDY, queue));
    let refused = guest.session.suspend_context(origin(GREEDY), &Named { handle: context }).unwrap_err();
    assert_eq!(refused.status, Status::OutOfResources);
    let device = guest.session.device(GREEDY).unwrap();
    assert!(!device.contexts.get(context).unwrap().held.any());
    assert_eq!(device.status, device_page::DEVICE_ACTIVE);
}

#[test]
fn a_process_that_ends_gives_back_what_engines_do_not_have() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let before = guest.held();
    guest.open(100);
    let queue = guest.stuck(100);
    guest.blob(100, 101);
    guest.map(100, 101, DATA_VA).unwrap();
    until_refused(60_000, |_| guest.submit(100, queue));
    guest.session.destroy_context(100).unwrap();
    let held = guest.held_of(Kind::Work);
    assert_eq!(held, Amount { bytes: 0, items: 0 }, "no engine has work that does not run");
    assert!(guest.held_of(Kind::Mappings).items > 2, "the engine has not let go of its mappings");
    guest.session.stop_engines();
    guest.session.run_pending();
    [100, 101].into_iter().for_each(|resource| guest.session.unref_blob(resource).unwrap());
    assert_eq!(guest.held(), before);
}

#[test]
fn lm_39_a_state_is_charged_as_it_was_and_one_that_passes_the_budget_is_refused() {
    let vgpu = |bytes| Config { budget: Arc::new(Budget::new(bytes)), ..config() };
    let held = |config: &Arc<Config>| config.budget.standing().kinds;
    let here = Arc::new(vgpu(BYTES));
    let mut source = session(&here);
    let mut state = golden();
    let origin = SavedOrigin(state.processes[0].context, 1, 1, 0, None);
    state.engines[0].waiting.push(SavedMessage(origin, CREATE_CONTEXT, Bytes(vec![0; 24])));
    state.processes[0].device.as_mut().unwrap().holds.push((2, 1));
    source.restore(&state).unwrap();
    let charged = held(&here);
    for (kind, name) in KINDS.into_iter().filter(|(kind, _)| *kind != Kind::Files) {
        assert!(charged[kind as usize].1.items > 0, "the golden state has no {name}");
    }
    let there = Arc::new(vgpu(BYTES));
    let mut target = session(&there);
    target.restore(&source.save().unwrap()).unwrap();
    assert_eq!(held(&there), charged);
    drop((source, target));
    for config in [&here, &there] {
        assert_eq!(config.budget.standing().held, Amount { bytes: 0, items: 0 });
    }
    let small = Arc::new(vgpu(64 << 10));
    let mut target = session(&small);
    let refused = target.restore(&golden()).unwrap_err().to_string();
    assert!(refused.contains("more than the daemon holds for one VM"), "{refused}");
    assert!(target.is_fresh());
    assert_eq!(small.budget.standing().held, Amount { bytes: 0, items: 0 }, "nothing is half applied");
}
