//! Types, variables and decorations: which may be declared, and what they need.

use crate::shader::profile::Profile;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::pass_for;
use crate::shader::tests::samples::says;

fn declared(capabilities: &str, declarations: &str) -> String {
    let capabilities: String =
        capabilities.split_whitespace().map(|name| format!("OpCapability {name}\n")).collect();
    kernel(&capabilities, "", declarations, "OpReturn")
}

#[test]
fn a_width_needs_one_of_its_capabilities() {
    for (declaration, capabilities, other) in [
        (
            "OpTypeInt 8 0",
            "Int8 StorageBuffer8BitAccess UniformAndStorageBuffer8BitAccess StoragePushConstant8",
            "Int16",
        ),
        (
            "OpTypeInt 16 1",
            "Int16 StorageBuffer16BitAccess UniformAndStorageBuffer16BitAccess StoragePushConstant16",
            "Float16",
        ),
        ("OpTypeInt 64 0", "Int64", "Float64"),
        (
            "OpTypeFloat 16",
            "Float16 StorageBuffer16BitAccess UniformAndStorageBuffer16BitAccess StoragePushConstant16",
            "Int16",
        ),
        ("OpTypeFloat 64", "Float64", "Int64"),
    ] {
        let declaration = format!("%t = {declaration}");
        for capability in capabilities.split_whitespace() {
            assert!(pass(&declared(capability, &declaration)).is_ok(), "{declaration} with {capability}");
        }
        says(&declared(other, &declaration), "need a capability that is not declared");
    }
    for bad in ["OpTypeInt 24 0", "OpTypeInt 8 2", "OpTypeFloat 8", "OpTypeFloat 128", "OpTypeInt 128 0"] {
        says(&declared("Int8", &format!("%t = {bad}")), "it is no width");
    }
}

