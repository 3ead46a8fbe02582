//! Residency over fakes: what the tests of requests and of faults have in common.

mod faults;
mod requests;

use campanile_protocol::control::memory::List;
use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::faked::world::Asked;
use crate::vgpu::faked::world::World;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::objects::ids::AllocationId;

/// Half a MiB. Of video memory that the CPU does not see there is eight times as much, of which a little is the device page.
const PIECE: u64 = 512 << 10;
/// The blobs of tests; the device page of process 1 is blob 1.
const A: u32 = 10;
const B: u32 = 11;
const C: u32 = 12;

/// Process 1, and these blobs of so many pieces, of which nothing has a place yet.
fn world(blobs: &[(u32, u64)]) -> World {
    let mut world = World::new();
    world.open(1);
    // Its page is where it was before, and takes nothing of the memory that is tested.
    for &(resource, pieces) in blobs {
        world.session.blobs().create_vram_blob(resource, pieces * PIECE, false).unwrap();
        world.session.blobs().attach(FrontContext::new(1), resource).unwrap();
    }
    world
}

/// Bytes of video memory that the CPU does not see.
fn local(world: &World) -> u64 {
    let memory = world.session.vm.memory.allocations.memory();
    memory.length() - memory.aperture_bytes()
}

fn list(argument: u32, resources: &[u32]) -> Vec<u8> {
    let count = u32::try_from(resources.len()).unwrap();
    let odd = [0].repeat(resources.len() % 2);
    [List { count, argument }.as_bytes(), resources.as_bytes(), odd.as_bytes()].concat()
}

fn ask(world: &mut World, opcode: u32, argument: u32, resources: &[u32]) -> Asked {
    world.ask(1, opcode, &list(argument, resources))
}

fn status(world: &mut World, opcode: u32, argument: u32, resources: &[u32]) -> u32 {
    world.call(1, opcode, &list(argument, resources)).0
}

fn done(world: &mut World, opcode: u32, argument: u32, resources: &[u32]) {
    assert_eq!(status(world, opcode, argument, resources), Status::Ok.word(), "{opcode} {resources:?}");
}

fn id(world: &World, resource: u32) -> AllocationId {
    world.session.vm.memory.blobs[&resource].allocation
}

fn is_resident(world: &World, resource: u32) -> bool {
    matches!(world.session.vm.memory.allocations.spot(id(world, resource)), Spot::Segment(..))
}

fn resident(world: &World) -> Vec<u32> {
    [A, B, C]
        .into_iter()
        .filter(|resource| world.session.vm.memory.blobs.contains_key(resource))
        .filter(|resource| is_resident(world, *resource))
        .collect()
}

/// How often an allocation is held, in all and by process 1.
fn holds(world: &World, resource: u32) -> (u64, Option<u64>) {
    let id = id(world, resource);
    let device = world.session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap();
    (world.session.vm.memory.allocations.get(id).unwrap().holds, device.holds.get(&id).map(|hold| hold.count))
}
