//! Processes whose device is taken away and comes back, over fakes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::ATTACH_DEVICE;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::world::Asked;
use super::world::World;
use crate::vgpu::control::orders::Answer;
use crate::vgpu::control::orders::Order;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;

/// How long processes have to park.
const LIMIT: Duration = Duration::from_secs(5);
/// The blob that each process has beside its page.
const BLOB: u32 = 20;

/// What a process is, and what a test needs to bring it back.
struct Guest {
    of: u32,
    queue: Handle,
    parked: Parked,
}

/// Process `of` has a context, a queue, and a blob of one page beside its device page.
fn guest(world: &mut World, of: u32) -> Guest {
    world.open(of);
    let context = world.context(of);
    let queue = world.queue(of, context);
    assert!(world.blob(of, BLOB + of));
    Guest { of, queue, parked: Parked { token: 0, names: 0 } }
}

/// The operator wants all to go, on a thread that waits for the answer. The session knows it when this returns.
fn leave(world: &mut World) -> JoinHandle<Answer> {
    let orders = Arc::clone(&world.session.vm.config.orders);
    let asks = thread::spawn(move || orders.ask(Order::Leave(LIMIT), Duration::from_secs(600)));
    while !world.session.away.is_leaving() {
        world.look();
        thread::yield_now();
    }
    asks
}

/// The device is there to stay, or again.
fn stay(world: &mut World) {
    world.session.hotplug().stay().unwrap();
}

fn word(world: &World, of: u32, at: u64) -> u64 {
    let page = world.session.vm.memory.page(&world.session.vm.objects, of).unwrap();
    page.word(at).unwrap().load(Ordering::Acquire)
}

/// PARK_DEVICE of one whose engine works.
fn park(world: &mut World, guest: &mut Guest) {
    let [token, names] = world.ok(guest.of, PARK_DEVICE, &[]);
    guest.parked = Parked { token, names };
}

/// The process closes its node: first it gives its resources up.
fn close(world: &mut World, guest: &Guest) {
    world.session.blobs().unref_blob(guest.of).unwrap();
    world.session.blobs().unref_blob(BLOB + guest.of).unwrap();
    world.session.destroy_context(guest.of).unwrap();
}

/// A process that was parked and has closed its node.
fn away(world: &mut World, of: u32) -> Guest {
    let mut guest = guest(world, of);
    let _asked = leave(world);
    park(world, &mut guest);
    close(world, &guest);
    world.look();
    guest
}

/// The process opens its node again, which calls it `name`, and makes its blobs again as `page` and `page + 1`.
fn open_again(world: &mut World, guest: &Guest, name: u32, page: u32) {
    world.session.create_context(name).unwrap();
    for (resource, was, size) in [(page, guest.of, DEVICE_PAGE_BYTES), (page + 1, BLOB + guest.of, PAGE_SIZE)]
    {
        let named = blob_name(&guest.parked, was);
        world.session.blobs().take_blob_again(resource, size, named).unwrap();
        world.session.blobs().attach(name, resource).unwrap();
    }
}

fn attach(guest: &Guest, page_resource: u32) -> AttachDevice {
    let parked = guest.parked;
    AttachDevice { parked, protocol_version: PROTOCOL_VERSION, page_resource, count: 0, reserved: 0 }
}

/// The status that an attach of what is called `name` now is answered with in the page of the process that came back.
fn attached(world: &mut World, guest: &Guest, name: u32, message: &AttachDevice) -> Option<u32> {
    let asked = world.ask(name, ATTACH_DEVICE, message.as_bytes());
    world.turn(0);
    world.answer(Asked { of: guest.of, ..asked }).map(|(status, _)| status)
}

fn ran(world: &World) -> Vec<u64> {
    world.fakes.take_ran().iter().map(|ran| ran.submission.buffer_va).collect()
}

fn is_away(world: &World, of: u32) -> bool {
    world.session.vm.objects.processes.get(&of).is_some_and(Process::is_away)
}

fn free(world: &World) -> u64 {
    world.session.vm.memory.allocations.memory().local().free_bytes()
}

