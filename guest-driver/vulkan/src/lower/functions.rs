//! The functions of a module, one by one: one with an instruction that cannot be lowered is left out, with all that call it and the entry points that
//! reach it. The others are compiled.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fmt;

use ::spirv::ExecutionModel;
use ::spirv::Op;

use super::body::Body;
use super::code::Refusal;
use super::module::Module;
use crate::spirv;
use crate::spirv::instructions;

/// Why an entry point is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOut {
    op: Op,
    reason: Refusal,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "it has Op{:?}, which is not lowered: {}", self.op, self.reason)
    }
}

/// The functions that were written, and those that are not to be.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Id of each, and where its words begin.
    starts: Vec<(u32, usize)>,
    /// Function → those that call it.
    callers: HashMap<u32, Vec<u32>>,
    left_out: HashMap<u32, LeftOut>,
    /// In the order in which they were found.
    open: Vec<u32>,
}

impl Functions {
    /// Writes an instruction as it becomes.
    pub(super) fn write(&mut self, module: &mut Module, op: u32, instruction: &[u32]) {
        if let (Some(Op::Function), [_, _, id, ..]) = (Op::from_u32(op), instruction) {
            module.loads.clear();
            self.starts.push((*id, module.code.functions.len()));
        }
        let function = self.starts.last().map_or(0, |(id, _)| *id);
        if let (Some(Op::FunctionCall), [_, _, _, callee, ..]) = (Op::from_u32(op), instruction) {
            self.callers.entry(*callee).or_default().push(function);
        }
        if self.left_out.contains_key(&function) {
            return;
        }
        if let Err(reason) = (Body { module }).rewrite(op, instruction) {
            let op = Op::from_u32(op).unwrap_or(Op::Nop);
            self.left_out.insert(function, LeftOut { op, reason });
            self.open.push(function);
        }
    }

    /// Takes out of a module what is to be left out of it, and of the decorations and names what stands on that. `words` are those of the program.
    pub(super) fn finish(&mut self, module: &mut Module, words: &[u32]) {
        while let Some(function) = self.open.pop() {
            let Some(why) = self.left_out.get(&function).copied() else { continue };
            for caller in self.callers.get(&function).into_iter().flatten() {
                if self.left_out.insert(*caller, why).is_none() {
                    self.open.push(*caller);
                }
            }
        }
        if self.left_out.is_empty() {
            return;
        }
        let all = std::mem::take(&mut module.code.functions);
        let ends = self.starts.iter().skip(1).map(|(_, start)| *start).chain([all.len()]);
        for ((id, start), end) in self.starts.iter().zip(ends) {
            if !self.left_out.contains_key(id) {
                module.code.functions.extend(all.get(*start..end).unwrap_or_default());
            }
        }
        let (mut types, mut is_left_out) = (HashSet::new(), false);
        for (op, instruction) in instructions(words) {
            match (Op::from_u32(op), instruction) {
                (Some(Op::Function), [_, _, id, ..]) => is_left_out = self.left_out.contains_key(id),
                (_, [_, id, ..]) if (19..=33).contains(&op) => {
                    types.insert(*id);
                }
                _ => {}
            }
            let defined = match (Op::from_u32(op), instruction) {
                (Some(Op::Label), [_, id]) => Some(*id),
                (_, [_, ty, id, ..]) if types.contains(ty) => Some(*id),
                _ => None,
            };
            module.removed.extend(defined.filter(|_| is_left_out));
        }
    }

    /// Whether an instruction before the functions is of an entry point that is left out.
    pub(super) fn leaves_out(&self, instruction: &[u32]) -> bool {
        let at = match instruction.first().and_then(|first| Op::from_u32(first & 0xffff)) {
            Some(Op::EntryPoint) => 2,
            Some(Op::ExecutionMode | Op::ExecutionModeId) => 1,
            _ => return false,
        };
        instruction.get(at).is_some_and(|function| self.left_out.contains_key(function))
    }

    /// The compute entry points that are left out, by name.
    pub(super) fn entries(&self, words: &[u32]) -> BTreeMap<Vec<u8>, LeftOut> {
        let entry = |(op, instruction): (u32, &[u32])| {
            let [_, model, function, name @ ..] = instruction else { return None };
            let is_kernel = op == Op::EntryPoint as u32 && *model == ExecutionModel::GLCompute as u32;
            let why = self.left_out.get(function).filter(|_| is_kernel)?;
            Some((spirv::bytes(name).take_while(|byte| *byte != 0).collect(), *why))
        };
        instructions(words).filter_map(entry).collect()
    }
}
