//! How complicated a kernel may be, so that neither naga nor the driver's compiler runs away.
//!
//! `check_text` comes before parsing. `check_shape` comes before validation and trusts nothing: it walks without recursion and takes a reference
//! forward for depth zero (the validator refuses those). `check_cost` comes after.

use naga::AddressSpace;
use naga::Block;
use naga::Expression;
use naga::Function;
use naga::Handle;
use naga::Module;
use naga::Statement;
use naga::TypeInner;
use naga::valid::FunctionInfo;
use naga::valid::ModuleInfo;

use crate::kernel::error::KernelError;

/// How deep blocks may nest. An `else if` chain nests one level per link.
const BLOCK_DEPTH_LIMIT: u64 = 128;
/// How deep types may nest: arrays of structs of arrays.
const TYPE_DEPTH_LIMIT: u64 = 32;
/// How many types a module may declare.
const TYPES_LIMIT: u64 = 4096;
/// How deep calls may nest.
const CALL_DEPTH_LIMIT: u64 = 64;
/// How many expressions and statements a module may have, and a kernel once every call is inlined, which
/// drivers do.
const COST_LIMIT: u64 = 64 * 1024;

/// How many accesses to buffers and workgroup memory a kernel may have in its text, calls inlined: as in SPIR-V. lavapipe
/// compiles ALU work in linear time but these in quadratic, so what ends a long compilation is the time that it may take.
const ACCESS_LIMIT: u64 = 16 * 1024;
/// How many `&&` and `||` a WGSL text may have: naga's time grows with the square of a chain of them.
const SHORT_CIRCUITS_LIMIT: u64 = 2048;

fn at_most(what: &'static str, count: u64, limit: u64) -> Result<(), KernelError> {
    if count > limit { Err(KernelError::Limit { what, count, limit }) } else { Ok(()) }
}

/// Refuses text that would keep the parser itself busy for seconds.
pub(super) fn check_text(text: &str) -> Result<(), KernelError> {
    let count = text.matches("||").count() + text.matches("&&").count();
    at_most("operators `&&` and `||`", count as u64, SHORT_CIRCUITS_LIMIT)
}

/// Refuses what would exhaust the stack of the next walk over the module.
pub(super) fn check_shape(module: &Module) -> Result<(), KernelError> {
    at_most("types", module.types.len() as u64, TYPES_LIMIT)?;
    check_type_depth(module)?;
    let mut written = module.global_expressions.len() as u64;
    for function in functions_of(module) {
        let body = measure(&function.body);
        at_most("levels of nested blocks", body.depth, BLOCK_DEPTH_LIMIT)?;
        written += body.statements + function.expressions.len() as u64;
    }
    at_most("expressions and statements", written, COST_LIMIT)
}

/// What a function costs with its calls inlined.
#[derive(Default, Clone, Copy)]
struct Cost {
    size: u64,
    accesses: u64,
    call_depth: u64,
}

/// Refuses what would keep the driver's compiler busy for long. The module is valid.
pub(super) fn check_cost(module: &Module, info: &ModuleInfo) -> Result<(), KernelError> {
    // Callees come before callers in a valid module, so one pass suffices. A function called twice counts twice.
    let mut seen: Vec<Cost> = Vec::with_capacity(module.functions.len());
    for (function, function_info) in functions_of(module).zip(infos_of(module, info)) {
        let body = measure(&function.body);
        let mut cost = Cost {
            size: body.statements + function.expressions.len() as u64,
            accesses: count_accesses(module, function, function_info, &body),
            call_depth: 0,
        };
        for callee in body.calls.iter().filter_map(|callee| seen.get(callee.index())) {
            cost.size = cost.size.saturating_add(callee.size);
            cost.accesses = cost.accesses.saturating_add(callee.accesses);
            cost.call_depth = cost.call_depth.max(callee.call_depth + 1);
        }
        at_most("expressions and statements with all calls inlined", cost.size, COST_LIMIT)?;
        at_most(
            "accesses to buffers and workgroup memory with all calls inlined",
            cost.accesses,
            ACCESS_LIMIT,
        )?;
        at_most("levels of nested calls", cost.call_depth, CALL_DEPTH_LIMIT)?;
        seen.push(cost);
    }
    Ok(())
}

