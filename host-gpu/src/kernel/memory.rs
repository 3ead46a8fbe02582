//! How much memory of each kind a kernel may ask for. naga itself accepts a workgroup array of 1 GiB.

use naga::AddressSpace;
use naga::Module;
use naga::TypeInner;
use naga::valid::FunctionInfo;
use naga::valid::ModuleInfo;

use crate::kernel::error::KernelError;
use crate::kernel::limits::functions_of;
use crate::kernel::limits::infos_of;
use crate::kernel::limits::measure;
use crate::kernel::program::CONSTANTS_LIMIT;

/// All workgroup variables together, bytes: what lavapipe and most devices have.
pub(crate) const WORKGROUP_LIMIT: u64 = 32 * 1024;
/// One private variable, local variable, constant or value of an expression, bytes.
const VALUE_LIMIT: u64 = 16 * 1024;
/// All private and local variables together once every call is inlined, bytes per invocation.
const STACK_LIMIT: u64 = 64 * 1024;

/// Checks the valid `module`.
pub(super) fn check(module: &Module, info: &ModuleInfo) -> Result<(), KernelError> {
    space_total(module, AddressSpace::WorkGroup, "bytes of workgroup memory", WORKGROUP_LIMIT)?;
    space_total(module, AddressSpace::Private, "bytes in a private variable", VALUE_LIMIT)?;
    check_constants(module)?;
    check_functions(module, info)
}

/// Checks blocks of constants before naga validates `module`: it keeps a bit for each word of one, in 64 bits.
pub(super) fn check_immediates(module: &Module) -> Result<(), KernelError> {
    let limit = u64::from(CONSTANTS_LIMIT);
    let immediates =
        module.global_variables.iter().filter(|(_, variable)| variable.space == AddressSpace::Immediate);
    let largest = immediates.map(|(_, variable)| type_size(module, variable.ty)).max().unwrap_or(0);
    if largest > limit { Err(too_much("bytes in var<immediate>", largest, limit)) } else { Ok(()) }
}

fn too_much(what: &'static str, count: u64, limit: u64) -> KernelError {
    KernelError::Limit { what, count, limit }
}

fn size_of(module: &Module, inner: &TypeInner) -> u64 {
    // A type too large for naga to measure is too large for every limit here.
    inner.try_size(module.to_ctx()).map_or(u64::MAX, u64::from)
}

fn type_size(module: &Module, ty: naga::Handle<naga::Type>) -> u64 {
    size_of(module, &module.types[ty].inner)
}

/// The bytes of all variables of `space`, with the alignment lost between them bounded by 16 each.
fn space_total(
    module: &Module,
    space: AddressSpace,
    what: &'static str,
    limit: u64,
) -> Result<(), KernelError> {
    let variables = module.global_variables.iter().filter(|(_, variable)| variable.space == space);
    let total = variables.fold(0_u64, |total, (_, variable)| {
        total.next_multiple_of(16).saturating_add(type_size(module, variable.ty))
    });
    if total > limit { Err(too_much(what, total, limit)) } else { Ok(()) }
}

fn check_constants(module: &Module) -> Result<(), KernelError> {
    for (_, constant) in module.constants.iter() {
        let size = type_size(module, constant.ty);
        if size > VALUE_LIMIT {
            return Err(too_much("bytes in a constant", size, VALUE_LIMIT));
        }
    }
    Ok(())
}

fn check_functions(module: &Module, info: &ModuleInfo) -> Result<(), KernelError> {
    let mut stacks: Vec<u64> = Vec::with_capacity(module.functions.len());
    for (function, function_info) in functions_of(module).zip(infos_of(module, info)) {
        check_values(module, function, function_info)?;
        let mut stack: u64 = 0;
        for (_, local) in function.local_variables.iter() {
            let size = type_size(module, local.ty);
            if size > VALUE_LIMIT {
                return Err(too_much("bytes in a local variable", size, VALUE_LIMIT));
            }
            stack = stack.saturating_add(size);
        }
        let callees = measure(&function.body).calls;
        let inlined = callees.iter().map(|callee| stacks.get(callee.index()).copied().unwrap_or(0));
        let stack = inlined.fold(stack, u64::saturating_add);
        if stack > STACK_LIMIT {
            return Err(too_much("bytes in local variables with all calls inlined", stack, STACK_LIMIT));
        }
        stacks.push(stack);
    }
    Ok(())
}

/// A whole array loaded by value, or spilled to be indexed, is as costly as a variable of its type.
fn check_values(module: &Module, function: &naga::Function, info: &FunctionInfo) -> Result<(), KernelError> {
    for (handle, _) in function.expressions.iter() {
        let size = size_of(module, info[handle].ty.inner_with(&module.types));
        if size > VALUE_LIMIT {
            return Err(too_much("bytes in one value", size, VALUE_LIMIT));
        }
    }
    Ok(())
}
