//! Kernels in SPIR-V that other compilers make: what naga never took, and what strays out of bounds.

use campanile_host_gpu::kernel::program::Kernel;
use campanile_host_gpu::kernel::sanitizer::Sanitizer;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::request::Slice;

use crate::assembly::assemble;
use crate::bench::bind;
use crate::bench::memory;
use crate::bench::run;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::word;
use crate::frame;
use crate::frame::Parts;

const FAR: u32 = 0x1234_5678;

fn sanitize(driver: &Driver, text: &str) -> Kernel {
    let bytes = assemble(3, text).iter().flat_map(|word| word.to_le_bytes()).collect();
    let source = Source::spirv(bytes);
    Sanitizer::start(*driver.profile()).expect("a thread").sanitize(&source).expect("a good kernel")
}

/// A kernel in which `%far` is the first word of `%o`, at binding 3.
fn kernel(capabilities: &str, decorations: &str, declarations: &str, variables: &str, body: &str) -> String {
    let declarations = format!(
        "%uint4 = OpTypeVector %uint 4
         %2 = OpConstant %uint 2
         %3 = OpConstant %uint 3
         %million = OpConstant %uint 1000000
         {declarations}"
    );
    let body = format!(
        "%place = OpAccessChain %pword %o %0 %x
         %first = OpAccessChain %pword %o %0 %0
         %far = OpLoad %uint %first
         {body}
         OpReturn"
    );
    let (declarations, body) = (&declarations, &body);
    frame::kernel(&Parts { size: "1 1 1", capabilities, decorations, declarations, variables, body })
}

#[test]
fn small_integers_subgroups_and_specialisation_constants_compute() {
    let text = kernel(
        "OpCapability StorageBuffer8BitAccess
         OpCapability StorageBuffer16BitAccess
         OpCapability Int16
         OpCapability GroupNonUniformArithmetic
         OpCapability GroupNonUniformBallot",
        "OpDecorate %scale SpecId 0
         OpDecorate %bytes ArrayStride 1
         OpDecorate %halves ArrayStride 2
         OpDecorate %b8 Block
         OpDecorate %b16 Block
         OpMemberDecorate %b8 0 Offset 0
         OpMemberDecorate %b8 0 NonWritable
         OpMemberDecorate %b16 0 Offset 0
         OpDecorate %p8 DescriptorSet 0
         OpDecorate %p8 Binding 4
         OpDecorate %p16 DescriptorSet 0
         OpDecorate %p16 Binding 4",
        "%byte = OpTypeInt 8 0
         %half = OpTypeInt 16 0
         %bytes = OpTypeRuntimeArray %byte
         %halves = OpTypeRuntimeArray %half
         %b8 = OpTypeStruct %bytes
         %b16 = OpTypeStruct %halves
         %pb8 = OpTypePointer StorageBuffer %b8
         %pb16 = OpTypePointer StorageBuffer %b16
         %pbyte = OpTypePointer StorageBuffer %byte
         %phalf = OpTypePointer StorageBuffer %half
         %p8 = OpVariable %pb8 StorageBuffer
         %p16 = OpVariable %pb16 StorageBuffer
         %scale = OpSpecConstant %uint 5
         %twice = OpSpecConstantOp %uint IMul %scale %2",
        "",
        "%q8 = OpAccessChain %pbyte %p8 %0 %x
         %q16 = OpAccessChain %phalf %p16 %0 %x
         %v8 = OpLoad %byte %q8
         %v16 = OpLoad %half %q16
         %double = OpIAdd %half %v16 %v16
         %w8 = OpUConvert %uint %v8
         %w16 = OpUConvert %uint %double
         %scaled = OpIMul %uint %w8 %twice
         %sum = OpIAdd %uint %scaled %w16
         %lanes = OpGroupNonUniformIAdd %uint %3 0 %1
         %ballot = OpGroupNonUniformBallot %uint4 %3 %true
         %count = OpGroupNonUniformBallotBitCount %uint %3 0 %ballot
         %wrong = OpISub %uint %lanes %count
         %penalty = OpIMul %uint %wrong %million
         %y = OpIAdd %uint %sum %penalty
         OpStore %place %y",
    );
    with_driver(|mut driver: Driver| {
        let kernel = sanitize(&driver, &text);
        // Two views of one buffer, and neither is written.
        assert_eq!(kernel.bindings.len(), 2);
        let pipeline = driver.pipeline(&kernel).unwrap();
        let (import, seen) = memory(&driver, 0x2000);
        for at in 0..64 {
            set_word(&seen, 1024 + at, 0x0102_0304_u32.wrapping_mul(u32::try_from(at).unwrap() + 1));
        }
        let bounds = [bind(3, &import, 0, 256), bind(4, &import, 0x1000, 256)];
        run(&mut driver, &pipeline, &bounds, &[], [64, 1, 1]);
        for at in 0..64 {
            let byte = word(&seen, 1024 + at / 4) >> (8 * (at % 4)) & 0xff;
            let half = word(&seen, 1024 + at / 2) >> (16 * (at % 2)) & 0xffff;
            assert_eq!(word(&seen, at), byte * 10 + ((2 * half) & 0xffff), "{at}");
        }
    });
}

