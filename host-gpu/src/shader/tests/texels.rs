use campanile_protocol::texels::FORMATS;
use campanile_protocol::texels::Number;
use spirv::Op;

use crate::shader::interface::BufferKind;
use crate::shader::interface::Shader;
use crate::shader::interface::Texels;
use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::pass_for;
use crate::shader::tests::samples::says;

/// A kernel with texel buffers: `%r` of words that are fetched, `%s` of floats and `%c` of words that are storage.
pub(super) fn texels(more: &str, body: &str) -> String {
    let decorations = "OpDecorate %r DescriptorSet 0
         OpDecorate %r Binding 4
         OpDecorate %s DescriptorSet 0
         OpDecorate %s Binding 5
         OpDecorate %c DescriptorSet 1
         OpDecorate %c Binding 0";
    let declarations = format!(
        "%uint4 = OpTypeVector %uint 4
         %float4 = OpTypeVector %float 4
         %2 = OpConstant %uint 2
         %half = OpConstant %float 1056964608
         %halves = OpConstantComposite %float4 %half %half %half %half
         %fetched = OpTypeImage %uint 5 0 0 0 1 0
         %stored = OpTypeImage %float 5 0 0 0 2 3
         %counted = OpTypeImage %uint 5 0 0 0 2 33
         %pfetched = OpTypePointer UniformConstant %fetched
         %pstored = OpTypePointer UniformConstant %stored
         %pcounted = OpTypePointer UniformConstant %counted
         %ptexel = OpTypePointer Image %uint
         %r = OpVariable %pfetched UniformConstant
         %s = OpVariable %pstored UniformConstant
         %c = OpVariable %pcounted UniformConstant
         {more}"
    );
    let capabilities = "OpCapability SampledBuffer
         OpCapability ImageBuffer
         OpCapability ImageQuery";
    let body = format!(
        "%ir = OpLoad %fetched %r
         %is = OpLoad %stored %s
         {body}
         OpReturn"
    );
    kernel(capabilities, decorations, &declarations, &body)
}

/// The same with a variable more, at binding 7 of set 2.
pub(super) fn with_another(id: &str, more: &str, body: &str) -> String {
    let decorations =
        format!("OpDecorate {id} DescriptorSet 2\nOpDecorate {id} Binding 7\n%void = OpTypeVoid");
    texels(more, body).replace("%void = OpTypeVoid", &decorations)
}

const FETCH: &str = "%t = OpImageFetch %uint4 %ir %x";
const READ: &str = "%t = OpImageRead %float4 %is %x";
const WRITE: &str = "OpImageWrite %is %x %halves";
const SIZE: &str = "%n = OpImageQuerySize %uint %ir";
const ATOMIC: &str = "%texel = OpImageTexelPointer %ptexel %c %x %0
         %old = OpAtomicIAdd %uint %texel %1 %0 %7";

/// All instructions of texels.
pub(super) fn everything() -> String {
    texels("", &format!("{FETCH}\n{}\n{WRITE}\n{ATOMIC}\n{SIZE}", READ.replace("%t ", "%u ")))
}

fn kinds(shader: &Shader) -> Vec<(u32, u32, BufferKind, Option<u16>, bool)> {
    let format = |texels: Option<Texels>| texels.and_then(|texels| texels.format);
    shader.bindings.iter().map(|b| (b.set, b.binding, b.kind, format(b.texels), b.is_written)).collect()
}

#[test]
fn a_load_that_says_of_memory_that_there_is_nothing_to_say_is_one() {
    pass(&texels("", "%again = OpLoad %fetched %r 0")).unwrap();
}

