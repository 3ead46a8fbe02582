//! What stands before the declarations: the header, capabilities, extensions, entry points and debug information.

use spirv::Capability;
use spirv::Op;

use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::module::WORDS_LIMIT;
use crate::shader::profile::Profile;
use crate::shader::profile::Subgroup;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::pass_for;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::whole;

fn guarded(words: &[u32]) -> Result<Shader, Refusal> {
    whole(words, &Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID })
}

fn refused(words: &[u32], why: &str) {
    let error = guarded(words).expect_err(why).to_string();
    assert!(error.contains(why), "`{why}` is not in: {error}");
}

/// A kernel that returns at once.
fn empty() -> String {
    kernel("", "", "", "OpReturn")
}

#[test]
fn a_header_says_what_the_words_are() {
    let good = assemble(3, &empty());
    let with = |place: usize, word: u32| {
        let mut words = good.clone();
        words[place] = word;
        words
    };
    refused(&good[..4], "no header of 5 words");
    refused(&with(0, 0x0302_2307), "magic number");
    for version in [0x0001_0000, 0x0001_0300, 0x0001_0600] {
        assert!(guarded(&with(1, version)).is_ok(), "{version:#x}");
    }
    for version in [0, 0x0000_0600, 0x0001_0700, 0x0002_0000, 0x0101_0300, 0x0001_0301] {
        refused(&with(1, version), "not one of SPIR-V 1.0 to 1.6");
    }
    refused(&with(4, 1), "reserved word");
    refused(&with(3, 0), "bound is 0 or too large");
    let most = u32::try_from(good.len() * 4).unwrap();
    assert!(guarded(&with(3, most)).is_ok());
    refused(&with(3, most + 1), "bound is 0 or too large");
    refused(&vec![0; WORDS_LIMIT + 1], "words, more than 262144");
    refused(&vec![0; WORDS_LIMIT], "magic number");
}

#[test]
fn an_instruction_ends_inside_of_its_module() {
    let good = assemble(3, &empty());
    let end = good.len() - 1;
    assert_eq!(good[end], 1 << 16 | Op::FunctionEnd as u32);
    for length in [0, 2] {
        let mut words = good.clone();
        words[end] = length << 16 | Op::FunctionEnd as u32;
        refused(&words, "its length is 0 or leaves the module");
        refused(&words, &format!("at word {end}"));
    }
    refused(&good[..end], "it does not end");
}

#[test]
fn an_id_is_defined_once_and_below_the_bound() {
    let good = assemble(3, &empty());
    let bound = good[3];
    breaks(&empty(), &[("%7 = OpConstant %uint 7", "%4 = OpConstant %uint 7", "is defined twice")]);
    let mut least = good.clone();
    least[3] = bound - 1;
    refused(&least, &format!("its result id {} is 0 or not below the bound", bound - 1));
    let mut zero = good.clone();
    let at = zero.iter().position(|word| *word == 4 << 16 | Op::TypeInt as u32).unwrap();
    zero[at + 1] = 0;
    refused(&zero, "its result id 0 is 0 or not below the bound");
}

#[test]
fn text_is_utf_8_and_ends() {
    let good = assemble(3, &empty());
    let at = good.iter().position(|word| word & 0xffff == Op::EntryPoint as u32).unwrap();
    assert_eq!(good[at + 3], u32::from_le_bytes(*b"work"));
    let mut bad = good.clone();
    bad[at + 3] = 0x0000_00ff;
    refused(&bad, "its text is not UTF-8");
    let mut open = good.clone();
    for word in &mut open[at + 3..at + 7] {
        *word = 0x4141_4141;
    }
    refused(&open, "its text does not end");
}

/// What a profile must have for a capability.
type Switch = fn(&mut Profile) -> &mut bool;

