//! What no kernel reaches is left out of a module before it is judged.

use spirv::Op;

use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::STORE;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::says;

fn reached(text: &str, entry: Option<&str>) -> Result<Shader, Refusal> {
    guard(
        &assemble(3, text),
        &Wish { profile: &Profile::ALL, entry, constants: &[], rename: "main", grid: GRID },
    )
}

fn passes(text: &str, entry: Option<&str>) -> Shader {
    reached(text, entry).unwrap_or_else(|why| panic!("{text}\n{why}"))
}

/// A kernel called `work`, and a vertex shader of the same name or another, which writes an output.
fn with_vertex_shader(name: &str) -> String {
    plain("%y = OpIAdd %uint %x %x")
        .replace("OpExecutionMode", &format!("OpEntryPoint 0 %vertex \"{name}\" %position\nOpExecutionMode"))
        .replace("%void = ", "OpDecorate %position BuiltIn Position\nOpDecorate %sum NoContraction\n%void = ")
        .replace(
            "%main = ",
            "%float4 = OpTypeVector %float 4
             %output = OpTypePointer Output %float4
             %position = OpVariable %output Output
             %half = OpConstant %float 1056964608
             %vertex = OpFunction %void 0 %f
             %first = OpLabel
             %sum = OpFAdd %float %half %half
             %all = OpCompositeConstruct %float4 %sum %sum %sum %sum
             OpStore %position %all
             OpReturn
             OpFunctionEnd
             %main = ",
        )
}

#[test]
fn shaders_of_other_stages_are_left_out_with_what_is_theirs() {
    for name in ["other", "work"] {
        let text = with_vertex_shader(name);
        for entry in [None, Some("work")] {
            let words = passes(&text, entry).words;
            assert_eq!((all(&words, Op::Function).len(), all(&words, Op::FAdd).len()), (1, 0));
        }
        says(&text, "is none of a compute kernel");
    }
    let refused = reached(&with_vertex_shader("other"), Some("other")).unwrap_err();
    let Refusal::Entry { asked, choices } = refused else { panic!("{refused}") };
    assert_eq!((asked.as_deref(), choices), (Some("other"), vec!["work".to_owned()]));
    let alone = with_vertex_shader("other").replace("OpEntryPoint 5", "OpEntryPoint 4");
    assert!(reached(&alone, None).unwrap_err().to_string().contains("is none of a compute kernel"));
}

#[test]
fn of_kernels_that_are_not_asked_for_nothing_is_judged() {
    let text = plain("%y = OpIAdd %uint %x %x").replace(
        "OpExecutionMode",
        "OpEntryPoint 5 %bad \"bad\" %id\nOpExecutionMode %bad LocalSize 1 1 1\nOpExecutionMode",
    );
    let text = format!(
        "{text}\n%bad = OpFunction %void 0 %f\n%only = OpLabel\n%z = OpFAdd %float %0 %0\nOpReturn\nOpFunctionEnd"
    );
    assert_eq!(all(&passes(&text, Some("work")).words, Op::Function).len(), 1);
    for entry in [None, Some("bad")] {
        assert!(reached(&text, entry).is_err(), "{entry:?}");
    }
    // Modes of what is no entry point are refused, as those of the kernel are.
    let stray = plain("%y = OpIAdd %uint %x %x")
        .replace("OpExecutionMode %main", "OpExecutionMode %x LocalSize 1 1 1\nOpExecutionMode %main");
    assert!(reached(&stray, None).unwrap_err().to_string().contains("it is of no entry point"));
}

#[test]
fn what_is_declared_and_not_used_need_not_be_offered() {
    let declared = "%image = OpTypeImage %float 1 0 0 0 1 0
         %sampler = OpTypeSampler
         %both = OpTypeSampledImage %image
         %out = OpTypePointer Output %float
         %function = OpTypePointer Function %uint
         %null = OpConstantNull %function
         %written = OpVariable %out Output";
    let text = kernel("", "", declared, &format!("%y = OpIAdd %uint %x %x\n{STORE}"));
    let words = passes(&text, None).words;
    assert!(all(&words, Op::TypeImage).is_empty() && all(&words, Op::ConstantNull).is_empty());
    let used = text.replace("%y = ", "%float_y = OpLoad %float %written\n%y = ");
    assert!(reached(&used, None).unwrap_err().to_string().contains("pointers into this storage class"));
    let named = text.replace("\"work\" %id %groups", "\"work\" %id %groups %written");
    assert!(reached(&named, None).unwrap_err().to_string().contains("pointers into this storage class"));
}

#[test]
fn what_is_reached_without_being_named_by_an_instruction_of_a_kernel_stays() {
    let size = "OpDecorate %size BuiltIn WorkgroupSize";
    let text = kernel(
        "",
        size,
        "%size = OpConstantComposite %uint3 %7 %4 %1",
        &format!("%y = OpIAdd %uint %x %x\n{STORE}"),
    );
    assert_eq!(passes(&text, None).workgroup, [7, 4, 1]);
    // By the operand of a mode, of a decoration, of a constant, through a call, and through two.
    let text = kernel(
        "",
        "OpDecorate %wide SpecId 3\nOpDecorateId %x UniformId %3",
        "%3 = OpConstant %uint 3\n%only = OpConstant %uint 5\n%wide = OpSpecConstant %uint 2\n%twice = OpSpecConstantOp %uint IAdd %wide %1\n%back = OpTypeFunction %uint",
        &format!("%y = OpFunctionCall %uint %outer\n{STORE}"),
    )
    .replace("OpExecutionMode %main LocalSize 8 4 2", "OpExecutionModeId %main LocalSizeId %only %1 %1")
    .replace("\"work\" %id %groups", "\"work\" %id");
    let functions = "%outer = OpFunction %uint 0 %back
         %a = OpLabel
         %b = OpFunctionCall %uint %inner
         OpReturnValue %b
         OpFunctionEnd
         %inner = OpFunction %uint 0 %back
         %c = OpLabel
         OpReturnValue %twice
         OpFunctionEnd
         %never = OpFunction %uint 0 %back
         %d = OpLabel
         OpReturnValue %float
         OpFunctionEnd";
    let shader = passes(&format!("{text}\n{functions}"), None);
    assert_eq!((shader.workgroup, all(&shader.words, Op::Function).len()), ([5, 1, 1], 3));
}
