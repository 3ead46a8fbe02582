//! Texel buffers: what kernels read and write of each, at any index, and in slices.

use std::time::Duration;

use campanile_host_gpu::kernel::program::BufferAccess;
use campanile_host_gpu::kernel::program::BufferKind;
use campanile_host_gpu::kernel::program::Kernel;
use campanile_host_gpu::kernel::sanitizer::Sanitizer;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::request::Bound;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::Slice;
use campanile_protocol::engine::save_area;
use campanile_protocol::packet::Fault;
use campanile_protocol::texels::FORMATS;
use campanile_protocol::texels::Format;
use campanile_protocol::texels::Number;

use crate::assembly::assemble;
use crate::bench::bind;
use crate::bench::memory;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::frame;
use crate::frame::Parts;
use crate::scene::Scene;
use crate::scene::dispatch;
use crate::scene::dispatch_texels;

const RGBA8: u16 = 37;
pub(crate) const R32_UINT: u16 = 98;
const R32_SFLOAT: u16 = 100;
const RGBA32F: u16 = 109;

pub(crate) fn sanitize(driver: &Driver, text: &str) -> Kernel {
    let bytes = assemble(3, text).iter().flat_map(|word| word.to_le_bytes()).collect();
    Sanitizer::start(*driver.profile())
        .expect("a thread")
        .sanitize(&Source::spirv(bytes))
        .expect("a good kernel")
}

/// A kernel of groups of one invocation. Texel buffers: `%u` of words at binding 0, which are fetched, `%c` of four floats at binding 1
/// and `%n` of four small numbers at binding 2, which are storage; words at binding 3.
fn kernel(body: &str) -> String {
    let capabilities = "OpCapability SampledBuffer
         OpCapability ImageBuffer
         OpCapability ImageQuery";
    let decorations = "OpDecorate %u DescriptorSet 0
         OpDecorate %u Binding 0
         OpDecorate %c DescriptorSet 0
         OpDecorate %c Binding 1
         OpDecorate %n DescriptorSet 0
         OpDecorate %n Binding 2
         OpDecorate %n NonReadable";
    let declarations = "%uint4 = OpTypeVector %uint 4
         %float4 = OpTypeVector %float 4
         %2 = OpConstant %uint 2
         %3 = OpConstant %uint 3
         %256th = OpConstant %float 998244352
         %words_of = OpTypeImage %uint 5 0 0 0 1 0
         %floats_of = OpTypeImage %float 5 0 0 0 2 1
         %bytes_of = OpTypeImage %float 5 0 0 0 2 4
         %pu = OpTypePointer UniformConstant %words_of
         %pc = OpTypePointer UniformConstant %floats_of
         %pn = OpTypePointer UniformConstant %bytes_of
         %u = OpVariable %pu UniformConstant
         %c = OpVariable %pc UniformConstant
         %n = OpVariable %pn UniformConstant";
    let body = format!(
        "%iu = OpLoad %words_of %u
         %ic = OpLoad %floats_of %c
         %in = OpLoad %bytes_of %n
         {body}
         OpReturn"
    );
    let body = &body;
    frame::kernel(&Parts { size: "1 1 1", capabilities, decorations, declarations, body, ..Parts::default() })
}

pub(crate) fn texels(binding: u32, memory: &Import, offset: u64, length: u64, format: u16) -> Bound<'_> {
    Bound { format, ..bind(binding, memory, offset, length) }
}

/// What [`kernel`] binds: `%u` at 0, `%c` at 0x1000, `%n` at 0x2000, each of 16 texels, and words at 0x3000.
fn all(import: &Import) -> [Bound<'_>; 4] {
    [
        texels(0, import, 0, 64, R32_UINT),
        texels(1, import, 0x1000, 256, RGBA32F),
        texels(2, import, 0x2000, 64, RGBA8),
        bind(3, import, 0x3000, 256),
    ]
}

