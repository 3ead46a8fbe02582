//! What waits, sleeps or has gone when a vGPU moves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;

use crate::linked::COUNT;
use crate::lm_state::device;
use crate::lm_state::saved_device;
use crate::moving::Moving;
use crate::moving::Shape;
use crate::raw::RawGuest;
use crate::raw::new_kernel;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::signals::Stopped;
use crate::slices::Long;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn lm_45_lm_53_messages_that_wait_are_answered_after_it() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let (mut waits, mut drains) = (RawQueue::new(&guest, context), RawQueue::new(&guest, context));
    for queue in [&mut waits, &mut drains] {
        queue.connect().unwrap();
        queue.submit(&wait_for(gate.va, 1));
    }
    let fence = guest.wait_fence(1, waits.created.queue, 1);
    let drained = guest.send(2, message::DESTROY_DOORBELL, &Named { handle: drains.bell.doorbell });
    // An unmap behind kernel-mode work that waits.
    let (arena, gone) = (guest.vram(4096), guest.vram(4096));
    let queue = guest.queue(context, 0).unwrap().queue;
    let commands = wait_for(gate.va, 1);
    arena.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    let submitted = guest.send(3, message::SUBMIT, &Submit { queue, buffer_va: arena.va, length, flags: 0 });
    let unmap = campanile_protocol::control::message::UnmapMemory { va: gone.va, size: gone.size() };
    let paging: campanile_protocol::control::reply::Paging =
        guest.ask(message::UNMAP_MEMORY, &unmap).unwrap();
    let saved = moving.migrate();
    assert_eq!(
        (saved.drains.len(), saved_device(&saved).waits.len(), saved_device(&saved).paging.len()),
        (1, 1, 1)
    );
    let paging_fence = || guest.load(campanile_protocol::device_page::PAGING_FENCE);
    assert!(!fence.is_done() && !drained.is_done() && !submitted.is_done() && paging_fence() < paging.fence);
    gate.word(0).store(1, Ordering::Release);
    assert_eq!(fence.finish(), Ok(Vec::new()));
    assert_eq!(drained.finish(), Ok(Vec::new()));
    submitted.finish().unwrap();
    until("the paging fence", || paging_fence() >= paging.fence);
    assert_eq!(guest.map(&gone, 0), Ok(()), "its address is free");
}

#[test]
fn lm_45_a_kernel_that_is_destroyed_as_its_vgpu_moves_or_stands_still_is_gone_after_it() {
    let moving = Moving::start(&Shape::default());
    let guest = RawGuest::open(&moving.vm());
    let kernels = [0, 1].map(|_| Named { handle: guest.kernel(COUNT) });
    for (kernel, moves) in kernels.iter().zip([true, false]) {
        let stopped: Vec<Stopped> = moving.engines().into_iter().map(Stopped::new).collect();
        let ended = guest.send(1, message::DESTROY_KERNEL, kernel);
        guest.round_trip();
        assert!(!ended.is_done(), "its engine has not heard of it");
        if moves {
            assert_eq!(saved_device(&moving.migrate()).kernels.living().count(), 2);
        } else {
            moving.freeze();
            moving.thaw();
        }
        drop(stopped);
        assert_eq!(ended.finish(), Ok(Vec::new()));
        assert_eq!(guest.name(message::DESTROY_KERNEL, kernel.handle), Err(Status::InvalidHandle));
    }
}

#[test]
fn lm_26_lm_37_what_is_restored_is_what_was_saved() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let device = device(&vm);
    let long = Long::new(&device);
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let point = queue.submit(&long.commands(false)).unwrap();
    let (guest, copies) = copy_guest(&vm);
    let ram = guest.memory(BlobMemory::GuestRam, 64 << 10);
    let raw = RawQueue::new(&guest, copies);
    raw.connect().unwrap();
    until("the dispatch", || long.started() > 0);
    moving.freeze();
    let (before, after) = moving.ask(|device| (device.exchange(), device.save()));
    assert_eq!(before, after);
    assert!(!before.segments.is_empty() && ram.size() > 0);
    moving.thaw();
    point.wait(Some(NEVER)).unwrap();
    long.check();
}

#[test]
fn lm_38_lm_56_lm_57_engines_that_were_asleep_come_again_awake_and_work_goes_on() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    for _ in 0..3 {
        until("sleep", || queue.status() == RETRY);
        moving.migrate();
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        queue.wait(queue.value);
    }
}

#[test]
fn lm_28_a_vgpu_that_has_gone_leaves_nothing_behind() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    queue.submit(&CommandBuffer::new());
    moving.freeze();
    let (before, gone, state) = moving.ask(|device| {
        let (before, state) = (device.committed(), device.save());
        let fresh = device.fresh_with_memory();
        device.put(fresh);
        (before, device.committed(), state)
    });
    assert!(before > 0);
    assert_eq!(gone, 0, "what it promised is free");
    moving.ask(move |device| {
        device.session().restore(&state).unwrap();
        assert_eq!(device.committed(), before);
    });
    moving.thaw();
    guest.round_trip();
}

#[test]
fn lm_27_lm_56_a_vgpu_in_d3_stays_there_after_an_aborted_migration_and_comes_again_in_d0_after_one() {
    let d3_after = Some(Duration::from_millis(1));
    let moving = Moving::start(&Shape { d3_after, spin: Duration::ZERO, ..Shape::default() });
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let transitions = || moving.counters.d3_transitions.load(Ordering::Relaxed);
    for round in 0..6 {
        let before = transitions();
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        queue.wait(queue.value);
        until("D3", || transitions() > before);
        moving.freeze();
        if round % 2 == 0 {
            moving.ask(|device| drop(device.exchange()));
        }
        moving.thaw();
    }
}

#[test]
fn lm_46_a_kernel_that_is_being_compiled_is_compiled_there_and_answered() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let device = device(&vm);
    let empty = KernelSource::wgsl("@compute @workgroup_size(1) fn main() {}");
    let first = device.create_kernel(&empty).unwrap();
    for round in 0..3 {
        // Many, so that some of them wait.
        std::thread::scope(|scope| {
            let kernels: Vec<_> = (0..12)
                .map(|number| {
                    let device = &device;
                    scope.spawn(move || {
                        let source = format!(
                            "@group(0) @binding(0) var<storage, read_write> words: array<u32>;
                             @compute @workgroup_size(1) fn main() {{ words[0] = {}u; }}",
                            round * 100 + number
                        );
                        device.create_kernel(&KernelSource::wgsl(&source)).unwrap()
                    })
                })
                .collect();
            moving.migrate();
            kernels.into_iter().for_each(|kernel| drop(kernel.join().unwrap()));
        });
    }
    drop(first);
    // One that its engine has not even read.
    let guest = RawGuest::open(&vm);
    let stopped: Vec<Stopped> = moving.engines().into_iter().map(Stopped::new).collect();
    let asked = guest.send(1, message::CREATE_KERNEL, &*new_kernel(COUNT));
    guest.round_trip();
    assert!(!asked.is_done());
    assert_eq!(moving.migrate().engines[0].compiling.len(), 1);
    drop(stopped);
    assert!(asked.finish().is_ok());
}
