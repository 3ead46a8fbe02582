//! Native fences in the wrong hands: names that were never given, more of them than there are, waits that nobody ends.

use campanile_guest_driver::device::Device;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::native_fence::GlobalFence;
use campanile_guest_driver::native_fence::NativeFence;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::handle::Handle;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::attacker::PAGE_VA;
use crate::attacker::frame;
use crate::bystander::Bystander;
use crate::daemon::NEVER;
use crate::packets::copy;
use crate::packets::fill;
use crate::packets::wait;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::wire;

/// Where fences are mapped here.
const FENCE_VA: u64 = 1 << 34;
/// Fences that one process has open at the most.
const MAX_OPEN: u64 = 1024;

fn create(attacker: &Attacker, create: &CreateNativeFence) -> Status {
    attacker.status(native_fence::CREATE_NATIVE_FENCE, create.as_bytes())
}

fn open(attacker: &Attacker, global: Handle, va: u64) -> Status {
    attacker.status(native_fence::OPEN_NATIVE_FENCE, OpenNativeFence { global, va }.as_bytes())
}

/// A fence of the attacker's at `va`.
fn created(attacker: &Attacker, va: u64) -> NativeFenceOpened {
    let create = CreateNativeFence { va, ..CreateNativeFence::default() };
    let (status, payload) = attacker.message(native_fence::CREATE_NATIVE_FENCE, create.as_bytes());
    assert_eq!(status, Status::Ok);
    NativeFenceOpened::read_from_bytes(&payload).unwrap()
}

/// A process that does nothing wrong, and its fence.
fn victim(scene: &Scene) -> (Device, NativeFence) {
    let device = Device::open(scene.vm.open("victim").unwrap()).unwrap();
    let fence = device.create_fence(FenceKind::Default, 1).unwrap();
    (device, fence)
}

#[test]
fn ums_142_names_that_were_never_given_name_nothing() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (_device, fence) = victim(&scene);
    let GlobalFence(global) = fence.global();
    for guess in [0, 1, u64::MAX, 1 << 32, global ^ 1, global ^ (1 << 12), global ^ (1 << 63), global & 0xfff]
    {
        assert_eq!(open(&attacker, Handle(guess), FENCE_VA), Status::InvalidHandle, "{guess:#x}");
    }
    let foreign = scene.other_vm.device().create_fence(FenceKind::Default, 0).unwrap();
    assert_eq!(open(&attacker, Handle(foreign.global().0), FENCE_VA), Status::InvalidHandle, "of another VM");
    let mine = created(&attacker, FENCE_VA);
    // Local handles of others, whose tables have something at other places.
    let other = scene.attacker();
    for handle in [mine.fence, mine.global, Handle(global), Handle::NONE, Handle(u64::MAX)] {
        let value = NativeFenceValue { fence: handle, value: 0 };
        for opcode in [native_fence::WAIT_NATIVE_FENCE, native_fence::SIGNAL_NATIVE_FENCE] {
            assert_eq!(other.status(opcode, value.as_bytes()), Status::InvalidHandle);
        }
        for opcode in [native_fence::CLOSE_NATIVE_FENCE, native_fence::QUERY_NATIVE_FENCE] {
            assert_eq!(other.named(opcode, handle), Status::InvalidHandle);
        }
    }
    assert_eq!(attacker.named(native_fence::CLOSE_NATIVE_FENCE, mine.fence), Status::Ok);
    assert_eq!(attacker.named(native_fence::CLOSE_NATIVE_FENCE, mine.fence), Status::InvalidHandle);
    assert_eq!(fence.value().unwrap(), 1);
    scene.unharmed();
}

#[test]
fn fences_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (_blob, _memory) = attacker.memory(DATA_VA, 64 << 10);
    let right = CreateNativeFence { va: FENCE_VA, ..CreateNativeFence::default() };
    for kind in [2, 3, u32::MAX] {
        assert_eq!(create(&attacker, &CreateNativeFence { kind, ..right }), Status::InvalidParameter);
    }
    assert_eq!(create(&attacker, &CreateNativeFence { reserved: 1, ..right }), Status::InvalidParameter);
    let (_device, shared) = victim(&scene);
    let bad = [
        0,
        1,
        4096,
        FENCE_VA + 8,
        FENCE_VA + 4095,
        DATA_VA,
        DATA_VA + 4096,
        PAGE_VA,
        PAGE_VA + DEVICE_PAGE_BYTES - 4096,
        1 << 39,
        u64::MAX,
        u64::MAX - 4095,
    ];
    for va in bad {
        assert_eq!(create(&attacker, &CreateNativeFence { va, ..right }), Status::InvalidAddress, "{va:#x}");
        assert_eq!(open(&attacker, Handle(shared.global().0), va), Status::InvalidAddress, "{va:#x}");
    }
    // What was refused took no place.
    for _ in 0..2 * MAX_FENCES {
        assert_eq!(create(&attacker, &CreateNativeFence { va: 1, ..right }), Status::InvalidAddress);
    }
    assert_eq!(create(&attacker, &right), Status::Ok);
    assert_eq!(create(&attacker, &right), Status::InvalidAddress, "there is one already");
    assert_eq!(attacker.map(1, 0, FENCE_VA, 4096), Status::InvalidResource);
    let unmap = UnmapMemory { va: FENCE_VA, size: 4096 };
    assert_eq!(
        attacker.status(message::UNMAP_MEMORY, unmap.as_bytes()),
        Status::InvalidAddress,
        "not by this way"
    );
    scene.unharmed();
}

