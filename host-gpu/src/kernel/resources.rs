//! What a WGSL kernel may ask for beyond buffers: nothing, said with the names that the guest gave.

use naga::AddressSpace;
use naga::Binding as Varying;
use naga::BuiltIn;
use naga::GlobalVariable;
use naga::Module;
use naga::TypeInner;

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;

/// Checks the valid `module`, which has one entry point and only what that one uses.
pub(super) fn check(module: &Module) -> Result<(), KernelError> {
    let [entry] = module.entry_points.as_slice() else { return Err(KernelError::NoEntry) };
    for (_, variable) in module.global_variables.iter() {
        match variable.space {
            AddressSpace::Private
            | AddressSpace::WorkGroup
            | AddressSpace::Storage { .. }
            | AddressSpace::Immediate
            | AddressSpace::Uniform => {}
            AddressSpace::Handle => return Err(foreign(variable, handle_kind(module, variable))),
            _ => return Err(foreign(variable, "of a kind for graphics or ray tracing")),
        }
    }
    check_inputs(module, entry)
}

fn foreign(variable: &GlobalVariable, what: &'static str) -> KernelError {
    let name = variable.name.as_deref().unwrap_or("(without a name)");
    KernelError::Variable { name: Diagnostic::new(name), what }
}

fn handle_kind(module: &Module, variable: &GlobalVariable) -> &'static str {
    match module.types[variable.ty].inner {
        TypeInner::Image { .. } => "an image",
        TypeInner::Sampler { .. } => "a sampler",
        TypeInner::AccelerationStructure { .. } => "an acceleration structure",
        _ => "an opaque resource",
    }
}

/// What the entry point is told about where it runs: arguments, alone or as members of a
/// struct. naga lets a compute kernel have inputs and outputs of graphics stages; drivers crash on them.
fn check_inputs(module: &Module, entry: &naga::EntryPoint) -> Result<(), KernelError> {
    let foreign = |name: &Option<String>| KernelError::Variable {
        name: Diagnostic::new(name.as_deref().unwrap_or("(without a name)")),
        what: "an input or output that compute kernels do not have",
    };
    if entry.function.result.is_some() {
        return Err(foreign(&Some("(the result)".to_owned())));
    }
    for argument in &entry.function.arguments {
        match (&argument.binding, &module.types[argument.ty].inner) {
            (None, TypeInner::Struct { members, .. }) => {
                for member in members {
                    is_place(&member.binding).then_some(()).ok_or_else(|| foreign(&member.name))?;
                }
            }
            (binding, _) => is_place(binding).then_some(()).ok_or_else(|| foreign(&argument.name))?,
        }
    }
    Ok(())
}

fn is_place(binding: &Option<Varying>) -> bool {
    matches!(
        binding,
        Some(Varying::BuiltIn(
            BuiltIn::GlobalInvocationId
                | BuiltIn::LocalInvocationId
                | BuiltIn::LocalInvocationIndex
                | BuiltIn::WorkGroupId
                | BuiltIn::NumWorkGroups
        ))
    )
}
