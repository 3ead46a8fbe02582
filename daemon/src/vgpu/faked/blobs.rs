//! Blobs as fronts ask for them, and lists of mappings: what is refused, and that it changes nothing.

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use std::sync::Arc;

use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::memory::MAP_LIST;
use campanile_protocol::control::memory::UNMAP_LIST;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::status::Status;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::world::World;
use crate::guest_ram::memory::GuestRam;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

const VA: u64 = 0x100_0000;

/// Process 1, with blobs 100 and 101 of one page each.
fn world() -> World {
    let mut world = World::new();
    world.open(1);
    assert!(world.blob(1, 100) && world.blob(1, 101));
    world.turn(0);
    world
}

fn map_of(resource: u32, va: u64) -> MapMemory {
    MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: PAGE_SIZE }
}

/// A list of these, as a message has it.
fn list<T: IntoBytes + Immutable>(argument: u32, entries: &[T]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap();
    [List { count, argument }.as_bytes(), entries.as_bytes()].concat()
}

fn mapped(world: &World) -> Vec<u64> {
    world
        .session
        .vm
        .objects
        .device(GuestProcess::new(1))
        .unwrap()
        .mappings
        .keys()
        .copied()
        .filter(|va| *va >= VA)
        .collect()
}

#[test]
fn what_there_is_not_is_neither_attached_nor_given_up_and_a_name_is_given_up_once() {
    let mut world = world();
    let mut blobs = world.session.blobs();
    assert_eq!(blobs.attach(FrontContext::new(1), 102), Err(Refusal::Resource));
    assert_eq!(blobs.attach(FrontContext::new(2), 100), Err(Refusal::Context));
    assert_eq!(blobs.attach(FrontContext::new(1), 100), Ok(()), "once more is no more");
    assert_eq!(blobs.detach(FrontContext::new(2), 100), Err(Refusal::Context));
    assert_eq!(blobs.detach(FrontContext::new(1), 102), Err(Refusal::Resource));
    assert_eq!(blobs.detach(FrontContext::new(1), 100), Ok(()));
    assert_eq!(blobs.detach(FrontContext::new(1), 100), Err(Refusal::Resource));
    assert_eq!(blobs.unref_blob(102), Err(Refusal::Resource));
    assert_eq!(blobs.retire_blob(102, Token(1)), Err(Refusal::Resource));
    assert_eq!(blobs.unref_blob(100), Ok(()));
    assert_eq!(blobs.unref_blob(100), Err(Refusal::Resource));
    // What is not attached cannot be mapped.
    assert_eq!(
        world.call(1, message::MAP_MEMORY, map_of(100, VA).as_bytes()).0,
        Status::InvalidResource.word()
    );
}

#[test]
fn a_blob_of_video_memory_that_is_retired_is_due_at_once_and_gone() {
    let mut world = world();
    let before = world.session.vm.memory.allocations.memory().local().free_bytes();
    assert_eq!(world.session.blobs().retire_blob(100, Token(77)), Ok(()));
    assert_eq!(world.session.take_due(), [(Token(77), Ok(()))]);
    assert!(!world.session.vm.memory.blobs.contains_key(&100));
    assert!(world.session.vm.memory.allocations.memory().local().free_bytes() >= before);
}

#[test]
fn a_blob_that_the_window_does_not_show_is_not_taken_out_of_it() {
    let mut world = world();
    assert_eq!(world.session.blobs().unmap_blob(102, Token(1)), Err(Refusal::Resource));
    assert_eq!(world.session.blobs().unmap_blob(100, Token(1)), Err(Refusal::Parameter));
}

#[test]
fn a_blob_of_the_guests_own_pages_has_as_many_bytes_as_it_names_and_no_more_than_its_memory() {
    const PAGES: u64 = 4;
    let mut world = world();
    let file = Some(FileOffset::new(create_memfd("ram", PAGES * PAGE_SIZE).unwrap(), 0));
    let ranges = [(GuestAddress(0), usize::try_from(PAGES * PAGE_SIZE).unwrap(), file)];
    world.session.set_guest_memory(Arc::new(GuestRam::from_ranges_with_files(ranges).unwrap()));
    let page = |address: u64| MemEntry { address, length: 4096, padding: 0 };
    let of = |count: u64| (0..count).map(|index| page(index % PAGES * PAGE_SIZE)).collect::<Vec<_>>();
    let mut create = |resource, pages: u64, named: u64| {
        world.session.blobs().create_guest_blob(resource, pages * PAGE_SIZE, &of(named), Token(1))
    };
    assert_eq!([create(200, 2, 1), create(200, 2, 3)], [Err(Refusal::Parameter); 2], "not what it names");
    assert_eq!(create(200, PAGES + 1, PAGES + 1), Err(Refusal::Parameter), "a page twice");
    assert_eq!([create(200, PAGES, PAGES), create(201, 1, 1)], [Ok(()); 2]);
}

#[test]
fn a_list_is_mapped_and_unmapped_whole_or_not_at_all() {
    let mut world = world();
    let maps = |resources: [u32; 2]| [map_of(resources[0], VA), map_of(resources[1], VA + PAGE_SIZE)];
    let unmaps = |vas: [u64; 2]| vas.map(|va| UnmapMemory { va, size: PAGE_SIZE });
    for (argument, resources, expected) in [
        (1, [100, 101], Status::InvalidParameter),
        (0, [100, 102], Status::InvalidResource),
        (0, [102, 100], Status::InvalidResource),
    ] {
        let body = list(argument, &maps(resources));
        assert_eq!(world.call(1, MAP_LIST, &body).0, expected.word(), "{argument} {resources:?}");
        (0..2).for_each(|_| world.turn(0));
        assert!(mapped(&world).is_empty());
    }
    assert_eq!(world.call(1, MAP_LIST, &list(0, &maps([100, 101]))).0, Status::Ok.word());
    assert_eq!(mapped(&world), [VA, VA + PAGE_SIZE]);
    let page = world.session.vm.objects.device(GuestProcess::new(1)).unwrap().page.va;
    for (argument, vas, expected) in [
        (1, [VA, VA + PAGE_SIZE], Status::InvalidParameter),
        (0, [VA, VA], Status::InvalidAddress),
        (0, [VA, VA + 2 * PAGE_SIZE], Status::InvalidAddress),
    ] {
        let body = list(argument, &unmaps(vas));
        assert_eq!(world.call(1, UNMAP_LIST, &body).0, expected.word(), "{argument} {vas:?}");
        assert_eq!(mapped(&world), [VA, VA + PAGE_SIZE]);
    }
    // The device page stays, and what lies beside it need not.
    let bytes = world.session.vm.objects.device(GuestProcess::new(1)).unwrap().mappings[&page].size;
    let own = UnmapMemory { va: page, size: bytes };
    assert_eq!(world.call(1, message::UNMAP_MEMORY, own.as_bytes()).0, Status::Busy.word());
    assert!(page < VA);
    for (resource, va) in [(100, page - PAGE_SIZE), (101, page + bytes)] {
        world.ok(1, message::MAP_MEMORY, map_of(resource, va).as_bytes());
        let beside = UnmapMemory { va, size: PAGE_SIZE };
        assert_eq!(world.call(1, message::UNMAP_MEMORY, beside.as_bytes()).0, Status::Ok.word(), "{va:#x}");
    }
    assert_eq!(world.call(1, UNMAP_LIST, &list(0, &unmaps([VA, VA + PAGE_SIZE]))).0, Status::Ok.word());
    assert!(mapped(&world).is_empty());
    world.turn(0);
    assert!(world.asked.is_empty());
}