const OFFERED: &[(&str, Switch)] = &[
    ("Int8", |p| &mut p.int_8),
    ("Int16", |p| &mut p.int_16),
    ("Int64", |p| &mut p.int_64),
    ("Float16", |p| &mut p.float_16),
    ("Float64", |p| &mut p.float_64),
    ("Int64Atomics", |p| &mut p.atomic_64),
    ("StorageBuffer8BitAccess", |p| &mut p.storage_8),
    ("UniformAndStorageBuffer8BitAccess", |p| &mut p.uniform_8),
    ("StoragePushConstant8", |p| &mut p.push_8),
    ("StorageBuffer16BitAccess", |p| &mut p.storage_16),
    ("UniformAndStorageBuffer16BitAccess", |p| &mut p.uniform_16),
    ("StoragePushConstant16", |p| &mut p.push_16),
    ("VulkanMemoryModel", |p| &mut p.memory_model),
    ("VulkanMemoryModelDeviceScope", |p| &mut p.memory_model_device),
    ("DotProduct", |p| &mut p.integer_dot),
    ("DotProductInputAll", |p| &mut p.integer_dot),
    ("DotProductInput4x8Bit", |p| &mut p.integer_dot),
    ("DotProductInput4x8BitPacked", |p| &mut p.integer_dot),
    ("StorageBufferArrayDynamicIndexing", |p| &mut p.buffer_arrays),
    ("UniformBufferArrayDynamicIndexing", |p| &mut p.buffer_arrays),
    ("GroupNonUniform", |p| &mut p.subgroup.basic),
    ("GroupNonUniformVote", |p| &mut p.subgroup.vote),
    ("GroupNonUniformArithmetic", |p| &mut p.subgroup.arithmetic),
    ("GroupNonUniformBallot", |p| &mut p.subgroup.ballot),
    ("GroupNonUniformShuffle", |p| &mut p.subgroup.shuffle),
    ("GroupNonUniformShuffleRelative", |p| &mut p.subgroup.shuffle_relative),
    ("GroupNonUniformClustered", |p| &mut p.subgroup.clustered),
    ("GroupNonUniformQuad", |p| &mut p.subgroup.quad),
    ("6912", |p| &mut p.mixed_dot),
];

#[test]
fn a_capability_is_offered_where_the_device_has_its_feature() {
    for (name, switch) in OFFERED {
        let mut text = kernel(&format!("OpCapability {name}"), "", "", "OpReturn");
        if *name == "VulkanMemoryModel" {
            text = text.replace("OpMemoryModel 0 1", "OpMemoryModel 0 3");
        }
        let mut only = Profile::default();
        *switch(&mut only) = true;
        assert!(pass_for(&only, &text).is_ok(), "{name}: {:?}", pass_for(&only, &text));
        let mut but = Profile::ALL;
        *switch(&mut but) = false;
        let error = pass_for(&but, &text).expect_err(name).to_string();
        assert!(error.contains("this device does not offer the capability"), "{error}");
    }
    for always in ["Shader", "Matrix"] {
        assert!(
            pass_for(&Profile::default(), &kernel(&format!("OpCapability {always}"), "", "", "OpReturn"))
                .is_ok()
        );
    }
    let unknown = pass(&kernel("OpCapability 60000", "", "", "OpReturn")).unwrap_err().to_string();
    assert!(unknown.contains("the capability 60000 is not offered to kernels"), "{unknown}");
}