#[test]
fn a_type_is_made_of_what_it_may_hold() {
    let good = declared(
        "Float64",
        "%int2 = OpTypeVector %int 2
         %float2 = OpTypeVector %float 2
         %m22 = OpTypeMatrix %float2 2
         %a4 = OpTypeArray %uint %4
         %r = OpTypeRuntimeArray %uint
         %s = OpTypeStruct %uint %r
         %several = OpTypeArray %s %4
         %pf = OpTypePointer Function %a4
         %fn = OpTypeFunction %uint %uint %pf",
    );
    let vector = "a vector has 2 to 4 components of a scalar type";
    let matrix = "a matrix has 2 to 4 columns of a float vector type";
    let length = "its length is not a known integer constant";
    let element = "its elements have no type that can be stored";
    let length_of_words = "too few or too many operands";
    breaks(
        &good,
        &[
            ("%int2 = OpTypeVector %int 2", "%int2 = OpTypeVector %int 1", vector),
            ("%int2 = OpTypeVector %int 2", "%int2 = OpTypeVector %int 5", vector),
            ("%int2 = OpTypeVector %int 2", "%int2 = OpTypeVector %uint3 2", vector),
            ("%int2 = OpTypeVector %int 2", "%int2 = OpTypeVector %int 2 2", length_of_words),
            ("OpTypeMatrix %float2 2", "OpTypeMatrix %float2 1", matrix),
            ("OpTypeMatrix %float2 2", "OpTypeMatrix %float2 5", matrix),
            ("OpTypeMatrix %float2 2", "OpTypeMatrix %int2 2", matrix),
            ("OpTypeMatrix %float2 2", "OpTypeMatrix %float 2", matrix),
            ("OpTypeMatrix %float2 2", "OpTypeMatrix %float2", length_of_words),
            ("OpTypeArray %uint %4", "OpTypeArray %uint %0", length),
            ("OpTypeArray %uint %4", "OpTypeArray %uint %true", length),
            ("OpTypeArray %uint %4", "OpTypeArray %uint %uint", length),
            ("OpTypeArray %uint %4", "OpTypeArray %void %4", element),
            ("OpTypeArray %uint %4", "OpTypeArray %words %4", element),
            ("OpTypeArray %uint %4", "OpTypeArray %uint %4 %4", length_of_words),
            ("OpTypeRuntimeArray %uint", "OpTypeRuntimeArray %void", element),
            ("OpTypeRuntimeArray %uint", "OpTypeRuntimeArray %words", element),
            ("OpTypeRuntimeArray %uint", "OpTypeRuntimeArray %uint %4", length_of_words),
            (
                "OpTypeStruct %uint %r",
                "OpTypeStruct %r %uint",
                "member 0 has no type that can be stored there",
            ),
            (
                "OpTypeStruct %uint %r",
                "OpTypeStruct %uint %void",
                "member 1 has no type that can be stored there",
            ),
            (
                "OpTypeStruct %uint %r",
                "OpTypeStruct %uint %block",
                "member 1 has no type that can be stored there",
            ),
            ("OpTypePointer Function %a4", "OpTypePointer Output %a4", "pointers into this storage class"),
            (
                "OpTypePointer Function %a4",
                "OpTypePointer Function %void",
                "it does not point to a type that can be stored",
            ),
            (
                "OpTypePointer Function %a4",
                "OpTypePointer Function %f",
                "it does not point to a type that can be stored",
            ),
            (
                "OpTypePointer Function %a4",
                "OpTypePointer Function %in3",
                "it does not point to a type that can be stored",
            ),
            (
                "OpTypePointer Function %a4",
                "OpTypePointer Function %0",
                "it does not point to a type that can be stored",
            ),
            ("OpTypePointer Function %a4", "OpTypePointer Function %a4 1", length_of_words),
            (
                "OpTypeFunction %uint %uint %pf",
                "OpTypeFunction %pf %uint %pf",
                "it returns or takes what no value can be",
            ),
            (
                "OpTypeFunction %uint %uint %pf",
                "OpTypeFunction %uint %void %pf",
                "it returns or takes what no value can be",
            ),
            (
                "OpTypeFunction %uint %uint %pf",
                "OpTypeFunction %words %uint %pf",
                "it returns or takes what no value can be",
            ),
            ("%int2 = OpTypeVector %int 2", "%int2 = OpTypeSampler", "types of this kind are not offered"),
            (
                "%int2 = OpTypeVector %int 2",
                "%i2 = OpTypeVector %int 2\n%int2 = OpTypeVector %int 2",
                "the same type is declared twice",
            ),
            (
                "%int2 = OpTypeVector %int 2",
                "%f2 = OpTypeFunction %void\n%int2 = OpTypeVector %int 2",
                "the same type is declared twice",
            ),
            ("OpTypeVoid", "OpTypeVoid 1", length_of_words),
            ("OpTypeBool", "OpTypeBool 1", length_of_words),
            ("OpTypeInt 32 0", "OpTypeInt 32 0 0", length_of_words),
            ("OpTypeFloat 32", "OpTypeFloat 32 0", length_of_words),
        ],
    );
    // What may be declared alike with other decorations.
    for again in [
        "OpTypeArray %uint %4",
        "OpTypeRuntimeArray %uint",
        "OpTypeStruct %uint %r",
        "OpTypePointer Function %a4",
    ] {
        let twice = good.replace("%fn = ", &format!("%again = {again}\n%fn = "));
        assert!(pass(&twice).is_ok(), "{again}: {:?}", pass(&twice));
    }
    for class in ["Input", "Uniform", "StorageBuffer", "PushConstant", "Workgroup", "Private", "Function"] {
        assert!(pass(&declared("", &format!("%p = OpTypePointer {class} %float"))).is_ok(), "{class}");
    }
    let parameters =
        |count: usize| declared("", &format!("%fn = OpTypeFunction %void {}", "%uint ".repeat(count)));
    assert!(pass(&parameters(253)).is_ok());
    says(&parameters(254), "it returns or takes what no value can be");
}

#[test]
fn a_negative_number_is_no_length() {
    let text = declared("Int8", "%sb = OpTypeInt 8 1\n%n = OpConstant %sb 100\n%a = OpTypeArray %uint %n");
    breaks(&text, &[("%sb 100", "%sb -1", "its length is not a known integer constant")]);
}

