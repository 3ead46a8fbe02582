//! Control flow: the blocks of a function, and what merge instructions make of them.

use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::V1_6;
use crate::shader::module::wrong;

/// A basic block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) label: u32,
    /// Index of its `OpLabel`, and one past its terminator.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Its merge instruction, if it has one.
    pub(super) merge: Option<Inst>,
    pub(super) last: Inst,
    pub(super) role: Role,
    /// The construct that it lies in, before its own.
    pub(super) within: u32,
    /// Walked to, along branches or because a header names it.
    pub(super) is_kept: bool,
    /// Walked to along branches.
    pub(super) is_reached: bool,
    /// Its place in depth-first order, and that after all that it dominates.
    pub(super) enter: u32,
    pub(super) leave: u32,
    pub(super) dominator: u32,
    pub(super) order: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Plain,
    /// Where the construct of this header ends.
    Merge,
    Continue,
    Case,
}

/// The blocks of all functions.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) blocks: Vec<Block>,
}

impl Flow {
    /// Cuts the instructions from `from` to `to`, the body of a function, into blocks. Returns the first.
    pub(super) fn cut_blocks(
        &mut self,
        module: &mut Module<'_>,
        from: u32,
        to: u32,
    ) -> Result<(u32, u32), GuardError> {
        let first = u32::try_from(self.blocks.len()).unwrap_or(NOWHERE);
        let mut open: Option<(u32, u32, Option<Inst>)> = None;
        for index in from..to {
            let inst = module.inst(index);
            match (inst.op(), open) {
                (Op::Line | Op::NoLine, _) => {}
                (Op::Label, None) => {
                    inst.length(2, 2)?;
                    let label = module.word(inst, 1);
                    let block = u32::try_from(self.blocks.len()).unwrap_or(NOWHERE);
                    let kind = Kind::Label;
                    let id = Id { kind, ty: 0, inst: index, block: NOWHERE, data: block };
                    module.define(inst, label, id)?;
                    open = Some((label, index, None));
                }
                (_, None) => return Err(wrong(inst, "it stands outside of blocks")),
                (Op::Label, Some(_)) => return Err(wrong(inst, "the block before it does not end")),
                (op, Some((label, start, merge))) if is_terminator(op) => {
                    self.blocks.push(Block {
                        label,
                        first: start,
                        end: index + 1,
                        merge,
                        last: inst,
                        ..MISSING
                    });
                    open = None;
                }
                (_, Some((.., Some(merge)))) => return Err(wrong(merge, "no branch follows it")),
                (Op::SelectionMerge | Op::LoopMerge, Some((label, start, None))) => {
                    open = Some((label, start, Some(inst)));
                }
                _ => {}
            }
        }
        match open {
            Some((_, start, _)) => Err(wrong(module.inst(start), "the block does not end")),
            None => Ok((first, u32::try_from(self.blocks.len()).unwrap_or(NOWHERE))),
        }
    }

    pub(super) fn block(&self, index: u32) -> Block {
        // Indices come from labels of blocks that exist.
        self.blocks.get(index as usize).copied().unwrap_or(MISSING)
    }

    pub(super) fn block_mut(&mut self, index: u32) -> Option<&mut Block> {
        self.blocks.get_mut(index as usize)
    }

