//! Which block dominates which: what every way from the entry passes.

use crate::shader::error::GuardError;
use crate::shader::flow::Flow;
use crate::shader::flow::targets;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;

/// Structured control flow needs two or three; more is an attack.
const ROUNDS_LIMIT: u32 = 32;

impl Flow {
    /// Finds for each block that is reached which one dominates it, along branches.
    pub(super) fn find_dominators(
        &mut self,
        module: &Module<'_>,
        first: u32,
        end: u32,
    ) -> Result<(), GuardError> {
        // Depth first from the entry, without recursion.
        let mut post = Vec::new();
        let mut stack = vec![(first, self.successors(module, first))];
        if let Some(block) = self.block_mut(first) {
            block.is_reached = true;
        }
        let mut parents: Vec<Vec<u32>> = vec![Vec::new(); (end - first) as usize];
        while let Some((block, successors)) = stack.last_mut() {
            let block = *block;
            let Some(next) = successors.pop() else {
                post.push(block);
                stack.pop();
                continue;
            };
            if let Some(parents) = parents.get_mut((next - first) as usize) {
                parents.push(block);
            }
            if !self.block(next).is_reached {
                if let Some(block) = self.block_mut(next) {
                    block.is_reached = true;
                }
                let successors = self.successors(module, next);
                stack.push((next, successors));
            }
        }
        for (order, block) in (0..).zip(post.iter().rev()) {
            if let Some(block) = self.block_mut(*block) {
                block.order = order;
            }
        }
        if let Some(block) = self.block_mut(first) {
            block.dominator = first;
        }
        let mut changed = true;
        let mut rounds = 0;
        while changed {
            changed = false;
            rounds += 1;
            for index in post.iter().rev().copied().filter(|block| *block != first) {
                let mut dominator = NOWHERE;
                for parent in parents.get((index - first) as usize).into_iter().flatten() {
                    if self.block(*parent).dominator == NOWHERE {
                        continue;
                    }
                    dominator = if dominator == NOWHERE { *parent } else { self.meet(dominator, *parent) };
                }
                if self.block(index).dominator != dominator {
                    changed = true;
                    if let Some(block) = self.block_mut(index) {
                        block.dominator = dominator;
                    }
                }
            }
            if rounds > ROUNDS_LIMIT {
                return Err(wrong(self.block(first).last, "control flow is too tangled to follow"));
            }
        }
        self.number_dominators(module, first, end, &post)
    }

    fn number_dominators(
        &mut self,
        module: &Module<'_>,
        first: u32,
        end: u32,
        post: &[u32],
    ) -> Result<(), GuardError> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); (end - first) as usize];
        for index in post.iter().copied().filter(|block| *block != first) {
            let block = self.block(index);
            if block.dominator > index {
                return Err(wrong(module.inst(block.first), "it stands before the block that dominates it"));
            }
            if let Some(children) = children.get_mut((block.dominator - first) as usize) {
                children.push(index);
            }
        }
        let mut count = 0;
        let mut stack = vec![(first, false)];
        while let Some((index, left)) = stack.pop() {
            count += 1;
            if let Some(block) = self.block_mut(index) {
                if left { block.leave = count } else { block.enter = count }
            }
            if !left {
                stack.push((index, true));
                let below = children.get((index - first) as usize).into_iter().flatten();
                stack.extend(below.map(|child| (*child, false)));
            }
        }
        Ok(())
    }

    pub(super) fn successors(&self, module: &Module<'_>, block: u32) -> Vec<u32> {
        let labels = targets(module, self.block(block).last);
        labels.into_iter().map(|label| module.id(label).data).collect()
    }

    fn meet(&self, a: u32, b: u32) -> u32 {
        let (mut a, mut b) = (a, b);
        while a != b {
            if self.block(a).order > self.block(b).order {
                a = self.block(a).dominator;
            } else {
                b = self.block(b).dominator;
            }
            if a == NOWHERE || b == NOWHERE {
                return NOWHERE;
            }
        }
        a
    }

    /// Whether block `a` dominates block `b`; both are reached.
    pub(super) fn dominates(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.block(a), self.block(b));
        a.enter <= b.enter && b.leave <= a.leave
    }
}