#[test]
fn types_are_bounded_in_depth_and_number() {
    let nested = |levels: u32| {
        let level = |n: u32| {
            format!(
                "%s{n} = OpTypeStruct %{}\n",
                if n == 0 { "uint".to_owned() } else { format!("s{}", n - 1) }
            )
        };
        declared("", &(0..levels).map(level).collect::<String>())
    };
    assert!(pass(&nested(32)).is_ok());
    says(&nested(33), "types nest deeper than 32");
    let arrays = |levels: u32| {
        let level = |n: u32| {
            format!(
                "%s{n} = OpTypeArray %{} %1\n",
                if n == 0 { "uint".to_owned() } else { format!("s{}", n - 1) }
            )
        };
        declared("", &(0..levels).map(level).collect::<String>())
    };
    assert!(pass(&arrays(32)).is_ok());
    says(&arrays(33), "types nest deeper than 32");
    says(
        &arrays(32).replace("%main = OpFunction", "%p = OpTypePointer Private %s31\n%main = OpFunction"),
        "types nest deeper than 32",
    );
    // The kernel itself has 13 of them.
    let many =
        |count: u32| declared("", &(0..count).map(|n| format!("%s{n} = OpTypeStruct\n")).collect::<String>());
    assert!(pass(&many(4096 - 13)).is_ok());
    says(&many(4096 - 12), "more than 4096 types");
    // Two words more than members are counted for each.
    let members = |last: usize| {
        let wide = format!("OpTypeStruct {}", "%uint ".repeat(1022));
        let all: String = (0..15).map(|n| format!("%s{n} = {wide}\n")).collect();
        declared("", &format!("{all}%last = OpTypeStruct {}", "%uint ".repeat(last)))
    };
    assert!(pass(&members(1024 - 2 - 3)).is_ok(), "with the 3 of the kernel");
    says(&members(1024 - 2 - 2), "structs have more than 16384 members in all");
    let wide = |count: usize| declared("", &format!("%s = OpTypeStruct {}", "%uint ".repeat(count)));
    assert!(pass(&wide(1022)).is_ok());
    says(&wide(1023), "too few or too many operands");
}

/// A variable of storage class `class` that holds a `Block` of one `ty`.
fn buffer(class: &str, ty: &str, decorations: &str) -> String {
    kernel(
        "",
        &format!(
            "OpDecorate %b Block\nOpMemberDecorate %b 0 Offset 0\nOpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4\n{decorations}"
        ),
        &format!("%b = OpTypeStruct {ty}\n%pb = OpTypePointer {class} %b\n%p = OpVariable %pb {class}"),
        "OpReturn",
    )
}