#[test]
fn a_capability_brings_those_that_it_implies() {
    let sixteen = |class: &str, capability: &str| {
        kernel(
            &format!("OpCapability {capability}"),
            "OpDecorate %half Block\nOpMemberDecorate %half 0 Offset 0\nOpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4",
            &format!(
                "%short = OpTypeInt 16 0\n%half = OpTypeStruct %short\n%pp = OpTypePointer {class} %half\n%p = OpVariable %pp {class}"
            ),
            "OpReturn",
        )
    };
    assert!(pass(&sixteen("StorageBuffer", "UniformAndStorageBuffer16BitAccess")).is_ok());
    breaks(
        &sixteen("StorageBuffer", "StorageBuffer16BitAccess"),
        &[("StorageBuffer16BitAccess", "StoragePushConstant16", "8 or 16 bits in this kind of buffer")],
    );
    breaks(
        &sixteen("Uniform", "UniformAndStorageBuffer16BitAccess"),
        &[(
            "UniformAndStorageBuffer16BitAccess",
            "StorageBuffer16BitAccess",
            "8 or 16 bits in this kind of buffer",
        )],
    );
    let eight =
        |class: &str, capability: &str| sixteen(class, capability).replace("OpTypeInt 16", "OpTypeInt 8");
    assert!(pass(&eight("StorageBuffer", "UniformAndStorageBuffer8BitAccess")).is_ok());
    breaks(
        &eight("StorageBuffer", "StorageBuffer8BitAccess"),
        &[("StorageBuffer8BitAccess", "StoragePushConstant8", "8 or 16 bits in this kind of buffer")],
    );
    breaks(
        &eight("Uniform", "UniformAndStorageBuffer8BitAccess"),
        &[(
            "UniformAndStorageBuffer8BitAccess",
            "StorageBuffer8BitAccess",
            "8 or 16 bits in this kind of buffer",
        )],
    );
    // What may be computed with may lie in buffers, where the device has that.
    let (no_8, no_16) = (
        Profile { storage_8: false, uniform_8: false, ..Profile::ALL },
        Profile { storage_16: false, uniform_16: false, ..Profile::ALL },
    );
    for class in ["StorageBuffer", "Uniform"] {
        let half = sixteen(class, "Float16").replace("OpTypeInt 16 0", "OpTypeFloat 16");
        for (text, without) in
            [(eight(class, "Int8"), &no_8), (sixteen(class, "Int16"), &no_16), (half, &no_16)]
        {
            assert!(pass(&text).is_ok(), "{text}: {:?}", pass(&text).map(|_| ()));
            let refused = pass_for(without, &text).unwrap_err().to_string();
            assert!(refused.contains("8 or 16 bits in this kind of buffer"), "{refused}");
        }
    }
    let pushed = |text: String| text.replace("OpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4", "");
    breaks(
        &pushed(eight("PushConstant", "StoragePushConstant8")),
        &[(
            "StoragePushConstant8",
            "UniformAndStorageBuffer8BitAccess",
            "8 or 16 bits in this kind of buffer",
        )],
    );
    breaks(
        &pushed(sixteen("PushConstant", "StoragePushConstant16")),
        &[(
            "StoragePushConstant16",
            "UniformAndStorageBuffer16BitAccess",
            "8 or 16 bits in this kind of buffer",
        )],
    );
    let half =
        |capability: &str| sixteen("StorageBuffer", capability).replace("OpTypeInt 16 0", "OpTypeFloat 16");
    breaks(
        &half("StorageBuffer16BitAccess"),
        &[("StorageBuffer16BitAccess", "StoragePushConstant16", "8 or 16 bits in this kind of buffer")],
    );
    // Every group of subgroup operations has the basic ones.
    for group in ["Vote", "Arithmetic", "Ballot", "Shuffle", "ShuffleRelative", "Clustered", "Quad"] {
        let text = kernel(
            &format!("OpCapability GroupNonUniform{group}"),
            "",
            "%3 = OpConstant %uint 3",
            "%e = OpGroupNonUniformElect %bool %3\nOpReturn",
        );
        assert!(pass(&text).is_ok(), "{group}: {:?}", pass(&text));
    }
    breaks(
        &kernel(
            "OpCapability GroupNonUniform",
            "",
            "%3 = OpConstant %uint 3",
            "%e = OpGroupNonUniformElect %bool %3\nOpReturn",
        ),
        &[("OpCapability GroupNonUniform", "", "the capability GroupNonUniform is not declared")],
    );
    let packed = kernel(
        "OpCapability DotProductInput4x8Bit",
        "",
        "%byte = OpTypeInt 8 0\n%b1 = OpConstant %byte 1",
        "%c = OpIAdd %byte %b1 %b1\nOpReturn",
    );
    assert!(pass(&packed).is_ok(), "{:?}", pass(&packed));
    // The result has it in the way that validators ask for products of two and three bytes.
    let words = pass(&packed).unwrap().words;
    for wanted in [Capability::DotProductInput4x8Bit, Capability::DotProductInputAll] {
        assert!(all(&words, Op::Capability).contains(&vec![wanted as u32]), "{wanted:?}");
    }
}

