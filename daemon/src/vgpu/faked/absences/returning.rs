//! Processes that come back, and what says that it is one.

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::ATTACH_DEVICE;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::away::PagesAgain;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use zerocopy::IntoBytes;

use super::guests;
use super::guests::attach;
use super::guests::attached;
use super::guests::away;
use super::guests::close;
use super::guests::guest;
use super::guests::is_away;
use super::guests::leave;
use super::guests::open_again;
use super::guests::pages;
use super::guests::park;
use super::guests::ran;
use super::guests::show_ram;
use super::guests::stay;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::faked::world::Asked;
use crate::vgpu::faked::world::World;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

#[test]
fn only_what_says_all_that_the_process_knows_is_the_process_that_was_away() {
    let mut world = World::new();
    let guest = away(&mut world, 1);
    open_again(&mut world, &guest, 7, 40);
    let right = attach(&guest, 40);
    let refused = |world: &mut World, body: &[u8]| world.try_ask(7, ATTACH_DEVICE, body).unwrap_err();
    let parked = Parked { token: guest.parked.token ^ 1, ..guest.parked };
    let names = Parked { names: guest.parked.names ^ 1, ..guest.parked };
    for wrong in [
        AttachDevice { parked, ..right },
        AttachDevice { parked: names, ..right },
        AttachDevice { reserved: 1, ..right },
        AttachDevice { count: 1, ..right },
        AttachDevice { protocol_version: PROTOCOL_VERSION ^ 1 << 16, ..right },
        AttachDevice { page_resource: 41, ..right },
    ] {
        assert_eq!(refused(&mut world, wrong.as_bytes()), Refusal::Parameter, "{wrong:?}");
    }
    assert_eq!(
        refused(&mut world, AttachDevice { page_resource: 99, ..right }.as_bytes()),
        Refusal::Resource
    );
    assert_eq!(refused(&mut world, &right.as_bytes()[1..]), Refusal::Parameter);
    assert_eq!(refused(&mut world, &[right.as_bytes(), &[0; 8]].concat()), Refusal::Parameter);
    assert!(is_away(&world, 1));
    // Of the right one, too late: the device is to be taken away once more.
    assert_eq!(attached(&mut world, &guest, 7, &right), Some(Status::Leaving.word()));
    assert!(is_away(&world, 1));
    stay(&mut world);
    assert_eq!(attached(&mut world, &guest, 7, &right), Some(Status::Ok.word()));
    assert!(!is_away(&world, 1));
    let own = |world: &World, name| world.session.away.own_context(&world.session.vm.objects, name);
    assert_eq!(
        (own(&world, FrontContext::new(7)), own(&world, FrontContext::new(1))),
        (Ok(GuestProcess::new(1)), Err(Refusal::Context)),
        "it has one name"
    );
    // The token was used.
    world.session.create_context(FrontContext::new(8)).unwrap();
    world.session.blobs().attach(FrontContext::new(8), 40).unwrap();
    assert_eq!(world.try_ask(8, ATTACH_DEVICE, right.as_bytes()).unwrap_err(), Refusal::Parameter);
}

#[test]
fn a_token_is_of_no_use_before_its_process_has_closed_its_node() {
    let mut world = World::new();
    let mut guest = guest(&mut world, 1);
    let _asked = leave(&mut world);
    park(&mut world, &mut guest);
    stay(&mut world);
    world.session.create_context(FrontContext::new(7)).unwrap();
    world.session.blobs().attach(FrontContext::new(7), 1).unwrap();
    let message = attach(&guest, 1);
    assert_eq!(world.try_ask(7, ATTACH_DEVICE, message.as_bytes()).unwrap_err(), Refusal::Parameter);
    // No more can it do anything meanwhile.
    assert_eq!(world.call(1, PARK_DEVICE, &[]).0, Status::Busy.word());
}

#[test]
fn a_reset_ends_processes_that_are_there_and_keeps_those_that_are_away() {
    let mut world = World::new();
    let mut guests = [1, 3].map(|of| guest(&mut world, of));
    let _asked = leave(&mut world);
    guests.iter_mut().for_each(|guest| park(&mut world, guest));
    // The other has not closed its node when the device goes.
    let [guest, holds] = guests;
    close(&mut world, &guest);
    stay(&mut world);
    // One is there, one has come back to nothing yet under the name of the one that is away.
    let _there = guests::guest(&mut world, 2);
    world.session.create_context(FrontContext::new(1)).unwrap();
    world.session.vm.memory.residency.deferred.push((2, 0, Token(77)));
    world.session.reset();
    world.asked.clear();
    assert_eq!(
        world.session.vm.objects.processes.keys().copied().collect::<Vec<_>>(),
        [1, 3].map(GuestProcess::new)
    );
    assert!(world.session.away.contexts.is_empty() && world.session.vm.memory.blobs.is_empty());
    assert!(world.session.vm.memory.residency.deferred.is_empty() && world.session.take_due().is_empty());
    open_again(&mut world, &guest, 7, 40);
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    world.submit(7, guest.queue, 24);
    (0..3).for_each(|_| world.turn(9));
    assert_eq!(ran(&world), [24]);
    open_again(&mut world, &holds, 8, 50);
    let message = attach(&holds, 50);
    assert_eq!(attached(&mut world, &holds, 8, &message), Some(Status::Ok.word()));
}

