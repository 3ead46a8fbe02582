//! What kernels bind beyond storage buffers of set 0, and what pipelines fix of them (protocol 1.1).

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::kernel::program::Kernel;
use campanile_host_gpu::kernel::sanitizer::Sanitizer;
use campanile_host_gpu::kernel::source::Fixed;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::error::VulkanError;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::request::Bound;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;

use crate::assembly::assemble;
use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::frame;
use crate::frame::Parts;
use crate::kernels::STAMP;

fn sanitize(driver: &Driver, fixed: Fixed, text: &str) -> Kernel {
    let bytes = assemble(3, text).iter().flat_map(|word| word.to_le_bytes()).collect();
    let source = Source { fixed, ..Source::spirv(bytes) };
    Sanitizer::start(*driver.profile()).expect("a thread").sanitize(&source).expect("a good kernel")
}

fn at(set: u32, binding: u32, element: u32, memory: &Import, offset: u64) -> Bound<'_> {
    Bound { binding: BindingPoint { set, binding, element }, memory, offset, length: 256, format: 0 }
}

/// All that [`everything`] binds: the array's buffers from byte 0x1000 on, the uniform buffer at 0x4000.
fn all(import: &Import) -> [Bound<'_>; 5] {
    [
        at(0, 3, 0, import, 0),
        at(1, 5, 0, import, 0x1000),
        at(1, 5, 1, import, 0x2000),
        at(1, 5, 2, import, 0x3000),
        at(2, 63, 0, import, 0x4000),
    ]
}

/// Stores for each invocation: a word of a uniform buffer, and words of an array of three buffers times 1, 10 and 100.
fn everything() -> String {
    let decorations = "OpDecorate %shared Block
         OpMemberDecorate %shared 0 Offset 0
         OpDecorate %u DescriptorSet 2
         OpDecorate %u Binding 63
         OpDecorate %many DescriptorSet 1
         OpDecorate %many Binding 5";
    let declarations = "%2 = OpConstant %uint 2
         %3 = OpConstant %uint 3
         %10 = OpConstant %uint 10
         %100 = OpConstant %uint 100
         %shared = OpTypeStruct %uint
         %pshared = OpTypePointer Uniform %shared
         %puniform = OpTypePointer Uniform %uint
         %u = OpVariable %pshared Uniform
         %blocks = OpTypeArray %block %3
         %pblocks = OpTypePointer StorageBuffer %blocks
         %many = OpVariable %pblocks StorageBuffer";
    let body = "%place = OpAccessChain %pword %o %0 %x
         %pu = OpAccessChain %puniform %u %0
         %vu = OpLoad %uint %pu
         %p0 = OpAccessChain %pword %many %0 %0 %x
         %p1 = OpAccessChain %pword %many %1 %0 %x
         %p2 = OpAccessChain %pword %many %2 %0 %x
         %v0 = OpLoad %uint %p0
         %v1 = OpLoad %uint %p1
         %v2 = OpLoad %uint %p2
         %w1 = OpIMul %uint %v1 %10
         %w2 = OpIMul %uint %v2 %100
         %s0 = OpIAdd %uint %vu %v0
         %s1 = OpIAdd %uint %s0 %w1
         %y = OpIAdd %uint %s1 %w2
         OpStore %place %y
         OpReturn";
    frame::kernel(&Parts { size: "1 1 1", decorations, declarations, body, ..Parts::default() })
}

#[test]
fn sets_uniform_buffers_and_arrays_are_bound_each_at_its_point() {
    with_driver(|mut driver: Driver| {
        let kernel = driver.pipeline(&sanitize(&driver, Fixed::default(), &everything())).unwrap();
        // Of another interface: they take turns, and neither takes the descriptors of the other for its own.
        let stamp = pipeline(&driver, STAMP);
        let (import, seen) = memory(&driver, 0x8000);
        for at in 0..64 {
            let value = u32::try_from(at).unwrap();
            set_word(&seen, 0x1000 / 4 + at, value % 10);
            set_word(&seen, 0x2000 / 4 + at, (value + 3) % 10);
            set_word(&seen, 0x3000 / 4 + at, (value + 6) % 10);
        }
        for round in 0..6 {
            set_word(&seen, 0x4000 / 4, round * 1000);
            let mut bounds = all(&import);
            // In any order.
            bounds.rotate_left(round as usize % 5);
            run(&mut driver, &kernel, &bounds, &[], [64, 1, 1]);
            run(&mut driver, &stamp, &[bind(0, &import, 0x5000, 256)], &[0; 4], [1; 3]);
            for at in 0..64 {
                let value = u32::try_from(at).unwrap();
                let wanted = value % 10 + (value + 3) % 10 * 10 + (value + 6) % 10 * 100 + round * 1000;
                assert_eq!(word(&seen, at), wanted, "{at} in round {round}");
                assert_eq!(word(&seen, 0x5000 / 4 + at), value);
            }
        }
    });
}