#[test]
fn subgroup_operations_on_wide_values_need_their_feature() {
    let narrow = Profile { subgroup: Subgroup { extended: false, ..Profile::ALL.subgroup }, ..Profile::ALL };
    let text = |line: &str| {
        kernel(
            "OpCapability Int64\nOpCapability GroupNonUniformVote\nOpCapability GroupNonUniformQuad\nOpCapability GroupNonUniformBallot",
            "",
            "%ulong = OpTypeInt 64 0\n%3 = OpConstant %uint 3\n%wide = OpConstant %ulong 1 0",
            &format!("{line}\nOpReturn"),
        )
    };
    for (line, fits) in [
        ("%e = OpGroupNonUniformElect %bool %3", true),
        ("%e = OpGroupNonUniformAllEqual %bool %3 %7", true),
        ("%e = OpGroupNonUniformAllEqual %bool %3 %wide", false),
        ("%e = OpGroupNonUniformAllEqual %bool %3 %true", true),
        ("%e = OpGroupNonUniformBroadcastFirst %ulong %3 %wide", false),
        ("%e = OpGroupNonUniformBroadcastFirst %uint %3 %7", true),
        ("%e = OpGroupNonUniformQuadSwap %ulong %3 %wide %1", false),
        ("%e = OpIAdd %ulong %wide %wide", true),
    ] {
        assert!(pass(&text(line)).is_ok(), "{line}: {:?}", pass(&text(line)));
        assert_eq!(pass_for(&narrow, &text(line)).is_ok(), fits, "{line}");
    }
}

#[test]
fn the_mixed_dot_product_needs_its_capability() {
    let text = |capability: &str| {
        kernel(
            &format!("OpCapability Float16\n{capability}"),
            "",
            "%half = OpTypeFloat 16\n%half2 = OpTypeVector %half 2\n%h = OpUndef %half2\n%fz = OpConstant %float 0",
            "%d = OpBitCount %float %h %h %fz\nOpReturn",
        )
    };
    let words = |capability: &str| {
        let mut words = assemble(3, &text(capability));
        let first = words.iter_mut().find(|word| **word == 6 << 16 | Op::BitCount as u32).unwrap();
        *first = 6 << 16 | 6916;
        words
    };
    let shader = guarded(&words("OpCapability 6912")).unwrap();
    assert_eq!(all(&shader.words, Op::Extension).len(), 1, "the result names its extension");
    assert!(shader.words.contains(&(6 << 16 | 6916)), "and has the product");
    refused(&words(""), "its capability is not declared");
}

#[test]
fn parts_of_a_module_stand_in_order() {
    breaks(
        &empty(),
        &[
            ("OpMemoryModel 0 1", "", "it has no memory model"),
            ("OpMemoryModel 0 1", "OpMemoryModel 0 1\nOpMemoryModel 0 1", "there is one already"),
            ("OpMemoryModel 0 1", "OpMemoryModel 1 1", "logical addressing"),
            ("OpMemoryModel 0 1", "OpMemoryModel 0 0", "neither GLSL450 nor Vulkan"),
            ("OpMemoryModel 0 1", "OpMemoryModel 0 3", "neither GLSL450 nor Vulkan"),
            ("OpMemoryModel 0 1", "OpMemoryModel 0 1 1", "too few or too many operands"),
            ("OpMemoryModel 0 1", "OpMemoryModel 0 1\nOpCapability Shader", "it comes after MemoryModel"),
            ("OpCapability Shader", "OpCapability Matrix", "the capability Shader is not declared"),
            ("OpCapability Shader", "OpCapability Shader 1", "too few or too many operands"),
            (
                "%void = OpTypeVoid",
                "%void = OpTypeVoid\nOpDecorate %o NonWritable",
                "it comes after Declarations",
            ),
            ("%void = OpTypeVoid", "OpNop\n%void = OpTypeVoid", "it may not stand before the functions"),
            ("%void = OpTypeVoid", "OpReturn\n%void = OpTypeVoid", "it may not stand before the functions"),
        ],
    );
    let vulkan = kernel("OpCapability VulkanMemoryModel", "", "", "OpReturn")
        .replace("OpMemoryModel 0 1", "OpMemoryModel 0 3");
    breaks(&vulkan, &[("OpMemoryModel 0 3", "OpMemoryModel 0 1", "neither GLSL450 nor Vulkan")]);
    let good = empty();
    let (declarations, _) = good.split_once("%main = OpFunction").unwrap();
    refused(&assemble(3, declarations), "it has no function");
    let none = good
        .replace("OpEntryPoint 5 %main \"work\" %id %groups", "")
        .replace("OpExecutionMode %main LocalSize 8 4 2", "");
    refused(&assemble(3, &none), "it has no entry point");
}

