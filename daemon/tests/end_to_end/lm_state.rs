//! Guests whose vGPU became another one's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_daemon::vgpu::state::saved::SavedSession;
use campanile_daemon::vgpu::state::saved::process::SavedBuffer;
use campanile_daemon::vgpu::state::saved::process::SavedDevice;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::native_fence::GlobalFence;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::CurrentValue;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::reply::Suspended;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_test_vmm::vm::LoopbackVm;

use crate::moving::Moving;
use crate::moving::Shape;
use crate::raw::RawGuest;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::save_areas::slots;
use crate::slices::GROUPS;
use crate::slices::Long;
use crate::support::NEVER;
use crate::support::until;

pub(crate) fn device(vm: &Arc<LoopbackVm>) -> Device {
    Device::open(vm.open("moving").unwrap()).unwrap()
}

pub(crate) fn saved_device(saved: &SavedSession) -> &SavedDevice {
    saved.processes[0].device.as_ref().unwrap()
}

pub(crate) fn buffers(device: &SavedDevice) -> Vec<&SavedBuffer> {
    device.contexts.living().flat_map(|context| &context.buffers).collect()
}

#[test]
fn lm_45_lm_49_lm_50_a_ring_goes_on_where_it_was_with_what_was_rung() {
    for page in [BlobMemory::Vram, BlobMemory::GuestRam] {
        let moving = Moving::start(&Shape::default());
        let vm = moving.vm();
        let guest = RawGuest::open_in(&vm, page);
        let context = guest.context(Node::Copy);
        let memories =
            [guest.memory(BlobMemory::Vram, 16 << 20), guest.memory(BlobMemory::GuestRam, 1 << 20)];
        let mut queue = RawQueue::new(&guest, context);
        queue.connect().unwrap();
        for _ in 0..100 {
            while queue.submit(&CommandBuffer::new()) != CONNECTED {
                queue.connect().unwrap();
            }
            queue.wait(queue.value);
        }
        queue.connect().unwrap();
        let first = queue.value;
        for value in 1..=20 {
            for memory in &memories {
                queue.submit(&fill(memory.va, memory.size(), value));
            }
        }
        moving.freeze();
        assert!(queue.fence() < first + 40, "all of it was done before");
        assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
        moving.ask(|device| drop(device.exchange()));
        moving.thaw();
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.wait(queue.value);
        for memory in &memories {
            let last = memory.word(memory.size() - 8).load(Ordering::Acquire);
            assert_eq!(last, 20 << 32 | 20, "page in {page:?}");
        }
    }
}

#[test]
fn lm_48_a_half_run_dispatch_goes_on_at_its_thread_group_on_either_kind_of_queue() {
    for is_user_mode in [true, false] {
        let moving = Moving::start(&Shape::default());
        let vm = moving.vm();
        let device = device(&vm);
        let long = Long::new(&device);
        let context = device.create_context(Node::Compute).unwrap();
        let commands = long.commands(is_user_mode);
        let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
        let mut ordinary = context.create_kernel_queue().unwrap();
        let (mut point, mut ticket) = (None, None);
        if is_user_mode {
            point = Some(user.submit(&commands).unwrap());
        } else {
            ticket = Some(ordinary.submit(&commands).unwrap());
        }
        until("the dispatch", || long.started() > 100);
        // Twice: what was half run when it came goes on from there, and is half run again.
        for _ in 0..2 {
            let before = long.started();
            let saved = moving.migrate();
            assert!(long.started() < u64::from(GROUPS), "all of it was done before");
            let of_device = saved_device(&saved);
            let is_saved = if is_user_mode {
                of_device.doorbells.living().any(|doorbell| doorbell.place.is_some_and(|it| it.is_saved))
            } else {
                buffers(of_device).first().is_some_and(|buffer| buffer.is_saved)
            };
            assert!(is_saved, "it was put aside");
            // How far it was went with the memory.
            let done =
                slots(&moving, &saved).into_iter().find_map(|slot| Some(slot?.done_in_packet)).unwrap();
            assert!(done > 0 && done < u64::from(GROUPS), "{done} groups of it are done");
            until("more of it", || long.started() > before + 50);
        }
        if let Some(point) = point {
            point.wait(Some(NEVER)).unwrap();
        }
        if let Some(ticket) = ticket {
            ordinary.wait(ticket, Some(NEVER)).unwrap();
        }
        long.check();
        // What was compiled again computes as before.
        let point = user.submit(&long.commands(false)).unwrap();
        point.wait(Some(NEVER)).unwrap();
        long.check();
    }
}

