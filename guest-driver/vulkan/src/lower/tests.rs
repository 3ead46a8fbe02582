use std::collections::HashMap;
use std::process::Command;

use ::spirv::Op;

use super::code::instructions;
use super::lowered;
use super::records::Images;
use super::records::Kind;
use super::records::Records;

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
    let record = |set, slot, count, kind, first| Records { set, slot, count, kind, first };
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
    assert_eq!(sorted, wanted);
    // No record lies in another, and none behind the end.
    let mut at = 0;
    for records in &images.records {
        assert_eq!(records.first, at);
        at += records.count * records.kind.vectors();
    }
    assert_eq!((images.vectors, images.place), (at, (0, 63)));
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
