//! How constructs nest: which blocks are walked to, and whether every branch may go where it goes.
//!
//! Each block but a merge block, a continue target or a case has one predecessor, which decides in which construct it
//! lies. So one walk from the entry finds the nesting, and every branch is checked against where it starts:
//!
//! ```text
//!   branch from a block in construct K to
//!     a block that nothing else reaches         lies in K from now on
//!     the merge block of K, a selection         leaves K
//!     the merge or continue block of the        leaves all constructs in between
//!       innermost loop, the merge block of
//!       the innermost switch
//!     the header, from the continue construct   closes the loop, once
//!     the case after this one, or the default   falls through; the default, into any case, but what falls
//!                                                 into it, into the case after that one
//! ```

use std::collections::HashMap;
use std::collections::HashSet;

use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::flow::Flow;
use crate::shader::flow::Role;
use crate::shader::module::Inst;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;

/// How deep constructs may nest.
const DEPTH_LIMIT: u32 = 128;

/// The index of a default that no literal names: it has no place among the others.
const DEFAULT: u32 = u32::MAX;
/// That of a case whose literals stand apart, so that it is in several places: it follows on no other, and no other on it.
const SCATTERED: u32 = u32::MAX - 1;

/// What blocks nest in. The index of a case is its place among the targets of its switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Construct {
    Function,
    Selection { merge: u32 },
    Switch { merge: u32 },
    Case { index: u32 },
    Loop { header: u32, merge: u32, next: u32 },
    Continue,
}

#[derive(Debug, Clone, Copy)]
struct Nest {
    construct: Construct,
    outer: u32,
    depth: u32,
    /// Of a continue construct: whether the loop has been closed.
    is_used: bool,
    /// Of a case: which one falls into it, and into which one it falls; `NOWHERE` where there is none.
    from: u32,
    into: u32,
}

impl Nest {
    fn new(construct: Construct, outer: u32, depth: u32) -> Self {
        Self { construct, outer, depth, is_used: false, from: NOWHERE, into: NOWHERE }
    }
}

/// One function being walked.
struct Walk<'g, 'a> {
    flow: &'g mut Flow,
    module: &'g Module<'a>,
    nests: Vec<Nest>,
    /// Blocks still to walk.
    open: Vec<u32>,
}

impl Flow {
    /// Walks the blocks from `first` to `end`, one function.
    pub(super) fn walk(&mut self, module: &Module<'_>, first: u32, end: u32) -> Result<(), GuardError> {
        self.name_roles(module, first, end)?;
        let function = Nest::new(Construct::Function, NOWHERE, 0);
        let mut walk = Walk { flow: self, module, nests: vec![function], open: Vec::new() };
        walk.enter(first, 0);
        while let Some(block) = walk.open.pop() {
            walk.leave_block(first, block)?;
        }
        let nests = walk.nests;
        if nests.iter().any(|nest| nest.construct == Construct::Continue && !nest.is_used) {
            let inst = self.block(first).last;
            return Err(wrong(inst, "a loop in this function is never closed by a branch to its header"));
        }
        self.find_dominators(module, first, end)
    }
}

impl Walk<'_, '_> {
    fn nest(&self, index: u32) -> Nest {
        let none = Nest::new(Construct::Function, NOWHERE, 0);
        self.nests.get(index as usize).copied().unwrap_or(none)
    }

    fn push(&mut self, inst: Inst, construct: Construct, outer: u32) -> Result<u32, GuardError> {
        let depth = self.nest(outer).depth + 1;
        if depth > DEPTH_LIMIT {
            return Err(wrong(inst, format!("constructs nest deeper than {DEPTH_LIMIT}")));
        }
        self.nests.push(Nest::new(construct, outer, depth));
        Ok(u32::try_from(self.nests.len() - 1).unwrap_or(NOWHERE))
    }

    /// Begins to walk `block`, which lies in `within`.
    fn enter(&mut self, block: u32, within: u32) {
        if let Some(found) = self.flow.block_mut(block) {
            found.within = within;
            found.is_kept = true;
        }
        self.open.push(block);
    }