#[test]
fn texel_buffers_are_bindings_that_are_written_where_an_instruction_writes_them() {
    use BufferKind::StorageTexels;
    use BufferKind::UniformTexels;
    let shader = pass(&everything().replace(WRITE, "")).unwrap();
    assert_eq!(
        kinds(&shader),
        [
            (0, 4, UniformTexels, None, false),
            (0, 5, StorageTexels, Some(100), false),
            (1, 0, StorageTexels, Some(98), true)
        ]
    );
    assert!(shader.bindings.iter().all(|binding| binding.min_size == 1 && binding.count.is_none()));
    let numbers: Vec<Number> = shader.bindings.iter().filter_map(|b| b.texels).map(|t| t.number).collect();
    assert_eq!(numbers, [Number::Unsigned, Number::Float, Number::Unsigned]);
    let shader = pass(&texels("", WRITE)).unwrap();
    assert_eq!(kinds(&shader)[1], (0, 5, StorageTexels, Some(100), true));
    assert!(super::samples::all(&shader.words, Op::Select).is_empty(), "indices are left to the device");
}

#[test]
fn what_a_function_is_given_counts_as_written_where_it_is_storage() {
    let types = "%takes = OpTypeFunction %void %pfetched %pstored";
    let body = "%nothing = OpFunctionCall %void %called %r %s";
    let called = "OpFunctionEnd
         %called = OpFunction %void 0 %takes
         %from = OpFunctionParameter %pfetched
         %to = OpFunctionParameter %pstored
         %label = OpLabel
         %in = OpLoad %stored %to
         OpImageWrite %in %1 %halves
         OpReturn";
    let text = texels(types, &format!("{body}\nOpReturn\n{called}"));
    let shader = pass(&text.replace("OpReturn\n         OpReturn", "OpReturn")).unwrap();
    assert_eq!(
        kinds(&shader),
        [(0, 4, BufferKind::UniformTexels, None, false), (0, 5, BufferKind::StorageTexels, Some(100), true)]
    );
}

#[test]
fn arrays_of_texel_buffers_are_indexed_by_constants() {
    let more = "%many = OpTypeArray %fetched %2
         %pmany = OpTypePointer UniformConstant %many
         %m = OpVariable %pmany UniformConstant";
    let body =
        "%p = OpAccessChain %pfetched %m %1\n%im = OpLoad %fetched %p\n%t = OpImageFetch %uint4 %im %x";
    let good = with_another("%m", more, body);
    let shader = pass(&good).unwrap();
    let last = shader.bindings.last().unwrap();
    assert_eq!((last.set, last.binding, last.count, last.kind), (2, 7, Some(2), BufferKind::UniformTexels));
    let why = "arrays of texel buffers are indexed by constants below their length";
    breaks(
        &good,
        &[
            ("%pfetched %m %1", "%pfetched %m %x", why),
            ("%pfetched %m %1", "%pfetched %m %2", why),
            ("OpTypeArray %fetched %2", "OpTypeRuntimeArray %fetched", "no type that can be stored"),
            ("%im = OpLoad %fetched %p", "%im = OpLoad %many %m", "it loads no single texel buffer"),
        ],
    );
}

#[test]
fn a_uniform_texel_buffer_may_be_a_sampled_image_before_spirv_1_6() {
    let more = "%sampled = OpTypeSampledImage %fetched
         %psampled = OpTypePointer UniformConstant %sampled
         %v = OpVariable %psampled UniformConstant";
    let body =
        "%both = OpLoad %sampled %v\n%image = OpImage %fetched %both\n%t = OpImageFetch %uint4 %image %x";
    let text = with_another("%v", more, body);
    let shader = pass(&text).unwrap();
    assert_eq!(kinds(&shader).last(), Some(&(2, 7, BufferKind::UniformTexels, None, false)));
    breaks(
        &text,
        &[
            ("OpTypeSampledImage %fetched", "OpTypeSampledImage %stored", "it is of no uniform texel buffer"),
            ("%uint4 %image %x", "%uint4 %both %x", "it is of no texel buffer"),
            ("OpImage %fetched %both", "OpImage %stored %both", "not of the type of the texel buffer"),
            ("OpImage %fetched %both", "OpImage %fetched %ir", "it is of no sampled image"),
        ],
    );
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    let refused = guard(&assemble(6, &text), &wish).unwrap_err().to_string();
    assert!(refused.contains("from SPIR-V 1.6 on"), "{refused}");
}