#[test]
fn blobs_of_guest_pages_come_back_with_other_pages_each_for_one_that_its_process_had() {
    let mut world = World::new();
    show_ram(&mut world);
    let mut guests = [1, 2].map(|of| guest(&mut world, of));
    for (of, resource, count) in [(1, 30, 1), (1, 31, 2), (1, 33, 1), (2, 34, 1)] {
        pages(&mut world, of, resource, count);
    }
    let _asked = leave(&mut world);
    for guest in &mut guests {
        park(&mut world, guest);
    }
    for resource in [30, 31, 33, 34] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    guests.iter().for_each(|guest| close(&mut world, guest));
    stay(&mut world);
    let [guest, other] = guests;
    open_again(&mut world, &guest, 7, 40);
    for (resource, count) in [(50, 1), (51, 2), (53, 1)] {
        pages(&mut world, 7, resource, count);
    }
    assert!(world.blob(7, 52));
    let again = |was, resource| PagesAgain { name: blob_name(&guest.parked, was), resource, reserved: 0 };
    let body = |list: &[PagesAgain]| {
        let count = u32::try_from(list.len()).unwrap();
        [AttachDevice { count, ..attach(&guest, 40) }.as_bytes(), list.as_bytes()].concat()
    };
    let right = [again(30, 50), again(31, 51)];
    let anothers = PagesAgain { name: blob_name(&other.parked, 34), ..right[0] };
    for wrong in [
        vec![again(32, 50)],
        vec![anothers],
        vec![again(30, 51)],
        vec![again(30, 52)],
        vec![again(30, 50), again(30, 53)],
        vec![again(30, 50), again(33, 50)],
        vec![PagesAgain { reserved: 1, ..right[0] }],
    ] {
        let refused = world.try_ask(7, ATTACH_DEVICE, &body(&wrong)).unwrap_err();
        assert_eq!(refused, Refusal::Parameter, "{wrong:?}");
    }
    assert_eq!(world.try_ask(7, ATTACH_DEVICE, &body(&[again(30, 54)])).unwrap_err(), Refusal::Resource);
    assert!(is_away(&world, 1));
    let was = |world: &World, name| world.session.away.kept[&name].blob.allocation;
    let old = right.map(|it| was(&world, it.name));
    let backing = |world: &World, id| world.session.vm.memory.allocations.get(id).unwrap().backing;
    let new = [50, 51].map(|resource| backing(&world, world.session.vm.memory.blobs[&resource].allocation));
    let asked = world.ask(7, ATTACH_DEVICE, &body(&right));
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(world.answer(Asked { of: 1, ..asked }).map(|(status, _)| status), Some(Status::Ok.word()));
    // What had the old pages has the new ones; what did not come back is gone, of this process alone.
    assert_eq!([50, 51].map(|resource| world.session.vm.memory.blobs[&resource].allocation), old);
    assert_eq!(old.map(|id| backing(&world, id)), new);
    assert!(world.session.away.kept.values().all(|kept| kept.owner == GuestProcess::new(2)));
    // All goes when all is given up.
    for resource in [40, 41, 50, 51, 52, 53] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    world.session.destroy_context(FrontContext::new(7)).unwrap();
    world.session.hotplug().end_absent(GuestProcess::new(2));
    (0..4).for_each(|_| world.turn(1));
    assert!(world.session.vm.memory.allocations.is_empty());
}

#[test]
fn what_a_process_does_not_make_again_is_freed_and_what_it_gave_up_since_holds_nothing_up() {
    let mut world = World::new();
    let guest = away(&mut world, 1);
    stay(&mut world);
    world.session.create_context(FrontContext::new(7)).unwrap();
    let named = blob_name(&guest.parked, 1);
    world.session.blobs().take_blob_again(40, DEVICE_PAGE_BYTES, named).unwrap();
    world.session.blobs().attach(FrontContext::new(7), 40).unwrap();
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    assert!(world.session.away.kept.is_empty());
    // A blob of its, which it names no more, is no blob of one that goes.
    assert!(world.blob(7, 60));
    let _asked = leave(&mut world);
    let park = world.ask(7, PARK_DEVICE, &[]);
    (0..2).for_each(|_| world.turn(0));
    let status = world.answer(Asked { of: 1, ..park }).map(|(status, _)| status);
    assert_eq!(status, Some(Status::Ok.word()));
    for resource in [40, 60] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    world.session.destroy_context(FrontContext::new(7)).unwrap();
    world.look();
    assert!(world.session.away.leave.as_ref().unwrap().pending.is_none(), "all have gone");
    assert_eq!(world.session.away.kept.len(), 2);
}
