use std::collections::HashMap;
use std::process::Command;

use ::spirv::Op;

use super::code::instructions;
use super::code::push;
use super::records::Images;
use super::records::Kind;
use super::write::lowered;

/// The words of a shader that the C programs beside this crate run, as the compiler wrote them.
fn shader(name: &str) -> Vec<u32> {
    let text = include_str!("../../tests/shaders/shaders.h");
    let array = text.split(&format!(" {name}_words[] = {{")).nth(1).unwrap().split("};").next().unwrap();
    let number = |word: &str| u32::from_str_radix(word.trim().strip_prefix("0x")?, 16).ok();
    array.split(',').filter_map(number).collect()
}

/// Checks a module by Khronos' tools, on machines that have them.
fn validate(words: &[u32]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lowered.spv");
    std::fs::write(&file, crate::spirv::bytes(words).collect::<Vec<u8>>()).unwrap();
    let Ok(output) = Command::new("spirv-val").args(["--target-env", "vulkan1.3"]).arg(&file).output() else {
        return;
    };
    let text = Command::new("spirv-dis").arg(&file).output().map(|it| it.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&text));
}

fn lower(words: &[u32]) -> (Vec<u32>, Images) {
    let (words, images) = lowered(words).unwrap().unwrap();
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
    let (words, _) = lowered(&module).unwrap().unwrap();
    assert_eq!(named(&words), inputs, "before version 1.4 they are inputs alone");
    module[1] = 0x0001_0500;
    let (words, _) = lowered(&module).unwrap().unwrap();
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
    let (words, _) = lowered(&module).unwrap().unwrap();
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
fn a_module_that_does_what_is_not_lowered_is_refused_with_a_reason() {
    let compared = changed("sampling", |op, it| {
        if op == Op::ImageGather as u32 {
            it[0] = it[0] & !0xffff | Op::ImageDrefGather as u32;
        }
    });
    assert!(lowered(&compared).unwrap_err().contains("compared"));
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