#[test]
fn formats_without_further_capabilities_are_taken_and_no_others() {
    for image in 0..45 {
        let found = FORMATS.iter().find(|format| format.image == Some(image));
        let (ty, four) = match found.map(|format| format.number) {
            Some(Number::Unsigned) => ("%uint", "%uint4"),
            Some(Number::Signed) => ("%int", "%int4"),
            _ => ("%float", "%float4"),
        };
        let more = format!(
            "%int4 = OpTypeVector %int 4
             %other = OpTypeImage {ty} 5 0 0 0 2 {image}
             %pother = OpTypePointer UniformConstant %other
             %w = OpVariable %pother UniformConstant"
        );
        let body = format!("%iw = OpLoad %other %w\n%t = OpImageRead {four} %iw %x");
        let text = with_another("%w", &more, &body).replace(
            "OpCapability Shader",
            "OpCapability Shader\nOpCapability StorageImageReadWithoutFormat",
        );
        match (found, image) {
            // They are declared already, and once only.
            (_, 3 | 33) => {}
            (None, 1..) => says(&text, "are not offered"),
            _ => {
                let shader = pass(&text).unwrap();
                let format = shader.bindings.last().unwrap().texels.unwrap().format;
                assert_eq!(format, found.map(|format| format.code), "{image}");
            }
        }
    }
}

#[test]
fn without_a_format_texels_need_the_features_of_the_device() {
    for (op, capability) in
        [(READ, "StorageImageReadWithoutFormat"), (WRITE, "StorageImageWriteWithoutFormat")]
    {
        let bare = texels("", op).replace("%float 5 0 0 0 2 3", "%float 5 0 0 0 2 0");
        says(&bare, &format!("{capability} is not declared"));
        let declared =
            bare.replace("OpCapability Shader", &format!("OpCapability Shader\nOpCapability {capability}"));
        pass(&declared).unwrap();
        let lacks = Profile { read_without_format: false, write_without_format: false, ..Profile::ALL };
        let refused = pass_for(&lacks, &declared).unwrap_err().to_string();
        assert!(refused.contains("does not offer the capability"), "{refused}");
    }
    let one = "OpImageWrite %is %x %half";
    pass(&texels("", one)).unwrap();
    let bare = texels("", one)
        .replace("%float 5 0 0 0 2 3", "%float 5 0 0 0 2 0")
        .replace("OpCapability Shader", "OpCapability Shader\nOpCapability StorageImageWriteWithoutFormat");
    says(&bare, "fewer components than the format");
}

#[test]
fn a_device_without_texel_buffers_is_not_given_any() {
    let lacks = Profile { texel_buffers: false, ..Profile::ALL };
    let refused = pass_for(&lacks, &texels("", FETCH)).unwrap_err().to_string();
    assert!(refused.contains("does not offer the capability SampledBuffer"), "{refused}");
}

#[test]
fn images_of_any_other_kind_are_refused() {
    let good = texels("", FETCH);
    let one = "images other than texel buffers are not offered";
    for dim in [0, 1, 2, 3, 4, 6, 7] {
        breaks(&good, &[("%uint 5 0 0 0 1 0", &format!("%uint {dim} 0 0 0 1 0"), one)]);
    }
    let why = "a texel buffer has no layers or samples, and says whether it is storage";
    breaks(
        &good,
        &[
            ("%uint 5 0 0 0 1 0", "%uint 5 3 0 0 1 0", why),
            ("%uint 5 0 0 0 1 0", "%uint 5 0 1 0 1 0", why),
            ("%uint 5 0 0 0 1 0", "%uint 5 0 0 1 1 0", why),
            ("%uint 5 0 0 0 1 0", "%uint 5 0 0 0 0 0", why),
            ("%uint 5 0 0 0 1 0", "%uint4 5 0 0 0 1 0", "read as integers or floats of 32 bits"),
            ("%uint 5 0 0 0 1 0", "%uint 5 0 0 0 1 0 0", "too few or too many operands"),
            ("%float 5 0 0 0 2 3", "%float 5 0 0 0 2 33", "not that of what is read"),
            ("%float 5 0 0 0 2 3", "%float 5 0 0 0 2 6", "format Rg32f are not offered"),
        ],
    );
    let bare = good.replace("OpCapability ImageBuffer", "").replace("OpCapability SampledBuffer", "");
    says(&bare, "the capability SampledBuffer is not declared");
    says(&good.replace("OpCapability ImageBuffer", ""), "the capability ImageBuffer is not declared");
}

