//! What contexts keep of their work that is put aside: memory like any other, which no guest comes to (PRE-31 to PRE-39).

use campanile_daemon::session::saved::SavedSession;
use campanile_daemon::session::saved::memory::SavedAllocation;
use campanile_daemon::session::saved::memory::SavedPlace;
use campanile_daemon::session::saved::process::SavedDevice;
use campanile_daemon::session::saved::process::SavedProcess;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::residency::Patience;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_DMA_FAULT;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::QUEUES_IN_CONTEXT_AREA;
use campanile_protocol::engine::save_area::SLOT_BYTES;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use campanile_protocol::engine::save_area::queue_slot;
use campanile_protocol::engine::save_area::read_slot;
use campanile_protocol::engine::saved::Saved;
use std::sync::atomic::Ordering;

use crate::moving::Moving;
use crate::moving::Shape;
use crate::moving::VRAM;
use crate::raw_queue::fill;
use crate::slices::GROUPS;
use crate::slices::Long;
use crate::support::NEVER;
use crate::support::until;

const CONTEXT: u64 = AreaKind::Context.bytes();
const DEVICE: u64 = AreaKind::Device.bytes();

fn devices(saved: &SavedSession) -> Vec<&SavedDevice> {
    saved.processes.iter().filter_map(|process: &SavedProcess| process.device.as_ref()).collect()
}

/// The areas of all contexts, then those of all devices.
fn areas(saved: &SavedSession) -> (Vec<SavedAllocation>, Vec<SavedAllocation>) {
    let find = |id: u64| *saved.allocations.iter().find(|row| row.0 == id).unwrap();
    let contexts = devices(saved).into_iter().flat_map(|device| device.contexts.living());
    let shared = devices(saved).into_iter().filter_map(|device| device.area);
    (contexts.map(|context| find(context.area.unwrap())).collect(), shared.map(find).collect())
}

/// The words of a place in video memory, or in the memory that what is evicted lies in.
fn words(moving: &Moving, place: SavedPlace, offset: u64, count: u64) -> Vec<u64> {
    moving.ask(move |device| {
        use std::os::unix::fs::FileExt;
        let memory = device.session().video_memory();
        let (file, start) = match place {
            SavedPlace::Local(start) => (memory.file(), start),
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
fn look(moving: &Moving) -> SavedSession {
    moving.freeze();
    let saved = moving.ask(crate::moving::Movable::save);
    moving.thaw();
    saved
}

fn open(moving: &Moving) -> (std::sync::Arc<campanile_guest_driver::transport::loopback::vm::LoopbackVm>, Device) {
    let vm = moving.vm();
    let device = Device::open(vm.open("areas").unwrap()).unwrap();
    (vm, device)
}

fn committed(moving: &Moving) -> u64 {
    moving.ask(|device| device.committed())
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, DriverError>) -> (Status, String) {
    match outcome {
        Err(DriverError::Refused { status, text, .. }) => (status, text),
        other => panic!("{other:?}"),
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
    drop(contexts);
}