#[test]
fn a_process_that_parks_runs_nothing_until_it_comes_back_and_then_what_it_had() {
    let mut world = World::new();
    let mut guest = guest(&mut world, 1);
    let other = self::guest(&mut world, 2);
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
    assert!(world.session.away.own_context(&world.session.vm.objects, 1).is_err(), "that name is given up");
    assert_eq!(world.session.destroy_context(1), Err(Refusal::Context));
    stay(&mut world);
    let refused = asked.join().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "it was called off");
    assert_eq!(word(&world, 2, device_page::LEAVE), 0);
    assert!(world.session.away.until.is_some());
    // The same name for another process, and the other way round.
    world.session.create_context(1).unwrap();
    open_again(&mut world, &guest, 7, 40);
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    assert_eq!(world.session.away.own_context(&world.session.vm.objects, 7), Ok(1));
    assert_ne!(world.session.away.own_context(&world.session.vm.objects, 1), Ok(1));
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
    assert_eq!(refused(&mut world, &[right.as_bytes(), &[0; 4]].concat()), Refusal::Parameter);
    assert!(is_away(&world, 1));
    // Of the right one, too late: the device is to be taken away once more.
    assert_eq!(attached(&mut world, &guest, 7, &right), Some(Status::Leaving.word()));
    assert!(is_away(&world, 1));
    stay(&mut world);
    assert_eq!(attached(&mut world, &guest, 7, &right), Some(Status::Ok.word()));
    assert!(!is_away(&world, 1));
    // The token was used.
    world.session.create_context(8).unwrap();
    world.session.blobs().attach(8, 40).unwrap();
    assert_eq!(world.try_ask(8, ATTACH_DEVICE, right.as_bytes()).unwrap_err(), Refusal::Parameter);
}

#[test]
fn a_token_is_of_no_use_before_its_process_has_closed_its_node() {
    let mut world = World::new();
    let mut guest = guest(&mut world, 1);
    let _asked = leave(&mut world);
    park(&mut world, &mut guest);
    stay(&mut world);
    world.session.create_context(7).unwrap();
    world.session.blobs().attach(7, 1).unwrap();
    let message = attach(&guest, 1);
    assert_eq!(world.try_ask(7, ATTACH_DEVICE, message.as_bytes()).unwrap_err(), Refusal::Parameter);
    // No more can it do anything meanwhile.
    assert_eq!(world.call(1, PARK_DEVICE, &[]).0, Status::Busy.word());
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
    world.session.destroy_context(1).unwrap();
    world.look();
    let is_open =
        |world: &World| world.session.away.leave.as_ref().is_some_and(|leave| leave.errand.is_some());
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
    let waits = |world: &World| world.session.away.leave.as_ref().unwrap().errand.is_some();
    assert!(waits(&world), "they have a moment");
    // What it gives up now is gone.
    close(&mut world, &holds);
    assert!(world.session.away.kept.values().all(|kept| kept.owner == gone.of));
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
    let page = world.session.vm.memory.page(&world.session.vm.objects, 1).unwrap();
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
    assert_eq!(world.session.vm.objects.processes.keys().copied().collect::<Vec<_>>(), [2]);
    assert!(world.session.away.kept.is_empty() && world.session.away.until.is_none());
    world.session.destroy_context(7).unwrap();
    for resource in [40, 41] {
        world.session.blobs().unref_blob(resource).unwrap();
    }
    (0..4).for_each(|_| world.turn(1));
    assert_eq!(free(&world), all);
}

#[test]
fn a_reset_ends_processes_that_are_there_and_keeps_those_that_are_away() {
    let mut world = World::new();
    let guest = away(&mut world, 1);
    stay(&mut world);
    // One is there, one has come back to nothing yet under the name of the one that is away.
    let _there = self::guest(&mut world, 2);
    world.session.create_context(1).unwrap();
    world.session.vm.memory.residency.deferred.push((2, 0, crate::vgpu::objects::timeline::Token(77)));
    world.session.reset();
    world.asked.clear();
    assert_eq!(world.session.vm.objects.processes.keys().copied().collect::<Vec<_>>(), [1]);
    assert!(world.session.away.contexts.is_empty() && world.session.vm.memory.blobs.is_empty());
    assert!(world.session.vm.memory.residency.deferred.is_empty() && world.session.take_due().is_empty());
    open_again(&mut world, &guest, 7, 40);
    let message = attach(&guest, 40);
    assert_eq!(attached(&mut world, &guest, 7, &message), Some(Status::Ok.word()));
    world.submit(7, guest.queue, 24);
    (0..3).for_each(|_| world.turn(9));
    assert_eq!(ran(&world), [24]);
}
