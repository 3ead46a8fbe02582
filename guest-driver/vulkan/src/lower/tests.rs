use std::collections::HashMap;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use ::spirv::Op;

use super::code::push;
use super::records::Images;
use super::records::Kind;
use super::write::Lowered;
use super::write::lowered;
use crate::spirv::instructions;

/// The words of a shader that the C programs beside this crate run, as the compiler wrote them.
pub(crate) fn shader(name: &str) -> Vec<u32> {
    let text = include_str!("../../tests/shaders/shaders.h");
    let array = text.split(&format!(" {name}_words[] = {{")).nth(1).unwrap().split("};").next().unwrap();
    let number = |word: &str| u32::from_str_radix(word.trim().strip_prefix("0x")?, 16).ok();
    array.split(',').filter_map(number).collect()
}

/// Checks a module by Khronos' tools, on machines that have them.
pub(crate) fn validate(words: &[u32]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lowered.spv");
    std::fs::write(&file, crate::spirv::bytes(words).collect::<Vec<u8>>()).unwrap();
    let Ok(output) = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "--scalar-block-layout"])
        .arg(&file)
        .output()
    else {
        return;
    };
    let text = Command::new("spirv-dis").arg(&file).output().map(|it| it.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&text));
}

fn lower(words: &[u32]) -> (Vec<u32>, Images) {
    let Lowered { words, images, left_out } = lowered(words).unwrap().unwrap();
    assert!(left_out.is_empty(), "{left_out:?}");
    validate(&words);
    (words, images)
}

/// How often each instruction is there.
fn counts(words: &[u32]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for (op, _) in instructions(words) {
        *counts.entry(op).or_default() += 1;
    }
    counts
}

fn count(words: &[u32], op: Op) -> usize {
    counts(words).get(&(op as u32)).copied().unwrap_or(0)
}

#[test]
fn images_of_all_kinds_become_texel_buffers_and_have_records() {
    let (words, images) = lower(&shader("images"));
    for (_, instruction) in instructions(&words).filter(|(op, _)| *op == Op::TypeImage as u32) {
        // Over a buffer, without layers or samples.
        assert_eq!((instruction[3], &instruction[5..7]), (5, &[0, 0][..]));
    }
    assert_eq!(count(&words, Op::TypeSampledImage) + count(&words, Op::SampledImage), 0);
    let record = |set, slot, count, kind, first| (set, slot, count, kind, first);
    let mut sorted = images.records.clone();
    sorted.sort_unstable_by_key(|records| (records.set, records.slot));
    let first: Vec<u32> = sorted.iter().map(|records| records.first).collect();
    let wanted = [
        record(0, 0, 1, Kind::Storage, first[0]),
        record(0, 1, 1, Kind::Storage, first[1]),
        record(0, 2, 1, Kind::Storage, first[2]),
        record(0, 3, 2, Kind::Combined, first[3]),
        record(0, 4, 1, Kind::Sampled, first[4]),
        record(0, 5, 1, Kind::Storage, first[5]),
        record(1, 1000, 1, Kind::Storage, first[6]),
    ];
    let found: Vec<_> = sorted.iter().map(|it| (it.set, it.slot, it.count, it.kind, it.first)).collect();
    assert_eq!(found, wanted);
    let formats: Vec<u16> = sorted.iter().map(|records| records.format).collect();
    assert_eq!(formats, [37, 98, 109, 0, 0, 99, 97]);
    // No record lies in another, and none behind the end.
    let mut at = 0;
    for records in &images.records {
        assert_eq!(records.first, at);
        at += records.count * records.kind.vectors();
    }
    assert_eq!((images.vectors, images.place), (at, (0, 63)));
}

/// A module with each word replaced that `change` names.
fn changed(name: &str, change: impl Fn(u32, &mut [u32])) -> Vec<u32> {
    let mut words = shader(name);
    let mut at = crate::spirv::HEADER;
    while at < words.len() {
        let length = (words[at] >> 16) as usize;
        change(words[at] & 0xffff, &mut words[at..at + length]);
        at += length;
    }
    words
}

