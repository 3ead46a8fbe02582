//! Control frames that cannot be read, and devices that cannot be opened.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_CONTEXT_ID;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_PARAMETER;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_RESOURCE_ID;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::PAGE_VA;
use crate::attacker::frame;
use crate::packets::fill;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::wire;

/// QUERY_CAPS in slot 3.
fn query() -> FrameHeader {
    FrameHeader { magic: MAGIC, size: 24, opcode: message::QUERY_CAPS, slot: 3, sequence: 9 }
}

fn refused(attacker: &Attacker, frames: &[u8]) {
    let code = wire::submit(attacker.vm(), attacker.id(), frames.len(), frames);
    assert_eq!(code, ERR_INVALID_PARAMETER, "{frames:02x?}");
    assert!(attacker.is_active());
}

#[test]
fn frames_that_lie_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    for size in [0, 8, 16, 23, 25, 28, 32, 48, 1 << 20, u32::MAX, u32::MAX - 7] {
        refused(&attacker, FrameHeader { size, ..query() }.as_bytes());
    }
    for magic in [0, 1, MAGIC.swap_bytes(), u32::MAX] {
        refused(&attacker, FrameHeader { magic, ..query() }.as_bytes());
    }
    for slot in [32, 33, 1 << 16, u32::MAX] {
        refused(&attacker, FrameHeader { slot, ..query() }.as_bytes());
    }
    refused(&attacker, FrameHeader { sequence: 0, ..query() }.as_bytes());
    for bytes in 1..24 {
        refused(&attacker, &query().as_bytes()[..bytes]);
    }
    // The frames before the bad one count, those behind it do not.
    let row =
        [&frame(message::QUERY_CAPS, 4, 11, &[]), FrameHeader { magic: 0, ..query() }.as_bytes()].concat();
    let row = [row, frame(message::QUERY_CAPS, 5, 12, &[])].concat();
    refused(&attacker, &row);
    assert_eq!(attacker.response(4, 11).0, Status::Ok);
    assert_eq!(attacker.word(device_page::response(5)), 0);
    scene.unharmed();
}

#[test]
fn a_command_that_lies_about_its_frames_is_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let frames = frame(message::QUERY_CAPS, 3, 7, &[]);
    for size in [25, 100, 1 << 20, u32::MAX as usize] {
        assert_eq!(wire::submit(&scene.vm, attacker.id(), size, &frames), ERR_INVALID_PARAMETER, "{size}");
    }
    scene.unharmed();
}

#[test]
fn mcdm_55_two_hundred_kibibytes_of_frames_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let frames = frame(message::QUERY_CAPS, 3, 7, &[]);
    let count = (200 << 10) / frames.len();
    refused(&attacker, &frames.repeat(count));
    let count = (128 << 10) / frames.len();
    let code = wire::submit(&scene.vm, attacker.id(), count * frames.len(), &frames.repeat(count));
    assert_eq!(code, OK_NODATA, "128 KiB are not too many");
    scene.unharmed();
}

#[test]
fn messages_without_a_device_are_refused() {
    let mut scene = Scene::new();
    let attacker = Attacker::without_device(&scene.vm);
    for opcode in (2..20).chain([u32::MAX]) {
        let bytes = frame(opcode, 0, 1, &[0; 64]);
        assert_eq!(
            wire::submit(&scene.vm, attacker.id(), bytes.len(), &bytes),
            ERR_INVALID_PARAMETER,
            "{opcode}"
        );
    }
    scene.unharmed();
}

#[test]
fn unknown_messages_and_wrong_bodies_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    for opcode in [0, 3, 20, 47, 54, 100, u32::MAX] {
        assert_eq!(attacker.status(opcode, &[0; 32]), Status::UnknownMessage, "{opcode}");
    }
    let sizes = [
        (message::MAP_MEMORY, 32),
        (message::UNMAP_MEMORY, 16),
        (message::CREATE_CONTEXT, 16),
        (message::DESTROY_CONTEXT, 8),
        (message::CREATE_QUEUE, 16),
        (message::DESTROY_QUEUE, 8),
        (message::CREATE_DOORBELL, 64),
        (message::CONNECT_DOORBELL, 8),
        (message::DESTROY_DOORBELL, 8),
        (message::NOTIFY, 16),
        (message::DESTROY_KERNEL, 8),
        (message::SUBMIT, 24),
        (message::WAIT_FENCE, 16),
        (native_fence::CREATE_NATIVE_FENCE, 24),
        (native_fence::OPEN_NATIVE_FENCE, 16),
        (native_fence::CLOSE_NATIVE_FENCE, 8),
        (native_fence::WAIT_NATIVE_FENCE, 16),
        (native_fence::SIGNAL_NATIVE_FENCE, 16),
        (native_fence::QUERY_NATIVE_FENCE, 8),
        (message::QUERY_CAPS, 0),
        (message::QUERY_PROFILE, 0),
        (message::DESTROY_DEVICE, 0),
    ];
    for (opcode, right) in sizes {
        for bytes in (0..right).step_by(8).chain([right + 8, right + 64, 64 << 10]) {
            assert_eq!(
                attacker.status(opcode, &vec![0; bytes]),
                Status::InvalidParameter,
                "{opcode} with {bytes} bytes"
            );
        }
    }
    assert_eq!(attacker.status(message::CREATE_KERNEL, &[]), Status::InvalidParameter);
    assert!(attacker.is_active());
    scene.unharmed();
}