#[test]
fn a_buffer_is_a_block_with_a_place() {
    breaks(
        &buffer("StorageBuffer", "%uint", ""),
        &[
            ("OpDecorate %b Block", "", "it is no struct decorated as a block"),
            ("OpDecorate %b Block", "OpDecorate %b BufferBlock", "it is no struct decorated as a block"),
            ("OpDecorate %p DescriptorSet 0", "", "without a set or a binding"),
            ("OpDecorate %p Binding 4", "", "without a set or a binding"),
            ("OpTypeStruct %uint", "OpTypeStruct %bool", "there are no booleans in buffers"),
            ("OpMemberDecorate %b 0 Offset 0", "", "no offsets"),
            (
                "OpVariable %pb StorageBuffer",
                "OpVariable %pb Uniform",
                "its storage class is not that of its type",
            ),
            ("OpVariable %pb StorageBuffer", "OpVariable %uint StorageBuffer", "its type is not a pointer"),
            (
                "OpVariable %pb StorageBuffer",
                "OpVariable %pb StorageBuffer %0",
                "an initial value that variables of its class cannot have",
            ),
            (
                "OpVariable %pb StorageBuffer",
                "OpVariable %pb StorageBuffer %0 %0",
                "too few or too many operands",
            ),
        ],
    );
    let runtime = buffer("StorageBuffer", "%words", "");
    breaks(
        &runtime,
        &[(
            "StorageBuffer %b\n%p = OpVariable %pb StorageBuffer",
            "Uniform %b\n%p = OpVariable %pb Uniform",
            "an array without a length needs a storage buffer",
        )],
    );
    let old = runtime
        .replace(
            "StorageBuffer %b\n%p = OpVariable %pb StorageBuffer",
            "Uniform %b\n%p = OpVariable %pb Uniform",
        )
        .replace("OpDecorate %b Block", "OpDecorate %b BufferBlock");
    assert!(pass(&old).is_ok(), "{:?}", pass(&old));
    breaks(&old, &[("BufferBlock", "BufferBlock\nOpDecorate %b Block", "Block does not belong on")]);
    let several = buffer("StorageBuffer", "%uint", "").replace(
        "%pb = OpTypePointer StorageBuffer %b",
        "%bs = OpTypeArray %b %4\n%pb = OpTypePointer StorageBuffer %bs",
    );
    assert!(pass(&several).is_ok(), "{:?}", pass(&several));
    let push = buffer("PushConstant", "%uint", "")
        .replace("OpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4", "");
    breaks(
        &push,
        &[
            (
                "%pb = OpTypePointer PushConstant %b",
                "%bs = OpTypeArray %b %4\n%pb = OpTypePointer PushConstant %bs",
                "it is no struct decorated as a block",
            ),
            ("OpTypeStruct %uint", "OpTypeStruct %words", "an array without a length needs a storage buffer"),
            (
                "%void = OpTypeVoid",
                "OpDecorate %p Binding 1\n%void = OpTypeVoid",
                "Binding does not belong on",
            ),
        ],
    );
}

#[test]
fn small_members_of_an_old_storage_buffer_need_the_capability_of_storage_buffers() {
    let text = kernel(
        "OpCapability StorageBuffer8BitAccess",
        "OpDecorate %b BufferBlock
         OpMemberDecorate %b 0 Offset 0
         OpDecorate %p DescriptorSet 0
         OpDecorate %p Binding 4",
        "%byte = OpTypeInt 8 0
         %b = OpTypeStruct %byte
         %pb = OpTypePointer Uniform %b
         %p = OpVariable %pb Uniform",
        "OpReturn",
    );
    breaks(&text, &[("BufferBlock", "Block", "8 or 16 bits in this kind of buffer")]);
}

#[test]
fn values_without_the_capability_to_compute_are_only_stored_and_converted() {
    let with = |capability: &str, ty: &str, line: &str| {
        kernel(
            &format!(
                "OpCapability StorageBuffer8BitAccess\nOpCapability StorageBuffer16BitAccess\n{capability}"
            ),
            "",
            &format!("%small = {ty}"),
            &format!("{line}\nOpReturn"),
        )
    };
    for (capability, ty, convert, add) in [
        ("OpCapability Int8", "OpTypeInt 8 0", "%s = OpUConvert %small %x", "OpIAdd"),
        ("OpCapability Int16", "OpTypeInt 16 0", "%s = OpUConvert %small %x", "OpIAdd"),
        (
            "OpCapability Float16",
            "OpTypeFloat 16",
            "%wide = OpConvertUToF %float %x\n%s = OpFConvert %small %wide",
            "OpFAdd",
        ),
    ] {
        let line = format!("{convert}\n%r = {add} %small %s %s");
        assert!(pass(&with(capability, ty, &line)).is_ok(), "{ty}: {:?}", pass(&with(capability, ty, &line)));
        says(&with("", ty, &line), "can only be stored and converted");
        assert!(pass(&with("", ty, &format!("{convert}\n%r = OpCopyObject %small %s"))).is_ok(), "{ty}");
    }
}

