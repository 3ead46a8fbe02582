//! Guests that ask for more and more of a vGPU whose engines never answer: each list ends with a status, all that was
//! charged comes back, and other processes go on meanwhile.

use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::IntoBytes;

use super::config::Config;
use super::flooding_guest::BYTES;
use super::flooding_guest::COMPUTE;
use super::flooding_guest::COPY;
use super::flooding_guest::DATA_VA;
use super::flooding_guest::GREEDY;
use super::flooding_guest::Guest;
use super::flooding_guest::origin;
use super::flooding_guest::until_refused;
use super::memory::mapping::MAPPING_BYTES;
use super::memory::residency_requests::HOLD_BYTES;
use super::objects::budget::Amount;
use super::objects::budget::Budget;
use super::objects::budget::KINDS;
use super::objects::budget::Kind;
use super::state::saved::bytes::Bytes;
use super::state::saved::engine::SavedMessage;
use super::state::saved::row::SavedOrigin;
use super::testing::config;
use super::testing::golden;
use super::testing::session;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::fences::NativeFences;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::objects::changing::STEPS;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::submission::waits::Waits;

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
    let (steps, device) = (STEPS.get(), guest.session.vm.objects.active_device(GuestProcess::new(GREEDY)));
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
    until_refused(60_000, |_| Lifecycle::of(&mut guest.session.vm).new_context(origin(GREEDY), &create));
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
        while given < 40 && guest.kernel(GREEDY, 1).is_ok() {
            given += 1;
        }
        Devices::of(&mut guest.session.vm).end_device(GuestProcess::new(GREEDY));
        if given < 40 || guest.open_device(GREEDY).is_err() {
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
            let fence = NativeFences::of(&mut guest.session.vm).create_native_fence(origin(of), &create);
            let create = CreateQueue { context, flags: 0, reserved: 0 };
            let queue = Submission::of(&mut guest.session.vm).create_queue(origin(of), &create);
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
    while let Ok(()) = guest.session.blobs().create_vram_blob(1000 + blobs, PAGE_SIZE, false) {
        blobs += 1;
        assert!(blobs < 60_000, "there is no end");
    }
    let last = guest.session.blobs().create_vram_blob(1000 + blobs, PAGE_SIZE, false);
    assert_eq!(last, Err(Refusal::OutOfMemory));
    (0..blobs / 2).for_each(|index| guest.session.blobs().unref_blob(1000 + index).unwrap());
    let left = blobs / 2..blobs;
    let mut names = 0;
    'processes: for process in 0..250 {
        let context = 100 + process;
        guest.session.create_context(FrontContext::new(context)).unwrap();
        for resource in left.clone() {
            if let Err(refusal) = guest.session.blobs().attach(FrontContext::new(context), 1000 + resource) {
                assert_eq!(refusal, Refusal::OutOfMemory);
                break 'processes;
            }
            // Once more is the same name.
            guest.session.blobs().attach(FrontContext::new(context), 1000 + resource).unwrap();
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
        assert!(guest.request(GREEDY, memory::MAKE_RESIDENT, &message).is_ok());
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
    let given = until_refused(1000, |_| Waits::of(&mut guest.session.vm).wait_fence(origin(GREEDY), &wait));
    assert_eq!(guest.held_of(Kind::Work).items, before.items + u64::from(given));
    assert!(Waits::of(&mut guest.session.vm).destroy_queue(origin(GREEDY), &Named { handle: queue }).is_ok());
    assert_eq!(guest.held_of(Kind::Work), before);
}

#[test]
fn a_suspend_beyond_the_budget_suspends_nothing() {
    let mut guest = Guest::new();
    guest.come_up(COPY);
    let context = guest.context(GREEDY);
    let queue = guest.queue(GREEDY, context);
    until_refused(60_000, |_| guest.submit(GREEDY, queue));
    let refused = EngineReports::of(&mut guest.session.vm)
        .suspend_context(origin(GREEDY), &Named { handle: context })
        .unwrap_err();
    assert_eq!(refused.status, Status::OutOfResources);
    let device = guest.session.vm.objects.device(GuestProcess::new(GREEDY)).unwrap();
    assert!(!device.contexts.get(ContextHandle::new(context)).unwrap().held.any());
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
    guest.session.destroy_context(FrontContext::new(100)).unwrap();
    let held = guest.held_of(Kind::Work);
    assert_eq!(held, Amount { bytes: 0, items: 0 }, "no engine has work that does not run");
    assert!(guest.held_of(Kind::Mappings).items > 2, "the engine has not let go of its mappings");
    Lifecycle::of(&mut guest.session.vm).stop_engines();
    Deferred::of(&mut guest.session.vm).run_pending();
    [100, 101].into_iter().for_each(|resource| guest.session.blobs().unref_blob(resource).unwrap());
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
