//! Guest processes that park, close their node, and open it again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::ATTACH_DEVICE;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use zerocopy::IntoBytes;

use crate::guest_ram::memory::GuestRam;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::orders::Answer;
use crate::vgpu::control::orders::Order;
use crate::vgpu::faked::world::Asked;
use crate::vgpu::faked::world::World;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::timeline::Token;

/// How long processes have to park.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// The blob that each process has beside its page.
pub(super) const BLOB: u32 = 20;

/// What a process is, and what a test needs to bring it back.
pub(super) struct Guest {
    pub(super) of: u32,
    pub(super) queue: Handle,
    pub(super) parked: Parked,
}

/// Process `of` has a context, a queue, and a blob of one page beside its device page.
pub(super) fn guest(world: &mut World, of: u32) -> Guest {
    world.open(of);
    let context = world.context(of);
    let queue = world.queue(of, context);
    assert!(world.blob(of, BLOB + of));
    Guest { of, queue, parked: Parked { token: 0, names: 0 } }
}

/// The operator wants all to go, on a thread that waits for the answer. The session knows it when this returns.
pub(super) fn leave(world: &mut World) -> JoinHandle<Answer> {
    let orders = Arc::clone(&world.session.vm.config.orders);
    let asks = thread::spawn(move || orders.ask(Order::Leave(LIMIT), Duration::from_secs(600)));
    while !world.session.away.is_leaving() {
        world.look();
        thread::yield_now();
    }
    asks
}

/// The device is there to stay, or again.
pub(super) fn stay(world: &mut World) {
    world.session.hotplug().stay().unwrap();
}

pub(super) fn word(world: &World, of: u32, at: u64) -> u64 {
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(of)).unwrap();
    page.word(at).unwrap().load(Ordering::Acquire)
}

/// PARK_DEVICE of one whose engine works.
pub(super) fn park(world: &mut World, guest: &mut Guest) {
    let [token, names] = world.ok(guest.of, PARK_DEVICE, &[]);
    guest.parked = Parked { token, names };
}

/// The process closes its node: first it gives its resources up.
pub(super) fn close(world: &mut World, guest: &Guest) {
    world.session.blobs().unref_blob(guest.of).unwrap();
    world.session.blobs().unref_blob(BLOB + guest.of).unwrap();
    world.session.destroy_context(FrontContext::new(guest.of)).unwrap();
}

/// A process that was parked and has closed its node.
pub(super) fn away(world: &mut World, of: u32) -> Guest {
    let mut guest = guest(world, of);
    let _asked = leave(world);
    park(world, &mut guest);
    close(world, &guest);
    world.look();
    guest
}

/// The process opens its node again, which calls it `name`, and makes its blobs again as `page` and `page + 1`.
pub(super) fn open_again(world: &mut World, guest: &Guest, name: u32, page: u32) {
    world.session.create_context(FrontContext::new(name)).unwrap();
    for (resource, was, size) in [(page, guest.of, DEVICE_PAGE_BYTES), (page + 1, BLOB + guest.of, PAGE_SIZE)]
    {
        let named = blob_name(&guest.parked, was);
        world.session.blobs().take_blob_again(resource, size, named).unwrap();
        world.session.blobs().attach(FrontContext::new(name), resource).unwrap();
    }
}

pub(super) fn attach(guest: &Guest, page_resource: u32) -> AttachDevice {
    let parked = guest.parked;
    AttachDevice { parked, protocol_version: PROTOCOL_VERSION, page_resource, count: 0, reserved: 0 }
}

/// The status that an attach of what is called `name` now is answered with in the page of the process that came back.
pub(super) fn attached(world: &mut World, guest: &Guest, name: u32, message: &AttachDevice) -> Option<u32> {
    let asked = world.ask(name, ATTACH_DEVICE, message.as_bytes());
    world.turn(0);
    world.answer(Asked { of: guest.of, ..asked }).map(|(status, _)| status)
}

pub(super) fn ran(world: &World) -> Vec<u64> {
    world.fakes.take_ran().iter().map(|ran| ran.submission.buffer_va).collect()
}

pub(super) fn is_away(world: &World, of: u32) -> bool {
    world.session.vm.objects.processes.get(&GuestProcess::new(of)).is_some_and(Process::is_away)
}

pub(super) fn free(world: &World) -> u64 {
    world.session.vm.memory.allocations.memory().local().free_bytes()
}

/// Guest RAM, 64 pages.
pub(super) fn show_ram(world: &mut World) {
    let bytes = 64 * PAGE_SIZE;
    let file = Some(FileOffset::new(create_memfd("ram", bytes).unwrap(), 0));
    let ranges = [(GuestAddress(0), usize::try_from(bytes).unwrap(), file)];
    world.session.set_guest_memory(Arc::new(GuestRam::from_ranges_with_files(ranges).unwrap()));
}

/// A blob of so many of the guest's own pages, which a process has.
pub(super) fn pages(world: &mut World, of: u32, resource: u32, count: u32) {
    let token = (1 << 32) + u64::from(resource);
    world.asked.insert(token, Asked { of, slot: 0, sequence: token });
    let entry = MemEntry { address: u64::from(resource) * PAGE_SIZE, length: count * 4096, padding: 0 };
    let size = u64::from(count) * PAGE_SIZE;
    world.session.blobs().create_guest_blob(resource, size, &[entry], Token(token)).unwrap();
    world.session.blobs().attach(FrontContext::new(of), resource).unwrap();
    (0..2).for_each(|_| world.turn(0));
    assert!(!world.asked.contains_key(&token), "engines have it");
}