#[test]
fn lm_47_lm_54_software_queues_move_in_order_with_those_first_that_an_engine_had() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let queue = guest.queue(context, 0).unwrap();
    let (room, words) = (guest.vram(16 << 20), guest.vram(4096));
    // Fills memory; then word i + 1 from word i, which shows an order that is another.
    let mut commands = CommandBuffer::new();
    for _ in 0..100 {
        commands.fill(room.va, room.size(), 1).unwrap();
    }
    commands.fill(words.va, 8, 9).unwrap();
    let mut places = vec![commands];
    places.extend((0..5).map(|at| copy(words.va + 8 * at, words.va + 8 * at + 8, 8)));
    let mut calls = Vec::new();
    let arena = guest.vram(64 << 10);
    for (slot, commands) in (1u32..).zip(&places) {
        let offset = u64::from(slot) * 8192;
        arena.memory.write(offset, commands.bytes()).unwrap();
        let length = u32::try_from(commands.bytes().len()).unwrap();
        let submit = Submit { queue: queue.queue, buffer_va: arena.va + offset, length, flags: 0 };
        calls.push(guest.send(slot, message::SUBMIT, &submit));
    }
    until("all of them", || moving.counters.submissions.load(Ordering::Relaxed) == 6);
    until("the first of them", || room.word(0).load(Ordering::Acquire) != 0);
    let saved = moving.migrate();
    let moved = buffers(saved_device(&saved));
    assert_eq!(moved.iter().map(|buffer| buffer.fence_value).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(moved[0].is_resubmitted && moved[1].is_resubmitted, "the engine had these");
    assert!(!moved[2].is_resubmitted && moved[0].is_saved && !moved[2].is_saved);
    let engine = &saved.engines[1];
    assert_eq!((engine.submitted, engine.completed), (2, 0), "two were handed over, and handed back");
    for call in calls {
        call.finish().unwrap();
    }
    assert_eq!(words.word(40).load(Ordering::Acquire), 9 << 32 | 9);
    let again = moving.migrate();
    // Fence ids go on: six more were handed over.
    assert_eq!(again.engines[1].completed, 8);
}

#[test]
fn lm_46_lm_64_a_suspended_context_stays_suspended_with_its_fences_and_properties() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let properties = SetSchedulingProperties {
        context,
        band: scheduling::BAND_REALTIME,
        realtime_level: 3,
        in_process_priority: -2,
        quantum: 50_000,
        grace_same: 0,
        grace_lower: 0,
    };
    guest.call(scheduling::SET_SCHEDULING_PROPERTIES, &properties).unwrap();
    let class = SetProcessClass { class: scheduling::CLASS_HIGH, reserved: 0 };
    guest.call(scheduling::SET_PROCESS_CLASS, &class).unwrap();
    let suspend =
        || guest.ask::<Suspended>(message::SUSPEND_CONTEXT, &Named { handle: context }).unwrap().fence;
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    let before = suspend();
    queue.submit(&CommandBuffer::new());
    let saved = moving.migrate();
    let moved = saved_device(&saved).contexts.living().next().unwrap();
    let set = moved.scheduling.unwrap();
    assert!(moved.is_suspended && moved.suspends >= Some(before));
    assert_eq!((set.band, set.level, set.priority, set.quantum), (3, 3, -2, 5_000_000));
    assert_eq!(saved_device(&saved).class, scheduling::CLASS_HIGH);
    queue.connect().unwrap();
    guest.round_trip();
    assert_eq!(queue.fence(), 0, "it runs nothing");
    guest.name(message::RESUME_CONTEXT, context).unwrap();
    queue.wait(1);
    assert!(suspend() > moved.suspends.unwrap(), "fences of suspends go on rising");
}

#[test]
fn lm_64_a_doorbell_that_was_just_victimised_and_one_that_was_never_connected() {
    let moving = Moving::start(&Shape { doorbells: 1, ..Shape::default() });
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    queues[0].connect().unwrap();
    queues[0].run(&CommandBuffer::new());
    queues[1].connect().unwrap();
    assert_eq!(queues[0].status(), RETRY);
    for queue in &mut queues {
        queue.submit(&CommandBuffer::new());
    }
    let saved = moving.migrate();
    assert_eq!(saved_device(&saved).doorbells.living().filter(|bell| bell.was_connected).count(), 2);
    for queue in &queues {
        assert_eq!(queue.status(), RETRY);
        queue.connect().unwrap();
        queue.wait(queue.value);
    }
}

#[test]
fn lm_50_lm_55_lm_64_a_device_in_error_stays_so_and_others_go_on() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (lost, its_context) = copy_guest(&vm);
    let its_queue = RawQueue::new(&lost, its_context);
    its_queue.connect().unwrap();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    lost.lose(its_context);
    moving.migrate();
    assert_eq!((lost.device_status(), its_queue.status()), (DEVICE_PAGE_FAULT, ABORT));
    assert_eq!(its_queue.connect(), Err(Status::DeviceLost));
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    queue.connect().unwrap();
    queue.submit(&CommandBuffer::new());
    queue.wait(1);
    // Its process can begin again.
    lost.call(message::DESTROY_DEVICE, &()).unwrap();
    assert_eq!(lost.create_device(), Ok(Vec::new()));
}