#[test]
fn texels_are_fetched_read_written_and_counted() {
    let text = kernel(
        "%t = OpImageFetch %uint4 %iu %x
         %w = OpCompositeExtract %uint %t 0
         %missing = OpCompositeExtract %uint %t 3
         %fl = OpConvertUToF %float %w
         %ffff = OpCompositeConstruct %float4 %fl %fl %fl %fl
         %before = OpImageRead %float4 %ic %x
         %after = OpFAdd %float4 %before %ffff
         OpImageWrite %ic %x %after
         %small = OpVectorTimesScalar %float4 %after %256th
         OpImageWrite %in %x %small
         %su = OpImageQuerySize %uint %iu
         %sc = OpImageQuerySize %uint %ic
         %sn = OpImageQuerySize %uint %in
         %ab = OpIAdd %uint %su %sc
         %abc = OpIAdd %uint %ab %sn
         %y = OpIAdd %uint %abc %missing
         %place = OpAccessChain %pword %o %0 %x
         OpStore %place %y",
    );
    with_driver(|mut driver: Driver| {
        let kernel = sanitize(&driver, &text);
        let kinds: Vec<_> = kernel.bindings.iter().map(|b| (b.binding, b.kind, b.access)).collect();
        assert_eq!(
            kinds,
            [
                (0, BufferKind::UniformTexels, BufferAccess::Read),
                (1, BufferKind::StorageTexels, BufferAccess::ReadWrite),
                (2, BufferKind::StorageTexels, BufferAccess::ReadWrite),
                (3, BufferKind::Storage, BufferAccess::ReadWrite),
            ]
        );
        let pipeline = driver.pipeline(&kernel).unwrap();
        let (import, seen) = memory(&driver, 0x4000);
        for at in 0..16_u64 {
            set_word(&seen, at, u32::try_from(at * 3).unwrap());
            for part in 0..4 {
                let value = f32::from(u8::try_from(at * 4 + part).unwrap());
                set_word(&seen, 0x400 + at * 4 + part, value.to_bits());
            }
        }
        run(&mut driver, &pipeline, &all(&import), &[], [16, 1, 1]);
        for at in 0..16_u64 {
            let after = |part| f32::from(u8::try_from(at * 3 + at * 4 + part).unwrap());
            for part in 0..4 {
                assert_eq!(word(&seen, 0x400 + at * 4 + part), after(part).to_bits(), "{part} of {at}");
                let byte = word(&seen, 0x800 + at) >> (8 * part) & 0xff;
                let wanted = after(part) / 256.0 * 255.0;
                assert!((f64::from(byte) - f64::from(wanted)).abs() <= 0.51, "{byte}, not {wanted}");
            }
            assert_eq!(word(&seen, 0xc00 + at), 16 * 3 + 1, "texels of each, and what a format lacks is 1");
        }
    });
}

#[test]
fn indices_beyond_the_last_texel_read_nothing_and_write_nothing() {
    let text = kernel(
        "%first = OpAccessChain %pword %o %0 %0
         %far = OpLoad %uint %first
         %t = OpImageFetch %uint4 %iu %far
         %w = OpCompositeExtract %uint %t 0
         %v = OpImageRead %float4 %ic %far
         %r = OpCompositeExtract %float %v 0
         OpImageWrite %ic %far %v
         %ones = OpCompositeConstruct %float4 %256th %256th %256th %256th
         OpImageWrite %ic %far %ones
         OpImageWrite %in %far %ones
         %bits = OpBitcast %uint %r
         %y = OpIAdd %uint %w %bits
         OpStore %first %y",
    );
    with_driver(|mut driver: Driver| {
        let pipeline = driver.pipeline(&sanitize(&driver, &text)).unwrap();
        let (import, seen) = memory(&driver, 0x4000);
        for far in [16, 17, 64, 0x0400_0000, 0x1000_0000, 0x4000_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            (0..0x1000).for_each(|at| set_word(&seen, at, 9));
            set_word(&seen, 0xc00, far);
            run(&mut driver, &pipeline, &all(&import), &[], [1, 1, 1]);
            assert_eq!(word(&seen, 0xc00), 0, "index {far:#x}");
            assert!((0..0x1000).all(|at| at == 0xc00 || word(&seen, at) == 9), "index {far:#x} strayed");
        }
    });
}

/// Stores the first component of each texel of `%u` as it is read.
pub(crate) fn reader(number: Number) -> String {
    let (ty, to_word) = match number {
        Number::Float => ("float", "%y = OpBitcast %uint %r"),
        Number::Signed => ("int", "%y = OpBitcast %uint %r"),
        Number::Unsigned => ("uint", "%y = OpCopyObject %uint %r"),
    };
    let declarations = format!(
        "%four = OpTypeVector %{ty} 4
         %image = OpTypeImage %{ty} 5 0 0 0 1 0
         %pimage = OpTypePointer UniformConstant %image
         %u = OpVariable %pimage UniformConstant"
    );
    let body = format!(
        "%i = OpLoad %image %u
         %t = OpImageFetch %four %i %x
         %r = OpCompositeExtract %{ty} %t 0
         {to_word}
         %place = OpAccessChain %pword %o %0 %x
         OpStore %place %y
         OpReturn"
    );
    frame::kernel(&Parts {
        size: "1 1 1",
        capabilities: "OpCapability SampledBuffer",
        decorations: "OpDecorate %u DescriptorSet 0\nOpDecorate %u Binding 0",
        declarations: &declarations,
        body: &body,
        ..Parts::default()
    })
}

