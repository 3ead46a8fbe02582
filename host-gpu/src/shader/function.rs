//! Functions: their signatures, and the call graph.

use spirv::Op;
use spirv::StorageClass;

use crate::shader::entries::Entries;
use crate::shader::error::GuardError;
use crate::shader::flow::Flow;
use crate::shader::module::Id;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::define_debug;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// How many functions a module may have.
const LIMIT: usize = 4096;
/// How deep calls may nest.
const CALL_DEPTH_LIMIT: u32 = 64;
/// How many instructions a kernel may have once every call is inlined, which drivers do.
const COST_LIMIT: u64 = 256 * 1024;
/// How many loads, stores and atomics it may have then: a driver's compiler takes more than linear time for them.
const ACCESS_LIMIT: u64 = 16 * 1024;
/// All private and local variables together once every call is inlined, bytes per invocation.
const STACK_LIMIT: u64 = 64 * 1024;

/// A function.
#[derive(Debug, Clone, Default)]
pub(super) struct Function {
    pub(super) id: u32,
    /// Its type, and what it returns.
    pub(super) ty: u32,
    pub(super) returns: u32,
    /// Index of its `OpFunction`, and of its `OpFunctionEnd`.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Its blocks.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Indices of functions called, once for each call.
    pub(super) calls: Vec<u32>,
    /// Global variables that it names, each once or more.
    pub(super) names: Vec<u32>,
    /// Global variables through which it writes.
    pub(super) writes: Vec<u32>,
    /// Loads, stores and atomics in its text.
    pub(super) accesses: u64,
    /// Bytes of its local variables.
    pub(super) stack: u64,
}

/// What a function costs with its calls inlined.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    size: u64,
    accesses: u64,
    stack: u64,
    depth: u32,
}

/// The functions of a module.
#[derive(Default)]
pub(super) struct Functions {
    pub(super) list: Vec<Function>,
}

impl Functions {
    /// Finds every function, and cuts its blocks.
    pub(super) fn declare_all(
        &mut self,
        symbols: &mut Symbols<'_>,
        flow: &mut Flow,
        code: u32,
    ) -> Result<(), GuardError> {
        let count = u32::try_from(symbols.module.insts.len()).unwrap_or(NOWHERE);
        let mut at = code;
        while at < count {
            let inst = symbols.module.inst(at);
            if matches!(inst.op(), Op::Line | Op::NoLine) {
                at += 1;
                continue;
            }
            // Descriptions of kernels, which some compilers put there.
            if inst.op() == Op::ExtInst {
                define_debug(&mut symbols.module, at, inst)?;
                at += 1;
                continue;
            }
            if inst.op() != Op::Function || self.list.len() >= LIMIT {
                return Err(wrong(
                    inst,
                    format!("it stands between functions, or there are more than {LIMIT}"),
                ));
            }
            at = self.declare(symbols, flow, at, count)?;
        }
        Ok(())
    }

    fn declare(
        &mut self,
        symbols: &mut Symbols<'_>,
        flow: &mut Flow,
        from: u32,
        count: u32,
    ) -> Result<u32, GuardError> {
        let inst = symbols.module.inst(from);
        inst.length(5, 5)?;
        let (returns, id, ty) =
            (symbols.module.word(inst, 1), symbols.module.word(inst, 2), symbols.module.word(inst, 4));
        let signature = symbols.module.definition(ty);
        if symbols.shape(ty) != Shape::Function
            || symbols.module.word(signature, 2) != returns
            || symbols.module.word(inst, 3) > 15
        {
            return Err(wrong(inst, "its type does not fit what it returns, or its control is not offered"));
        }
        let data = u32::try_from(self.list.len()).unwrap_or(NOWHERE);
        symbols.module.define(
            inst,
            id,
            Id { kind: Kind::Function, ty: 0, inst: from, block: NOWHERE, data },
        )?;
        let block = u32::try_from(flow.blocks.len()).unwrap_or(NOWHERE);
        let takes = symbols.module.rest(signature, 3).to_vec();
        let mut at = from + 1;
        for wanted in takes {
            let mut parameter = symbols.module.inst(at);
            while matches!(parameter.op(), Op::Line | Op::NoLine) {
                at += 1;
                parameter = symbols.module.inst(at);
            }
            parameter.length(3, 3)?;
            let (ty, id) = (symbols.module.word(parameter, 1), symbols.module.word(parameter, 2));
            if parameter.op() != Op::FunctionParameter || ty != wanted {
                return Err(wrong(parameter, "a parameter of the function's type is missing or different"));
            }
            if let Shape::Pointer { class, .. } = symbols.shape(ty)
                && !matches!(
                    class,
                    StorageClass::Function
                        | StorageClass::Private
                        | StorageClass::Workgroup
                        | StorageClass::UniformConstant
                )
            {
                return Err(wrong(
                    parameter,
                    "pointers into this storage class cannot be handed to functions",
                ));
            }
            symbols.module.define(parameter, id, Id { kind: Kind::Value, ty, inst: at, block, data: 0 })?;
            at += 1;
        }
        let body = at;
        while at < count && symbols.module.inst(at).op() != Op::FunctionEnd {
            at += 1;
        }
        if at == count {
            return Err(wrong(inst, "it does not end"));
        }
        symbols.module.inst(at).length(1, 1)?;
        let (first, end) = flow.cut_blocks(&mut symbols.module, body, at)?;
        if first == end {
            return Err(wrong(inst, "it has no body"));
        }
        self.list.push(Function { id, ty, returns, from, to: at, first, end, ..Function::default() });
        Ok(at + 1)
    }