    pub(super) fn name_roles(&mut self, module: &Module<'_>, first: u32, end: u32) -> Result<(), GuardError> {
        for index in first..end {
            let block = self.block(index);
            let last = block.last;
            let targets = targets(module, last);
            match last.op() {
                Op::Branch => last.length(2, 2)?,
                // Weights of branches are left out of the result.
                Op::BranchConditional if last.len == 6 => {}
                Op::BranchConditional => last.length(4, 4)?,
                Op::Switch => {
                    let case = module.literal_words(last) + 1;
                    if last.len < 3 || !(last.len - 3).is_multiple_of(case) {
                        return Err(wrong(last, "it has literals without labels"));
                    }
                    if (last.len - 3) / case > MOST_CASES {
                        return Err(wrong(last, format!("it has more than {MOST_CASES} cases")));
                    }
                }
                Op::ReturnValue => last.length(2, 2)?,
                _ => last.length(1, 1)?,
            }
            if last.op() == Op::BranchConditional
                && module.version >= V1_6
                && targets.first() == targets.last()
            {
                return Err(wrong(last, "it branches to the same block either way"));
            }
            for target in &targets {
                find_target(module, last, *target, first, end)?;
            }
            let Some(merge) = block.merge else { continue };
            let at = find_target(module, merge, module.word(merge, 1), first, end)?;
            self.give_role(merge, at, Role::Merge)?;
            if at <= index {
                return Err(wrong(merge, "its merge block stands before it"));
            }
            let is_loop = merge.op() == Op::LoopMerge;
            if is_loop {
                merge.length(4, u32::MAX)?;
                let control = module.word(merge, 3);
                let operands = (control & WITH_OPERAND).count_ones();
                if control & UNROLLS == UNROLLS || control & !LOOP_CONTROLS != 0 || merge.len != 4 + operands
                {
                    return Err(wrong(merge, "its loop control is not offered"));
                }
                let next = find_target(module, merge, module.word(merge, 2), first, end)?;
                if next == at || next < index {
                    return Err(wrong(merge, "its continue target is its merge block, or stands before it"));
                }
                if next != index {
                    self.give_role(merge, next, Role::Continue)?;
                }
            } else {
                merge.length(3, 3)?;
                if module.word(merge, 2) > 3 {
                    return Err(wrong(merge, "its selection control is not offered"));
                }
            }
            let good = match last.op() {
                Op::Branch => is_loop,
                Op::BranchConditional => true,
                Op::Switch => !is_loop,
                _ => false,
            };
            if !good {
                return Err(wrong(last, "no such branch may follow a merge instruction"));
            }
        }
        Ok(())
    }

    pub(super) fn give_role(&mut self, inst: Inst, block: u32, role: Role) -> Result<(), GuardError> {
        match self.block_mut(block) {
            Some(block) if block.role == Role::Plain => {
                block.role = role;
                Ok(())
            }
            _ => Err(wrong(inst, "it names a block that ends or continues another construct")),
        }
    }
}

/// Bits of a loop control that the result has: unroll, or do not.
pub(super) const UNROLLS: u32 = 3;
/// What compilers are told of dependencies and counts of iterations, each in a word of its own, and dropped here.
const WITH_OPERAND: u32 = 0x1f8;
const LOOP_CONTROLS: u32 = UNROLLS | 4 | WITH_OPERAND;

/// The block that `label` begins, of those from `first` to `end`.
fn find_target(module: &Module<'_>, inst: Inst, label: u32, first: u32, end: u32) -> Result<u32, GuardError> {
    let id = module.id(label);
    let good = id.kind == Kind::Label && (first..end).contains(&id.data) && id.data != first;
    good.then_some(id.data)
        .ok_or_else(|| wrong(inst, format!("{label} is no block of this function that may be branched to")))
}

/// The blocks that a terminator names.
pub(super) fn targets(module: &Module<'_>, last: Inst) -> Vec<u32> {
    match last.op() {
        Op::Branch => vec![module.word(last, 1)],
        Op::BranchConditional => vec![module.word(last, 2), module.word(last, 3)],
        // The default, then a literal before each label.
        Op::Switch => {
            let case = if module.literal_words(last) == 2 { 3 } else { 2 };
            (2..last.len).step_by(case).map(|at| module.word(last, at)).collect()
        }
        _ => Vec::new(),
    }
}

/// Cases of one switch beside its default (SPIR-V, universal limits).
const MOST_CASES: u32 = 16_383;

const MISSING: Block = Block {
    label: 0,
    first: 0,
    end: 0,
    merge: None,
    last: Inst { at: 0, len: 0, code: 0 },
    role: Role::Plain,
    within: NOWHERE,
    is_kept: false,
    is_reached: false,
    enter: 0,
    leave: 0,
    dominator: NOWHERE,
    order: NOWHERE,
};

fn is_terminator(op: Op) -> bool {
    matches!(
        op,
        Op::Branch | Op::BranchConditional | Op::Switch | Op::Return | Op::ReturnValue | Op::Unreachable
    )
}