    /// Opens the constructs that `block` heads and follows its branches.
    fn leave_block(&mut self, first: u32, index: u32) -> Result<(), GuardError> {
        let block = self.flow.block(index);
        let (mut own, last) = (block.within, block.last);
        let module = self.module;
        let at = |label: u32| module.id(label).data;
        let mut cases: Vec<u32> = Vec::new();
        if let Some(inst) = block.merge {
            let merge = at(module.word(inst, 1));
            let next = at(module.word(inst, 2));
            self.enter(merge, own);
            let construct = match (inst.op(), last.op()) {
                (Op::LoopMerge, _) => Construct::Loop { header: index, merge, next },
                (_, Op::Switch) => Construct::Switch { merge },
                _ => Construct::Selection { merge },
            };
            own = self.push(inst, construct, own)?;
            if inst.op() == Op::LoopMerge {
                let continues = self.push(inst, Construct::Continue, own)?;
                if next == index {
                    // The header is the whole loop, its own continue construct.
                    own = continues;
                } else {
                    self.enter(next, continues);
                }
            }
        }
        let mut fresh = 0;
        let targets: Vec<u32> = self.flow.successors(self.module, index);
        let mut seen = HashSet::new();
        for target in targets.iter().copied() {
            if !seen.insert(target) {
                continue;
            }
            if self.is_exit(own, target, index, last)? {
                continue;
            }
            let found = self.flow.block(target);
            if last.op() == Op::Switch {
                if block.merge.is_none() {
                    return Err(wrong(last, "it is not structured: no merge instruction stands before it"));
                }
                if found.is_kept {
                    return Err(wrong(last, format!("its case {} is reached in another way", found.label)));
                }
                self.flow.give_role(last, target, Role::Case)?;
                cases.push(target);
                continue;
            }
            let follows =
                last.op() == Op::Branch && found.role == Role::Case && self.falls_through(own, target);
            if follows {
                continue;
            }
            if found.role != Role::Plain || found.is_kept || target == first {
                return Err(wrong(last, format!("it branches into another construct, to {}", found.label)));
            }
            fresh += 1;
            if fresh > 1 && block.merge.is_none_or(|merge| merge.op() == Op::LoopMerge) {
                return Err(wrong(last, "it is not structured: no selection merge stands before it"));
            }
            self.enter(target, own);
        }
        let mut literals = targets.get(1..).unwrap_or_default().to_vec();
        literals.dedup();
        let mut places = HashMap::new();
        for (place, literal) in (0..).zip(literals) {
            places.entry(literal).and_modify(|place| *place = SCATTERED).or_insert(place);
        }
        for target in cases {
            let index = places.get(&target).copied().unwrap_or(DEFAULT);
            let case = self.push(last, Construct::Case { index }, own)?;
            self.enter(target, case);
        }
        let ends = matches!(last.op(), Op::Return | Op::ReturnValue | Op::Unreachable);
        if ends && self.is_within_continue(own) {
            return Err(wrong(last, "a continue construct does not lead back to the header"));
        }
        Ok(())
    }

    fn is_within_continue(&self, nest: u32) -> bool {
        let mut nest = self.nest(nest);
        loop {
            match nest.construct {
                Construct::Continue => return true,
                Construct::Function => return false,
                _ => nest = self.nest(nest.outer),
            }
        }
    }

    /// Whether a branch from construct `own` to `target` leaves constructs, as it may.
    fn is_exit(&mut self, own: u32, target: u32, from: u32, last: Inst) -> Result<bool, GuardError> {
        let mut at = own;
        let (mut innermost, mut switches) = (true, true);
        loop {
            let nest = self.nest(at);
            match nest.construct {
                Construct::Function => return Ok(false),
                Construct::Selection { merge } => {
                    if innermost && merge == target {
                        return Ok(true);
                    }
                    innermost = false;
                }
                // A case is left as its switch is.
                Construct::Case { .. } => {}
                Construct::Switch { merge } => {
                    if switches && merge == target {
                        return Ok(true);
                    }
                    switches = false;
                    innermost = false;
                }
                Construct::Continue => {
                    let Construct::Loop { header, merge, .. } = self.nest(nest.outer).construct else {
                        return Ok(false);
                    };
                    let closes = self.flow.successors(self.module, from).contains(&header);
                    if target == header {
                        if at != own || nest.is_used {
                            return Err(wrong(
                                last,
                                "a loop is closed twice, or from inside another construct",
                            ));
                        }
                        if let Some(nest) = self.nests.get_mut(at as usize) {
                            nest.is_used = true;
                        }
                        return Ok(true);
                    }
                    return Ok(at == own && target == merge && closes);
                }
                Construct::Loop { merge, next, .. } => return Ok(target == merge || target == next),
            }
            at = nest.outer;
        }
    }

    /// Whether case `own` may fall into the case that `target` begins. Each falls into one other, and one other into each.
    fn falls_through(&mut self, own: u32, target: u32) -> bool {
        let into = self.flow.block(target).within;
        let (case, next) = (self.nest(own), self.nest(into));
        let (Construct::Case { index }, Construct::Case { index: follows }) =
            (case.construct, next.construct)
        else {
            return false;
        };
        if own == into || case.outer != next.outer {
            return false;
        }
        if (case.into, next.from) == (into, own) {
            return true;
        }
        let known = |nest: u32| match self.nest(nest).construct {
            Construct::Case { index } if nest != NOWHERE => Some(index),
            _ => None,
        };
        // The default stands between the one that falls into it and the one that it falls into.
        let (before, after) = match (index, follows) {
            (DEFAULT, _) => (known(case.from), Some(follows)),
            (_, DEFAULT) => (Some(index), known(next.into)),
            _ => (Some(index), Some(follows)),
        };
        let in_order = before.zip(after).is_none_or(|(before, after)| before.checked_add(1) == Some(after));
        if case.into != NOWHERE || next.from != NOWHERE || !in_order {
            return false;
        }
        if let Some(case) = self.nests.get_mut(own as usize) {
            case.into = into;
        }
        if let Some(next) = self.nests.get_mut(into as usize) {
            next.from = own;
        }
        true
    }
}
