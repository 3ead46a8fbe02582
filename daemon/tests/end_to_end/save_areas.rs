//! What contexts keep of their work that is put aside: memory like any other, which no guest comes to (PRE-31 to PRE-39).

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_daemon::ids::GuestProcess;
use campanile_daemon::vgpu::memory::vidmm::vram::AREA_REGION;
use campanile_daemon::vgpu::state::saved::SavedSession;
use campanile_daemon::vgpu::state::saved::memory::SavedAllocation;
use campanile_daemon::vgpu::state::saved::memory::SavedPlace;
use campanile_daemon::vgpu::state::saved::process::SavedDevice;
use campanile_daemon::vgpu::state::saved::process::SavedProcess;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::QUEUES_IN_CONTEXT_AREA;
use campanile_protocol::engine::save_area::SLOT_BYTES;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use campanile_protocol::engine::save_area::queue_slot;
use campanile_protocol::engine::save_area::read_slot;
use campanile_protocol::engine::saved::Saved;
use campanile_test_vmm::vm::LoopbackVm;

use crate::moving::Movable;
use crate::moving::Moving;
use crate::moving::Shape;
use crate::moving::VRAM;
use crate::raw_queue::fill;
use crate::slices::GROUPS;
use crate::slices::Long;
use crate::support::NEVER;
use crate::support::until;

pub(crate) const CONTEXT: u64 = AreaKind::Context.bytes();
pub(crate) const DEVICE: u64 = AreaKind::Device.bytes();

pub(crate) fn devices(saved: &SavedSession) -> Vec<&SavedDevice> {
    saved.processes.iter().filter_map(|process: &SavedProcess| process.device.as_ref()).collect()
}

/// The areas of all contexts, then those of all devices.
pub(crate) fn areas(saved: &SavedSession) -> (Vec<SavedAllocation>, Vec<SavedAllocation>) {
    let find = |id: u64| *saved.allocations.iter().find(|row| row.0 == id).unwrap();
    let contexts = devices(saved).into_iter().flat_map(|device| device.contexts.living());
    let shared = devices(saved).into_iter().filter_map(|device| device.area);
    (contexts.map(|context| find(context.area.unwrap())).collect(), shared.map(find).collect())
}

/// The words of a place in video memory, or in the memory that what is evicted lies in.
pub(crate) fn words(moving: &Moving, place: SavedPlace, offset: u64, count: u64) -> Vec<u64> {
    moving.ask(move |device| {
        let memory = device.session().video_memory();
        let (file, start) = match place {
            SavedPlace::Area(start) => (memory.file(), start),
            SavedPlace::Host(start) => (memory.evicted_file(), start),
            other => panic!("an area at {other:?}"),
        };
        let mut bytes = vec![0; usize::try_from(8 * count).unwrap()];
        file.read_exact_at(&mut bytes, start + offset).unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    })
}

/// What is in the slots of all areas that was ever written, by whatever name; none for a slot that is not whole.
pub(crate) fn slots(moving: &Moving, saved: &SavedSession) -> Vec<Option<Saved>> {
    let (contexts, shared) = areas(saved);
    let mut found = Vec::new();
    for row in contexts.into_iter().chain(shared) {
        let all = words(moving, row.2, 0, row.1 / 8);
        for slot in all.chunks_exact(usize::try_from(SLOT_BYTES / 8).unwrap()).skip(1) {
            let slot: [u64; SLOT_WORDS] = slot[..SLOT_WORDS].try_into().unwrap();
            if slot != [0; SLOT_WORDS] {
                found.push(read_slot(slot, slot[0]));
            }
        }
    }
    found
}

/// What is there now, of a vGPU that runs.
pub(crate) fn look(moving: &Moving) -> SavedSession {
    moving.freeze();
    let saved = moving.ask(Movable::save);
    moving.thaw();
    saved
}

pub(crate) fn open(moving: &Moving) -> (Arc<LoopbackVm>, Device) {
    let vm = moving.vm();
    let device = Device::open(vm.open("areas").unwrap()).unwrap();
    (vm, device)
}

pub(crate) fn committed(moving: &Moving) -> u64 {
    moving.ask(|device| device.committed())
}