#[test]
fn memory_of_workgroups_and_invocations_is_sized_and_may_be_computed_with() {
    let shared = |class: &str, ty: &str| {
        declared(
            "StorageBuffer8BitAccess StorageBuffer16BitAccess",
            &format!(
                "%byte = OpTypeInt 8 0\n%short = OpTypeInt 16 0\n%half = OpTypeFloat 16\n%p = OpTypePointer {class} {ty}\n%v = OpVariable %p {class}"
            ),
        )
    };
    for class in ["Workgroup", "Private"] {
        breaks(
            &shared(class, "%uint"),
            &[
                ("%uint\n%v", "%byte\n%v", "8 or 16 bits outside of buffers"),
                ("%uint\n%v", "%short\n%v", "8 or 16 bits outside of buffers"),
                ("%uint\n%v", "%half\n%v", "8 or 16 bits outside of buffers"),
                ("%uint\n%v", "%words\n%v", "an array without a length needs a buffer"),
            ],
        );
        for (capability, ty) in [("Int8", "%byte"), ("Int16", "%short"), ("Float16", "%half")] {
            let with = shared(class, ty)
                .replace("OpCapability Shader", &format!("OpCapability Shader\nOpCapability {capability}"));
            assert!(pass(&with).is_ok(), "{capability}");
        }
    }
    let initial = |class: &str| {
        declared(
            "",
            &format!(
                "%n = OpConstantNull %uint\n%u = OpUndef %uint\n%p = OpTypePointer {class} %uint\n%v = OpVariable %p {class} %n"
            ),
        )
    };
    let value = "an initial value that variables of its class cannot have";
    breaks(
        &initial("Private"),
        &[
            ("Private %n", "Private %true", value),
            ("Private %n", "Private %u", value),
            ("Private %n", "Private %groups", value),
        ],
    );
    assert!(pass(&initial("Private").replace("Private %n", "Private %7")).is_ok());
    breaks(
        &initial("Workgroup"),
        &[("Workgroup %n", "Workgroup %7", value), ("Workgroup %n", "Workgroup %true", value)],
    );
    let many = |count: u32| {
        declared(
            "",
            &format!(
                "%p = OpTypePointer Private %uint\n{}",
                (0..count).map(|n| format!("%v{n} = OpVariable %p Private\n")).collect::<String>()
            ),
        )
    };
    assert!(pass(&many(1021)).is_ok(), "with the 3 of the kernel");
    says(&many(1022), "more than 1024 variables");
    says(
        &declared("", "%p = OpTypePointer Function %uint\n%v = OpVariable %p Function"),
        "belongs in a function",
    );
}

#[test]
fn a_constant_and_what_is_undefined_can_be_computed_with() {
    for (storage, capability, ty) in [
        ("StorageBuffer8BitAccess", "Int8", "OpTypeInt 8 0"),
        ("StorageBuffer16BitAccess", "Int16", "OpTypeInt 16 0"),
        ("StorageBuffer16BitAccess", "Float16", "OpTypeFloat 16"),
    ] {
        for line in
            ["OpUndef %t", "OpConstantNull %t", "OpConstant %t 1", "OpSpecConstant %t 1", "OpUndef %v"]
        {
            let of = |capability: &str| {
                declared(capability, &format!("%t = {ty}\n%v = OpTypeVector %t 2\n%u = {line}"))
            };
            assert!(pass(&of(capability)).is_ok(), "{capability}, {line}: {:?}", pass(&of(capability)));
            says(&of(storage), "no constant has 8 or 16 bits without");
        }
    }
}

#[test]
fn a_local_variable_is_of_its_function_and_of_its_type() {
    let good = declared("StorageBuffer8BitAccess", "%byte = OpTypeInt 8 0\n%p = OpTypePointer Function %uint\n%pb = OpTypePointer Function %byte\n%pr = OpTypePointer Function %words\n%pp = OpTypePointer Private %uint")
        .replace("%start = OpLabel", "%start = OpLabel\n%v = OpVariable %p Function %7");
    breaks(
        &good,
        &[
            (
                "OpVariable %p Function %7",
                "OpVariable %p Private %7",
                "its storage class is not that of its type",
            ),
            ("OpVariable %p Function %7", "OpVariable %pp Function %7", "its storage class is not Function"),
            (
                "OpVariable %p Function %7",
                "OpVariable %p Function %true",
                "its initial value is no constant of its type",
            ),
            (
                "OpVariable %p Function %7",
                "OpVariable %p Function %id",
                "its initial value is no constant of its type",
            ),
            ("OpVariable %p Function %7", "OpVariable %p Function %7 %7", "too few or too many operands"),
            ("OpVariable %p Function %7", "OpVariable %pb Function", "8 or 16 bits outside of buffers"),
            (
                "OpVariable %p Function %7",
                "OpVariable %pr Function",
                "an array without a length needs a buffer",
            ),
            (
                "%x = OpLoad %uint %at",
                "%x = OpLoad %uint %at\n%w = OpVariable %p Function",
                "it must stand at the beginning of its block",
            ),
            (
                "%v = OpVariable %p Function %7",
                "OpBranch %next\n%next = OpLabel\n%v = OpVariable %p Function %7",
                "it must stand at the beginning of its block",
            ),
        ],
    );
}

