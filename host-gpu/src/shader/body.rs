//! What stands in functions: every value is of the right type and known where it is used.

use spirv::Capability;
use spirv::GlslStd450Op;
use spirv::Op;

use crate::shader::capabilities::Capabilities;
use crate::shader::clamp::Clamp;
use crate::shader::clamp::Semantics;
use crate::shader::decorations::Decorations;
use crate::shader::decorations::WHOLE;
use crate::shader::entries::Entries;
use crate::shader::error::GuardError;
use crate::shader::flow::Flow;
use crate::shader::flow::targets;
use crate::shader::function::Function;
use crate::shader::function::Functions;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::V1_4;
use crate::shader::module::define_debug;
use crate::shader::module::is_debug;
use crate::shader::module::wrong;
use crate::shader::profile::MIXED_DOT;
use crate::shader::profile::MIXED_DOT_OP;
use crate::shader::rules;
use crate::shader::shape::Numeric;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;
use crate::shader::typing::Typing;

/// Where in a module the check stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    /// Index of the function, and of the block.
    pub(super) function: u32,
    pub(super) block: u32,
    /// Index of the instruction.
    pub(super) index: u32,
    pub(super) inst: Inst,
}

/// The check of what stands in functions: it defines the results of instructions, and notes what functions do and which
/// indices need a clamp. What memory instructions and atomics, composites and calls, and subgroup operations have to keep to
/// stands in `access.rs`, `atomics.rs`, `composed.rs` and `subgroup.rs`.
pub(super) struct Body<'b, 'a> {
    pub(super) symbols: &'b mut Symbols<'a>,
    pub(super) capabilities: &'b Capabilities,
    pub(super) entries: &'b Entries,
    pub(super) decorations: &'b Decorations,
    pub(super) functions: &'b mut Functions,
    pub(super) flow: &'b mut Flow,
    pub(super) clamps: &'b mut Vec<Clamp>,
    pub(super) semantics: &'b mut Vec<Semantics>,
}

impl Body<'_, '_> {
    /// Checks every function.
    pub(super) fn check_functions(&mut self) -> Result<(), GuardError> {
        for function in 0..u32::try_from(self.functions.list.len()).unwrap_or(NOWHERE) {
            let Function { first, end, .. } =
                self.functions.list.get(function as usize).cloned().unwrap_or_default();
            self.flow.walk(&self.symbols.module, first, end)?;
            let mut merges = Vec::new();
            for block in first..end {
                if self.flow.block(block).is_kept {
                    self.check_block(function, block, block == first, &mut merges)?;
                }
            }
            self.check_merged_values(first, end, &merges)?;
        }
        self.check_contractions()?;
        Ok(())
    }

    /// What stands on results of functions, none of which was known where decorations were checked.
    fn check_contractions(&self) -> Result<(), GuardError> {
        for d in self.decorations.list.iter().filter(|d| d.name == spirv::Decoration::NoContraction) {
            let target = self.symbols.module.id(d.target);
            let good = match target.kind {
                Kind::None | Kind::Constant => true,
                Kind::Value => d.member == WHOLE && is_arithmetic(self.symbols.module.inst(target.inst).op()),
                _ => false,
            };
            if !good {
                return Err(wrong(d.inst, "it stands on no arithmetic"));
            }
        }
        Ok(())
    }

