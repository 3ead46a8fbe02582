//! Blobs that cannot be.

use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::queue::ring::CONTROL_READ_POINTER;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::FLAG_MAPPABLE;
use campanile_protocol::virtio_gpu::blob::MEM_GUEST;
use campanile_protocol::virtio_gpu::blob::MEM_HOST3D;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_PARAMETER;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_RESOURCE_ID;
use campanile_protocol::virtio_gpu::response::ERR_OUT_OF_MEMORY;
use campanile_protocol::virtio_gpu::response::OK_MAP_INFO;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use campanile_test_vmm::raw::RawChain;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::raw::RawRam;
use campanile_test_vmm::vm::LoopbackVm;

use zerocopy::IntoBytes;

use crate::attacker::PAGE_VA;
use crate::daemon::NEVER;
use crate::daemon::until;
use crate::packets::copy;
use crate::packets::fill;
use crate::packets::wait;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::wire;
use crate::wire::FIRST_ID;

/// A right one.
pub(crate) const VRAM: CreateBlob = CreateBlob {
    resource_id: FIRST_ID,
    memory: MEM_HOST3D,
    flags: FLAG_MAPPABLE,
    entry_count: 0,
    blob_id: 0,
    size: 4096,
};

#[test]
fn blobs_of_impossible_sizes_are_refused() {
    let mut scene = Scene::new();
    for size in [0, 1, 4095, 4097, u64::MAX, 1 << 63 | 1] {
        assert_eq!(
            wire::create_blob(&scene.vm, CreateBlob { size, ..VRAM }, &[]),
            ERR_INVALID_PARAMETER,
            "{size}"
        );
    }
    for size in [65 << 20, 1 << 40, 1 << 63, u64::MAX - 4095] {
        assert_eq!(
            wire::create_blob(&scene.vm, CreateBlob { size, ..VRAM }, &[]),
            ERR_OUT_OF_MEMORY,
            "{size}"
        );
    }
    assert_eq!(wire::create_blob(&scene.vm, VRAM, &[]), OK_NODATA);
    scene.unharmed();
}

#[test]
fn blobs_with_a_taken_number_are_refused() {
    let mut scene = Scene::new();
    assert_eq!(wire::create_blob(&scene.vm, VRAM, &[]), OK_NODATA);
    assert_eq!(wire::create_blob(&scene.vm, VRAM, &[]), ERR_INVALID_RESOURCE_ID);
    assert_eq!(
        wire::create_blob(&scene.vm, CreateBlob { resource_id: 0, ..VRAM }, &[]),
        ERR_INVALID_RESOURCE_ID
    );
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, FIRST_ID), OK_NODATA);
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, FIRST_ID), ERR_INVALID_RESOURCE_ID);
    scene.unharmed();
}

#[test]
fn blobs_of_unknown_kinds_are_refused() {
    let mut scene = Scene::new();
    let wrong = [
        CreateBlob { memory: 0, ..VRAM },
        CreateBlob { memory: 3, ..VRAM },
        CreateBlob { memory: u32::MAX, ..VRAM },
        CreateBlob { flags: 1 << 2, ..VRAM },
        CreateBlob { flags: u32::MAX, ..VRAM },
        CreateBlob { blob_id: 1, ..VRAM },
        CreateBlob { entry_count: 1, ..VRAM },
        CreateBlob { entry_count: u32::MAX, ..VRAM },
    ];
    for create in wrong {
        assert_eq!(
            wire::create_blob(&scene.vm, create, &[MemEntry::default()]),
            ERR_INVALID_PARAMETER,
            "{create:?}"
        );
    }
    scene.unharmed();
}

#[test]
fn page_lists_outside_guest_memory_are_refused() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4 * 4096).unwrap();
    let page = |address, length| MemEntry { address, length, padding: 0 };
    let good = page(ram.address(), 4096);
    let end = (1 << 30) + (64 << 20);
    let lists: Vec<Vec<MemEntry>> = vec![
        vec![],
        vec![page(0, 4096)],
        vec![page(1 << 50, 4096)],
        vec![page(u64::MAX - 4095, 4096)],
        vec![page(end - 4096, 8192)],
        vec![page(end, 4096)],
        vec![page(ram.address() + 1, 4096)],
        vec![page(ram.address(), 4095)],
        vec![page(ram.address(), 0)],
        vec![page(ram.address(), u32::MAX - 4095)],
        vec![MemEntry { padding: 1, ..good }],
        vec![good, page(0, 4096)],
        vec![good, good],
    ];
    for list in lists {
        let entry_count = u32::try_from(list.len()).unwrap();
        let create = CreateBlob { memory: MEM_GUEST, flags: 0, entry_count, ..VRAM };
        assert_eq!(wire::create_blob(&scene.vm, create, &list), ERR_INVALID_PARAMETER, "{list:?}");
    }
    for entry_count in [2, 1000, u32::MAX] {
        let create = CreateBlob { memory: MEM_GUEST, flags: 0, entry_count, ..VRAM };
        assert_eq!(
            wire::create_blob(&scene.vm, create, &[good]),
            ERR_INVALID_PARAMETER,
            "a list that lies about its length"
        );
    }
    let create = CreateBlob { memory: MEM_GUEST, flags: 0, entry_count: 1, ..VRAM };
    assert_eq!(wire::create_blob(&scene.vm, create, &[good]), OK_NODATA);
    assert_eq!(
        wire::map_blob(&scene.vm, FIRST_ID, 1 << 20),
        ERR_INVALID_PARAMETER,
        "guest pages have no place in the window"
    );
    scene.unharmed();
}

