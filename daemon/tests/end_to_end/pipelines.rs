//! Kernels as Vulkan programs have them: descriptor sets, uniform buffers, arrays of buffers, specialisation constants (protocol 1.1).

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::pipeline::Constant;
use campanile_protocol::control::status::Status;
use campanile_protocol::packet::Binding;
use campanile_protocol::profile;
use campanile_protocol::profile::PROFILE_VERSION;

use crate::assembly::assemble;
use crate::frame;
use crate::frame::Parts;
use crate::operator::Operated;
use crate::processes::engines;
use crate::save_areas::refused;
use crate::support::Daemon;
use crate::support::NEVER;

const SETS: &str = "
    struct Many { words: array<vec4<u32>, 12> }
    var<immediate> many: Many;
    @group(0) @binding(0) var<storage, read_write> out: array<u32>;
    @group(1) @binding(40) var<uniform> scale: vec4<u32>;
    @group(3) @binding(0) var<storage> words: array<u32>;
    @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {
        out[id.x] = words[id.x] * scale.y + many.words[11].w;
    }";

/// Adds a specialisation constant to where each invocation is, and a word of the second of two buffers of an array in set 1.
fn module() -> Vec<u8> {
    let decorations = "OpDecorate %c SpecId 4
         OpDecorate %w SpecId 9
         OpDecorate %size BuiltIn WorkgroupSize
         OpDecorate %many DescriptorSet 1
         OpDecorate %many Binding 2";
    let declarations = "%2 = OpConstant %uint 2
         %c = OpSpecConstant %uint 5
         %w = OpSpecConstant %uint 1
         %size = OpSpecConstantComposite %uint3 %w %1 %1
         %blocks = OpTypeArray %block %2
         %pblocks = OpTypePointer StorageBuffer %blocks
         %many = OpVariable %pblocks StorageBuffer";
    let body = "%place = OpAccessChain %pword %o %0 %x
         %second = OpAccessChain %pword %many %1 %0 %x
         %v = OpLoad %uint %second
         %s = OpIAdd %uint %x %c
         %y = OpIAdd %uint %s %v
         OpStore %place %y
         OpReturn";
    let text = frame::kernel(&Parts { size: "1 1 1", decorations, declarations, body, ..Parts::default() });
    assemble(3, &text).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes a sum of so many numbers, each a constant of its own, to where each invocation is.
fn long_module(numbers: u32) -> Vec<u8> {
    let declarations: String = (0..numbers).map(|at| format!("%n{at} = OpConstant %uint {at}\n")).collect();
    let sums: String = (0..numbers)
        .map(|at| {
            let before = if at == 0 { "%0".to_owned() } else { format!("%s{}", at - 1) };
            format!("%s{at} = OpIAdd %uint {before} %n{at}\n")
        })
        .collect();
    let body = format!(
        "%place = OpAccessChain %pword %o %0 %x
         {sums}
         OpStore %place %s{}
         OpReturn",
        numbers - 1
    );
    let parts = Parts { size: "1 1 1", declarations: &declarations, body: &body, ..Parts::default() };
    assemble(3, &frame::kernel(&parts)).iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_module_that_no_message_holds_runs_and_one_beyond_all_limits_is_refused_by_its_bytes() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let numbers = 6000;
    let mut bytes = long_module(numbers);
    assert!(bytes.len() > 192 << 10, "{} bytes", bytes.len());
    let kernel = device.create_kernel(&KernelSource::pipeline(&bytes, &[], 0)).unwrap();
    let out = fill(&device, |_| 0);
    run(&device, &kernel, 64, &[out.binding(3)], &[]).unwrap();
    assert_eq!(words(&out), vec![(0..numbers).sum::<u32>(); 64]);
    bytes.resize((1 << 20) + 4, 0);
    let (status, text) = refused(device.create_kernel(&KernelSource::pipeline(&bytes, &[], 0)));
    assert_eq!(status, Status::KernelRefused);
    assert!(text.contains("more than 1048576 bytes"), "{text}");
}

fn constants(pairs: &[(u32, u64)]) -> Vec<Constant> {
    pairs.iter().map(|&(id, value)| Constant { id, reserved: 0, value }).collect()
}

fn fill(device: &Device, word: impl Fn(u32) -> u32) -> Buffer {
    let buffer = device.create_buffer(4096).unwrap();
    let bytes: Vec<u8> = (0..1024).flat_map(|at| word(at).to_le_bytes()).collect();
    buffer.write(0, &bytes).unwrap();
    buffer
}

fn words(buffer: &Buffer) -> Vec<u32> {
    let mut bytes = [0; 256];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Runs it by a user-mode queue of its own.
fn run(
    device: &Device,
    kernel: &Kernel,
    groups: u32,
    bindings: &[Binding],
    constants: &[u8],
) -> Result<(), DriverError> {
    let mut queue =
        device.create_context(Node::Compute).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(kernel, [groups, 1, 1], bindings, constants).unwrap();
    queue.submit(&commands)?.wait(Some(NEVER))
}

#[test]
fn sets_uniform_buffers_and_long_constants_reach_a_kernel() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(SETS)).unwrap();
    assert_eq!(kernel.constant_bytes(), 192);
    let (out, scale, table) = (fill(&device, |_| 0), fill(&device, |at| at + 2), fill(&device, |at| at * 7));
    let bindings = [table.binding(0).in_set(3), out.binding(0), scale.binding(40).in_set(1)];
    let mut immediate = [0; 192];
    immediate[188..].copy_from_slice(&1000_u32.to_le_bytes());
    run(&device, &kernel, 64, &bindings, &immediate).unwrap();
    assert_eq!(words(&out), (0..64).map(|at| at * 21 + 1000).collect::<Vec<u32>>());
}

