//! The words of a module, cut into instructions, and what each of its ids is.

use std::collections::HashSet;

use spirv::Op;

use crate::shader::error::GuardError;

/// How many words a module may have: more than twice what the largest kernel seen has.
pub(super) const WORDS_LIMIT: usize = 1 << 18;
/// How many ids a module may name, used or not, for each of its words.
const IDS_PER_WORD: usize = 4;
/// Words of the header: magic number, version, generator, bound, schema.
pub(super) const HEADER: usize = 5;

pub(super) const V1_3: u32 = 0x0001_0300;
pub(super) const V1_4: u32 = 0x0001_0400;
pub(super) const V1_6: u32 = 0x0001_0600;

/// Where an instruction is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inst {
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) code: u32,
}

/// What an id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    #[default]
    None,
    Type,
    Constant,
    Undef,
    Global,
    Function,
    Label,
    Value,
    /// What nothing may use, and the result does not have.
    Dropped,
    /// The extended instructions of GLSL.
    Glsl,
    /// Debug information, which is dropped with all that uses it.
    Debug,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Id {
    pub(super) kind: Kind,
    /// The type of a value; 0 for what has none.
    pub(super) ty: u32,
    /// The instruction that defines it.
    pub(super) inst: u32,
    /// Where it is defined within a function: the block. `NOWHERE` for what the whole module sees.
    pub(super) block: u32,
    /// Where more is known of it: the index of a type, a constant, a function or a block; the variable that a pointer points
    /// into, 0 where that is not known.
    pub(super) data: u32,
}

pub(super) const NOWHERE: u32 = u32::MAX;

/// A module whose instructions are cut, and no more is known.
pub(super) struct Module<'a> {
    pub(super) words: &'a [u32],
    pub(super) insts: Vec<Inst>,
    pub(super) ids: Vec<Id>,
    pub(super) version: u32,
    /// Values of a type of 64-bit integers, as the text says it: nothing of it is checked here.
    long: HashSet<u32>,
}

impl<'a> Module<'a> {
    /// Reads the header and the lengths of all instructions.
    pub(super) fn split(words: &'a [u32]) -> Result<Self, GuardError> {
        if words.len() > WORDS_LIMIT {
            let reason = format!("{} words, more than {WORDS_LIMIT}", words.len());
            return Err(GuardError::module(reason));
        }
        let [magic, version, _, bound, schema, ..] = *words else {
            return Err(GuardError::module("it has no header of 5 words"));
        };
        if magic != spirv::MAGIC_NUMBER {
            return Err(GuardError::module("it does not begin with the magic number of SPIR-V"));
        }
        if version & 0xff00_00ff != 0 || !(0x0001_0000..=V1_6).contains(&version) {
            return Err(GuardError::module("its version is not one of SPIR-V 1.0 to 1.6"));
        }
        if schema != 0 {
            return Err(GuardError::module("the reserved word of its header is not 0"));
        }
        let ids = bound as usize;
        if ids == 0 || ids > words.len() * IDS_PER_WORD {
            return Err(GuardError::module("its bound is 0 or too large for its length"));
        }
        let mut insts = Vec::with_capacity(words.len() / 3);
        let (mut long_types, mut long) = (HashSet::new(), HashSet::new());
        let mut at = HEADER;
        while let Some(first) = words.get(at) {
            let (len, code) = ((first >> 16) as usize, first & 0xffff);
            let place = u32::try_from(at).unwrap_or(u32::MAX);
            if len == 0 || len > words.len() - at {
                return Err(GuardError::new(code, place, "its length is 0 or leaves the module"));
            }
            match words.get(at + 1..at + len) {
                Some([id, 64, _]) if code == Op::TypeInt as u32 => {
                    long_types.insert(*id);
                }
                Some([ty, id, ..]) if long_types.contains(ty) => {
                    long.insert(*id);
                }
                _ => {}
            }
            insts.push(Inst { at: place, len: first >> 16, code });
            at += len;
        }
        Ok(Self { words, insts, ids: vec![Id::default(); ids], version, long })
    }

    /// How many words each literal of a switch takes. Where control goes is known before types of values are: `body.rs` refuses a selector
    /// of another type than the text says here.
    pub(super) fn literal_words(&self, switch: Inst) -> u32 {
        if self.long.contains(&self.word(switch, 1)) { 2 } else { 1 }
    }

    /// Operand word `index` of `inst`, counted from 1; 0 where it has no such word.
    pub(super) fn word(&self, inst: Inst, index: u32) -> u32 {
        if index >= inst.len {
            return 0;
        }
        self.words.get((inst.at + index) as usize).copied().unwrap_or(0)
    }