    /// Checks that each entry point is a function that takes and returns nothing.
    pub(super) fn check_entries(&self, symbols: &Symbols<'_>, entries: &Entries) -> Result<(), GuardError> {
        for entry in &entries.list {
            let found = self.function(symbols, entry.function);
            let plain = found.is_some_and(|f| {
                symbols.shape(f.returns) == Shape::Void && symbols.module.definition(f.ty).len == 3
            });
            if !plain {
                return Err(wrong(entry.inst, "it names no function that takes and returns nothing"));
            }
        }
        Ok(())
    }

    /// The function with this id.
    pub(super) fn function(&self, symbols: &Symbols<'_>, id: u32) -> Option<&Function> {
        let meaning = symbols.module.id(id);
        (meaning.kind == Kind::Function).then(|| self.list.get(meaning.data as usize)).flatten()
    }

    /// The functions that `entry` runs, itself first. Fails where one calls itself, or costs with all calls inlined are
    /// too high.
    pub(super) fn reach(&self, module: &Module<'_>, entry: u32) -> Result<Vec<u32>, GuardError> {
        let mut costs: Vec<Option<Cost>> = vec![None; self.list.len()];
        let mut open = vec![false; self.list.len()];
        let mut stack = vec![(entry, 0_usize)];
        let mut found = vec![entry];
        while let Some((index, at)) = stack.last_mut() {
            let (index, position) = (*index, *at);
            let function =
                self.list.get(index as usize).ok_or_else(|| GuardError::module("a function is missing"))?;
            let inst = module.inst(function.from);
            if let Some(open) = open.get_mut(index as usize) {
                *open = true;
            }
            if let Some(callee) = function.calls.get(position).copied() {
                *at += 1;
                if open.get(callee as usize).copied().unwrap_or(true) {
                    return Err(wrong(inst, "it calls itself, by itself or through others"));
                }
                if costs.get(callee as usize).copied().flatten().is_none() {
                    found.push(callee);
                    stack.push((callee, 0));
                }
                continue;
            }
            let own = Cost {
                size: u64::from(function.to - function.from),
                accesses: function.accesses,
                stack: function.stack,
                depth: 0,
            };
            let cost = function.calls.iter().fold(own, |sum, callee| {
                let cost = costs.get(*callee as usize).copied().flatten().unwrap_or_default();
                Cost {
                    size: sum.size.saturating_add(cost.size),
                    accesses: sum.accesses.saturating_add(cost.accesses),
                    stack: sum.stack.saturating_add(cost.stack),
                    depth: sum.depth.max(cost.depth + 1),
                }
            });
            for (what, count, limit) in [
                ("instructions with all calls inlined", cost.size, COST_LIMIT),
                ("accesses to memory with all calls inlined", cost.accesses, ACCESS_LIMIT),
                ("bytes in local variables with all calls inlined", cost.stack, STACK_LIMIT),
                ("levels of nested calls", u64::from(cost.depth), u64::from(CALL_DEPTH_LIMIT)),
            ] {
                if count > limit {
                    return Err(wrong(inst, format!("{count} {what}, more than {limit}")));
                }
            }
            if let (Some(slot), Some(open)) = (costs.get_mut(index as usize), open.get_mut(index as usize)) {
                *slot = Some(cost);
                *open = false;
            }
            stack.pop();
        }
        Ok(found)
    }
}