#[test]
fn every_buffer_of_every_set_must_be_there_and_no_other() {
    with_driver(|mut driver: Driver| {
        let kernel = driver.pipeline(&sanitize(&driver, Fixed::default(), &everything())).unwrap();
        let (import, _) = memory(&driver, 0x8000);
        let whole = all(&import);
        let mut ask = |bounds: &[Bound<'_>]| driver.dispatch(&kernel, bounds, &[], &Slice::whole([1; 3]));
        for left_out in 0..whole.len() {
            let mut bounds = whole.to_vec();
            let point = bounds.remove(left_out).binding;
            let refused = ask(&bounds).unwrap_err();
            assert!(matches!(refused, DispatchError::Missing { binding } if binding == point), "{refused}");
        }
        for (set, binding, element) in [(1, 5, 3), (0, 5, 0), (2, 3, 0), (0, 63, 0), (1, 4, 0), (2, 63, 1)] {
            let stranger = at(set, binding, element, &import, 0x5000);
            let refused = ask(&[&whole[..], &[stranger]].concat()).unwrap_err();
            let named = matches!(refused, DispatchError::Unknown { binding } if binding == stranger.binding);
            assert!(named, "{refused}");
        }
        let refused = ask(&[&whole[..], &[at(1, 5, 1, &import, 0x5000)]].concat()).unwrap_err();
        assert_eq!(refused.to_string(), "element 1 of binding 5 of set 1 is bound twice");
        let ticket = ask(&whole).unwrap();
        driver.wait(ticket).unwrap();
    });
}

#[test]
fn as_many_constants_as_the_device_takes_arrive() {
    with_driver(|mut driver: Driver| {
        let most = driver.limits().constants.min(256);
        let text = format!(
            "struct Constants {{ words: array<vec4<u32>, {}> }}
             var<immediate> constants: Constants;
             @group(0) @binding(0) var<storage, read_write> out: array<u32>;
             @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {{
                 out[id.x] = constants.words[id.x / 4][id.x % 4];
             }}",
            most / 16
        );
        let kernel = pipeline(&driver, &text);
        assert_eq!(kernel.constants(), most);
        let (import, seen) = memory(&driver, 0x1000);
        let constants: Vec<u8> = (1..=most / 4).flat_map(|word| (word * 3).to_le_bytes()).collect();
        run(&mut driver, &kernel, &[bind(0, &import, 0, 256)], &constants, [most / 4, 1, 1]);
        for at in 0..u64::from(most / 4) {
            assert_eq!(u64::from(word(&seen, at)), (at + 1) * 3);
        }
    });
}

#[test]
fn a_pipeline_fixes_constants_workgroups_and_the_size_of_subgroups() {
    let decorations = "OpDecorate %c SpecId 4
         OpDecorate %w SpecId 5
         OpDecorate %size BuiltIn WorkgroupSize";
    let declarations = "%c = OpSpecConstant %uint 5
         %w = OpSpecConstant %uint 1
         %size = OpSpecConstantComposite %uint3 %w %1 %1";
    let body = "%place = OpAccessChain %pword %o %0 %x
         %y = OpIAdd %uint %x %c
         OpStore %place %y
         OpReturn";
    let text = frame::kernel(&Parts { size: "1 1 1", decorations, declarations, body, ..Parts::default() });
    with_driver(|mut driver: Driver| {
        let [least, most] = driver.limits().subgroup_sizes;
        assert!(least.is_power_of_two() && most >= least, "lavapipe and every GPU of Vulkan 1.3 say which");
        let (import, seen) = memory(&driver, 0x1000);
        for (added, width, subgroup_size) in [(5, 1, 0), (100, 8, least), (7, 32, most)] {
            let constants = vec![(4, added), (5, width)];
            let kernel = sanitize(&driver, Fixed { constants, subgroup_size }, &text);
            assert_eq!(u64::from(kernel.workgroup[0]), width);
            let kernel = driver.pipeline(&kernel).unwrap();
            let groups = u32::try_from(64 / width).unwrap();
            run(&mut driver, &kernel, &[bind(3, &import, 0, 256)], &[], [groups, 1, 1]);
            for at in 0..64 {
                assert_eq!(u64::from(word(&seen, at)), at + added);
            }
        }
        for size in [3, most * 2, least / 2] {
            let fixed = Fixed { subgroup_size: size, ..Fixed::default() };
            match driver.pipeline(&sanitize(&driver, fixed, &text)) {
                Err(VulkanError::SubgroupSize { size: asked, .. }) => assert_eq!(asked, size),
                // Half of one is none, and none is no wish.
                other => assert!(size == 0 && other.is_ok(), "{size}: {other:?}"),
            }
        }
    });
}