/// What the first component of a texel of 0x21 in each byte is read as.
pub(crate) fn first_of(format: &Format) -> u32 {
    let float = |value: f32| value.to_bits();
    match format.name {
        "R8_UNORM" | "R8G8_UNORM" | "R8G8B8A8_UNORM" | "B8G8R8A8_UNORM" | "A8B8G8R8_UNORM_PACK32" => {
            float(33.0 / 255.0)
        }
        name if name.starts_with("R16") && name.contains("UNORM") => float(8481.0 / 65_535.0),
        name if name.starts_with("R16") && name.contains("SNORM") => float(8481.0 / 32_767.0),
        name if name.contains("SNORM") => float(33.0 / 127.0),
        "A2B10G10R10_UNORM_PACK32" => float(289.0 / 1023.0),
        "A2B10G10R10_UINT_PACK32" => 0x121,
        // Exponent 8 and mantissa 0x121 of a half; 4 and 0x21 of an unsigned float of 11 bits.
        name if name.starts_with("R16") && name.contains("SFLOAT") => float((1.0 + 289.0 / 1024.0) / 128.0),
        "B10G11R11_UFLOAT_PACK32" => float((1.0 + 33.0 / 64.0) / 2048.0),
        name if name.starts_with("R8") || name.starts_with("A8") => 0x21,
        name if name.starts_with("R16") => 0x2121,
        _ => 0x2121_2121,
    }
}

#[test]
fn every_format_is_read_as_what_it_is_and_no_other_is_taken() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x2000);
        (0..64).for_each(|at| set_word(&seen, at, 0x2121_2121));
        for number in [Number::Float, Number::Signed, Number::Unsigned] {
            let pipeline = driver.pipeline(&sanitize(&driver, &reader(number))).unwrap();
            let mut bound = |code: u16, length: u64| {
                let bounds = [texels(0, &import, 0, length, code), bind(3, &import, 0x1000, 256)];
                let ticket = driver.dispatch(&pipeline, &bounds, &[], &Slice::whole([2, 1, 1]))?;
                driver.wait(ticket).map_err(DispatchError::from)
            };
            for format in FORMATS {
                let done = bound(format.code, u64::from(format.bytes) * 2);
                if (format.number == Number::Float) != (number == Number::Float) {
                    let refused = done.unwrap_err().to_string();
                    assert!(
                        refused.contains(format.name) && refused.contains("the kernel reads"),
                        "{refused}"
                    );
                    continue;
                }
                done.unwrap();
                let (first, wanted) = (word(&seen, 0x400), first_of(format));
                assert!(first.abs_diff(wanted) <= 1, "{}: {first:#x}, not {wanted:#x}", format.name);
                assert_eq!(word(&seen, 0x401), first, "{}", format.name);
                let odd = bound(format.code, u64::from(format.bytes) * 2 + 1);
                assert!(format.bytes == 1 || matches!(odd, Err(DispatchError::Misaligned { .. })), "{odd:?}");
            }
            for code in [0, 1, 12, 43, 104, 106, 1000, u16::MAX] {
                let refused = bound(code, 48).unwrap_err();
                assert!(
                    matches!(refused, DispatchError::Format { format, .. } if format == code),
                    "{refused}"
                );
            }
        }
    });
}