#[test]
fn capabilities_are_not_declared_over_and_over() {
    // With what Shader implies: two each.
    let many = |count: usize| empty().replace("OpCapability Shader", &"OpCapability Shader\n".repeat(count));
    let shader = pass(&many(64)).unwrap();
    assert_eq!(all(&shader.words, Op::Capability).len(), 1);
    let error = pass(&many(65)).unwrap_err().to_string();
    assert!(error.contains("over and over"), "{error}");
}

#[test]
fn extensions_add_nothing_by_their_names_and_instruction_sets_are_those_of_the_list() {
    let with = |line: &str| empty().replace("%glsl =", &format!("{line}\n%glsl ="));
    for name in [
        "SPV_KHR_storage_buffer_storage_class",
        "SPV_KHR_8bit_storage",
        "SPV_KHR_16bit_storage",
        "SPV_KHR_vulkan_memory_model",
        "SPV_KHR_integer_dot_product",
        "SPV_VALVE_mixed_float_dot_product",
        "SPV_KHR_non_semantic_info",
        "SPV_GOOGLE_decorate_string",
        "SPV_GOOGLE_hlsl_functionality1",
        "SPV_GOOGLE_user_type",
        "SPV_KHR_variable_pointers",
        "SPV_KHR_relaxed_extended_instruction",
        "SPV_NOBODY_knows",
    ] {
        let shader = pass(&with(&format!("OpExtension \"{name}\""))).unwrap();
        assert!(all(&shader.words, Op::Extension).is_empty(), "{name} adds nothing here");
    }
    breaks(
        &with("OpExtension \"SPV_KHR_8bit_storage\""),
        &[("8bit_storage\"", "8bit_storage\" 0", "too few or too many operands")],
    );
    breaks(
        &empty(),
        &[
            ("GLSL.std.450", "OpenCL.std", "the instruction set `OpenCL.std` is not offered"),
            ("GLSL.std.450\"", "GLSL.std.450\" 0", "too few or too many operands"),
        ],
    );
    for (capability, name) in [
        ("StorageBuffer8BitAccess", Some("SPV_KHR_8bit_storage")),
        ("UniformAndStorageBuffer8BitAccess", Some("SPV_KHR_8bit_storage")),
        ("StoragePushConstant8", Some("SPV_KHR_8bit_storage")),
        ("DotProduct", Some("SPV_KHR_integer_dot_product")),
        ("DotProductInput4x8BitPacked", Some("SPV_KHR_integer_dot_product")),
        ("Int8", None),
    ] {
        let words = pass(&kernel(
            &format!("OpCapability {capability}\nOpCapability {capability}"),
            "",
            "",
            "OpReturn",
        ))
        .unwrap()
        .words;
        let named: Vec<String> = all(&words, Op::Extension).iter().map(|words| text_of(words)).collect();
        assert_eq!(named, name.into_iter().collect::<Vec<_>>(), "{capability}");
        assert_eq!(all(&words, Op::Capability).len(), 2, "each once");
    }
    let both = kernel(
        "OpCapability VulkanMemoryModel\nOpCapability VulkanMemoryModelDeviceScope",
        "",
        "",
        "OpReturn",
    );
    let words = pass(&both.replace("OpMemoryModel 0 1", "OpMemoryModel 0 3")).unwrap().words;
    assert_eq!(all(&words, Op::Extension).len(), 1, "once for both");
    assert_eq!(text_of(&all(&words, Op::Extension)[0]), "SPV_KHR_vulkan_memory_model");
}

