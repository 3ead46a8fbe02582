//! Processes that are asked to go, and those that do not.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use zerocopy::IntoBytes;

use super::guests;
use super::guests::BLOB;
use super::guests::LIMIT;
use super::guests::attach;
use super::guests::attached;
use super::guests::away;
use super::guests::close;
use super::guests::free;
use super::guests::guest;
use super::guests::is_away;
use super::guests::leave;
use super::guests::open_again;
use super::guests::pages;
use super::guests::park;
use super::guests::ran;
use super::guests::show_ram;
use super::guests::stay;
use super::guests::word;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::orders::Order;
use crate::vgpu::faked::world::World;
use crate::vgpu::objects::refusal::Refusal;

#[test]
fn a_process_that_parks_runs_nothing_until_it_comes_back_and_then_what_it_had() {
    let mut world = World::new();
    let mut guest = guest(&mut world, 1);
    let other = guests::guest(&mut world, 2);
    assert_eq!(world.call(1, PARK_DEVICE, &[]).0, Status::Busy.word(), "nothing was asked of it");
    world.submit(1, guest.queue, 8);
    world.turn(0);
    assert_eq!((world.asked.len(), word(&world, 1, device_page::LEAVE)), (1, 0));
    let asked = leave(&mut world);
    assert_eq!([1, 2].map(|of| word(&world, of, device_page::LEAVE)), [1, 1]);
    park(&mut world, &mut guest);
    assert!(world.asked.is_empty(), "what it waits for is answered");
    assert_eq!(word(&world, 1, device_page::LEAVE), 1);
    // Nothing of it runs, and that of the other does.
    world.submit(2, other.queue, 16);
    (0..3).for_each(|_| world.turn(9));
    assert_eq!(ran(&world), [16]);
    close(&mut world, &guest);
    assert!(
        world.session.away.own_context(&world.session.vm.objects, FrontContext::new(1)).is_err(),
        "that name is given up"
    );
    assert_eq!(world.session.destroy_context(FrontContext::new(1)), Err(Refusal::Context));
    stay(&mut world);
    let refused = asked.join().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "it was called off");
    assert_eq!(word(&world, 2, device_page::LEAVE), 0);
    assert!(world.session.away.until.is_some());
    // The same name for another process, and the other way round.
    world.session.create_context(FrontContext::new(1)).unwrap();
    open_again(&mut world, &guest, 7, 40);
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    assert_eq!(
        world.session.away.own_context(&world.session.vm.objects, FrontContext::new(7)),
        Ok(GuestProcess::new(1))
    );
    assert_ne!(
        world.session.away.own_context(&world.session.vm.objects, FrontContext::new(1)),
        Ok(GuestProcess::new(1))
    );
    assert!(!is_away(&world, 1) && world.session.away.until.is_none());
    assert!(world.session.away.kept.is_empty());
    assert_eq!(word(&world, 1, device_page::LEAVE), 0);
    assert_eq!(word(&world, 1, device_page::DEVICE_STATUS), device_page::DEVICE_ACTIVE);
    world.submit(7, guest.queue, 24);
    (0..3).for_each(|_| world.turn(9));
    assert_eq!(ran(&world), [8, 24]);
    assert!(world.asked.is_empty());
    // Its blobs are blobs as any other: they are not kept.
    for resource in [40, 41] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    assert!(world.session.away.kept.is_empty());
}

#[test]
fn the_operator_hears_when_all_have_gone_with_all_that_they_had() {
    let mut world = World::new();
    let mut guest = guest(&mut world, 1);
    let asked = leave(&mut world);
    let second = world.session.vm.config.orders.clone();
    let second = thread::spawn(move || second.ask(Order::Leave(LIMIT), Duration::from_secs(600)));
    while !second.is_finished() {
        world.look();
        thread::yield_now();
    }
    assert_eq!(second.join().unwrap().unwrap_err().to_string(), "that was asked already");
    park(&mut world, &mut guest);
    world.session.destroy_context(FrontContext::new(1)).unwrap();
    world.look();
    let is_open =
        |world: &World| world.session.away.leave.as_ref().is_some_and(|leave| leave.pending.is_some());
    assert!(is_open(&world), "its resources are there still");
    world.session.blobs().unref_blob(1).unwrap();
    world.session.blobs().unref_blob(BLOB + 1).unwrap();
    world.look();
    assert!(!is_open(&world) && world.session.away.next().is_none());
    let said = asked.join().unwrap().unwrap();
    assert_eq!((said["parked"].as_u64(), said["lost"].as_array().map(Vec::len)), (Some(1), Some(0)));
    // Nothing opens a device that is about to go.
    assert!(world.session.away.is_leaving());
}