#[test]
fn a_range_has_the_format_that_the_kernel_names_and_one_where_it_has_texels() {
    let body = "%place = OpAccessChain %pword %o %0 %x\nOpStore %place %7";
    with_driver(|mut driver: Driver| {
        let pipeline = driver.pipeline(&sanitize(&driver, &kernel(body))).unwrap();
        let (import, _seen) = memory(&driver, 0x4000);
        let mut refused = |change: &dyn Fn(&mut [Bound<'_>; 4])| {
            let mut bounds = all(&import);
            change(&mut bounds);
            driver.dispatch(&pipeline, &bounds, &[], &Slice::whole([1; 3])).unwrap_err().to_string()
        };
        let words = refused(&|bounds| bounds[1].format = R32_SFLOAT);
        assert_eq!(words, "binding 1 has format 100 (R32_SFLOAT): the kernel names another");
        let words = refused(&|bounds| bounds[2].format = 44);
        assert_eq!(words, "binding 2 has format 44 (B8G8R8A8_UNORM): no storage texel buffer has it");
        let words = refused(&|bounds| bounds[3].format = R32_UINT);
        assert_eq!(words, "binding 3 has format 98 (R32_UINT): the kernel has no texel buffer there");
        let words = refused(&|bounds| bounds[0].format = 0);
        assert_eq!(words, "binding 0 has format 0 (none): the kernel has a texel buffer there");
        let words = refused(&|bounds| bounds[0].length = 0);
        assert!(words.contains("binding 0 has 0 bytes"), "{words}");
    });
}

#[test]
fn views_are_kept_and_bounded() {
    with_driver(|mut driver: Driver| {
        let pipeline = driver.pipeline(&sanitize(&driver, &reader(Number::Unsigned))).unwrap();
        let (import, seen) = memory(&driver, 0x20000);
        for round in 0..200_u32 {
            let offset = u64::from(round % 100) * 256;
            set_word(&seen, offset / 4, round);
            let bounds = [texels(0, &import, offset, 256, R32_UINT), bind(3, &import, 0x10000, 256)];
            // Twice the same one is one view.
            for _ in 0..2 {
                run(&mut driver, &pipeline, &bounds, &[], [1; 3]);
                assert_eq!(word(&seen, 0x4000), round);
                assert_eq!(import.kept_views(), 64.min(round as usize + 1));
            }
        }
    });
}

/// Adds one and a multiple of its number to a texel of each group, atomically.
pub(crate) fn counting() -> String {
    let declarations = "%7th = OpConstant %uint 7
         %image = OpTypeImage %uint 5 0 0 0 2 33
         %pimage = OpTypePointer UniformConstant %image
         %ptexel = OpTypePointer Image %uint
         %u = OpVariable %pimage UniformConstant";
    let body = "%all = OpLoad %uint3 %groups
         %me = OpLoad %uint3 %id
         %gx = OpCompositeExtract %uint %all 0
         %gy = OpCompositeExtract %uint %all 1
         %y = OpCompositeExtract %uint %me 1
         %z = OpCompositeExtract %uint %me 2
         %rows = OpIMul %uint %z %gy
         %row = OpIAdd %uint %rows %y
         %line = OpIMul %uint %row %gx
         %n = OpIAdd %uint %line %x
         %texel = OpImageTexelPointer %ptexel %u %n %0
         %times = OpIMul %uint %n %7th
         %more = OpIAdd %uint %times %1
         %old = OpAtomicIAdd %uint %texel %1 %0 %more
         OpReturn";
    frame::kernel(&Parts {
        size: "1 1 1",
        capabilities: "OpCapability ImageBuffer",
        decorations: "OpDecorate %u DescriptorSet 0\nOpDecorate %u Binding 0",
        declarations,
        body,
        ..Parts::default()
    })
}

#[test]
fn a_dispatch_over_texels_that_is_put_aside_at_every_slice_runs_each_group_once() {
    const GRID: [u32; 3] = [5, 7, 3];
    const GROUPS: u64 = 105;
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let kernel = sanitize(&driver, &counting());
        assert_eq!(kernel.bindings[0].access, BufferAccess::ReadWrite, "atomics write");
        let slice = Duration::from_nanos(1000);
        let warm = |driver| {
            let mut node = scene.node_of(driver, vec![kernel.clone()], slice);
            let mut first = scene.buffer(&dispatch_texels(1, [1; 3], 0x3000, GROUPS * 4, R32_UINT));
            assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
            node
        };
        // Each slice runs in the other of two nodes, as after a move.
        let mut nodes = [warm(driver), warm(Driver::open(&Options::default()).unwrap())];
        let packets = dispatch_texels(1, GRID, 0, GROUPS * 4, R32_UINT);
        let mut buffer = scene.buffer(&packets);
        let mut slices = 1;
        while scene.run(&mut buffer, &mut nodes[slices % 2], &mut || true) == Step::Paused {
            let saved = save_area::read_slot(save_area::slot_words(9, buffer.save()), 9).unwrap();
            buffer = scene.buffer(&packets).restore(saved).unwrap();
            slices += 1;
        }
        assert!(slices > 50, "{slices} slices of {GROUPS} groups");
        for at in 0..GROUPS {
            assert_eq!(u64::from(word(&scene.memory, at)), 1 + at * 7, "group {at}");
        }
        // Packets whose formats are none, or not that of the kernel.
        let [mut node, _] = nodes;
        let mut faults =
            |packets: &[u8]| match scene.run(&mut scene.buffer(packets), &mut node, &mut || false) {
                Step::Fault(fault, _) => fault,
                other => panic!("{other:?}"),
            };
        assert_eq!(faults(&dispatch_texels(1, GRID, 0, 420, 104)), Fault::PacketField, "no such format");
        assert_eq!(
            faults(&dispatch_texels(1, GRID, 0, 421, R32_UINT)),
            Fault::PacketField,
            "part of a texel"
        );
        assert_eq!(faults(&dispatch_texels(1, GRID, 0, 420, R32_SFLOAT)), Fault::Bindings, "another format");
        assert_eq!(faults(&dispatch(1, GRID, 0, 420)), Fault::Bindings, "no format");
    });
}
