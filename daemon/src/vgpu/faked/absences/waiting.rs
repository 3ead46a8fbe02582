//! What is waited for while processes go and come back, what is counted of it, and what is refused meanwhile.

use crate::ids::GuestProcess;
use std::time::Duration;

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::IntoBytes;

use super::guests;
use super::guests::LIMIT;
use super::guests::attach;
use super::guests::attached;
use super::guests::away;
use super::guests::close;
use super::guests::guest;
use super::guests::is_away;
use super::guests::leave;
use super::guests::open_again;
use super::guests::park;
use super::guests::stay;
use super::guests::word;
use crate::vgpu::config::Config;
use crate::vgpu::faked::world::World;
use crate::vgpu::testing::counted;

/// Nothing else sets the timer.
fn world() -> World {
    World::with(|config| Config { d3_after: None, ..config })
}

fn counts(world: &World) -> [u64; 3] {
    let counters = &world.session.vm.counters;
    [&counters.parked, &counters.returned, &counters.stayed_away].map(counted)
}

#[test]
fn the_session_wakes_for_each_time_that_is_over_while_processes_go_and_come_back() {
    let mut world = world();
    let _idle = guest(&mut world, 1);
    let mut guest = guests::guest(&mut world, 2);
    let due = |world: &World| world.session.vm.timer.due().map(|due| due - clock::now());
    let _asked = leave(&mut world);
    assert_eq!(due(&world), Some(LIMIT));
    park(&mut world, &mut guest);
    close(&mut world, &guest);
    world.pass(LIMIT);
    assert!(!world.is_active(1));
    assert_eq!(due(&world), Some(Duration::from_secs(1)), "what is lost has a moment");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.session.away.next(), None);
    stay(&mut world);
    assert_eq!(
        world.session.away.next(),
        Some(clock::now() + Duration::from_secs(60)),
        "for those that are away"
    );
    world.pass(Duration::from_secs(60));
    assert_eq!((world.session.away.next(), counts(&world)), (None, [1, 0, 1]));
}

#[test]
fn without_processes_that_are_away_there_is_nothing_to_wait_for() {
    let mut world = world();
    let _there = guest(&mut world, 1);
    let _asked = leave(&mut world);
    stay(&mut world);
    assert_eq!((world.session.away.until, world.session.away.next()), (None, None));
}

#[test]
fn those_that_park_and_those_that_return_are_counted_once_each() {
    let mut world = world();
    let mut guests = [1, 2].map(|of| guest(&mut world, of));
    let _asked = leave(&mut world);
    guests.iter_mut().for_each(|guest| park(&mut world, guest));
    assert_eq!(counts(&world), [2, 0, 0]);
    guests.iter().for_each(|guest| close(&mut world, guest));
    stay(&mut world);
    let [first, _] = guests;
    open_again(&mut world, &first, 7, 40);
    let message = attach(&first, 40);
    assert_eq!(attached(&mut world, &first, 7, &message), Some(Status::Ok.word()));
    assert_eq!(counts(&world), [2, 1, 0]);
    world.pass(Duration::from_secs(60));
    assert_eq!(counts(&world), [2, 1, 1]);
}

#[test]
fn a_process_that_parks_or_has_parked_has_nothing_more_done_and_another_has() {
    let mut world = world();
    let mut parked = guest(&mut world, 1);
    let hangs = guests::guest(&mut world, 2);
    let there = guests::guest(&mut world, 3);
    let _asked = leave(&mut world);
    park(&mut world, &mut parked);
    world.submit(2, hangs.queue, 8);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    world.turn(1);
    let parks = world.ask(2, PARK_DEVICE, &[]);
    assert!(world.answer(parks).is_none() && !is_away(&world, 2), "its context is on the engine");
    let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    for (of, expected) in [(1, Status::Busy), (2, Status::Busy), (there.of, Status::Ok)] {
        let asked = world.ask(of, message::CREATE_CONTEXT, create.as_bytes());
        let status = world.answer(asked).map(|(status, _)| status);
        assert_eq!(status, Some(expected.word()), "{of}");
    }
    let count = |of| world.session.vm.objects.device(of).unwrap().contexts.iter().count();
    assert_eq!([1, 2, 3].map(GuestProcess::new).map(count), [1, 1, 2]);
}

#[test]
fn a_process_that_comes_back_reads_in_its_page_what_the_daemon_decided() {
    let mut world = world();
    let guest = away(&mut world, 1);
    let fence = |world: &World| world.session.vm.objects.device(GuestProcess::new(1)).unwrap().paging.done();
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(1)).unwrap();
    // What the guest stores while it is away does not count.
    for at in [device_page::PAGING_FENCE, device_page::LEAVE, device_page::DEVICE_STATUS] {
        page.word(at).unwrap().store(77, std::sync::atomic::Ordering::Release);
    }
    stay(&mut world);
    open_again(&mut world, &guest, 7, 40);
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    let shown = [device_page::LEAVE, device_page::DEVICE_STATUS].map(|at| word(&world, 1, at));
    assert_eq!(shown, [0, device_page::DEVICE_ACTIVE]);
    assert!(word(&world, 1, device_page::PAGING_FENCE) <= fence(&world));
}

#[test]
fn one_that_has_parked_is_told_nothing_more_until_it_comes_back() {
    let mut world = world();
    let mut parked = guest(&mut world, 1);
    let _there = guests::guest(&mut world, 2);
    let _asked = leave(&mut world);
    park(&mut world, &mut parked);
    stay(&mut world);
    assert_eq!([1, 2].map(|of| word(&world, of, device_page::LEAVE)), [1, 0]);
}