#[test]
fn a_page_list_longer_than_guest_memory_is_refused() {
    let mut scene = Scene::new();
    let length = 4 * 4096;
    let ram = scene.vm.raw().ram(length).unwrap();
    let whole_memory = (64 << 20) / length;
    for (count, expected) in [(whole_memory + 1, ERR_INVALID_PARAMETER), (whole_memory, OK_NODATA)] {
        let entry = MemEntry { address: ram.address(), length: 4 * 4096, padding: 0 };
        let list = vec![entry; count.try_into().unwrap()];
        let entry_count = count.try_into().unwrap();
        let create = CreateBlob { memory: MEM_GUEST, flags: 0, entry_count, size: count * length, ..VRAM };
        assert_eq!(wire::create_blob(&scene.vm, create, &list), expected, "{count} times the same pages");
    }
    scene.unharmed();
}

#[test]
fn a_page_list_in_the_window_is_refused() {
    let mut scene = Scene::new();
    // The VMM lists the window with guest memory.
    let window = scene.vm.raw().window_base();
    let create = CreateBlob { memory: MEM_GUEST, flags: 0, entry_count: 1, ..VRAM };
    let entry = MemEntry { address: window, length: 4096, padding: 0 };
    assert_eq!(wire::create_blob(&scene.vm, create, &[entry]), ERR_INVALID_PARAMETER);
    scene.unharmed();
}

#[test]
fn overlapping_and_outside_places_in_the_window_are_refused() {
    let mut scene = Scene::new();
    let vm = &scene.vm;
    let place = 24 << 20;
    for resource_id in FIRST_ID..FIRST_ID + 3 {
        assert_eq!(wire::create_blob(vm, CreateBlob { resource_id, size: 8192, ..VRAM }, &[]), OK_NODATA);
    }
    assert_eq!(
        wire::create_blob(vm, CreateBlob { resource_id: FIRST_ID + 3, flags: 0, ..VRAM }, &[]),
        OK_NODATA
    );
    assert_eq!(wire::map_blob(vm, FIRST_ID, place), OK_MAP_INFO);
    for offset in [
        place,
        place + 4096,
        place - 4096,
        place + 1,
        0,
        32 << 20,
        (32 << 20) - 4096,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ] {
        assert_eq!(wire::map_blob(vm, FIRST_ID + 1, offset), ERR_INVALID_PARAMETER, "{offset:#x}");
    }
    assert_eq!(wire::map_blob(vm, FIRST_ID, place + 8192), ERR_INVALID_PARAMETER, "mapped already");
    assert_eq!(wire::map_blob(vm, FIRST_ID + 3, place + 8192), ERR_INVALID_PARAMETER, "not mappable");
    assert_eq!(wire::map_blob(vm, FIRST_ID + 1, place + 8192), OK_MAP_INFO);
    assert_eq!(wire::name(vm, command::RESOURCE_UNMAP_BLOB, 0, FIRST_ID), OK_NODATA);
    assert_eq!(
        wire::name(vm, command::RESOURCE_UNMAP_BLOB, 0, FIRST_ID),
        ERR_INVALID_PARAMETER,
        "not mapped any more"
    );
    assert_eq!(wire::map_blob(vm, FIRST_ID + 2, place), OK_MAP_INFO);
    scene.unharmed();
}

#[test]
fn a_blob_freed_while_mapped_leaves_its_place_to_others_and_its_bytes_to_nobody() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (blob, memory) = attacker.memory(crate::attacker::DATA_VA, 8192);
    memory.write(0, &[0xaa; 8192]).unwrap();
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, blob.resource_id()), OK_NODATA);
    assert_eq!(attacker.unmap(crate::attacker::DATA_VA, 8192), Status::Ok);
    for _ in 0..4 {
        let (blob, memory) = attacker.memory(crate::attacker::DATA_VA, 8192);
        let mut bytes = [1; 8192];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "somebody else's bytes");
        assert_eq!(attacker.unmap(crate::attacker::DATA_VA, 8192), Status::Ok);
        attacker.context.destroy_blob(blob).unwrap();
    }
    scene.unharmed();
}

