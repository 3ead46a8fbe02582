//! The whole pass: the words of a module in, its words without images out.

use std::collections::BTreeMap;
use std::collections::HashSet;

use ::spirv::ExecutionModel;
use ::spirv::Op;

use super::code::Refusal;
use super::code::push;
use super::functions::Functions;
use super::functions::LeftOut;
use super::module::Module;
use super::records::Images;
use super::shape::Operands;
use crate::spirv;
use crate::spirv::instructions;

/// From this version on, entry points name all variables that they use.
const V1_4: u32 = 0x0001_0400;

/// The largest bound of ids that Vulkan promises to take.
const MOST: u32 = 0x003f_ffff;

/// The section of a module that an instruction belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    First,
    Decorations,
    Declarations,
    Functions,
}

/// Whether there is anything to lower.
pub(crate) fn has_images(words: &[u32]) -> bool {
    instructions(words).any(|(op, instruction)| match Op::from_u32(op) {
        Some(Op::TypeImage) => {
            instruction.get(2..).and_then(Operands::read).is_some_and(|operands| operands.changes())
        }
        Some(Op::TypeSampler) => true,
        _ => false,
    })
}

/// The section that begins with this instruction, if it is a later one.
fn section_of(op: Option<Op>) -> Section {
    let Some(op) = op else { return Section::First };
    match op as u32 {
        // Capabilities, extensions, sets of instructions, the memory model, entry points and their modes; sources, names and lines.
        2..=8 | 10 | 11 | 14..=17 | 317 | 330 | 331 | 12 => Section::First,
        71..=75 | 332 | 5632 | 5633 => Section::Decorations,
        54 => Section::Functions,
        _ => Section::Declarations,
    }
}

/// A module without images.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) words: Vec<u32>,
    /// What its images were.
    pub(crate) images: Images,
    /// The compute entry points that it has no more, by name.
    pub(crate) left_out: BTreeMap<Vec<u8>, LeftOut>,
}

/// A module without images, where it has any; or why it stays as it is.
pub(crate) fn lowered(words: &[u32]) -> Result<Option<Lowered>, Refusal> {
    let Some(header) = words.first_chunk::<{ spirv::HEADER }>().filter(|_| has_images(words)) else {
        return Ok(None);
    };
    let [magic, version, generator, bound, schema] = *header;
    if bound > MOST {
        return Err("its ids are too large");
    }
    let mut module = Module::new(bound);
    module.hoist(words);
    let (mut first, mut decorations, mut section) = (Vec::new(), Vec::new(), Section::First);
    let mut functions = Functions::default();
    for (op, instruction) in instructions(words) {
        section = section.max(section_of(Op::from_u32(op)));
        match section {
            Section::First => {
                module.import(instruction);
                first.push(instruction);
            }
            Section::Decorations => {
                module.decorate(instruction);
                decorations.push(instruction);
            }
            Section::Declarations => module.declare(op, instruction)?,
            Section::Functions => functions.write(&mut module, op, instruction),
        }
    }
    functions.finish(&mut module, words);
    first.retain(|instruction| !functions.leaves_out(instruction));
    let number = module.free_number().ok_or("set 0 has no number that is free")?;
    module.declare_table(number);
    let mut out = vec![magic, version, generator, module.code.bound(), schema];
    preamble(&module, version, &first, &mut out);
    let removed = |instruction: &[u32]| instruction.get(1).is_some_and(|id| module.removed.contains(id));
    decorations
        .iter()
        .filter(|instruction| !removed(instruction))
        .for_each(|instruction| out.extend(*instruction));
    for section in
        [&module.code.decorations, &module.code.declarations, &module.code.functions, &module.code.added]
    {
        out.extend(section);
    }
    let images = Images { place: (0, number), records: module.records, vectors: module.vectors.max(1) };
    Ok(Some(Lowered { words: out, images, left_out: functions.entries(words) }))
}

/// Capabilities, entry points and names, as they become.
fn preamble(module: &Module, version: u32, first: &[&[u32]], out: &mut Vec<u32>) {
    let (dropped, added) = module.capabilities();
    let mut declared = HashSet::new();
    for capability in added {
        push(out, Op::Capability, &[capability]);
        declared.insert(capability);
    }
    for instruction in first {
        match (Op::from_u32(instruction[0] & 0xffff), *instruction) {
            (Some(Op::Capability), [_, capability])
                if dropped.contains(capability) || declared.contains(capability) => {}
            (Some(Op::EntryPoint), [_, model, ..])
                if version >= V1_4 && *model == ExecutionModel::GLCompute as u32 =>
            {
                entry_point(module, instruction, out);
            }
            (Some(Op::MemoryModel), _) => {
                if module.taken.extended != 0 && !module.taken.imports {
                    let name = super::library::EXTENDED;
                    push(out, Op::ExtInstImport, &[&[module.taken.extended], name.as_slice()].concat());
                }
                out.extend(*instruction);
            }
            (Some(Op::Name | Op::MemberName), [_, id, ..]) if module.removed.contains(id) => {}
            _ => out.extend(*instruction),
        }
    }
}

/// An entry point with the variables that there are.
fn entry_point(module: &Module, instruction: &[u32], out: &mut Vec<u32>) {
    let is_last = |word: &u32| word.to_le_bytes().contains(&0);
    let name = instruction.iter().skip(3).position(is_last).map_or(instruction.len(), |at| at + 4);
    let (head, variables) = instruction.split_at(name.min(instruction.len()));
    let kept = variables.iter().filter(|id| !module.removed.contains(id)).copied();
    let operands: Vec<u32> = head.iter().skip(1).copied().chain(kept).chain([module.table]).collect();
    push(out, Op::EntryPoint, &operands);
}