#[test]
fn indices_out_of_bounds_of_memory_that_no_buffer_is_do_no_harm() {
    with_driver(|mut driver: Driver| {
        for class in ["Workgroup", "Private", "Function"] {
            let variable = format!("%cells = OpVariable %pcells {class}");
            let (global, local) = if class == "Function" { ("", &*variable) } else { (&*variable, "") };
            let declarations = format!(
                "%5 = OpConstant %uint 5
                 %array = OpTypeArray %uint %5
                 %pcells = OpTypePointer {class} %array
                 %pcell = OpTypePointer {class} %uint
                 {global}"
            );
            let body = "%cell = OpAccessChain %pcell %cells %far
                 OpStore %cell %7
                 %last = OpAccessChain %pcell %cells %4
                 %y = OpLoad %uint %last
                 OpStore %place %y";
            let kernel = sanitize(&driver, &kernel("", "", &declarations, local, body));
            let pipeline = driver.pipeline(&kernel).unwrap();
            let (import, seen) = memory(&driver, 0x1000);
            set_word(&seen, 0, FAR);
            run(&mut driver, &pipeline, &[bind(3, &import, 0, 256)], &[], [1, 1, 1]);
            assert_eq!(word(&seen, 0), 7, "{class}: the last cell is what a far index reaches");
        }
    });
}

#[test]
fn indices_out_of_bounds_of_a_buffer_do_no_harm() {
    let body = "%away = OpAccessChain %pword %o %0 %far
         %read = OpLoad %uint %away
         OpStore %away %7
         %next = OpIAdd %uint %read %1
         OpStore %first %next";
    with_driver(|mut driver: Driver| {
        let kernel = sanitize(&driver, &kernel("", "", "", "", body));
        let pipeline = driver.pipeline(&kernel).unwrap();
        let (import, seen) = memory(&driver, 0x4000);
        for far in [64, 100, 1024, 0x4000_0000, u32::MAX] {
            (0..0x1000).for_each(|at| set_word(&seen, at, 9));
            set_word(&seen, 0, far);
            run(&mut driver, &pipeline, &[bind(3, &import, 0, 256)], &[], [1, 1, 1]);
            // Times 4 it is 0 in 32 bits, so a device may land inside; what lies outside is safe all the same.
            if far != 0x4000_0000 {
                assert_eq!(word(&seen, 0), 1, "a load out of bounds is zero");
            }
            assert!((1..0x1000).all(|at| word(&seen, at) == 9), "index {far} strayed");
        }
    });
}

#[test]
fn a_buffer_may_be_shorter_than_its_block_whose_rest_reads_as_zero_and_keeps_nothing() {
    // Of 16 words, of which a word is bound; of 4 uniform words, of which a word is.
    let text = kernel(
        "",
        "OpDecorate %a16 ArrayStride 4
         OpDecorate %long Block
         OpMemberDecorate %long 0 Offset 0
         OpDecorate %t DescriptorSet 0
         OpDecorate %t Binding 4
         OpDecorate %four Block
         OpMemberDecorate %four 0 Offset 0
         OpDecorate %u DescriptorSet 0
         OpDecorate %u Binding 5",
        "%16 = OpConstant %uint 16
         %5 = OpConstant %uint 5
         %a16 = OpTypeArray %uint %16
         %long = OpTypeStruct %a16
         %plong = OpTypePointer StorageBuffer %long
         %t = OpVariable %plong StorageBuffer
         %four = OpTypeStruct %uint4
         %pfour = OpTypePointer Uniform %four
         %p4 = OpTypePointer Uniform %uint4
         %u = OpVariable %pfour Uniform",
        "",
        "%inside = OpAccessChain %pword %t %0 %0
         %a = OpLoad %uint %inside
         %outside = OpAccessChain %pword %t %0 %5
         %b = OpLoad %uint %outside
         OpStore %outside %7
         %all = OpAccessChain %p4 %u %0
         %vector = OpLoad %uint4 %all
         %c = OpCompositeExtract %uint %vector 0
         %d = OpCompositeExtract %uint %vector 3
         %ab = OpIAdd %uint %a %b
         %cd = OpIAdd %uint %c %d
         OpStore %place %ab
         %second = OpAccessChain %pword %o %0 %1
         OpStore %second %cd",
    );
    with_driver(|mut driver: Driver| {
        let kernel = sanitize(&driver, &text);
        let pipeline = driver.pipeline(&kernel).unwrap();
        let (import, seen) = memory(&driver, 0x3000);
        (0..0xc00).for_each(|at| set_word(&seen, at, 9));
        let bounds = [bind(3, &import, 0, 256), bind(4, &import, 0x1000, 4), bind(5, &import, 0x2000, 4)];
        run(&mut driver, &pipeline, &bounds, &[], [1, 1, 1]);
        assert_eq!((word(&seen, 0), word(&seen, 1)), (9, 9), "one word of each, and zeros");
        assert!((2..0xc00).all(|at| word(&seen, at) == 9), "a store strayed");
    });
}

#[test]
fn a_slice_of_a_kernel_in_spirv_is_told_the_whole_grid() {
    let body = "%all = OpLoad %uint3 %groups
         %width = OpCompositeExtract %uint %all 0
         %height = OpAccessChain %in1 %groups %1
         %tall = OpLoad %uint %height
         %hundred = OpIMul %uint %tall %million
         %y = OpIAdd %uint %width %hundred
         OpStore %place %y";
    with_driver(|mut driver: Driver| {
        let kernel = sanitize(&driver, &kernel("", "", "", "", body));
        assert!(kernel.uses_num_workgroups);
        let pipeline = driver.pipeline(&kernel).unwrap();
        let (import, seen) = memory(&driver, 0x1000);
        for x in 0..6 {
            let slice = Slice { grid: [6, 2, 1], base: [x, 1, 0], groups: [1; 3] };
            let ticket = driver.dispatch(&pipeline, &[bind(3, &import, 0, 256)], &[], &slice).unwrap();
            driver.wait(ticket).unwrap();
            assert_eq!(word(&seen, u64::from(x)), 2_000_006);
        }
    });
}