#[test]
fn a_pipeline_keeps_its_constants_when_its_engine_is_replaced() {
    let operated = Operated::with(1, &[]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let module = module();
    let (given, defaults) = (constants(&[(1, 77), (4, 300), (9, 8)]), constants(&[]));
    let kernels = [(&given, 300, 8), (&defaults, 5, 1)].map(|(constants, added, width)| {
        let source = KernelSource::pipeline(&module, constants, 0);
        (device.create_kernel(&source).unwrap(), added, width)
    });
    for is_replaced in [false, true] {
        if is_replaced {
            operated.ask(&["power", "--vgpu", "v0", "d3"]);
            assert!(engines(&operated.daemon).is_empty());
            operated.ask(&["power", "--vgpu", "v0", "d0"]);
        }
        for (kernel, added, width) in &kernels {
            assert_eq!(kernel.workgroup(), [*width, 1, 1]);
            let (out, unused, table) =
                (fill(&device, |_| 0), fill(&device, |_| 1), fill(&device, |at| at * 9));
            let many = [unused.binding(2).in_set(1), table.binding(2).in_set(1).as_element(1)];
            run(&device, kernel, 64 / width, &[&many[..], &[out.binding(3)]].concat(), &[]).unwrap();
            assert_eq!(words(&out), (0..64).map(|at| at * 10 + added).collect::<Vec<u32>>());
        }
    }
}

#[test]
fn a_pipeline_that_breaks_a_rule_is_refused_and_harms_nothing() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let module = module();
    let create = |constants: &[Constant], subgroup_size| {
        device.create_kernel(&KernelSource::pipeline(&module, constants, subgroup_size))
    };
    let odd = [Constant { reserved: 1, ..constants(&[(4, 1)])[0] }];
    for (constants, subgroup_size, why) in [
        (constants(&[(4, 1), (4, 2)]), 0, "comes after one of the same or a higher id"),
        (constants(&[(9, 1), (4, 2)]), 0, "comes after one of the same or a higher id"),
        (odd.to_vec(), 0, "a reserved field of the pipeline is not zero"),
        (constants(&[(9, 0)]), 0, "local size"),
        (constants(&[(9, 4096)]), 0, "4096 invocations along one side of a workgroup"),
        (constants(&[]), 3, "subgroups of 3"),
        (constants(&[]), 1 << 31, "subgroups of 2147483648"),
    ] {
        let (status, text) = refused(create(&constants, subgroup_size));
        assert_eq!(status, Status::KernelRefused, "{text}");
        assert!(text.contains(why), "{text}");
    }
    let source = KernelSource::pipeline(&[], &[], 0);
    assert_eq!(refused(device.create_kernel(&source)).0, Status::KernelRefused, "no module at all");
    let kernel = create(&[], 0).unwrap();
    assert_eq!(kernel.workgroup(), [1, 1, 1]);
    device.check().unwrap();
}