pub(crate) fn refused<T: std::fmt::Debug>(outcome: Result<T, DriverError>) -> (Status, String) {
    match outcome {
        Err(DriverError::Refused { status, text, .. }) => (status, text),
        other => panic!("{other:?}"),
    }
}

/// Where an area lies.
pub(crate) fn is_evicted(row: &SavedAllocation) -> bool {
    matches!(row.2, SavedPlace::Host(_))
}

/// A few more contexts than there is memory for areas, as often as that.
pub(crate) fn crowd(device: &Device, times: u64) -> Vec<Context> {
    let count = times * AREA_REGION / CONTEXT + 8;
    (0..count).map(|_| device.create_context(Node::Copy).unwrap()).collect()
}

/// Runs a buffer of each context, so that each of their areas is brought back, and others leave.
pub(crate) fn press(crowd: &[Context], target: u64) {
    for (value, context) in (1u32..).zip(crowd) {
        let mut queue = context.create_kernel_queue().unwrap();
        let ticket = queue.submit(&fill(target, 4096, value)).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
    }
}

#[test]
fn pre_31_pre_37_an_area_for_each_context_and_one_for_all_of_a_device_initialised_before_first_use() {
    let moving = Moving::start(&Shape::default());
    let (_vm, device) = open(&moving);
    let before = committed(&moving);
    let contexts: Vec<Context> =
        [Node::Copy, Node::Copy, Node::Compute].map(|node| device.create_context(node).unwrap()).into();
    assert_eq!(committed(&moving) - before, DEVICE + 3 * CONTEXT, "the vGPU pays for them");
    let saved = look(&moving);
    let (of_contexts, of_devices) = areas(&saved);
    assert_eq!((of_contexts.len(), of_devices.len()), (3, 1));
    for (row, kind) in of_contexts
        .iter()
        .map(|row| (row, AreaKind::Context))
        .chain(of_devices.iter().map(|row| (row, AreaKind::Device)))
    {
        assert_eq!(row.1, kind.bytes());
        let contents = words(&moving, row.2, 0, row.1 / 8);
        assert_eq!(contents[0], kind.header());
        assert!(contents[1..].iter().all(|word| *word == 0));
    }
    // One of a context that is gone, with what was saved in it, is as new for the next.
    let offset = KERNEL_MODE_SLOT;
    let SavedPlace::Area(start) = of_contexts[0].2 else { panic!("{of_contexts:?}") };
    moving.ask(move |device| {
        let word = device.session().video_memory().mapping().word(start + offset).unwrap();
        word.store(u64::MAX, Ordering::Release);
    });
    drop(contexts);
    let _again: Vec<Context> = (0..3).map(|_| device.create_context(Node::Copy).unwrap()).collect();
    assert!(slots(&moving, &look(&moving)).is_empty(), "zero where something lay");
}

#[test]
fn pre_31_pre_40_what_is_half_run_lies_in_the_areas_and_nowhere_else() {
    let moving = Moving::start(&Shape::default());
    let (_vm, device) = open(&moving);
    let long = Long::new(&device);
    let context = device.create_context(Node::Compute).unwrap();
    // The slots of queues whose number is high are in the device-wide area.
    let mut queues: Vec<_> = (0..=QUEUES_IN_CONTEXT_AREA)
        .map(|_| context.create_user_queue(&QueueOptions::default()).unwrap())
        .collect();
    let (first, last) = (0, queues.len() - 1);
    for index in [first, last] {
        let (kind, offset) = queue_slot(u32::try_from(index).unwrap());
        assert_eq!(kind, if index == first { AreaKind::Context } else { AreaKind::Device });
        let point = queues[index].submit(&long.commands(false)).unwrap();
        until("the dispatch", || long.started() > 100);
        context.suspend().unwrap();
        assert!(long.started() < u64::from(GROUPS), "all of it was done before");
        let saved = look(&moving);
        let (of_contexts, of_devices) = areas(&saved);
        let row = if index == first { of_contexts[0] } else { of_devices[0] };
        let slot: [u64; SLOT_WORDS] = words(&moving, row.2, offset, SLOT_WORDS as u64).try_into().unwrap();
        // Its first buffer.
        let done = read_slot(slot, 0).expect("it was put aside").done_in_packet;
        assert!(done > 0 && done < u64::from(GROUPS), "{done} groups");
        context.resume().unwrap();
        point.wait(Some(NEVER)).unwrap();
        long.check();
    }
    device.check().unwrap();
}