#[test]
fn ums_142_a_fence_opened_a_million_times_takes_a_thousand_places() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (_device, fence) = victim(&scene);
    let global = Handle(fence.global().0);
    let before = scene.daemon.footprint();
    let refused_before = attacker.sequence();
    let mut va = FENCE_VA;
    for _ in 0..400 {
        let frames: Vec<u8> = (0..2500)
            .flat_map(|_| {
                va += 4096;
                let open = OpenNativeFence { global, va };
                frame(native_fence::OPEN_NATIVE_FENCE, 1, attacker.sequence(), open.as_bytes())
            })
            .collect();
        assert_eq!(wire::submit(&scene.vm, attacker.id(), frames.len(), &frames), OK_NODATA);
    }
    assert!(attacker.sequence() > refused_before + 1_000_000);
    assert_eq!(open(&attacker, global, va + 4096), Status::OutOfResources);
    let after = scene.daemon.footprint();
    assert!(after.0 <= before.0 + 1 && after.1 <= before.1 + 8, "{before:?} became {after:?}");
    // Others have their own.
    let second = scene.attacker();
    assert_eq!(open(&second, global, FENCE_VA), Status::Ok);
    let (status, payload) = second
        .message(native_fence::OPEN_NATIVE_FENCE, OpenNativeFence { global, va: FENCE_VA + 4096 }.as_bytes());
    assert_eq!(status, Status::Ok);
    let twice = NativeFenceOpened::read_from_bytes(&payload).unwrap();
    assert_eq!(second.named(native_fence::CLOSE_NATIVE_FENCE, twice.fence), Status::Ok);
    assert_eq!(fence.value().unwrap(), 1);
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    assert_eq!(fence.value().unwrap(), 1, "its creator still has it");
    scene.unharmed();
}

#[test]
fn fences_without_end_are_refused_and_given_back() {
    let mut scene = Scene::new();
    let mut attackers = Vec::new();
    let mut made = 0;
    'all: loop {
        let attacker = scene.attacker();
        for index in 0..MAX_OPEN {
            let create_at = CreateNativeFence { va: FENCE_VA + 4096 * index, ..CreateNativeFence::default() };
            match create(&attacker, &create_at) {
                Status::Ok => made += 1,
                status => {
                    assert_eq!(status, Status::OutOfResources);
                    break 'all;
                }
            }
        }
        let one_more = CreateNativeFence { va: FENCE_VA - 4096, ..CreateNativeFence::default() };
        assert_eq!(create(&attacker, &one_more), Status::OutOfResources, "of one process");
        attackers.push(attacker);
        assert!(attackers.len() < 10, "there is no end");
    }
    assert_eq!(made, MAX_FENCES);
    let foreign = scene.other_vm.device().create_fence(FenceKind::Default, 0).unwrap();
    assert_eq!(foreign.value().unwrap(), 0, "another VM has its own");
    drop(attackers);
    let (_device, fence) = victim(&scene);
    fence.signal(5).unwrap();
    fence.wait(5, Some(NEVER)).unwrap();
    scene.unharmed();
}

#[test]
fn fences_made_and_closed_without_end_leave_nothing() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let _ring = Ring::new(&attacker);
    let once = |round: u64| {
        let fence = created(&attacker, FENCE_VA + 4096 * (round % 3));
        assert_eq!(attacker.named(native_fence::CLOSE_NATIVE_FENCE, fence.fence), Status::Ok);
    };
    (0..100).for_each(once);
    let before = scene.daemon.footprint();
    (0..20_000).for_each(once);
    let after = scene.daemon.footprint();
    assert_eq!(after.0, before.0, "descriptors");
    // One for each round would be thousands; a heap may grow by a piece.
    assert!(after.1 < before.1 + 50, "mappings: {before:?} {after:?}");
    scene.unharmed();
}