    fn check_block(
        &mut self,
        function: u32,
        block: u32,
        is_first: bool,
        merges: &mut Vec<Here>,
    ) -> Result<(), GuardError> {
        let found = self.flow.block(block);
        let (mut phis, mut variables) = (!is_first, is_first);
        for index in found.first + 1..found.end {
            let inst = self.symbols.module.inst(index);
            let here = Here { function, block, index, inst };
            let op = inst.op();
            if is_debug(op) {
                if matches!(op, Op::Line | Op::NoLine) {
                    continue;
                }
                return Err(wrong(inst, "it may not stand in a function"));
            }
            if op == Op::ExtInst
                && self.symbols.module.id(self.symbols.module.word(inst, 3)).kind == Kind::Debug
            {
                define_debug(&mut self.symbols.module, index, inst)?;
                continue;
            }
            if op != Op::Variable {
                variables = false;
            }
            if op != Op::Phi {
                phis = false;
            }
            match op {
                Op::Phi if phis => {
                    inst.length(3, u32::MAX)?;
                    self.result_of(here, false)?;
                    merges.push(here);
                }
                Op::Variable if variables => self.local_variable(here)?,
                Op::Phi | Op::Variable => {
                    return Err(wrong(inst, "it must stand at the beginning of its block"));
                }
                Op::SelectionMerge | Op::LoopMerge | Op::Branch | Op::Unreachable => {}
                Op::Undef => {
                    inst.length(3, 3)?;
                    if is_undefined_for_nothing(self.symbols, inst) {
                        let id = self.symbols.module.word(inst, 2);
                        let meaning =
                            Id { kind: Kind::Dropped, inst: index, block: NOWHERE, ..Id::default() };
                        self.symbols.module.define(inst, id, meaning)?;
                        continue;
                    }
                    let ty = self.result_of(here, false)?;
                    if self.capabilities.is_limited(self.symbols, ty) {
                        return Err(wrong(
                            inst,
                            "8 or 16 bits are undefined with Int8, Int16 or Float16 alone",
                        ));
                    }
                }
                // What has no name is called so, too.
                Op::Nop if inst.code == Op::Nop as u32 => inst.length(1, 1)?,
                Op::ExpectKHR | Op::AssumeTrueKHR => check_hint(self, here)?,
                Op::BranchConditional => {
                    let condition = self.used(here, 1)?;
                    if self.symbols.shape(condition.ty) != Shape::Bool {
                        return Err(wrong(inst, "its condition is not a boolean"));
                    }
                }
                Op::Switch if !self.flow.block(block).is_reached => {
                    return Err(wrong(inst, "it is never reached"));
                }
                Op::Switch => {
                    let selector = self.used(here, 1)?;
                    let words = self.symbols.module.literal_words(inst);
                    let good =
                        |n: Numeric| n.scalar == Scalar::Int && n.count == 1 && n.bits.div_ceil(32) == words;
                    if !self.symbols.numeric(selector.ty).is_some_and(good) {
                        return Err(wrong(inst, "its selector is not one integer"));
                    }
                }
                Op::Return | Op::ReturnValue => self.check_return(here)?,
                _ => self.check_instruction(here)?,
            }
        }
        Ok(())
    }

    fn check_return(&self, here: Here) -> Result<(), GuardError> {
        let returns = self.functions.list.get(here.function as usize).map_or(0, |function| function.returns);
        let good = match here.inst.op() {
            Op::Return => self.symbols.shape(returns) == Shape::Void,
            _ => self.used(here, 1)?.ty == returns,
        };
        if good { Ok(()) } else { Err(wrong(here.inst, "it does not return what its function does")) }
    }

    /// The value that operand `at` names: known here, and not only to be stored or converted.
    pub(super) fn used(&self, here: Here, at: u32) -> Result<Id, GuardError> {
        let id = self.symbols.module.word(here.inst, at);
        let meaning = self.seen(here, id)?;
        if self.capabilities.is_limited(self.symbols, meaning.ty) {
            return Err(wrong(
                here.inst,
                "8 or 16 bits can only be stored and converted without Int8, Int16 or Float16",
            ));
        }
        Ok(meaning)
    }

    /// The value `id`, known here.
    pub(super) fn seen(&self, here: Here, id: u32) -> Result<Id, GuardError> {
        let meaning = self.symbols.module.id(id);
        let known = match meaning.kind {
            Kind::Constant => {
                self.symbols.check_size(here.inst, meaning.ty)?;
                true
            }
            Kind::Undef | Kind::Global => true,
            Kind::Value => self.is_known(meaning.block, here),
            _ => false,
        };
        if known {
            Ok(meaning)
        } else {
            Err(wrong(here.inst, format!("{id} is no value that is known here")))
        }
    }

    fn is_known(&self, defined: u32, here: Here) -> bool {
        let Some(function) = self.functions.list.get(here.function as usize) else { return false };
        // What is not reached never runs: there the order of the text is enough.
        (function.first..function.end).contains(&defined)
            && (!self.flow.block(here.block).is_reached || self.flow.dominates(defined, here.block))
    }

    /// Defines the result of the instruction, whose type stands first. Only pointers may be none that can be stored.
    pub(super) fn result_of(&mut self, here: Here, is_pointer: bool) -> Result<u32, GuardError> {
        let (ty, id) = (self.symbols.module.word(here.inst, 1), self.symbols.module.word(here.inst, 2));
        let good = match is_pointer {
            true => matches!(self.symbols.shape(ty), Shape::Pointer { .. }),
            false => self.symbols.is_value(ty),
        };
        if !good {
            return Err(wrong(here.inst, "its result has a type that no value here can have"));
        }
        self.symbols.check_size(here.inst, ty)?;
        let meaning = Id { kind: Kind::Value, ty, inst: here.index, block: here.block, data: 0 };
        self.symbols.module.define(here.inst, id, meaning)?;
        Ok(ty)
    }