#[test]
fn lm_53_native_fences_keep_values_names_and_who_waits_for_them() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let va = 0x4000_0000;
    let create = CreateNativeFence {
        kind: native_fence::NATIVE_FENCE_DEFAULT,
        initial_value: 5,
        va,
        ..Default::default()
    };
    let opened: NativeFenceOpened = guest.ask(native_fence::CREATE_NATIVE_FENCE, &create).unwrap();
    let value = |value| NativeFenceValue { fence: opened.fence, value };
    let waits = guest.send(1, native_fence::WAIT_NATIVE_FENCE, &value(7));
    // On the GPU too, from both kinds of queues; the second buffer makes the first one of the ordinary queue park.
    let mark = guest.vram(4096);
    let mut user = RawQueue::new(&guest, context);
    user.connect().unwrap();
    let wait_and_mark = |at: u64| {
        let mut commands = wait_for(va, 7);
        commands.fill(mark.va + at, 8, 1).unwrap();
        commands
    };
    user.submit(&wait_and_mark(0));
    let arena = guest.vram(4096);
    let parked = guest.context(Node::Copy);
    let mut calls = Vec::new();
    for (slot, context, commands) in [(2, parked, wait_and_mark(8)), (3, context, fill(mark.va + 16, 8, 1))] {
        let queue = guest.queue(context, 0).unwrap().queue;
        let offset = u64::from(slot) * 512;
        arena.memory.write(offset, commands.bytes()).unwrap();
        let length = u32::try_from(commands.bytes().len()).unwrap();
        let submit = Submit { queue, buffer_va: arena.va + offset, length, flags: 0 };
        calls.push(guest.send(slot, message::SUBMIT, &submit));
    }
    until("the buffer behind a wait", || mark.word(16).load(Ordering::Acquire) != 0);
    let saved = moving.migrate();
    assert_eq!(saved.fences.len(), 1);
    assert_eq!((saved.fences[0].1, saved.fences[0].3), (opened.global.0, 5));
    let current: CurrentValue =
        guest.ask(native_fence::QUERY_NATIVE_FENCE, &Named { handle: opened.fence }).unwrap();
    assert_eq!(current.value, 5);
    assert!(!waits.is_done());
    // Another process finds it by its name, and signals it.
    let other = device(&vm);
    let fence = other.open_fence(GlobalFence(opened.global.0)).unwrap();
    assert_eq!(fence.kind(), FenceKind::Default);
    fence.signal(7).unwrap();
    assert_eq!(waits.finish(), Ok(Vec::new()));
    user.wait(1);
    for call in calls {
        call.finish().unwrap();
    }
    assert!([0, 8].iter().all(|at| mark.word(*at).load(Ordering::Acquire) != 0));
}

#[test]
fn lm_45_what_is_evicted_or_held_stays_so_and_comes_back_with_its_contents() {
    let moving = Moving::start(&Shape { quota: 128 << 20, ..Shape::default() });
    let vm = moving.vm();
    let device = device(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let staging = device.create_buffer(1 << 20).unwrap();
    let buffers: Vec<_> = (0..5).map(|_| device.create_local_buffer(12 << 20).unwrap()).collect();
    for (value, buffer) in (1u32..).zip(&buffers) {
        queue.submit(&fill(buffer.va(), buffer.size(), value)).unwrap().wait(Some(NEVER)).unwrap();
    }
    let before = device.memory_info().unwrap();
    assert!(before.evicted > 0);
    let saved = moving.migrate();
    assert!(saved.allocations.iter().any(|allocation| {
        matches!(allocation.2, campanile_daemon::vgpu::state::saved::memory::SavedPlace::Host(_))
    }));
    let after = device.memory_info().unwrap();
    assert_eq!(
        (after.evicted, after.committed, after.local_free),
        (before.evicted, before.committed, before.local_free)
    );
    for (value, buffer) in (1u32..).zip(&buffers) {
        let last = buffer.va() + buffer.size() - staging.size();
        queue.submit(&copy(last, staging.va(), staging.size())).unwrap().wait(Some(NEVER)).unwrap();
        let mut bytes = vec![0; 1 << 20];
        staging.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == value.to_le_bytes()), "buffer {value}");
    }
    // Memory of another before reads zero.
    drop(buffers);
    let fresh = device.create_buffer(8 << 20).unwrap();
    let mut bytes = vec![1; 8 << 20];
    fresh.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}
