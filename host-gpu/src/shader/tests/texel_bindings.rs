//! What variables of texel buffers are bound to, and what kernels with them cost.

use crate::shader::interface::BufferKind;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::says;
use crate::shader::tests::texels::texels;
use crate::shader::tests::texels::with_another;

/// A second variable with floats, in a format by its number, at a binding of its own.
fn second(format: u32, body: &str) -> String {
    let more = format!(
        "%again = OpTypeImage %float 5 0 0 0 2 {format}
         %pagain = OpTypePointer UniformConstant %again
         %w = OpVariable %pagain UniformConstant"
    );
    with_another("%w", &more, body)
}

#[test]
fn variables_that_share_a_binding_have_the_same_texels_and_it_is_written_where_either_is() {
    let shares = |text: String| {
        text.replace("OpDecorate %w DescriptorSet 2", "OpDecorate %w DescriptorSet 0")
            .replace("OpDecorate %w Binding 7", "OpDecorate %w Binding 5")
    };
    let reads = "%iw = OpLoad %again %w\n%u = OpImageRead %float4 %iw %x\n%t = OpImageRead %float4 %is %x";
    says(&shares(second(1, reads)), "shares its binding with a variable of another kind");
    pass(&second(1, reads)).unwrap();
    let same = "%w = OpVariable %pstored UniformConstant";
    for (first, other, is_written) in [(false, false, false), (true, false, true), (false, true, true)] {
        let access = |image: &str, writes: bool| match writes {
            true => format!("OpImageWrite {image} %x %halves"),
            false => format!("%t_{} = OpImageRead %float4 {image} %x", &image[1..]),
        };
        let body = format!("%iw = OpLoad %stored %w\n{}\n{}", access("%is", first), access("%iw", other));
        let shader = pass(&shares(with_another("%w", same, &body))).unwrap();
        let found: Vec<_> = shader.bindings.iter().filter(|b| b.kind == BufferKind::StorageTexels).collect();
        assert_eq!((found.len(), found[0].binding, found[0].is_written), (1, 5, is_written));
    }
}

#[test]
fn an_array_of_texel_buffers_has_one_dimension_and_is_given_to_functions_whole_or_by_element() {
    let more = "%many = OpTypeArray %stored %2
         %pmany = OpTypePointer UniformConstant %many
         %m = OpVariable %pmany UniformConstant
         %takes = OpTypeFunction %void %pstored";
    let body = "%p = OpAccessChain %pstored %m %1
         %nothing = OpFunctionCall %void %called %p
         OpReturn
         OpFunctionEnd
         %called = OpFunction %void 0 %takes
         %to = OpFunctionParameter %pstored
         %label = OpLabel
         %in = OpLoad %stored %to
         OpImageWrite %in %1 %halves";
    let good = with_another("%m", more, body);
    let shader = pass(&good).unwrap();
    let last = shader.bindings.last().unwrap();
    assert_eq!((last.set, last.count, last.is_written), (2, Some(2), true), "the function writes it");
    let twice = more
        .replace("UniformConstant %many", "UniformConstant %matrix")
        .replace("%pmany =", "%matrix = OpTypeArray %many %2\n%pmany =");
    says(&with_another("%m", &twice, &body.replace("%m %1", "%m %1 %1")), "no type that can be stored");
    breaks(
        &good,
        &[(
            "%nothing = OpFunctionCall %void %called %p",
            "%copy = OpCopyObject %pstored %p\n%nothing = OpFunctionCall %void %called %copy",
            "only whole variables can be handed to functions by pointer",
        )],
    );
}

#[test]
fn accesses_to_texels_count_as_those_to_memory() {
    // The kernel reads its place, too.
    let many = |line: fn(u32) -> String| (1..16 * 1024).map(line).collect::<Vec<_>>().join("\n");
    let fetches = many(|at| format!("%t{at} = OpImageFetch %uint4 %ir %x"));
    let pointers = many(|at| format!("%t{at} = OpImageTexelPointer %ptexel %c %x %0"));
    for body in [fetches, pointers] {
        pass(&texels("", &body)).unwrap();
        let one_more = format!("{body}\n%more = OpImageFetch %uint4 %ir %x");
        says(&texels("", &one_more), "16385 accesses to memory with all calls inlined");
    }
}

#[test]
fn an_operand_that_belongs_to_no_image_operand_is_refused() {
    let good = texels("", "%t = OpImageFetch %uint4 %ir %x 0\n%u = OpImageRead %float4 %is %x 0");
    let why = "its image operands do not fit each other";
    breaks(&good, &[("%ir %x 0", "%ir %x 0 %0", why), ("%is %x 0", "%is %x 0 %0", why)]);
}
