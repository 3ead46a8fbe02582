//! The compute node: kernels from WGSL, on Vulkan.

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;

use crate::support::Daemon;
use crate::support::NEVER;

const SQUARES: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = id.x * id.x;
    }";

#[test]
fn a_kernel_from_wgsl_computes_through_either_queue() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(SQUARES)).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut ordinary = context.create_kernel_queue().unwrap();
    for memory in [device.create_buffer(4096).unwrap(), device.create_guest_buffer(4096).unwrap()] {
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [16, 1, 1], &[memory.binding(0)], &[]).unwrap();
        for through_doorbell in [true, false] {
            memory.write(0, &[0xff; 4096]).unwrap();
            if through_doorbell {
                user.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            } else {
                let ticket = ordinary.submit(&commands).unwrap();
                ordinary.wait(ticket, Some(NEVER)).unwrap();
            }
            let mut bytes = [0; 4096];
            memory.read(0, &mut bytes).unwrap();
            for (index, word) in (0u32..).zip(bytes.chunks_exact(4)) {
                assert_eq!(word, (index * index).to_le_bytes(), "word {index}");
            }
        }
    }
}

#[test]
fn an_indirect_dispatch_reads_its_grid_when_its_turn_comes() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(SQUARES)).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let memory = device.create_buffer(4096).unwrap();
    let grid = device.create_buffer(4096).unwrap();
    let mut commands = CommandBuffer::new();
    // Three words: 2, 1, 1, written by the same buffer before the dispatch reads them.
    commands.fill(grid.va(), 4, 2).unwrap().fill(grid.va() + 4, 8, 1).unwrap().barrier().unwrap();
    commands.dispatch_indirect(&kernel, grid.va(), &[memory.binding(0)], &[]).unwrap();
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = [0; 4096];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes[127 * 4..128 * 4], (127u32 * 127).to_le_bytes());
    assert!(bytes[128 * 4..].iter().all(|byte| *byte == 0), "only two groups ran");
}

#[test]
fn a_kernel_that_indexes_far_out_of_its_buffer_reads_zero_and_writes_nothing() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let kernel = device
        .create_kernel(&KernelSource::wgsl(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             @compute @workgroup_size(1) fn main() {
                 let far = data[0];
                 data[far] = 0xdeadbeefu;
                 data[1] = data[far + 1u];
                 data[2] = 42u;
             }",
        ))
        .unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let memory = device.create_buffer(1 << 20).unwrap();
    let before = vec![0x11; 1 << 20];
    for far in [1024u32, 1 << 16, 1 << 22, u32::MAX - 1] {
        memory.write(0, &before).unwrap();
        memory.write(0, &far.to_le_bytes()).unwrap();
        let mut commands = CommandBuffer::new();
        let binding = memory.binding_range(0, 0, 4096).unwrap();
        commands.dispatch(&kernel, [1, 1, 1], &[binding], &[]).unwrap();
        queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        let mut after = vec![0; 1 << 20];
        memory.read(0, &mut after).unwrap();
        assert_eq!(after[..4], far.to_le_bytes());
        assert_eq!(after[4..8], [0; 4], "a read at {far} gives zero");
        assert_eq!(after[8..12], 42u32.to_le_bytes());
        assert_eq!(after[12..], before[12..], "a store at {far} went somewhere");
    }
}

#[test]
fn a_kernel_that_does_not_compile_is_refused_with_the_compilers_words() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let refused = device.create_kernel(&KernelSource::wgsl("fn main( {")).unwrap_err();
    let DriverError::Refused { status: Status::KernelRefused, text, .. } = refused else {
        panic!("{refused}")
    };
    assert!(text.contains("expected"), "{text}");
    let noise: Vec<u8> = (0u32..4096).map(|index| u8::try_from(index * 193 % 251).unwrap()).collect();
    let refused = device.create_kernel(&KernelSource::spirv(&noise)).unwrap_err();
    assert!(matches!(refused, DriverError::Refused { status: Status::KernelRefused, .. }), "{refused}");
    assert!(device.create_kernel(&KernelSource::wgsl(SQUARES)).is_ok(), "the next kernel compiles");
}