#[test]
fn an_input_is_a_built_in_of_kernels_with_its_type() {
    let input = |name: &str, ty: &str, capabilities: &str| {
        let capabilities: String =
            capabilities.split_whitespace().map(|name| format!("OpCapability {name}\n")).collect();
        kernel(
            &capabilities,
            &format!("OpDecorate %v BuiltIn {name}"),
            &format!(
                "%uint4 = OpTypeVector %uint 4\n%int4 = OpTypeVector %int 4\n%float3 = OpTypeVector %float 3\n%p = OpTypePointer Input {ty}\n%v = OpVariable %p Input"
            ),
            "OpReturn",
        )
    };
    let basic = "GroupNonUniform";
    let ballot = "GroupNonUniformBallot";
    let all = ["%uint", "%int", "%uint3", "%uint4", "%float", "%float3", "%bool"];
    for (names, types, capability) in [
        ("NumWorkgroups WorkgroupId LocalInvocationId GlobalInvocationId", &["%uint3"][..], ""),
        ("LocalInvocationIndex", &["%uint", "%int"], ""),
        ("DeviceIndex", &["%uint", "%int"], "DeviceGroup"),
        ("SubgroupSize NumSubgroups SubgroupId SubgroupLocalInvocationId", &["%uint", "%int"], basic),
        (
            "SubgroupEqMask SubgroupGeMask SubgroupGtMask SubgroupLeMask SubgroupLtMask",
            &["%uint4", "%int4"],
            ballot,
        ),
        ("Position FragCoord WorkgroupSize 99999", &[], ballot),
    ] {
        for name in names.split_whitespace() {
            for ty in all {
                let text = input(name, ty, capability);
                let text = if ["%uint", "%uint3"].contains(&ty) {
                    text.replace("%p = OpTypePointer Input %uint\n", "")
                        .replace("%p = OpTypePointer Input %uint3\n", "")
                        .replace(
                            "%v = OpVariable %p",
                            if ty == "%uint" { "%v = OpVariable %in1" } else { "%v = OpVariable %in3" },
                        )
                } else {
                    text
                };
                assert_eq!(
                    pass(&text).is_ok(),
                    types.contains(&ty),
                    "{name} {ty}: {:?}",
                    pass(&text).map(|_| ())
                );
            }
            let with =
                |capability: &str| pass(&input(name, types.last().unwrap_or(&"%int"), capability)).is_ok();
            assert!(capability.is_empty() || !with(""), "{name} needs {capability}");
            assert!(capability != ballot || !with(basic), "{name} needs {capability}");
        }
    }
    breaks(
        &input("LocalInvocationIndex", "%int", ""),
        &[
            (
                "OpDecorate %v BuiltIn LocalInvocationIndex",
                "",
                "it is an input that compute kernels do not have",
            ),
            (
                "OpDecorate %v BuiltIn LocalInvocationIndex",
                "OpDecorate %v Binding 1",
                "Binding does not belong on",
            ),
        ],
    );
}