#[test]
fn what_samples_calls_functions_that_fetch_and_samplers_are_records() {
    let (words, images) = lower(&shader("sampling"));
    let sampler = images.records.iter().find(|records| records.slot == 5).unwrap();
    assert_eq!((sampler.count, sampler.kind), (2, Kind::Sampler));
    for op in [Op::TypeSampler, Op::ImageSampleExplicitLod, Op::ImageSampleProjExplicitLod, Op::ImageGather] {
        assert_eq!(count(&words, op), 0, "{op:?}");
    }
    // One of floats and one of words, by which all do it.
    assert_eq!(count(&words, Op::ImageFetch), 2);
    // What is given to functions brings its record along: an image with a sampler one, and those beside each other two.
    let given = |words: &[u32]| count(words, Op::FunctionParameter);
    let added: usize = given(&words) - given(&shader("sampling"));
    assert!(added > 2, "{added}");
}

#[test]
fn an_entry_point_that_names_its_variables_names_the_records_and_no_samplers() {
    let mut module = shader("sampling");
    let named = |words: &[u32]| -> Vec<u32> {
        let entry = instructions(words).find(|(op, _)| *op == Op::EntryPoint as u32).unwrap().1;
        // Behind the model, the function, and a name of five bytes.
        entry[5..].to_vec()
    };
    let inputs = named(&module);
    let Lowered { words, .. } = lowered(&module).unwrap().unwrap();
    assert_eq!(named(&words), inputs, "before version 1.4 they are inputs alone");
    module[1] = 0x0001_0500;
    let Lowered { words, .. } = lowered(&module).unwrap().unwrap();
    let added: Vec<u32> = named(&words).into_iter().filter(|id| !inputs.contains(id)).collect();
    let is_table = |instruction: &[u32]| instruction[2] == added[0] && instruction[3] == 2;
    assert!(
        added.len() == 1 && instructions(&words).any(|(op, it)| op == Op::Variable as u32 && is_table(it))
    );
    let sampler = instructions(&module)
        .find_map(|(op, it)| (op == Op::Decorate as u32 && it[2..] == [33, 5]).then(|| it[1]))
        .unwrap();
    let entry = module.iter().position(|word| word & 0xffff == Op::EntryPoint as u32).unwrap();
    module[entry] += 1 << 16;
    let end = entry + (module[entry] >> 16) as usize - 1;
    module.insert(end, sampler);
    let Lowered { words, .. } = lowered(&module).unwrap().unwrap();
    assert!(!named(&words).contains(&sampler));
}

#[test]
fn formats_that_texel_buffers_do_not_name_are_left_out_and_kernels_say_that_they_read_without() {
    const RGBA16F: u32 = 2;
    const RG32F: u32 = 6;
    let words = changed("images", |op, it| {
        if op == Op::TypeImage as u32 && it[8] == RGBA16F {
            it[8] = RG32F;
        }
    });
    let (words, _) = lower(&words);
    let formats: Vec<u32> = instructions(&words)
        .filter(|(op, it)| *op == Op::TypeImage as u32 && it[7] == 2)
        .map(|(_, it)| it[8])
        .collect();
    assert!(formats.contains(&0) && !formats.contains(&RG32F), "{formats:?}");
    let declares =
        |capability| instructions(&words).any(|(op, it)| op == Op::Capability as u32 && it[1] == capability);
    assert!(declares(55) && declares(56));
}

/// A kernel whose function is given a 1D image by value.
fn given_by_value() -> Vec<u32> {
    let mut words = vec![0x0723_0203, 0x0001_0300, 0, 30, 0];
    let main = u32::from_le_bytes(*b"main");
    let instructions: &[(Op, &[u32])] = &[
        (Op::Capability, &[1]),
        (Op::Capability, &[44]),
        (Op::MemoryModel, &[0, 1]),
        (Op::EntryPoint, &[5, 1, main, 0]),
        (Op::ExecutionMode, &[1, 17, 1, 1, 1]),
        (Op::Decorate, &[8, 34, 0]),
        (Op::Decorate, &[8, 33, 5]),
        (Op::TypeVoid, &[2]),
        (Op::TypeFunction, &[3, 2]),
        (Op::TypeInt, &[4, 32, 0]),
        (Op::TypeVector, &[13, 4, 4]),
        (Op::Constant, &[4, 12, 3]),
        (Op::ConstantComposite, &[13, 14, 12, 12, 12, 12]),
        (Op::TypeImage, &[6, 4, 0, 0, 0, 0, 2, 33]),
        (Op::TypePointer, &[7, 0, 6]),
        (Op::TypeFunction, &[9, 2, 6]),
        (Op::Variable, &[7, 8, 0]),
        (Op::Function, &[2, 1, 0, 3]),
        (Op::Label, &[15]),
        (Op::Load, &[6, 16, 8]),
        (Op::FunctionCall, &[2, 17, 10, 16]),
        (Op::Return, &[]),
        (Op::FunctionEnd, &[]),
        (Op::Function, &[2, 10, 0, 9]),
        (Op::FunctionParameter, &[6, 11]),
        (Op::Label, &[18]),
        (Op::ImageWrite, &[11, 12, 14]),
        (Op::Return, &[]),
        (Op::FunctionEnd, &[]),
    ];
    instructions.iter().for_each(|(op, operands)| push(&mut words, *op, operands));
    words
}

