//! Messages whose fields break a rule.

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::attacker::DATA_VA;
use crate::attacker::PAGE_VA;
use crate::ring::Ring;
use crate::scene::Scene;

#[test]
fn mappings_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let other = scene.attacker();
    let (blob, _memory) = attacker.memory(DATA_VA, 64 << 10);
    let (foreign, _memory) = other.memory(DATA_VA, 64 << 10);
    let right = MapMemory { resource: blob.resource_id(), flags: 1, offset: 0, va: 1 << 32, size: 4096 };
    let map = |map: MapMemory| attacker.status(message::MAP_MEMORY, map.as_bytes());
    for resource in [0, u32::MAX, foreign.resource_id()] {
        assert_eq!(map(MapMemory { resource, ..right }), Status::InvalidResource);
    }
    for flags in [2, 3, u32::MAX] {
        assert_eq!(map(MapMemory { flags, ..right }), Status::InvalidParameter);
    }
    for (offset, size) in [
        (64 << 10, 4096),
        (60 << 10, 8192),
        (u64::MAX, 1),
        (u64::MAX - 4095, 4096),
        (4096, u64::MAX),
        (0, 1 << 40),
    ] {
        assert_eq!(
            map(MapMemory { offset, size, ..right }),
            Status::InvalidResource,
            "{offset:#x} {size:#x}"
        );
    }
    for (offset, size, va) in [
        (1, 4096, 1 << 32),
        (0, 4095, 1 << 32),
        (0, 0, 1 << 32),
        (0, 4096, 0),
        (0, 4096, 1),
        (0, 4096, 4096),
        (0, 4096, (1 << 32) + 8),
        (0, 4096, 1 << 39),
        (0, 8192, (1 << 39) - 4096),
        (0, 4096, u64::MAX - 4095),
        (0, 4096, PAGE_VA),
        (0, 4096, PAGE_VA + DEVICE_PAGE_BYTES - 4096),
        (0, 4096, DATA_VA),
        (0, 64 << 10, DATA_VA - 4096),
    ] {
        assert_eq!(
            map(MapMemory { offset, size, va, ..right }),
            Status::InvalidAddress,
            "{offset:#x} {size:#x} {va:#x}"
        );
    }
    let unmap = |va, size| attacker.status(message::UNMAP_MEMORY, UnmapMemory { va, size }.as_bytes());
    for (va, size) in
        [(0, 0), (DATA_VA, 4096), (DATA_VA + 4096, 4096), (DATA_VA, 128 << 10), (u64::MAX, u64::MAX)]
    {
        assert_eq!(unmap(va, size), Status::InvalidAddress);
    }
    assert_eq!(unmap(PAGE_VA, DEVICE_PAGE_BYTES), Status::Busy, "its own device page");
    assert_eq!(map(right), Status::Ok, "nothing was changed by the refused ones");
    scene.unharmed();
}

#[test]
fn contexts_and_queues_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let right = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    let create = |create: CreateContext| attacker.status(message::CREATE_CONTEXT, create.as_bytes());
    for node in [2, 3, u32::MAX] {
        assert_eq!(create(CreateContext { node, ..right }), Status::NotSupported);
    }
    assert_eq!(create(CreateContext { node: 0, ..right }), Status::NotSupported, "no compute here");
    for engine_affinity in [0, 2, 3, u32::MAX] {
        assert_eq!(create(CreateContext { engine_affinity, ..right }), Status::InvalidParameter);
    }
    assert_eq!(create(CreateContext { flags: 1, ..right }), Status::InvalidParameter);
    assert_eq!(create(CreateContext { reserved: 1, ..right }), Status::InvalidParameter);
    let context = attacker.create_context();
    let queue = |flags, reserved| {
        attacker.status(message::CREATE_QUEUE, CreateQueue { context, flags, reserved }.as_bytes())
    };
    for flags in [2, 4, 8, 0x40, 1 << 31, u32::MAX] {
        assert_eq!(queue(flags, 0), Status::InvalidParameter);
    }
    assert_eq!(queue(0, 1), Status::InvalidParameter);
    assert_eq!(attacker.named(message::DESTROY_CONTEXT, context), Status::Ok);
    assert_eq!(queue(0, 0), Status::InvalidHandle, "a stale context");
    scene.unharmed();
}