/// Loads, stores and atomics in the text that go to buffers or workgroup memory.
fn count_accesses(module: &Module, function: &Function, info: &FunctionInfo, body: &Body) -> u64 {
    let loaded = function.expressions.iter().filter_map(|(_, expression)| match expression {
        Expression::Load { pointer } => Some(*pointer),
        _ => None,
    });
    let is_shared = |pointer: &Handle<Expression>| {
        let space = info[*pointer].ty.inner_with(&module.types).pointer_space();
        matches!(space, Some(AddressSpace::Storage { .. } | AddressSpace::WorkGroup))
    };
    loaded.chain(body.pointers.iter().copied()).filter(is_shared).count() as u64
}

/// Called functions in arena order, then entry points.
pub(super) fn functions_of(module: &Module) -> impl Iterator<Item = &Function> {
    module
        .functions
        .iter()
        .map(|(_, function)| function)
        .chain(module.entry_points.iter().map(|e| &e.function))
}

/// What naga knows of each of [`functions_of`].
pub(super) fn infos_of<'a>(
    module: &'a Module,
    info: &'a ModuleInfo,
) -> impl Iterator<Item = &'a FunctionInfo> {
    let called = module.functions.iter().map(|(handle, _)| &info[handle]);
    called.chain((0..module.entry_points.len()).map(|index| info.get_entry_point(index)))
}

fn check_type_depth(module: &Module) -> Result<(), KernelError> {
    let mut depths: Vec<u64> = Vec::with_capacity(module.types.len());
    for (_, ty) in module.types.iter() {
        let depth_of = |base: &Handle<naga::Type>| depths.get(base.index()).copied().unwrap_or(0);
        let depth = match &ty.inner {
            TypeInner::Array { base, .. }
            | TypeInner::BindingArray { base, .. }
            | TypeInner::Pointer { base, .. } => 1 + depth_of(base),
            TypeInner::Struct { members, .. } => {
                1 + members.iter().map(|member| depth_of(&member.ty)).max().unwrap_or(0)
            }
            _ => 0,
        };
        at_most("levels of nested types", depth, TYPE_DEPTH_LIMIT)?;
        depths.push(depth);
    }
    Ok(())
}

/// What a walk over a function's body found.
#[derive(Default)]
pub(super) struct Body {
    pub(super) depth: u64,
    pub(super) statements: u64,
    /// One entry per call, not per callee.
    pub(super) calls: Vec<Handle<Function>>,
    /// Where stores and atomics go.
    pointers: Vec<Handle<Expression>>,
}

/// Walks all nested blocks with a list of our own instead of the stack.
pub(super) fn measure(body: &Block) -> Body {
    let mut found = Body::default();
    let mut waiting: Vec<(&Block, u64)> = vec![(body, 1)];
    while let Some((block, depth)) = waiting.pop() {
        found.depth = found.depth.max(depth);
        for statement in block.iter() {
            found.statements += 1;
            match statement {
                Statement::Block(inner) => waiting.push((inner, depth + 1)),
                Statement::If { accept, reject, .. } => {
                    waiting.extend([(accept, depth + 1), (reject, depth + 1)]);
                }
                Statement::Loop { body, continuing, .. } => {
                    waiting.extend([(body, depth + 1), (continuing, depth + 1)]);
                }
                Statement::Switch { cases, .. } => {
                    waiting.extend(cases.iter().map(|case| (&case.body, depth + 1)));
                }
                Statement::Store { pointer, .. }
                | Statement::Atomic { pointer, .. }
                | Statement::WorkGroupUniformLoad { pointer, .. } => found.pointers.push(*pointer),
                Statement::Call { function, .. } => found.calls.push(*function),
                _ => {}
            }
        }
    }
    found
}