#[test]
fn an_image_that_a_function_is_given_becomes_where_it_is_and_its_record() {
    let module = given_by_value();
    validate(&module);
    let (words, _) = lower(&module);
    let called: Vec<(u32, &[u32])> =
        instructions(&words).skip_while(|(op, it)| *op != Op::Function as u32 || it[2] != 10).collect();
    let kinds: Vec<u32> = called.iter().take(5).map(|(op, _)| *op).collect();
    let (parameter, load) = (Op::FunctionParameter as u32, Op::Load as u32);
    assert_eq!(kinds, [Op::Function as u32, parameter, parameter, Op::Label as u32, load]);
    // The pointer, a word, and the image under its own name.
    assert_eq!((called[1].1[1], called[2].1[1], &called[4].1[1..]), (7, 4, &[6, 11, called[1].1[2]][..]));
    let call = instructions(&words).find(|(op, it)| *op == Op::FunctionCall as u32 && it[3] == 10).unwrap().1;
    assert_eq!((call.len(), call[4]), (6, 8));
}

#[test]
fn entry_points_that_reach_what_is_not_lowered_are_left_out_and_others_stay() {
    let compared = changed("sampling", |op, it| {
        if op == Op::ImageGather as u32 {
            it[0] = it[0] & !0xffff | Op::ImageDrefGather as u32;
        }
    });
    let Lowered { words, left_out, .. } = lowered(&compared).unwrap().unwrap();
    let why = left_out[b"main".as_slice()].to_string();
    assert!(left_out.len() == 1 && why.contains("OpImageDrefGather") && why.contains("compared"), "{why}");
    assert_eq!((count(&words, Op::EntryPoint), count(&words, Op::ImageDrefGather)), (0, 0));
}

/// Three kernels: one asks for the level that a sample takes, in a function that is behind another; one calls what is beside these; and one calls nothing.
const THREE: &str = "OpCapability Shader
    OpCapability ImageQuery
    OpCapability ComputeDerivativeGroupLinearNV
    OpExtension \"SPV_NV_compute_shader_derivatives\"
    OpMemoryModel Logical GLSL450
    OpEntryPoint GLCompute %bad \"bad\"
    OpEntryPoint GLCompute %good \"good\"
    OpEntryPoint GLCompute %idle \"idle\"
    OpExecutionMode %bad LocalSize 2 2 1
    OpExecutionMode %bad DerivativeGroupLinearNV
    OpExecutionMode %good LocalSize 1 1 1
    OpExecutionMode %idle LocalSize 1 1 1
    OpName %inner \"inner\"
    OpName %asked \"asked\"
    OpDecorate %asked RelaxedPrecision
    OpDecorate %image DescriptorSet 0
    OpDecorate %image Binding 1
    %void = OpTypeVoid
    %f = OpTypeFunction %void
    %float = OpTypeFloat 32
    %float2 = OpTypeVector %float 2
    %float4 = OpTypeVector %float 4
    %zero = OpConstant %float 0
    %at = OpConstantComposite %float2 %zero %zero
    %texels = OpTypeImage %float 2D 0 0 0 1 Unknown
    %with = OpTypeSampledImage %texels
    %pointer = OpTypePointer UniformConstant %with
    %image = OpVariable %pointer UniformConstant
    %bad = OpFunction %void None %f
    %b = OpLabel
    %b1 = OpFunctionCall %void %outer
    OpReturn
    OpFunctionEnd
    %good = OpFunction %void None %f
    %g = OpLabel
    %g1 = OpFunctionCall %void %beside
    OpReturn
    OpFunctionEnd
    %outer = OpFunction %void None %f
    %o = OpLabel
    %o1 = OpFunctionCall %void %inner
    OpReturn
    OpFunctionEnd
    %inner = OpFunction %void None %f
    %i = OpLabel
    %i1 = OpLoad %with %image
    %asked = OpImageQueryLod %float2 %i1 %at
    %i2 = OpFAdd %float2 %asked %asked
    OpReturn
    OpFunctionEnd
    %beside = OpFunction %void None %f
    %s = OpLabel
    %s1 = OpLoad %with %image
    %s2 = OpImageSampleExplicitLod %float4 %s1 %at Lod %zero
    OpReturn
    OpFunctionEnd
    %idle = OpFunction %void None %f
    %d = OpLabel
    OpReturn
    OpFunctionEnd";