#[test]
fn waits_without_end_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let fence = created(&attacker, FENCE_VA);
    let (_device, shared) = victim(&scene);
    let mut refused = 0;
    for round in 0..2000u64 {
        let native = NativeFenceValue { fence: fence.fence, value: 1 + round };
        let progress = WaitFence { queue: ring.queue.queue, value: 1 + round };
        let (opcode, body) = if round % 2 == 0 {
            (native_fence::WAIT_NATIVE_FENCE, native.as_bytes())
        } else {
            (message::WAIT_FENCE, progress.as_bytes())
        };
        // Without a fence of their own: nothing but the daemon's bound counts them.
        let sequence = attacker.sequence();
        let bytes = frame(opcode, 5, sequence, body);
        assert_eq!(wire::submit(&scene.vm, attacker.id(), bytes.len(), &bytes), OK_NODATA);
        if round >= 32 {
            assert_eq!(attacker.response(5, sequence).0, Status::OutOfResources, "{round}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2000 - 32);
    shared.signal(2).unwrap();
    shared.wait(2, Some(NEVER)).unwrap();
    scene.unharmed();
}

#[test]
fn ums_143_the_cpu_cannot_wait_for_a_fence_of_the_gpu_alone() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let kind = native_fence::NATIVE_FENCE_INTRA_GPU;
    let create = CreateNativeFence { kind, va: FENCE_VA, ..CreateNativeFence::default() };
    let (status, payload) = attacker.message(native_fence::CREATE_NATIVE_FENCE, create.as_bytes());
    assert_eq!(status, Status::Ok);
    let fence = NativeFenceOpened::read_from_bytes(&payload).unwrap().fence;
    for value in [0, 1, u64::MAX] {
        let body = NativeFenceValue { fence, value };
        for opcode in [native_fence::WAIT_NATIVE_FENCE, native_fence::SIGNAL_NATIVE_FENCE] {
            let (status, text) = attacker.message(opcode, body.as_bytes());
            assert_eq!(status, Status::NotSupported);
            assert!(String::from_utf8_lossy(&text).contains("INTRA_GPU"));
        }
    }
    assert_eq!(attacker.named(native_fence::QUERY_NATIVE_FENCE, fence), Status::NotSupported);
    scene.unharmed();
}

#[test]
fn ums_142_a_fence_closed_under_a_waiting_queue_costs_that_device_alone() {
    let mut scene = Scene::new();
    for through_doorbell in [true, false] {
        let (device, shared) = victim(&scene);
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        let (status, payload) = attacker.message(
            native_fence::OPEN_NATIVE_FENCE,
            OpenNativeFence { global: Handle(shared.global().0), va: FENCE_VA }.as_bytes(),
        );
        assert_eq!(status, Status::Ok);
        let opened = NativeFenceOpened::read_from_bytes(&payload).unwrap();
        let packets = wait(FENCE_VA, 100);
        if through_doorbell {
            ring.run_first(&attacker, &packets);
        } else {
            ring.packets(&packets);
            let queue = attacker.create_queue(ring.context, 0).queue;
            let (buffer_va, length) =
                (ring.entry(packets.len(), 1).buffer_va, u32::try_from(packets.len()).unwrap());
            let submit = Submit { queue, buffer_va, length, flags: 0 };
            let (_sequence, _submission) = attacker.start(message::SUBMIT, 2, submit.as_bytes());
            // Others come behind it, so that it is parked.
            scene.unharmed();
        }
        scene.unharmed();
        assert_eq!(attacker.named(native_fence::CLOSE_NATIVE_FENCE, opened.fence), Status::Ok);
        assert_eq!(attacker.fault(), DEVICE_PAGE_FAULT);
        shared.signal(100).unwrap();
        shared.wait(100, Some(NEVER)).unwrap();
        device.check().unwrap();
        scene.unharmed();
    }
}

#[test]
fn a_process_that_has_a_fence_can_change_its_value_and_nothing_else() {
    let mut scene = Scene::new();
    let (_one, first) = victim(&scene);
    let (_two, second) = victim(&scene);
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    assert_eq!(open(&attacker, Handle(second.global().0), FENCE_VA), Status::Ok);
    // All of its page, and what would lie around it.
    ring.run_first(&attacker, &fill(FENCE_VA, 4096, u32::MAX));
    ring.reached(&attacker, 1);
    assert_eq!((first.value().unwrap(), second.value().unwrap()), (1, u64::MAX));
    ring.packets(&copy(DATA_VA + (64 << 10), FENCE_VA - 4096, 8192));
    ring.write(1, &ring.entry(32, 2));
    ring.ring(&attacker, 2);
    assert_eq!(attacker.fault(), DEVICE_PAGE_FAULT);
    assert_eq!(first.value().unwrap(), 1);
    // The page of a fence that is gone is handed out empty.
    drop((attacker, second));
    for _ in 0..8 {
        let (_device, fence) = victim(&scene);
        assert_eq!(fence.value().unwrap(), 1);
    }
    scene.unharmed();
}

#[test]
fn ums_140_fences_of_a_lost_device_are_closed_with_it() {
    let mut scene = Scene::new();
    let (_device, shared) = victim(&scene);
    for _ in 0..50 {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        assert_eq!(open(&attacker, Handle(shared.global().0), FENCE_VA), Status::Ok);
        for index in 1..100 {
            created(&attacker, FENCE_VA + 4096 * index);
        }
        ring.run_first(&attacker, &fill(FENCE_VA - 4096, 8, 0));
        assert_eq!(attacker.fault(), DEVICE_PAGE_FAULT);
        let wanted = CreateNativeFence { va: FENCE_VA - 4096, ..CreateNativeFence::default() };
        assert_eq!(create(&attacker, &wanted), Status::DeviceLost);
        assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    }
    assert_eq!(shared.value().unwrap(), 1);
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}