#[test]
fn a_binding_that_does_not_fit_the_kernel_loses_the_device_and_nobody_elses() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let open = || campanile_guest_driver::device::Device::open(vm.open("test").unwrap()).unwrap();
    let (faulty, bystander) = (open(), open());
    let kernel = faulty.create_kernel(&KernelSource::wgsl(SQUARES)).unwrap();
    let memory = faulty.create_buffer(4096).unwrap();
    let context = faulty.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1, 1, 1], &[memory.binding(3)], &[]).unwrap();
    let outcome = queue.submit(&commands).and_then(|point| point.wait(Some(NEVER)));
    assert!(
        matches!(outcome, Err(DriverError::DeviceLost(loss)) if loss.status == device_page::DEVICE_DMA_FAULT),
        "{outcome:?}"
    );

    let kernel = bystander.create_kernel(&KernelSource::wgsl(SQUARES)).unwrap();
    let memory = bystander.create_buffer(4096).unwrap();
    let context = bystander.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1, 1, 1], &[memory.binding(0)], &[]).unwrap();
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
}

#[test]
fn four_guests_at_once_are_each_right() {
    let daemon = Daemon::with_vgpus(4, &[]);
    std::thread::scope(|scope| {
        for guest in 0..4usize {
            let daemon = &daemon;
            scope.spawn(move || {
                let vm = daemon.vm(guest);
                let device = campanile_guest_driver::device::Device::open(vm.open("guest").unwrap()).unwrap();
                let factor = u32::try_from(guest).unwrap() + 3;
                let text = format!(
                    "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
                     @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
                         data[id.x] = data[id.x] * {factor}u + id.x;
                     }}"
                );
                let kernel = device.create_kernel(&KernelSource::wgsl(&text)).unwrap();
                let memory = device.create_buffer(4096).unwrap();
                let context = device.create_context(Node::Compute).unwrap();
                let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
                let mut expected = vec![0u32; 1024];
                let mut commands = CommandBuffer::new();
                commands.dispatch(&kernel, [16, 1, 1], &[memory.binding(0)], &[]).unwrap();
                for _ in 0..100 {
                    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
                    for (index, word) in (0u32..).zip(&mut expected) {
                        *word = word.wrapping_mul(factor).wrapping_add(index);
                    }
                    let mut bytes = vec![0; 4096];
                    memory.read(0, &mut bytes).unwrap();
                    let found: Vec<u32> = bytes
                        .chunks_exact(4)
                        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                    assert_eq!(found, expected, "guest {guest}");
                }
            });
        }
    });
}

#[test]
fn without_a_vulkan_driver_copies_work_and_compute_is_refused_by_the_name_of_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("nothing.json");
    let text =
        r#"{"file_format_version":"1.0.0","ICD":{"library_path":"/nonexistent.so","api_version":"1.3.0"}}"#;
    std::fs::write(&manifest, text).unwrap();
    let daemon = Daemon::with(&["--vulkan-driver", manifest.to_str().unwrap(), "--local-memory", "host"]);
    let (_vm, device) = daemon.device();
    let refused = device.create_context(Node::Compute).unwrap_err();
    let DriverError::Refused { status: Status::NotSupported, text, .. } = refused else {
        panic!("{refused}")
    };
    assert!(text.contains("mesa-vulkan-drivers"), "{text}");
    assert!(device.create_kernel(&KernelSource::wgsl(SQUARES)).is_err());

    let buffer = device.create_buffer(4096).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), 4096, 0x0102_0304).unwrap();
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = [0; 4];
    buffer.read(4092, &mut bytes).unwrap();
    assert_eq!(bytes, 0x0102_0304u32.to_le_bytes());
}
