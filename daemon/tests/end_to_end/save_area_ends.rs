//! Save areas that go, that there is no room for, and that have lost what they held.

use std::sync::atomic::Ordering;

use campanile_daemon::vgpu::state::saved::SavedSession;
use campanile_daemon::vgpu::state::saved::memory::SavedPlace;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_DMA_FAULT;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::queue_slot;

use crate::moving::Moving;
use crate::moving::Shape;
use crate::moving::VRAM;
use crate::raw_queue::fill;
use crate::save_areas::DEVICE;
use crate::save_areas::areas;
use crate::save_areas::committed;
use crate::save_areas::crowd;
use crate::save_areas::devices;
use crate::save_areas::is_evicted;
use crate::save_areas::look;
use crate::save_areas::open;
use crate::save_areas::press;
use crate::save_areas::refused;
use crate::slices::Long;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn pre_36_areas_go_with_their_context_or_device_whatever_became_of_them() {
    let moving = Moving::start(&Shape { quota: 2 * VRAM, ..Shape::default() });
    let (vm, device) = open(&moving);
    let before = committed(&moving);
    let contexts = crowd(&device, 1);
    let target = device.create_local_buffer(4096).unwrap();
    press(&contexts, target.va());
    let (of_contexts, _) = areas(&look(&moving));
    assert!(of_contexts.iter().any(is_evicted) && !of_contexts.iter().all(is_evicted));
    // Of contexts that are gone, wherever the area was.
    drop(contexts);
    until("all of them to be free", || committed(&moving) == before + DEVICE + 4096);
    drop(target);
    // Of a device that ends in the middle of its work.
    let context = device.create_context(Node::Copy).unwrap();
    let room = device.create_local_buffer(8 << 20).unwrap();
    let mut queue = context.create_kernel_queue().unwrap();
    for value in 0..50 {
        let _never_waited_for = queue.submit(&fill(room.va(), room.size(), value)).unwrap();
    }
    drop((queue, context, room, device));
    until("everything to be free", || committed(&moving) == 0);
    drop(vm);
}

#[test]
fn pre_36_pre_31_without_memory_for_an_area_there_is_no_context_and_nothing_else_is_lost() {
    let moving = Moving::start(&Shape { quota: 4 << 20, ..Shape::default() });
    let (_vm, device) = open(&moving);
    let taken = committed(&moving);
    let rest = device.create_local_buffer((4 << 20) - taken).unwrap();
    let (status, text) = refused(device.create_context(Node::Copy));
    assert_eq!(status, Status::OutOfResources);
    assert!(text.contains("save area"), "{text}");
    assert_eq!(committed(&moving), 4 << 20, "what was begun is undone");
    drop(rest);
    until("room again", || committed(&moving) == taken);
    let context = device.create_context(Node::Copy).unwrap();
    let target = device.create_local_buffer(4096).unwrap();
    press(&[context], target.va());
    device.check().unwrap();
}

#[test]
fn pre_39_nothing_of_an_area_is_in_a_guests_address_space_or_under_a_name_or_where_the_cpu_sees_it() {
    let moving = Moving::start(&Shape::default());
    let (_vm, device) = open(&moving);
    let context = device.create_context(Node::Copy).unwrap();
    let target = device.create_local_buffer(4096).unwrap();
    press(std::slice::from_ref(&context), target.va());
    let saved = look(&moving);
    let (of_contexts, of_devices) = areas(&saved);
    for row in of_contexts.iter().chain(&of_devices) {
        assert!(saved.blobs.iter().all(|blob| blob.1 != row.0), "no resource names it");
        let of_guests = devices(&saved).into_iter().flat_map(|device| &device.mappings);
        assert!(of_guests.into_iter().all(|mapping| mapping.2 != row.0), "no packet comes to it");
        // Behind all that the window, and any allocation of a guest, could be in.
        assert!(matches!(row.2, SavedPlace::Area(offset) if offset >= VRAM), "{row:?}");
    }
    // State that says otherwise is refused.
    let id = of_contexts[0].0;
    let spoilt: [fn(&mut SavedSession, u64); 4] = [
        |saved, id| saved.allocations.iter_mut().find(|row| row.0 == id).unwrap().2 = SavedPlace::Aperture(0),
        |saved, id| {
            saved.allocations.iter_mut().find(|row| row.0 == id).unwrap().2 =
                SavedPlace::Local(VRAM / 2 + (8 << 20));
        },
        |saved, id| saved.blobs[0].1 = id,
        |saved, id| saved.processes[0].device.as_mut().unwrap().area = Some(id),
    ];
    moving.freeze();
    for spoil in spoilt {
        let mut spoilt = saved.clone();
        spoil(&mut spoilt, id);
        moving.ask(move |device| assert!(device.fresh_with_memory().restore(&spoilt).is_err()));
    }
    moving.ask(move |device| device.fresh_with_memory().restore(&saved).unwrap());
    moving.thaw();
    device.check().unwrap();
}

#[test]
fn pre_38_what_an_area_has_lost_is_a_fault_and_no_second_beginning() {
    for is_user_mode in [true, false] {
        let moving = Moving::start(&Shape::default());
        let (vm, device) = open(&moving);
        let other = Device::open(vm.open("other").unwrap()).unwrap();
        let its_context = other.create_context(Node::Copy).unwrap();
        let long = Long::new(&device);
        let context = device.create_context(Node::Compute).unwrap();
        let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
        let mut ordinary = context.create_kernel_queue().unwrap();
        let (mut point, mut ticket) = (None, None);
        if is_user_mode {
            point = Some(user.submit(&long.commands(false)).unwrap());
        } else {
            ticket = Some(ordinary.submit(&long.commands(false)).unwrap());
        }
        until("the dispatch", || long.started() > 100);
        context.suspend().unwrap();
        let (of_contexts, _) = areas(&look(&moving));
        let SavedPlace::Area(start) = of_contexts[0].2 else { panic!("{of_contexts:?}") };
        let offset = if is_user_mode { queue_slot(0).1 } else { KERNEL_MODE_SLOT };
        let before = long.started();
        moving.ask(move |device| {
            let word = device.session().video_memory().mapping().word(start + offset + 16).unwrap();
            word.fetch_xor(1, Ordering::AcqRel);
        });
        context.resume().unwrap();
        let lost = match (point, ticket) {
            (Some(point), _) => point.wait(Some(NEVER)),
            (_, Some(ticket)) => ordinary.wait(ticket, Some(NEVER)),
            _ => Ok(()),
        };
        assert!(
            matches!(&lost, Err(DriverError::DeviceLost(loss)) if loss.status == DEVICE_DMA_FAULT),
            "{lost:?}"
        );
        assert_eq!(long.started(), before, "nothing of it ran again");
        let target = other.create_local_buffer(4096).unwrap();
        press(&[its_context], target.va());
        other.check().unwrap();
    }
}