#[test]
fn texel_buffers_stand_where_they_belong_and_nothing_else_does() {
    let good = texels("", FETCH);
    let why = "texel buffers are what UniformConstant has, all of it";
    breaks(
        &good,
        &[
            ("%pfetched = OpTypePointer UniformConstant", "%pfetched = OpTypePointer Private", why),
            (
                "%pfetched = OpTypePointer UniformConstant %fetched",
                "%pfetched = OpTypePointer UniformConstant %uint",
                why,
            ),
            ("%ptexel = OpTypePointer Image %uint", "%ptexel = OpTypePointer Image %float", why),
            ("OpDecorate %r Binding 4", "", "a buffer without a set or a binding"),
            ("OpDecorate %r DescriptorSet 0", "", "a buffer without a set or a binding"),
            (
                "OpDecorate %r Binding 4",
                "OpDecorate %r Binding 4\nOpDecorate %r NonWritable",
                "NonWritable does not belong on",
            ),
            (
                "OpDecorate %r Binding 4",
                "OpDecorate %r Binding 5",
                "shares its binding with a variable of another kind",
            ),
        ],
    );
    for (more, why) in [
        ("%in = OpTypeStruct %fetched", "member 0 has no type that can be stored there"),
        ("%f2 = OpTypeFunction %fetched", "returns or takes what no value can be"),
        ("%f2 = OpTypeFunction %void %fetched", "returns or takes what no value can be"),
        ("%null = OpConstantNull %fetched", "its type is none that a constant can have"),
        ("%any = OpUndef %fetched", "its type is none that a constant can have"),
        ("%g = OpVariable %ptexel Image", "or belongs in a function"),
    ] {
        says(&texels(more, FETCH), why);
    }
    for (body, why) in [
        ("%copy = OpCopyObject %fetched %ir", "no value here can have"),
        ("%both = OpSelect %fetched %true %ir %ir", "no value here can have"),
        ("OpStore %r %ir", "is not what the pointer points to"),
        ("OpCopyMemory %r %r", "do not point to the same type"),
        ("%t = OpCompositeExtract %uint %ir 0", "do not fit its result"),
        ("%v = OpLoad %fetched %r 1", "how memory is accessed says nothing of a texel buffer"),
        ("%v = OpLoad %fetched %r 0 0", "how memory is accessed says nothing of a texel buffer"),
        ("%v = OpLoad %stored %r", "not of the type of the texel buffer"),
    ] {
        says(&texels("", body), why);
    }
}