/// The words of a text, on machines that have an assembler.
fn assembled(text: &str) -> Option<Vec<u32>> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("text"), folder.path().join("words"));
    std::fs::write(&from, text).unwrap();
    let output =
        Command::new("spirv-as").args(["--target-env", "spv1.3", "-o"]).arg(&to).arg(&from).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(crate::spirv::words(&std::fs::read(&to).unwrap()))
}

#[test]
fn an_entry_point_is_left_out_for_what_its_functions_call_and_for_nothing_else() {
    let Some(module) = assembled(THREE) else { return println!("skipped: there is no spirv-as") };
    validate(&module);
    let Lowered { words, left_out, images } = lowered(&module).unwrap().unwrap();
    assert_eq!(left_out.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"bad"]);
    let why = left_out[b"bad".as_slice()].to_string();
    assert!(
        why.contains("OpImageQueryLod") && why.contains("the level that is sampled is asked for"),
        "{why}"
    );
    // Neither modes of the one nor names and decorations of what it called are left.
    validate(&words);
    assert_eq!((count(&words, Op::EntryPoint), count(&words, Op::ExecutionMode)), (2, 2));
    assert_eq!((count(&words, Op::Name), images.records.len()), (0, 1));
    let names = |id: u32| instructions(&words).any(|(op, it)| op == Op::Decorate as u32 && it[1] == id);
    let asked = instructions(&module).find(|(op, _)| *op == Op::ImageQueryLod as u32).unwrap().1[2];
    assert!(!names(asked));
}

#[test]
fn a_module_of_which_a_declaration_is_not_lowered_is_refused_with_a_reason() {
    let large = [&shader("images")[..3], &[u32::MAX], &shader("images")[4..]].concat();
    assert!(lowered(&large).unwrap_err().contains("ids"));
}

#[test]
fn images_of_different_types_at_one_binding_are_refused() {
    let shared = changed("images", |op, instruction| match instruction {
        [_, _, 33, number @ 1] if op == Op::Decorate as u32 => *number = 0,
        _ => {}
    });
    assert_eq!(lowered(&shared).unwrap_err(), "images of different types share a binding");
}

#[test]
fn a_module_without_images_stays_as_it_is() {
    for name in ["add", "texels"] {
        assert_eq!(lowered(&shader(name)), Ok(None), "{name}");
    }
}

#[test]
fn modules_that_are_cut_anywhere_are_read_without_a_panic() {
    let whole = shader("images");
    for end in (0..whole.len()).step_by(7) {
        let _whatever = lowered(&whole[..end]);
    }
    // And those of which a word is another.
    for at in (crate::spirv::HEADER..whole.len()).step_by(3) {
        for other in [0, u32::MAX, whole[at] ^ 0x10000] {
            let mut changed = whole.clone();
            changed[at] = other;
            let _whatever = lowered(&changed);
        }
    }
}

/// The folder of the library's sources.
fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lower/library")
}

#[test]
fn the_library_was_compiled_since_its_sources_changed() {
    let output = Command::new("sha256sum").args(["--check", "library.sums"]).current_dir(library()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.lines().count() == 4, "run src/lower/library/generate: {said}");
}