    fn check_instruction(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        let op = inst.op();
        if let Some(needed) = needed(op)
            && !self.capabilities.has(needed)
        {
            return Err(wrong(inst, format!("the capability {needed:?} is not declared")));
        }
        if op == Op::CopyLogical && self.symbols.module.version < V1_4 {
            return Err(wrong(inst, "it came with SPIR-V 1.4"));
        }
        if inst.code == MIXED_DOT_OP && !self.capabilities.has_code(MIXED_DOT) {
            return Err(wrong(inst, "its capability is not declared"));
        }
        if FIRST_OF_SUBGROUP <= inst.code
            && inst.code <= LAST_OF_SUBGROUP
            && !self.capabilities.profile.subgroup.extended
        {
            let compared = self.symbols.module.id(self.symbols.module.word(inst, 4)).ty;
            let wide =
                |ty| self.symbols.numeric(ty).is_some_and(|n| n.scalar != Scalar::Bool && n.bits != 32);
            if wide(self.symbols.module.word(inst, 1)) || op == Op::GroupNonUniformAllEqual && wide(compared)
            {
                return Err(wrong(inst, "this device has subgroup operations on 32 bits only"));
            }
        }
        if self.check_memory_instruction(here)?
            || self.check_composed(here)?
            || self.check_group(here)?
            || self.check_texels(here)?
        {
            return Ok(());
        }
        if op == Op::ExtInst {
            inst.length(6, u32::MAX)?;
            if self.symbols.module.id(self.symbols.module.word(inst, 3)).kind != Kind::Glsl {
                return Err(wrong(inst, "it is of no instruction set that may be used here"));
            }
            let number = self.symbols.module.word(inst, 4);
            if [GlslStd450Op::Modf as u32, GlslStd450Op::Frexp as u32].contains(&number) {
                return self.split_to_memory(here);
            }
            let operands = self.operands(here, 5)?;
            let ty = self.result_of(here, false)?;
            return Typing::of(self.symbols).check_glsl(inst, number, ty, &operands);
        }
        if rules::of(inst.code).is_none() {
            return Err(wrong(inst, "this instruction is not offered to compute kernels here"));
        }
        inst.length(3, u32::MAX)?;
        let converts = matches!(op, Op::FConvert | Op::SConvert | Op::UConvert | Op::CopyObject);
        let operands =
            if converts { self.symbols.module.rest(inst, 3).to_vec() } else { self.operands(here, 3)? };
        if converts {
            for id in &operands {
                self.seen(here, *id)?;
            }
        }
        let ty = self.result_of(here, false)?;
        Typing::of(self.symbols).check_rule(inst, inst.code, ty, &operands)
    }

    /// The ids from operand `at` on, each a value known here.
    pub(super) fn operands(&self, here: Here, at: u32) -> Result<Vec<u32>, GuardError> {
        for index in at..here.inst.len {
            self.used(here, index)?;
        }
        Ok(self.symbols.module.rest(here.inst, at).to_vec())
    }

    /// Checks values that depend on where control came from, once all blocks are known.
    fn check_merged_values(&mut self, first: u32, end: u32, merges: &[Here]) -> Result<(), GuardError> {
        let mut parents: Vec<Vec<u32>> = vec![Vec::new(); (end - first) as usize];
        for block in (first..end).filter(|block| self.flow.block(*block).is_kept) {
            for label in targets(&self.symbols.module, self.flow.block(block).last) {
                let target = self.symbols.module.id(label).data;
                if let Some(parents) = parents.get_mut((target - first) as usize)
                    && parents.last() != Some(&block)
                {
                    parents.push(block);
                }
            }
        }
        for here in merges {
            let ty = self.symbols.module.word(here.inst, 1);
            let pairs = self.symbols.module.rest(here.inst, 3);
            let wanted = parents.get((here.block - first) as usize).map_or(&[] as &[u32], Vec::as_slice);
            let mut given = Vec::with_capacity(wanted.len());
            for pair in pairs.chunks(2) {
                let [value, label] = *pair else {
                    return Err(wrong(here.inst, "a value stands without its block"));
                };
                let parent = self.symbols.module.id(label);
                if parent.kind != Kind::Label || !(first..end).contains(&parent.data) {
                    return Err(wrong(here.inst, format!("{label} is no block of its function")));
                }
                if !self.flow.block(parent.data).is_kept {
                    continue;
                }
                let from = Here { block: parent.data, ..*here };
                let meaning = self.seen(from, value)?;
                if meaning.ty != ty || self.capabilities.is_limited(self.symbols, ty) {
                    return Err(wrong(here.inst, format!("{value} has a type other than the result")));
                }
                given.push(parent.data);
            }
            given.sort_unstable();
            if given != wanted || wanted.is_empty() {
                return Err(wrong(here.inst, "it does not name each block that leads here once"));
            }
        }
        Ok(())
    }
}