#[test]
fn a_ring_freed_under_its_doorbell_is_not_given_to_others() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 7));
    ring.reached(&attacker, 1);
    // The guest gives up name and mapping; the doorbell still holds the memory (UMS-82).
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, ring.blob.resource_id()), OK_NODATA);
    let others: Vec<_> =
        (0..4).map(|_| attacker.context.create_blob(BlobMemory::Vram, 1 << 20).unwrap()).collect();
    for blob in &others {
        attacker.context.map(blob).unwrap().write(0, &vec![0x55; 1 << 20]).unwrap();
    }
    ring.write(1, &ring.entry(0, 2));
    ring.ring(&attacker, 2);
    ring.reached(&attacker, 2);
    assert_eq!(attacker.named(message::DESTROY_DOORBELL, ring.bell.doorbell), Status::Ok);
    assert_eq!(attacker.named(message::DESTROY_QUEUE, ring.queue.queue), Status::Ok);
    assert_eq!(attacker.unmap(ring.va, crate::ring::BYTES), Status::Ok);
    assert!(attacker.is_active());
    scene.unharmed();
}

/// A command under way.
struct Raw {
    chain: RawChain,
    ram: RawRam,
}

impl Raw {
    /// Puts a command that names a resource on the ring, and does not wait for it.
    fn start(vm: &LoopbackVm, kind: u32, resource_id: u32) -> Self {
        let ram = vm.raw().ram(4096).unwrap();
        let header = Header { kind, ..Header::default() };
        let bytes = [header.as_bytes(), ResourceName { resource_id, padding: 0 }.as_bytes()].concat();
        ram.memory().write(0, &bytes).unwrap();
        let request = RawDescriptor { address: ram.address(), length: 32, flags: 1, next: 1 };
        let answer = RawDescriptor { address: ram.address() + 1024, length: 64, flags: 2, next: 0 };
        Self { chain: vm.raw().chain(0, &[request, answer]).unwrap(), ram }
    }

    /// The response code.
    fn finish(self) -> u32 {
        self.chain.wait(Some(NEVER)).unwrap();
        self.ram.memory().word32(1024).unwrap().load(Ordering::Acquire)
    }
}

#[test]
fn a_blob_unmapped_and_freed_in_one_breath_under_the_gpu_goes_when_it_is_out() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let (from, size) = (1 << 32, 2 << 20);
    for round in 0..20 {
        let blob = attacker.context.create_blob(BlobMemory::Vram, 2 * size).unwrap();
        let resource = blob.resource_id();
        assert_eq!(attacker.map(resource, 0, from, 2 * size), Status::Ok);
        assert_eq!(wire::map_blob(&scene.vm, resource, 20 << 20), OK_MAP_INFO);
        ring.packets(&copy(from, from + size, size));
        ring.write(round, &ring.entry(copy(0, 0, 0).len(), round + 1));
        ring.ring(&attacker, round + 1);
        let out = Raw::start(&scene.vm, command::RESOURCE_UNMAP_BLOB, resource);
        let gone = Raw::start(&scene.vm, command::RESOURCE_UNREF, resource);
        assert_eq!(out.finish(), OK_NODATA);
        assert_eq!(gone.finish(), OK_NODATA);
        ring.reached(&attacker, round + 1);
        assert_eq!(attacker.unmap(from, 2 * size), Status::Ok);
    }
    until("all of it is free", || attacker.context.create_blob(BlobMemory::Vram, 48 << 20).is_ok());
    assert!(attacker.is_active());
    scene.unharmed();
}

#[test]
fn a_device_page_moved_under_its_device_takes_the_fence_with_it() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let word = 64 << 10;
    let queue = attacker.create_queue(ring.context, 0).queue;
    ring.run_first(&attacker, &wait(ring.va + word, 1));
    let page = attacker.page_blob.resource_id();
    for place in [20 << 20, 22 << 20] {
        assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNMAP_BLOB, 0, page), OK_NODATA);
        assert_eq!(wire::map_blob(&scene.vm, page, place), OK_MAP_INFO);
    }
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNMAP_BLOB, 0, page), OK_NODATA);
    ring.memory.word(word).unwrap().store(1, Ordering::Release);
    let read_pointer = ring.memory.word(CONTROL_READ_POINTER).unwrap();
    until("the buffer is done", || read_pointer.load(Ordering::Acquire) == 1);
    // No CPU sees the page now: the GPU reads the fence.
    let packets = copy(PAGE_VA + ring.queue.fence_offset, ring.va + word, 8);
    ring.packets(&packets);
    let submit = Submit {
        queue,
        buffer_va: ring.va + crate::ring::PACKETS,
        length: packets.len().try_into().unwrap(),
        flags: 0,
    };
    ring.memory.word(word).unwrap().store(99, Ordering::Release);
    attacker.start(message::SUBMIT, 5, submit.as_bytes()).1.wait(Some(NEVER)).unwrap();
    assert_eq!(ring.memory.word(word).unwrap().load(Ordering::Acquire), 1);
    scene.unharmed();
}