#[test]
fn instructions_of_texels_are_typed() {
    let good = everything();
    let four = "its result is not four components of the type of the image";
    let coordinate = "its coordinate is not one integer of 32 bits";
    let operands = "are not offered here";
    let fit = "its image operands do not fit each other, the memory model or the image";
    breaks(
        &good,
        &[
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %float4 %ir %x", four),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint3 %ir %x", four),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint4 %ir %half", coordinate),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint4 %x %x", "it is of no texel buffer"),
            (
                "OpImageFetch %uint4 %ir %x",
                "OpImageFetch %float4 %is %x",
                "it fetches from a storage texel buffer",
            ),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint4 %ir %x 2 %0", operands),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint4 %ir %x 1024", fit),
            ("OpImageFetch %uint4 %ir %x", "OpImageFetch %uint4 %ir %x 4096", fit),
            ("OpImageRead %float4 %is %x", "OpImageRead %uint4 %ir %x", "it is of no storage texel buffer"),
            ("OpImageRead %float4 %is %x", "OpImageRead %uint4 %is %x", four),
            ("OpImageRead %float4 %is %x", "OpImageRead %float4 %is %x 256 %1", operands),
            ("OpImageRead %float4 %is %x", "OpImageRead %float4 %is %x 1536 %1", fit),
            ("OpImageWrite %is %x %halves", "OpImageWrite %ir %x %x", "it is of no storage texel buffer"),
            (
                "OpImageWrite %is %x %halves",
                "OpImageWrite %is %x %x",
                "its texel is not of the type of the image",
            ),
            ("OpImageWrite %is %x %halves", "OpImageWrite %is %half %halves", coordinate),
            ("OpImageWrite %is %x %halves", "OpImageWrite %is %x %halves 1280 %1", fit),
            ("%ptexel %c %x %0", "%pcounted %c %x %0", "its result is no pointer to a texel of the image"),
            ("%ptexel %c %x %0", "%ptexel %c %x %1", "no sample but 0"),
            ("%ptexel %c %x %0", "%ptexel %c %half %0", coordinate),
            ("%ptexel %c %x %0", "%ptexel %s %x %0", "of the formats R32i and R32ui alone"),
            ("%ptexel %c %x %0", "%ptexel %r %x %0", "it is of no storage texel buffer"),
            (
                "OpAtomicIAdd %uint %texel %1 %0 %7",
                "OpLoad %uint %texel",
                "pointers to texels are for atomics alone",
            ),
            (
                "%old = OpAtomicIAdd %uint %texel %1 %0 %7",
                "OpStore %texel %7",
                "pointers to texels are for atomics alone",
            ),
            ("OpImageQuerySize %uint %ir", "OpImageQuerySize %float %ir", "not one integer of 32 bits"),
            ("OpImageQuerySize %uint %ir", "OpImageQuerySize %uint %x", "it is of no texel buffer"),
            ("OpCapability ImageQuery", "", "the capability ImageQuery is not declared"),
        ],
    );
    for op in [
        "OpImageSampleExplicitLod %float4 %is %x 2 %half",
        "OpImageQueryLevels %uint %ir",
        "OpImageQueryFormat %uint %ir",
    ] {
        says(&texels("", &format!("%t = {op}")), "not offered to compute kernels here");
    }
}

#[test]
fn operands_of_the_memory_model_and_of_signs_are_kept() {
    let vulkan = |body: &str| {
        texels("%5 = OpConstant %uint 5", body)
            .replace("OpCapability Shader", "OpCapability Shader\nOpCapability VulkanMemoryModel\nOpCapability VulkanMemoryModelDeviceScope")
            .replace("OpMemoryModel 0 1", "OpMemoryModel 0 3")
    };
    let shader =
        pass(&vulkan("%t = OpImageRead %float4 %is %x 1536 %5\nOpImageWrite %is %x %t 1280 %5")).unwrap();
    assert_eq!(all(&shader.words, Op::ImageRead)[0][4], 1536);
    assert_eq!(all(&shader.words, Op::ImageWrite)[0][3], 1280);
    says(&vulkan("%t = OpImageRead %float4 %is %x 512 %5"), "do not fit each other");
    // The interface of a later version names every variable.
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    let text =
        texels("", "%t = OpImageFetch %uint4 %ir %x 8192").replace("%id %groups\n", "%id %groups %r %s\n");
    guard(&assemble(4, &text), &wish).unwrap();
    for (mask, why) in [(12288, "do not fit"), (8192 | 4, "are not offered here")] {
        let wrong = text.replace("8192", &mask.to_string());
        let refused = guard(&assemble(4, &wrong), &wish).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let float = text.replace("%t = OpImageFetch %uint4 %ir %x 8192", "%t = OpImageRead %float4 %is %x 8192");
    assert!(guard(&assemble(4, &float), &wish).is_err(), "floats have no sign to extend");
}