#[test]
fn a_dispatch_without_an_element_of_an_array_is_a_fault_of_its_device() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let module = module();
    for element in [0, 2] {
        let device = Device::open(vm.open("guilty").unwrap()).unwrap();
        let kernel = device.create_kernel(&KernelSource::pipeline(&module, &[], 0)).unwrap();
        let (out, table) = (fill(&device, |_| 0), fill(&device, |_| 0));
        let mut bindings = vec![out.binding(3), table.binding(2).in_set(1)];
        if element > 0 {
            bindings.push(table.binding(2).in_set(1).as_element(1));
            bindings.push(table.binding(2).in_set(1).as_element(element));
        }
        let lost = run(&device, &kernel, 1, &bindings, &[]).unwrap_err();
        assert!(lost.to_string().contains("a packet or ring entry that breaks a rule"), "{lost}");
    }
    let device = Device::open(vm.open("innocent").unwrap()).unwrap();
    device.check().unwrap();
}

#[test]
fn the_profile_says_what_kernels_may_use_and_they_may() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let profile = device.profile().unwrap();
    assert_eq!((profile.version, profile.kind), (PROFILE_VERSION, profile::KIND_CPU));
    assert!(profile::name_of(&profile.name).contains("llvmpipe"), "{profile:?}");
    assert_ne!((profile.device_uuid, profile.driver_uuid), ([0; 16], [0; 16]));
    // What it says is taken, and no more.
    let kernel = |workgroup: [u32; 3], constants: u32, buffers: u32| {
        let [x, y, z] = workgroup;
        let (mut text, mut sum) = (String::new(), "0u".to_owned());
        for binding in 0..buffers {
            text += &format!("@group(0) @binding({binding}) var<storage> v{binding}: u32; ");
            sum += &format!(" + v{binding}");
        }
        let words = constants / 16;
        text += &format!("var<immediate> c: array<vec4<u32>, {words}>; ");
        text += &format!(
            "@compute @workgroup_size({x}, {y}, {z}) fn main() {{ var sum = {sum} + c[{}].x; }}",
            words - 1
        );
        device.create_kernel(&KernelSource::wgsl(&text))
    };
    let [x, y, z] = profile.workgroup;
    let (constants, buffers) = (profile.constants, profile.storage_buffers.min(profile.buffers));
    kernel([x, 1, 1], constants, buffers).unwrap();
    kernel([1, y, 1], 16, 1).unwrap();
    kernel([1, 1, z], 16, 1).unwrap();
    for (workgroup, constants, buffers) in [
        ([x + 1, 1, 1], constants, buffers),
        ([1, y + 1, 1], constants, buffers),
        ([1, 1, z + 1], constants, buffers),
        ([x, 2, 1], constants, buffers),
        ([1; 3], constants + 16, buffers),
        ([1; 3], constants, buffers + 1),
    ] {
        assert_eq!(refused(kernel(workgroup, constants, buffers)).0, Status::KernelRefused);
    }
    let module = module();
    for size in profile.subgroup_sizes {
        device.create_kernel(&KernelSource::pipeline(&module, &[], size)).unwrap();
    }
}

#[test]
fn a_vgpu_without_kernels_has_no_profile() {
    let daemon = Daemon::with(&["--vulkan-device", "no such device", "--local-memory", "host"]);
    let (_vm, device) = daemon.device();
    let refused = device.profile().unwrap_err();
    assert!(matches!(refused, DriverError::Refused { status: Status::NotSupported, .. }), "{refused}");
}