#[test]
fn handles_of_others_and_of_the_dead_are_refused() {
    let mut scene = Scene::new();
    let (attacker, victim) = (scene.attacker(), scene.attacker());
    let padding = victim.create_context();
    let ring = Ring::new(&victim);
    let (context, queue, bell) = (ring.context, ring.queue.queue, ring.bell.doorbell);
    assert_ne!(padding, context);
    // The attacker has nothing at these places.
    for (opcode, handle) in [
        (message::DESTROY_CONTEXT, context),
        (message::DESTROY_QUEUE, queue),
        (message::DESTROY_DOORBELL, bell),
        (message::CONNECT_DOORBELL, bell),
        (message::DESTROY_KERNEL, bell),
    ] {
        for handle in
            [handle, Handle::NONE, Handle(u64::MAX), Handle(handle.0 ^ (1 << 40)), Handle(handle.0 | 0xffff)]
        {
            assert_eq!(attacker.named(opcode, handle), Status::InvalidHandle, "{opcode} {handle:?}");
        }
    }
    let notify =
        |flags, reserved| attacker.status(message::NOTIFY, Notify { queue, flags, reserved }.as_bytes());
    assert_eq!(notify(0, 0), Status::InvalidHandle);
    assert_eq!((notify(1, 0), notify(0, 1)), (Status::InvalidParameter, Status::InvalidParameter));
    let submit = Submit { queue, buffer_va: DATA_VA, length: 0, flags: 0 };
    assert_eq!(attacker.status(message::SUBMIT, submit.as_bytes()), Status::InvalidHandle);
    assert_eq!(
        attacker.status(message::WAIT_FENCE, WaitFence { queue, value: 0 }.as_bytes()),
        Status::InvalidHandle
    );
    // The victim's own, once they are dead.
    assert_eq!(victim.named(message::DESTROY_QUEUE, queue), Status::Busy);
    assert_eq!(victim.named(message::DESTROY_CONTEXT, context), Status::Busy);
    for (opcode, handle) in [
        (message::DESTROY_DOORBELL, bell),
        (message::DESTROY_QUEUE, queue),
        (message::DESTROY_CONTEXT, context),
    ] {
        assert_eq!(victim.named(opcode, handle), Status::Ok);
        assert_eq!(victim.named(opcode, handle), Status::InvalidHandle);
    }
    assert_eq!(victim.named(message::CONNECT_DOORBELL, bell), Status::InvalidHandle);
    let again = victim.create_context();
    assert_eq!((again.index(), again.generation()), (context.index(), context.generation() + 1));
    assert_eq!(victim.named(message::DESTROY_CONTEXT, context), Status::InvalidHandle, "its successor lives");
    assert_eq!(victim.named(message::DESTROY_CONTEXT, again), Status::Ok);
    assert!(attacker.is_active() && victim.is_active());
    scene.unharmed();
}

#[test]
fn submissions_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let queue = attacker.create_queue(ring.context, 0).queue;
    let right = Submit { queue, buffer_va: DATA_VA, length: 0, flags: 0 };
    let submit = |submit: Submit| attacker.status(message::SUBMIT, submit.as_bytes());
    for buffer_va in [1, 4, DATA_VA + 4, u64::MAX] {
        assert_eq!(submit(Submit { buffer_va, ..right }), Status::InvalidParameter);
    }
    for length in [1, 4, (64 << 10) + 8, u32::MAX, u32::MAX - 7] {
        assert_eq!(submit(Submit { length, ..right }), Status::InvalidParameter);
    }
    assert_eq!(submit(Submit { flags: 1, ..right }), Status::InvalidParameter);
    assert_eq!(
        submit(Submit { queue: ring.queue.queue, ..right }),
        Status::InvalidParameter,
        "a user-mode queue"
    );
    assert_eq!(submit(Submit { queue: Handle(u64::MAX), ..right }), Status::InvalidHandle);
    assert_eq!(submit(right), Status::Ok);
    scene.unharmed();
}

#[test]
fn kernels_that_lie_about_their_length_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let right = CreateKernel { language: 1, entry_bytes: 0, source_bytes: 8, reserved: 0 };
    let create = |create: CreateKernel| {
        attacker.status(message::CREATE_KERNEL, &[create.as_bytes(), &[b'x'; 8]].concat())
    };
    for (entry_bytes, source_bytes) in
        [(0, 0), (0, 9), (9, 0), (8, 8), (u32::MAX, u32::MAX), (u32::MAX, 9), (0, u32::MAX)]
    {
        assert_eq!(create(CreateKernel { entry_bytes, source_bytes, ..right }), Status::InvalidParameter);
    }
    assert_eq!(create(CreateKernel { reserved: 1, ..right }), Status::InvalidParameter);
    for language in [0, 3, u32::MAX] {
        assert_eq!(create(CreateKernel { language, ..right }), Status::NotSupported);
    }
    assert_eq!(create(right), Status::NotSupported, "no compute here");
    scene.unharmed();
}