#[test]
fn pre_17_a_guest_of_another_protocol_version_is_told_so() {
    let mut scene = Scene::new();
    for version in [0, 0xffff, 2 << 16, u32::MAX] {
        let attacker = Attacker::without_device(&scene.vm);
        let create = CreateDevice { protocol_version: version, ..attacker.create_device() };
        assert_eq!(attacker.open_device(&create), Some(Status::VersionMismatch), "{version:#x}");
        assert!(!attacker.is_active());
        assert_eq!(
            attacker.open_device(&attacker.create_device()),
            Some(Status::Ok),
            "the right one after it"
        );
    }
    scene.unharmed();
}

#[test]
fn device_pages_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = Attacker::without_device(&scene.vm);
    let right = attacker.create_device();
    let other = Attacker::without_device(&scene.vm);
    let small = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap();
    let open = |create: CreateDevice| {
        let bytes = frame(message::CREATE_DEVICE, 0, 1, create.as_bytes());
        wire::submit(&scene.vm, attacker.id(), bytes.len(), &bytes)
    };
    for page_offset in [8, 4095, 4096, 1 << 20, 1 << 63, u64::MAX, u64::MAX - 4095] {
        assert_eq!(
            open(CreateDevice { page_offset, ..right }),
            ERR_INVALID_PARAMETER,
            "offset {page_offset:#x}"
        );
    }
    for page_va in [0, 8, 4096, PAGE_VA + 8, 1 << 39, (1 << 39) - 4096, u64::MAX - 4095, u64::MAX] {
        assert_eq!(open(CreateDevice { page_va, ..right }), ERR_INVALID_PARAMETER, "address {page_va:#x}");
    }
    for page_resource in [0, 0x7fff_ffff, other.page_blob.resource_id()] {
        assert_eq!(
            open(CreateDevice { page_resource, ..right }),
            ERR_INVALID_RESOURCE_ID,
            "resource {page_resource}"
        );
    }
    assert_eq!(
        open(CreateDevice { page_resource: small.resource_id(), ..right }),
        ERR_INVALID_PARAMETER,
        "too small"
    );
    for bytes in [0, 8, 16, 32] {
        let bytes = frame(message::CREATE_DEVICE, 0, 1, &vec![0; bytes]);
        assert_eq!(wire::submit(&scene.vm, attacker.id(), bytes.len(), &bytes), ERR_INVALID_PARAMETER);
    }
    assert_eq!(attacker.open_device(&right), Some(Status::Ok));
    assert_eq!(attacker.status(message::CREATE_DEVICE, right.as_bytes()), Status::DeviceExists);
    assert_eq!(wire::create_context(&scene.vm, attacker.id(), CAPSET_ID), ERR_INVALID_CONTEXT_ID);
    scene.unharmed();
}

#[test]
fn a_device_page_freed_under_its_device_stays_until_the_device_ends() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let page = attacker.page_blob.resource_id();
    assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, page), OK_NODATA);
    // Whoever asks for memory now gets other memory.
    let taker = scene.attacker();
    let (_blob, memory) = taker.memory(1 << 32, 1 << 20);
    memory.write(0, &vec![0xff; 1 << 20]).unwrap();
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
    ring.reached(&attacker, 1);
    assert_eq!(attacker.status(message::QUERY_CAPS, &[]), Status::Ok);
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    let mut bytes = vec![0; 1 << 20];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xff), "the taker's memory was written");
    scene.unharmed();
}

#[test]
fn a_device_page_in_scattered_guest_pages_is_as_good_as_another() {
    use campanile_guest_driver::device::Device;
    use campanile_guest_driver::node::Node;
    use campanile_test_vmm::options::PageLayout;
    use campanile_test_vmm::options::VmOptions;
    use campanile_test_vmm::vm::LoopbackVm;

    let mut scene = Scene::new();
    drop(scene.give_neighbour_up());
    scene.vm.hang_up();
    let options = VmOptions { pages: PageLayout::Scattered { run_pages: 1 }, ..VmOptions::default() };
    scene.vm = LoopbackVm::connect(scene.daemon.socket(0), &options).unwrap();
    scene.neighbour = Some(crate::bystander::Bystander::new(&scene.vm));
    let context = scene.vm.open("scattered").unwrap();
    let blob = context.create_blob(BlobMemory::GuestRam, 2 * device_page::DEVICE_PAGE_BYTES).unwrap();
    let page = context.map(&blob).unwrap();
    let create = CreateDevice {
        protocol_version: campanile_protocol::PROTOCOL_VERSION,
        page_resource: blob.resource_id(),
        page_offset: 3 * 4096,
        page_va: PAGE_VA,
    };
    let bytes = frame(message::CREATE_DEVICE, 7, 1, create.as_bytes());
    context.submit(&bytes, Some(0)).unwrap().wait(Some(crate::daemon::NEVER)).unwrap();
    let word = |offset: u64| page.word(3 * 4096 + offset).unwrap().load(std::sync::atomic::Ordering::Acquire);
    assert_eq!(word(device_page::response(7)), 1);
    assert_eq!(word(device_page::DEVICE_STATUS), device_page::DEVICE_ACTIVE);
    assert_eq!(word(device_page::status(1023)), 2);
    // The engine finds it in one piece, too: it maps the pages one behind the other.
    let mut device = Device::open(scene.vm.open("other").unwrap()).unwrap();
    assert!(device.create_context(Node::Copy).is_ok());
    device = Device::open(scene.vm.open("another").unwrap()).unwrap();
    assert!(device.check().is_ok());
    scene.unharmed();
}