#[test]
fn pre_38_an_area_that_was_evicted_while_its_context_was_half_run_brings_the_same_result() {
    let moving = Moving::start(&Shape { quota: 2 * VRAM, ..Shape::default() });
    let (vm, device) = open(&moving);
    let long = Long::new(&device);
    let context = device.create_context(Node::Compute).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut ordinary = context.create_kernel_queue().unwrap();
    let others = Device::open(vm.open("others").unwrap()).unwrap();
    let crowd = crowd(&others, 2);
    let target = others.create_local_buffer(4096).unwrap();
    let next = others.create_context(Node::Compute).unwrap();
    for is_user_mode in [true, false] {
        let commands = long.commands(is_user_mode);
        let (mut point, mut ticket) = (None, None);
        if is_user_mode {
            point = Some(user.submit(&commands).unwrap());
        } else {
            ticket = Some(ordinary.submit(&commands).unwrap());
        }
        until("the dispatch", || long.started() > 100);
        context.suspend().unwrap();
        assert!(long.started() < u64::from(GROUPS), "all of it was done before");
        // Nobody else has come to its engine: its state is there (PRE-32).
        press(&crowd, target.va());
        assert_eq!(
            moving.ask(|device| device.session().memory().areas_evicted_of(GuestProcess::new(1))),
            (false, false)
        );
        press(std::slice::from_ref(&next), target.va());
        until("both to be evicted", || {
            press(&crowd, target.va());
            moving.ask(|device| device.session().memory().areas_evicted_of(GuestProcess::new(1)))
                == (true, true)
        });
        let saved = look(&moving);
        let (of_contexts, of_devices) = areas(&saved);
        assert!(is_evicted(&of_contexts[0]) && is_evicted(&of_devices[0]));
        assert!(of_contexts[1..].iter().any(|row| !is_evicted(row)));
        assert!(slots(&moving, &saved).iter().all(Option::is_some), "what is in any of them is whole");
        context.resume().unwrap();
        if let Some(point) = point {
            point.wait(Some(NEVER)).unwrap();
        }
        if let Some(ticket) = ticket {
            ordinary.wait(ticket, Some(NEVER)).unwrap();
        }
        long.check();
        // Both are where the engine reaches them, and stay so until another context's work comes (PRE-32, PRE-33).
        let (of_contexts, of_devices) = areas(&look(&moving));
        assert!(!is_evicted(&of_contexts[0]) && !is_evicted(&of_devices[0]));
    }
    device.check().unwrap();
    others.check().unwrap();
}

#[test]
fn pre_32_pre_33_areas_of_what_runs_stay_however_many_others_want_room() {
    let moving = Moving::start(&Shape { quota: 2 * VRAM, ..Shape::default() });
    let (vm, device) = open(&moving);
    let long = Long::new(&device);
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let others = Device::open(vm.open("others").unwrap()).unwrap();
    let crowd = crowd(&others, 1);
    let target = others.create_local_buffer(4096).unwrap();
    // How fast the others are beside the dispatches depends on the machine: twice as many until they outlast them.
    let mut runs = 2;
    until("dispatches that are longer than all that", || {
        runs *= 2;
        let commands = long.commands(false);
        let point = (0..runs).map(|_| queue.submit(&commands).unwrap()).last().unwrap();
        until("the first dispatch", || long.started() > 0);
        let mut was_there = true;
        let mut is_longer = false;
        for part in crowd.chunks(16) {
            press(part, target.va());
            is_longer = long.started() < u64::from(runs * GROUPS);
            if !is_longer {
                break;
            }
            // Where everything stands still, what ran is put aside; its areas have not moved since.
            let (of_contexts, of_devices) =
                moving.ask(|device| device.session().memory().areas_evicted_of(GuestProcess::new(1)));
            was_there &= !of_contexts && !of_devices;
        }
        point.wait(Some(NEVER)).unwrap();
        long.check_runs(runs);
        assert!(was_there, "its areas were taken from it");
        is_longer
    });
    device.check().unwrap();
}