#[test]
fn the_library_is_what_its_sources_compile_to() {
    let Ok(version) = Command::new("glslangValidator").arg("--version").output() else {
        return println!("skipped: there is no glslangValidator");
    };
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    let wanted = std::fs::read_to_string(library().join("library.version")).unwrap();
    if version != wanted.trim_end() {
        return println!("skipped: it is compiled by {wanted}, here is {version}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("library.spv");
    let status = Command::new(library().join("generate")).arg(&file).status().unwrap();
    assert!(status.success());
    assert!(std::fs::read(file).unwrap() == std::fs::read(library().join("library.spv")).unwrap());
}

/// A kernel that fetches from the element `index` of an array of three images, or of an array of arrays of them.
fn element(index: i32, of: &str) -> Option<Vec<u32>> {
    let text = format!(
        "OpCapability Shader
        OpMemoryModel Logical GLSL450
        OpEntryPoint GLCompute %main \"main\"
        OpExecutionMode %main LocalSize 1 1 1
        OpDecorate %images DescriptorSet 0
        OpDecorate %images Binding 0
        %void = OpTypeVoid
        %f = OpTypeFunction %void
        %float = OpTypeFloat 32
        %float4 = OpTypeVector %float 4
        %int = OpTypeInt 32 1
        %int2 = OpTypeVector %int 2
        %uint = OpTypeInt 32 0
        %three = OpConstant %uint 3
        %zero = OpConstant %int 0
        %index = OpConstant %int {index}
        %at = OpConstantComposite %int2 %zero %zero
        %image = OpTypeImage %float 2D 0 0 0 1 Unknown
        %array = OpTypeArray %image %three
        %both = OpTypeArray %array %three
        %pointer = OpTypePointer UniformConstant %{of}
        %one = OpTypePointer UniformConstant %image
        %images = OpVariable %pointer UniformConstant
        %main = OpFunction %void None %f
        %body = OpLabel
        %place = OpAccessChain %one %images %index{}
        %found = OpLoad %image %place
        %texel = OpImageFetch %float4 %found %at
        OpReturn
        OpFunctionEnd",
        if of == "both" { " %index" } else { "" }
    );
    let text =
        if of == "array" { text.replace("        %both = OpTypeArray %array %three\n", "") } else { text };
    assembled(&text)
}

#[test]
fn a_constant_index_beyond_an_array_of_images_names_its_last_one() {
    let chains = |index| {
        let (words, _) = lower(&element(index, "array")?);
        let constants: HashMap<u32, u32> = instructions(&words)
            .filter(|(op, _)| *op == Op::Constant as u32)
            .map(|(_, it)| (it[2], it[3]))
            .collect();
        let textures = instructions(&words).filter(|(op, _)| *op == Op::AccessChain as u32);
        // The texture's, and those of its record, which has rows.
        let named = textures.flat_map(|(_, it)| it[4..].iter().map(|id| constants.get(id).copied()));
        Some(named.collect::<Vec<_>>())
    };
    let Some(last) = chains(2) else { return println!("skipped: there is no spirv-as") };
    for beyond in [3, 1000, -1, i32::MAX] {
        assert_eq!(chains(beyond).unwrap(), last, "{beyond}");
    }
    assert_ne!(chains(1).unwrap(), last);
}

#[test]
fn an_array_of_arrays_of_images_is_refused_with_a_reason() {
    let Some(words) = element(1, "both") else { return println!("skipped: there is no spirv-as") };
    assert_eq!(lowered(&words).unwrap_err(), "an array of arrays of images");
}

#[test]
fn an_index_at_run_time_calls_functions_that_choose_among_constants() {
    let (words, _) = lower(&shader("arrays"));
    let constants: Vec<u32> = instructions(&words)
        .filter(|(op, _)| *op == Op::Constant as u32)
        .map(|(_, words)| words[2])
        .collect();
    let variables: HashMap<u32, u32> = instructions(&words)
        .filter(|(op, it)| *op == Op::Variable as u32 && it[3] == 0)
        .map(|(_, it)| (it[2], it[1]))
        .collect();
    let chains = instructions(&words)
        .filter(|(op, it)| *op == Op::AccessChain as u32 && variables.contains_key(&it[3]));
    let indices: Vec<u32> = chains.map(|(_, it)| it[4]).collect();
    assert!(indices.len() > 20 && indices.iter().all(|index| constants.contains(index)), "{indices:?}");
    // One for each element that an access chooses among, and a fetch of what the kernel names itself.
    assert_eq!(count(&words, Op::AtomicIAdd), 3);
    assert_eq!(count(&words, Op::AtomicExchange), 3);
    assert_eq!(count(&words, Op::ImageWrite), 2);
    assert_eq!(count(&words, Op::ImageFetch), 3 + 4 + 1 + 1);
    // Two arrays are sampled and one is gathered from, by a loop each, however many images it has; swizzles have one by type.
    assert_eq!(count(&words, Op::LoopMerge), 3 + 2);
    let dropped = [29, 31];
    let of = |(op, it): (u32, &[u32])| op == Op::Capability as u32 && dropped.contains(&it[1]);
    assert!(!instructions(&words).any(of));
}