    /// All words of `inst` from `index` on.
    pub(super) fn rest(&self, inst: Inst, index: u32) -> &'a [u32] {
        let (from, to) = ((inst.at + index.min(inst.len)) as usize, (inst.at + inst.len) as usize);
        self.words.get(from..to).unwrap_or(&[])
    }

    /// The text that begins at operand `index`, and how many words it takes.
    pub(super) fn text(&self, inst: Inst, index: u32) -> Result<(String, u32), GuardError> {
        let mut bytes = Vec::new();
        for (count, word) in (1..).zip(self.rest(inst, index)) {
            for byte in word.to_le_bytes() {
                if byte == 0 {
                    let text = String::from_utf8(bytes);
                    return Ok((text.map_err(|_| wrong(inst, "its text is not UTF-8"))?, count));
                }
                bytes.push(byte);
            }
        }
        Err(wrong(inst, "its text does not end"))
    }

    pub(super) fn id(&self, id: u32) -> Id {
        self.ids.get(id as usize).copied().unwrap_or_default()
    }

    pub(super) fn inst(&self, index: u32) -> Inst {
        self.insts.get(index as usize).copied().unwrap_or(Inst { at: 0, len: 0, code: 0 })
    }

    /// The instruction that defines `id`.
    pub(super) fn definition(&self, id: u32) -> Inst {
        self.inst(self.id(id).inst)
    }

    /// Gives `id` its meaning, once.
    pub(super) fn define(&mut self, inst: Inst, id: u32, meaning: Id) -> Result<(), GuardError> {
        let slot = match self.ids.get_mut(id as usize) {
            Some(slot) if id != 0 => slot,
            _ => return Err(wrong(inst, format!("its result id {id} is 0 or not below the bound"))),
        };
        if slot.kind != Kind::None {
            return Err(wrong(inst, format!("its result id {id} is defined twice")));
        }
        *slot = meaning;
        Ok(())
    }
}

/// An error at `inst`.
pub(super) fn wrong(inst: Inst, reason: impl Into<std::borrow::Cow<'static, str>>) -> GuardError {
    GuardError::new(inst.code, inst.at, reason)
}

impl Inst {
    pub(super) fn op(self) -> Op {
        // What has no name is refused by every table.
        Op::from_u32(self.code).unwrap_or(Op::Nop)
    }

    /// Refuses any other length than these many words.
    pub(super) fn length(self, least: u32, most: u32) -> Result<(), GuardError> {
        if (least..=most).contains(&self.len) {
            Ok(())
        } else {
            Err(wrong(self, "it has too few or too many operands"))
        }
    }
}

/// What an id of debug information stands for.
pub(super) fn debug(index: u32) -> Id {
    Id { kind: Kind::Debug, inst: index, block: NOWHERE, ..Id::default() }
}

/// An instruction of a non-semantic set: dropped, so only its result matters.
pub(super) fn define_debug(module: &mut Module<'_>, index: u32, inst: Inst) -> Result<(), GuardError> {
    if module.id(module.word(inst, 3)).kind != Kind::Debug {
        return Err(wrong(inst, "it is of no instruction set that may be used here"));
    }
    module.define(inst, module.word(inst, 2), debug(index))
}

/// What carries only debug information and is left out of the result.
pub(super) fn is_debug(op: Op) -> bool {
    matches!(
        op,
        Op::String
            | Op::Source
            | Op::SourceExtension
            | Op::SourceContinued
            | Op::Name
            | Op::MemberName
            | Op::ModuleProcessed
            | Op::Line
            | Op::NoLine
            | Op::DecorateString
            | Op::MemberDecorateString
    )
}

/// Whether `op` declares a type.
pub(super) fn is_type(op: Op) -> bool {
    matches!(
        op,
        Op::TypeVoid
            | Op::TypeBool
            | Op::TypeInt
            | Op::TypeFloat
            | Op::TypeVector
            | Op::TypeMatrix
            | Op::TypeArray
            | Op::TypeRuntimeArray
            | Op::TypeStruct
            | Op::TypePointer
            | Op::TypeFunction
            | Op::TypeImage
            | Op::TypeSampler
            | Op::TypeSampledImage
            | Op::TypeAccelerationStructureKHR
            | Op::TypeCooperativeMatrixKHR
            | Op::TypeForwardPointer
    )
}

/// Whether `op`, outside of functions, defines something else than a type: a constant, a variable, a result of debug information.
pub(super) fn is_value(op: Op) -> bool {
    matches!(
        op,
        Op::ExtInst
            | Op::Variable
            | Op::Undef
            | Op::ConstantTrue
            | Op::ConstantFalse
            | Op::Constant
            | Op::ConstantComposite
            | Op::ConstantNull
            | Op::SpecConstantTrue
            | Op::SpecConstantFalse
            | Op::SpecConstant
            | Op::SpecConstantComposite
            | Op::SpecConstantOp
    )
}