#[test]
fn a_process_that_does_not_park_in_time_loses_its_device_and_has_a_moment_to_close_it() {
    let mut world = World::new();
    let gone = away(&mut world, 3);
    stay(&mut world);
    // One does nothing, one has parked and holds its node, one cannot park since its engine hangs.
    let _idle = guest(&mut world, 1);
    let mut holds = guest(&mut world, 2);
    let asked = leave(&mut world);
    park(&mut world, &mut holds);
    world.pass(LIMIT / 2);
    assert!(world.is_active(1));
    world.pass(LIMIT / 2);
    assert!(!world.is_active(1) && !world.is_active(2));
    assert!(!is_away(&world, 2) && is_away(&world, gone.of));
    let waits = |world: &World| world.session.away.leave.as_ref().unwrap().pending.is_some();
    assert!(waits(&world), "they have a moment");
    // What it gives up now is gone.
    close(&mut world, &holds);
    assert!(world.session.away.kept.values().all(|kept| kept.owner == GuestProcess::new(gone.of)));
    world.look();
    assert!(waits(&world), "the other has not closed it");
    world.pass(Duration::from_secs(1));
    assert!(!waits(&world));
    let said = asked.join().unwrap().unwrap();
    assert_eq!((&said["parked"], &said["lost"]), (&1.into(), &[1, 2].as_slice().into()), "{said}");
}

#[test]
fn one_whose_engine_does_not_let_go_of_it_does_not_park() {
    let mut world = World::new();
    let guest = guest(&mut world, 1);
    let asked = leave(&mut world);
    world.submit(1, guest.queue, 8);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    let park = world.ask(1, PARK_DEVICE, &[]);
    (0..4).for_each(|_| world.turn(1));
    assert_eq!(world.answer(park), None, "its context is on the engine");
    assert!(!is_away(&world, 1));
    assert!(world.session.vm.memory.blobs.values().any(|blob| blob.name.is_some()));
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(1)).unwrap();
    world.pass(LIMIT);
    // The guest sees its page still, though the device is gone.
    let said =
        [0, 8].map(|at| page.word(device_page::response(park.slot) + at).unwrap().load(Ordering::Acquire));
    assert_eq!((said[0], said[1] & 0xffff_ffff), (park.sequence, Status::DeviceLost.word().into()));
    assert!(world.session.vm.memory.blobs.values().all(|blob| blob.name.is_none()));
    assert!(!world.is_active(1));
    close(&mut world, &guest);
    world.fakes.conduct(NodeKind::Copy, Conduct::Works);
    (0..4).for_each(|_| world.turn(1));
    asked.join().unwrap().unwrap();
    assert!(world.session.vm.objects.processes.is_empty() && world.session.away.kept.is_empty());
}

#[test]
fn a_process_that_does_not_come_back_within_a_minute_is_ended_with_what_it_had() {
    let mut world = World::new();
    let all = free(&world);
    let mut guests = [1, 2].map(|of| guest(&mut world, of));
    let _asked = leave(&mut world);
    for guest in &mut guests {
        park(&mut world, guest);
        close(&mut world, guest);
    }
    let [_, comes] = guests;
    world.pass(Duration::from_secs(600));
    assert!(is_away(&world, 1) && is_away(&world, 2), "the device is not there yet");
    stay(&mut world);
    // Nor does time count while it is about to go again.
    world.pass(Duration::from_secs(59));
    let _asked = leave(&mut world);
    world.pass(Duration::from_secs(600));
    assert!(is_away(&world, 1) && is_away(&world, 2));
    stay(&mut world);
    open_again(&mut world, &comes, 7, 40);
    let message = attach(&comes, 40);
    assert_eq!(attached(&mut world, &comes, 7, &message), Some(Status::Ok.word()));
    world.pass(Duration::from_secs(59));
    assert!(is_away(&world, 1) && !is_away(&world, 2) && !world.session.away.kept.is_empty());
    world.pass(Duration::from_secs(1));
    assert_eq!(
        world.session.vm.objects.processes.keys().copied().collect::<Vec<_>>(),
        [GuestProcess::new(2)]
    );
    assert!(world.session.away.kept.is_empty() && world.session.away.until.is_none());
    world.session.destroy_context(FrontContext::new(7)).unwrap();
    for resource in [40, 41] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    (0..4).for_each(|_| world.turn(1));
    assert_eq!(free(&world), all);
}

#[test]
fn a_process_whose_device_page_is_the_guests_own_cannot_be_put_aside() {
    let mut world = World::new();
    show_ram(&mut world);
    world.session.create_context(FrontContext::new(1)).unwrap();
    pages(&mut world, 1, 10, u32::try_from(DEVICE_PAGE_BYTES / PAGE_SIZE).unwrap());
    let (protocol_version, page_va) = (PROTOCOL_VERSION, 0x10_0000);
    let create = CreateDevice { protocol_version, page_resource: 10, page_offset: 0, page_va };
    world.ask(1, message::CREATE_DEVICE, create.as_bytes());
    world.turn(0);
    let _asked = leave(&mut world);
    assert_eq!(world.call(1, PARK_DEVICE, &[]).0, Status::NotSupported.word());
    assert!(!is_away(&world, 1));
}