/// Whether `OpUndef` is of a type that no value here can have, as pointers and what is without a length: with logical addressing nothing may use it then.
fn is_undefined_for_nothing(symbols: &Symbols<'_>, inst: Inst) -> bool {
    let ty = symbols.module.word(inst, 1);
    let is_any = !matches!(symbols.shape(ty), Shape::None | Shape::Void | Shape::Function);
    is_any && !symbols.is_value(ty)
}

/// What tells a compiler which value is likely, or what holds.
fn check_hint(body: &mut Body<'_, '_>, here: Here) -> Result<(), GuardError> {
    let inst = here.inst;
    if !body.capabilities.has(Capability::ExpectAssumeKHR) {
        return Err(wrong(inst, "the capability ExpectAssumeKHR is not declared"));
    }
    let good = if inst.op() == Op::AssumeTrueKHR {
        inst.length(2, 2)?;
        body.symbols.shape(body.used(here, 1)?.ty) == Shape::Bool
    } else {
        inst.length(5, 5)?;
        let [value, likely] = [body.used(here, 3)?.ty, body.used(here, 4)?.ty];
        let ty = body.result_of(here, false)?;
        let is_whole = body.symbols.numeric(ty).is_some_and(|n| n.scalar != Scalar::Float);
        is_whole && [value, likely] == [ty; 2]
    };
    if good {
        return Ok(());
    }
    Err(wrong(inst, "it is of no boolean or integer, or of another type than its result"))
}

const FIRST_OF_SUBGROUP: u32 = Op::GroupNonUniformElect as u32;
const LAST_OF_SUBGROUP: u32 = Op::GroupNonUniformQuadSwap as u32;

/// What an instruction needs beyond the capability Shader.
fn needed(op: Op) -> Option<Capability> {
    Some(match op {
        Op::GroupNonUniformElect => Capability::GroupNonUniform,
        Op::GroupNonUniformAll | Op::GroupNonUniformAny | Op::GroupNonUniformAllEqual => {
            Capability::GroupNonUniformVote
        }
        Op::GroupNonUniformBroadcast
        | Op::GroupNonUniformBroadcastFirst
        | Op::GroupNonUniformBallot
        | Op::GroupNonUniformInverseBallot
        | Op::GroupNonUniformBallotBitExtract
        | Op::GroupNonUniformBallotBitCount
        | Op::GroupNonUniformBallotFindLSB
        | Op::GroupNonUniformBallotFindMSB => Capability::GroupNonUniformBallot,
        Op::GroupNonUniformShuffle | Op::GroupNonUniformShuffleXor => Capability::GroupNonUniformShuffle,
        Op::GroupNonUniformShuffleUp | Op::GroupNonUniformShuffleDown => {
            Capability::GroupNonUniformShuffleRelative
        }
        Op::GroupNonUniformQuadBroadcast | Op::GroupNonUniformQuadSwap => Capability::GroupNonUniformQuad,
        Op::SDot | Op::UDot | Op::SUDot | Op::SDotAccSat | Op::UDotAccSat | Op::SUDotAccSat => {
            Capability::DotProduct
        }
        _ => return None,
    })
}

fn is_arithmetic(op: Op) -> bool {
    matches!(
        op,
        Op::FAdd
            | Op::FSub
            | Op::FMul
            | Op::FDiv
            | Op::FRem
            | Op::FMod
            | Op::FNegate
            | Op::Dot
            | Op::VectorTimesScalar
            | Op::MatrixTimesScalar
            | Op::VectorTimesMatrix
            | Op::MatrixTimesVector
            | Op::MatrixTimesMatrix
            | Op::OuterProduct
            | Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::UDiv
            | Op::SDiv
            | Op::UMod
            | Op::SMod
            | Op::SRem
            | Op::SNegate
            | Op::IAddCarry
            | Op::ISubBorrow
            | Op::UMulExtended
            | Op::SMulExtended
            | Op::ExtInst
    )
}