#[test]
fn a_decoration_stands_where_it_belongs() {
    let good = kernel(
        "",
        "OpMemberDecorate %b 0 Offset 0\nOpMemberDecorate %b 0 ColMajor\nOpMemberDecorate %b 0 MatrixStride 16\nOpMemberDecorate %b 1 Offset 64\nOpDecorate %b Block\nOpDecorate %p DescriptorSet 0\nOpDecorate %p Binding 4\nOpDecorate %xx NoContraction",
        "%float4 = OpTypeVector %float 4\n%m = OpTypeMatrix %float4 4\n%b = OpTypeStruct %m %uint\n%pb = OpTypePointer StorageBuffer %b\n%p = OpVariable %pb StorageBuffer\n%private = OpTypePointer Private %uint\n%own = OpVariable %private Private",
        "%xx = OpIAdd %uint %x %x\nOpReturn",
    );
    let with = |line: &str| {
        good.replace("OpDecorate %xx NoContraction", &format!("OpDecorate %xx NoContraction\n{line}"))
    };
    for fits in [
        "OpDecorate %p NonWritable",
        "OpDecorate %p Restrict",
        "OpDecorate %p Aliased",
        "OpDecorate %p Coherent",
        "OpDecorate %p Volatile",
        "OpDecorate %p NonReadable",
        "OpMemberDecorate %b 1 NonWritable",
        "OpMemberDecorate %b 1 Coherent",
        "OpMemberDecorate %b 1 Volatile",
        "OpMemberDecorate %b 1 NonReadable",
        "OpDecorate %xx RelaxedPrecision",
        "OpDecorate %xx RelaxedPrecision\nOpDecorate %xx RelaxedPrecision",
        "OpDecorate %x Uniform",
        "OpDecorateId %x UniformId %1",
        "OpDecorate %x NonWritable",
        "OpDecorate %x Restrict",
        "OpDecorate %own Restrict",
        "OpDecorate %own Aliased",
        "OpDecorate %pb ArrayStride 4",
    ] {
        assert!(pass(&with(fits)).is_ok(), "{fits}: {:?}", pass(&with(fits)));
    }
    for (wrong, why) in [
        ("OpDecorate %own NonWritable", "NonWritable does not belong on"),
        ("OpDecorate %own Coherent", "Coherent does not belong on"),
        ("OpDecorate %uint Block", "Block does not belong on"),
        ("OpDecorate %own Block", "Block does not belong on"),
        ("OpDecorate %uint BufferBlock", "BufferBlock does not belong on"),
        ("OpMemberDecorate %b 0 Block", "Block does not belong on"),
        ("OpMemberDecorate %b 2 NonWritable", "NonWritable does not belong on"),
        ("OpMemberDecorate %b 1 RowMajor", "RowMajor does not belong on"),
        ("OpMemberDecorate %b 1 MatrixStride 16", "MatrixStride does not belong on"),
        ("OpMemberDecorate %b 1 ColMajor", "ColMajor does not belong on"),
        ("OpMemberDecorate %b 0 RowMajor", "no offsets and strides"),
        ("OpDecorate %b ArrayStride 4", "ArrayStride does not belong on"),
        ("OpDecorate %uint Binding 1", "Binding does not belong on"),
        ("OpDecorate %own DescriptorSet 1", "DescriptorSet does not belong on"),
        ("OpDecorate %b Offset 1", "Offset does not belong on"),
        ("OpDecorate %o BuiltIn WorkgroupId", "BuiltIn does not belong on"),
        ("OpDecorate %uint NoContraction", "NoContraction does not belong on"),
        ("OpDecorate %x NoContraction", "it stands on no arithmetic"),
        ("OpDecorate %main NoContraction", "it stands on no arithmetic"),
        ("OpMemberDecorate %xx 0 NoContraction", "it stands on no arithmetic"),
        ("OpDecorate %p Aliased\nOpDecorate %p Restrict", "Restrict does not belong on"),
        ("OpDecorate %p Binding 5", "Binding stands twice"),
        ("OpMemberDecorate %b 1 Offset 68", "Offset stands twice"),
        ("OpDecorate %p Location 1", "the decoration Location is not offered"),
        ("OpDecorate %p 99999", "there is no decoration 99999"),
        ("OpDecorate %p Restrict 1", "too few or too many operands"),
        ("OpDecorate %p Binding", "too few or too many operands"),
        ("OpDecorate %p", "too few or too many operands"),
        ("OpMemberDecorate %b 0", "too few or too many operands"),
        ("OpDecorate %x UniformId %1", "the decoration UniformId is not offered"),
        ("OpDecorateId %x Restrict", "the decoration Restrict is not offered"),
    ] {
        says(&with(wrong), why);
    }
    let once = pass(&good).unwrap().words;
    for same in [
        "OpDecorate %b Block",
        "OpDecorate %p Binding 4",
        "OpMemberDecorate %b 1 Offset 64",
        "OpDecorate %xx NoContraction",
    ] {
        assert_eq!(pass(&with(same)).map(|shader| shader.words), Ok(once.clone()), "{same} is said once");
    }
    // Compilers say it of what comes of specialisation constants, too: nothing of it is left.
    let of_constant = pass(&with("OpDecorate %1 NoContraction")).map(|shader| shader.words.len());
    assert_eq!(of_constant, Ok(once.len()));
    breaks(&good, &[("ArrayStride 4", "ArrayStride 0", "ArrayStride does not belong on")]);
    let vulkan = |line: &str| {
        with(line)
            .replace("OpMemoryModel 0 1", "OpMemoryModel 0 3")
            .replace("OpCapability Shader", "OpCapability Shader\nOpCapability VulkanMemoryModel")
    };
    assert!(pass(&vulkan("")).is_ok());
    for name in ["Coherent", "Volatile"] {
        says(&vulkan(&format!("OpDecorate %p {name}")), &format!("{name} does not belong on"));
        says(&vulkan(&format!("OpMemberDecorate %b 1 {name}")), &format!("{name} does not belong on"));
    }
    let many = |count: usize| with(&"OpDecorate %x RelaxedPrecision\n".repeat(count));
    let own = with("").matches("OpDecorate ").count() + with("").matches("OpMemberDecorate ").count();
    assert!(pass(&many(65536 - own)).is_ok());
    says(&many(65537 - own), "more than 65536 decorations");
    let plain = Profile::default();
    assert!(pass_for(&plain, &good).is_ok(), "matrices need no feature");
}