/// The text that these words hold.
fn text_of(words: &[u32]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn an_entry_point_is_one_kernel_with_one_local_size() {
    breaks(
        &empty(),
        &[
            ("OpEntryPoint 5", "OpEntryPoint 4", "entry point `work` is none of a compute kernel"),
            (
                "OpEntryPoint 5 %main \"work\" %id %groups",
                "OpEntryPoint 5 %main \"work\" %id %groups\nOpEntryPoint 5 %main \"work\"",
                "the same name",
            ),
            ("%id %groups", "%id %id", "is named twice"),
            ("%id %groups", "%id %uint", "is no variable of it"),
            ("%id %groups", "%id %o", "is no variable of it"),
            ("%id %groups", "%groups", "does not name input"),
            ("OpEntryPoint 5 %main", "OpEntryPoint 5 %uint", "it is of no entry point"),
            ("OpExecutionMode %main LocalSize 8 4 2", "", "its local size is not said"),
            ("LocalSize 8 4 2", "LocalSize 8 4", "too few or too many operands"),
            ("LocalSize 8 4 2", "LocalSize 8 4 2 1", "too few or too many operands"),
            ("LocalSize 8 4 2", "LocalSize 8 0 2", "its local size is not said, 0"),
            ("LocalSize 8 4 2", "LocalSizeHint 8 4 2", "execution modes other than the local size"),
            ("OpExecutionMode %main LocalSize", "OpExecutionMode %uint LocalSize", "it is of no entry point"),
            (
                "OpExecutionMode %main LocalSize 8 4 2",
                "OpExecutionMode %main LocalSize 8 4 2\nOpExecutionMode %main LocalSize 8 4 2",
                "said twice",
            ),
        ],
    );
    let known = empty()
        .replace("OpExecutionMode %main LocalSize 8 4 2", "OpExecutionModeId %main LocalSizeId %7 %4 %1");
    assert_eq!(pass(&known).unwrap().workgroup, [7, 4, 1]);
    breaks(
        &known,
        &[
            ("LocalSizeId %7", "LocalSizeId %true", "not known before it runs"),
            ("LocalSizeId %7", "LocalSizeId %0", "its local size is not said, 0"),
            (
                "OpExecutionModeId %main LocalSizeId",
                "OpExecutionModeId %main LocalSize",
                "execution modes other than the local size",
            ),
            (
                "OpExecutionModeId %main LocalSizeId",
                "OpExecutionMode %main LocalSizeId",
                "execution modes other than the local size",
            ),
        ],
    );
    let many = |count: usize| {
        let more: String = (0..count).map(|n| format!("OpEntryPoint 5 %main \"e{n}\"\n")).collect();
        empty().replace("OpEntryPoint", &format!("{more}OpEntryPoint"))
    };
    let wish = |entry| Wish { profile: &Profile::ALL, entry, constants: &[], rename: "main", grid: GRID };
    assert!(whole(&assemble(3, &many(255)), &wish(Some("work"))).is_ok());
    let error = whole(&assemble(3, &many(256)), &wish(Some("work"))).unwrap_err().to_string();
    assert!(error.contains("more than 256"), "{error}");
    let two = assemble(3, &many(1));
    assert!(whole(&two, &wish(Some("e0"))).is_err(), "its interface does not name its inputs");
    for entry in [None, Some("other")] {
        let error = whole(&two, &wish(entry)).unwrap_err();
        let choices = vec!["e0".to_owned(), "work".to_owned()];
        assert_eq!(error, Refusal::Entry { asked: entry.map(str::to_owned), choices });
    }
}

#[test]
fn a_local_size_may_be_a_constant_that_is_built_in() {
    let text = kernel(
        "",
        "OpDecorate %size BuiltIn WorkgroupSize",
        "%size = OpConstantComposite %uint3 %7 %4 %1",
        "OpReturn",
    );
    assert_eq!(pass(&text).unwrap().workgroup, [7, 4, 1]);
    breaks(
        &text,
        &[
            ("%7 %4 %1", "%7 %4 %0", "its local size is not said, 0"),
            ("OpConstantComposite %uint3 %7 %4 %1", "OpUndef %uint3", "BuiltIn does not belong on"),
            ("BuiltIn WorkgroupSize", "BuiltIn WorkgroupId", "BuiltIn does not belong on"),
            (
                "%size = OpConstantComposite %uint3 %7 %4 %1",
                "%uint2 = OpTypeVector %uint 2\n%size = OpConstantComposite %uint2 %7 %4",
                "BuiltIn does not belong on",
            ),
            (
                "%size = OpConstantComposite %uint3 %7 %4 %1",
                "%f1 = OpConstant %float 1\n%float3 = OpTypeVector %float 3\n%size = OpConstantComposite %float3 %f1 %f1 %f1",
                "BuiltIn does not belong on",
            ),
        ],
    );
}

#[test]
fn debug_information_is_left_out() {
    let text = plain("OpLine %file 1 2\n%y = OpIAdd %uint %x %x\nOpNoLine\n%note = OpExtInst %void %debug 1 %file %0")
        .replace("%glsl =", "%debug = OpExtInstImport \"NonSemantic.Shader.DebugInfo.100\"\n%glsl =")
        .replace("OpDecorate %id", "%file = OpString \"kernel.comp\"\nOpSource 2 450 %file\nOpSourceExtension \"X\"\nOpSourceContinued \"Y\"\nOpName %o \"out\"\nOpMemberName %block 0 \"words\"\nOpModuleProcessed \"by\"\nOpDecorate %id")
        .replace("%void = OpTypeVoid", "OpDecorateString %o UserTypeGOOGLE \"t\"\nOpMemberDecorateString %block 0 UserTypeGOOGLE \"t\"\n%void = OpTypeVoid\n%info = OpExtInst %void %debug 2 %file")
        .replace("UserTypeGOOGLE", "5636")
        .replace("%main = OpFunction", "OpLine %file 3 4\n%main = OpFunction");
    let shader = pass(&text).unwrap();
    let debug = [
        Op::String,
        Op::Source,
        Op::SourceExtension,
        Op::SourceContinued,
        Op::Name,
        Op::MemberName,
        Op::ModuleProcessed,
        Op::Line,
        Op::NoLine,
        Op::DecorateString,
        Op::MemberDecorateString,
        Op::ExtInst,
    ];
    for op in debug {
        assert!(all(&shader.words, op).is_empty(), "{op:?}");
    }
    assert_eq!(all(&shader.words, Op::ExtInstImport).len(), 1);
    assert_eq!(shader.bindings[0].name, "out");
    breaks(
        &text,
        &[
            (
                "OpExtInst %void %debug 2",
                "OpExtInst %void %glsl 2",
                "it is of no instruction set that may be used here",
            ),
            (
                "OpExtInst %void %debug 1",
                "OpExtInst %void %void 1",
                "it is of no instruction set that may be used here",
            ),
            ("OpNoLine", "OpName %o \"x\"", "it may not stand in a function"),
        ],
    );
    breaks(
        &text,
        &[(
            "%file = OpString \"kernel.comp\"",
            "%file = OpString \"a\"\n%file = OpString \"b\"",
            "is defined twice",
        )],
    );
    let lines = text
        .replace("%start = OpLabel", "OpLine %file 5 6\n%start = OpLabel")
        .replace("OpFunctionEnd", "OpFunctionEnd\nOpNoLine");
    assert!(pass(&lines).is_ok(), "{:?}", pass(&lines));
    let named = |name: &str| pass(&text.replace("OpName %o \"out\"", name)).unwrap().bindings[0].name.clone();
    assert_eq!(named("OpName %block \"Words\""), "Words", "by its type");
    assert_eq!(named("OpName %o \"\"\nOpName %block \"Words\""), "Words");
    assert_eq!(named(&format!("OpName %o \"{}\"", "n".repeat(70))), "n".repeat(64));
    assert!(named("").starts_with('%'), "its id");
}