#[test]
fn only_arithmetic_may_be_kept_from_contraction() {
    let with = |line: &str| {
        kernel(
            "",
            "OpDecorate %y NoContraction",
            "%float2 = OpTypeVector %float 2\n%m = OpTypeMatrix %float2 2\n%mu = OpUndef %m\n%f2 = OpUndef %float2\n%f1 = OpConstant %float 1\n%pair = OpTypeStruct %uint %uint\n%ipair = OpTypeStruct %int %int\n%i1 = OpConstant %int 1",
            &format!("{line}\nOpReturn"),
        )
    };
    for line in [
        "FAdd %float %f1 %f1",
        "FSub %float %f1 %f1",
        "FMul %float %f1 %f1",
        "FDiv %float %f1 %f1",
        "FRem %float %f1 %f1",
        "FMod %float %f1 %f1",
        "FNegate %float %f1",
        "Dot %float %f2 %f2",
        "VectorTimesScalar %float2 %f2 %f1",
        "MatrixTimesScalar %m %mu %f1",
        "VectorTimesMatrix %float2 %f2 %mu",
        "MatrixTimesVector %float2 %mu %f2",
        "MatrixTimesMatrix %m %mu %mu",
        "OuterProduct %m %f2 %f2",
        "IAdd %uint %x %x",
        "ISub %uint %x %x",
        "IMul %uint %x %x",
        "UDiv %uint %x %x",
        "SDiv %uint %x %x",
        "UMod %uint %x %x",
        "SMod %uint %x %x",
        "SRem %uint %x %x",
        "SNegate %uint %x",
        "IAddCarry %pair %x %x",
        "ISubBorrow %pair %x %x",
        "UMulExtended %pair %x %x",
        "SMulExtended %ipair %i1 %i1",
        "ExtInst %float %glsl Fma %f1 %f1 %f1",
    ] {
        let text = with(&format!("%y = Op{line}"));
        assert!(pass(&text).is_ok(), "{line}: {:?}", pass(&text));
    }
    for line in ["BitwiseAnd %uint %x %x", "CopyObject %uint %x", "Not %uint %x"] {
        says(&with(&format!("%y = Op{line}")), "it stands on no arithmetic");
    }
}
