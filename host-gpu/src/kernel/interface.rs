//! What a kernel needs from a dispatch, read off the valid module.

use naga::AddressSpace;
use naga::Binding as Varying;
use naga::BuiltIn;
use naga::GlobalVariable;
use naga::Handle;
use naga::Module;
use naga::StorageAccess;
use naga::Type;
use naga::TypeInner;
use naga::proc::Layouter;

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;
use crate::kernel::program::BINDING_LIMIT;
use crate::kernel::program::Binding;
use crate::kernel::program::BufferAccess;
use crate::kernel::program::CONSTANTS_LIMIT;

/// The longest workgroup in x, y and z, and in all: what lavapipe and most devices have.
const WORKGROUP_SIZE_LIMIT: [u32; 3] = [1024, 1024, 64];
const WORKGROUP_INVOCATIONS_LIMIT: u64 = 1024;

/// The reflected part of a kernel.
pub(super) struct Interface {
    pub(super) workgroup: [u32; 3],
    pub(super) bindings: Vec<Binding>,
    pub(super) constants: u32,
    pub(super) uses_num_workgroups: bool,
}

impl Interface {
    /// Reads the valid `module`, which has one entry point and only what that one uses.
    pub(super) fn of(module: &Module) -> Result<Self, KernelError> {
        let [entry] = module.entry_points.as_slice() else { return Err(KernelError::NoEntry) };
        let mut bindings = Vec::new();
        let mut constants = 0;
        for (_, variable) in module.global_variables.iter() {
            match variable.space {
                AddressSpace::Private | AddressSpace::WorkGroup => {}
                AddressSpace::Storage { access } => bindings.push(buffer(module, variable, access)?),
                AddressSpace::Immediate => constants = constant_bytes(module, variable)?,
                AddressSpace::Uniform => return Err(foreign(variable, "a uniform buffer")),
                AddressSpace::Handle => return Err(foreign(variable, handle_kind(module, variable))),
                _ => return Err(foreign(variable, "of a kind for graphics or ray tracing")),
            }
        }
        bindings.sort_by_key(|binding| binding.binding);
        Ok(Self {
            workgroup: checked_workgroup(entry.workgroup_size)?,
            bindings,
            constants,
            uses_num_workgroups: checked_inputs(module, entry)?.contains(&BuiltIn::NumWorkGroups),
        })
    }
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

fn buffer(module: &Module, variable: &GlobalVariable, access: StorageAccess) -> Result<Binding, KernelError> {
    let place = variable.binding.ok_or_else(|| foreign(variable, "a buffer without a binding number"))?;
    if place.group != 0 {
        return Err(foreign(variable, "a buffer in a group other than 0"));
    }
    if place.binding >= BINDING_LIMIT {
        return Err(foreign(variable, "a buffer with a binding number above 15"));
    }
    let inner = &module.types[variable.ty].inner;
    if matches!(inner, TypeInner::BindingArray { .. }) {
        return Err(foreign(variable, "an array of buffers"));
    }
    let writes = access.intersects(StorageAccess::STORE | StorageAccess::ATOMIC);
    Ok(Binding {
        group: place.group,
        binding: place.binding,
        access: if writes { BufferAccess::ReadWrite } else { BufferAccess::Read },
        min_size: u64::from(inner.size(module.to_ctx())).next_multiple_of(4),
    })
}

fn constant_bytes(module: &Module, variable: &GlobalVariable) -> Result<u32, KernelError> {
    let mut layouter = Layouter::default();
    let laid_out = layouter.update(module.to_ctx()).is_ok() && is_aligned(module, &layouter, variable.ty);
    if !laid_out {
        return Err(foreign(variable, "a constant with a misaligned member"));
    }
    let size = module.types[variable.ty].inner.size(module.to_ctx()).next_multiple_of(4);
    if size > CONSTANTS_LIMIT {
        let (count, limit) = (u64::from(size), u64::from(CONSTANTS_LIMIT));
        return Err(KernelError::Limit { what: "bytes in var<immediate>", count, limit });
    }
    Ok(size)
}

/// naga checks the layout of buffers but not that of constants, and SPIR-V names any offset it likes. Types nest
/// no deeper than `limits.rs` allows.
fn is_aligned(module: &Module, layouter: &Layouter, ty: Handle<Type>) -> bool {
    match &module.types[ty].inner {
        TypeInner::Struct { members, .. } => members.iter().all(|member| {
            layouter[member.ty].alignment.is_aligned(member.offset) && is_aligned(module, layouter, member.ty)
        }),
        TypeInner::Array { base, stride, .. } => {
            layouter[*base].alignment.is_aligned(*stride) && is_aligned(module, layouter, *base)
        }
        _ => true,
    }
}

fn checked_workgroup(size: [u32; 3]) -> Result<[u32; 3], KernelError> {
    for (count, limit) in size.into_iter().zip(WORKGROUP_SIZE_LIMIT) {
        if count > limit {
            let (count, limit) = (u64::from(count), u64::from(limit));
            return Err(KernelError::Limit {
                what: "invocations along one side of a workgroup",
                count,
                limit,
            });
        }
    }
    let count = size.into_iter().map(u64::from).product();
    if count > WORKGROUP_INVOCATIONS_LIMIT {
        let limit = WORKGROUP_INVOCATIONS_LIMIT;
        return Err(KernelError::Limit { what: "invocations in a workgroup", count, limit });
    }
    Ok(size)
}

/// What the entry point is told about where it runs: arguments, alone or as members of a struct, also from
/// SPIR-V. naga lets a compute kernel have inputs and outputs of graphics stages; drivers crash on them.
fn checked_inputs(module: &Module, entry: &naga::EntryPoint) -> Result<Vec<BuiltIn>, KernelError> {
    let foreign = |name: &Option<String>| KernelError::Variable {
        name: Diagnostic::new(name.as_deref().unwrap_or("(without a name)")),
        what: "an input or output that compute kernels do not have",
    };
    if entry.function.result.is_some() {
        return Err(foreign(&Some("(the result)".to_owned())));
    }
    let mut inputs = Vec::new();
    for argument in &entry.function.arguments {
        match (&argument.binding, &module.types[argument.ty].inner) {
            (None, TypeInner::Struct { members, .. }) => {
                for member in members {
                    inputs.push(place_in_grid(&member.binding).ok_or_else(|| foreign(&member.name))?);
                }
            }
            (binding, _) => inputs.push(place_in_grid(binding).ok_or_else(|| foreign(&argument.name))?),
        }
    }
    Ok(inputs)
}

fn place_in_grid(binding: &Option<Varying>) -> Option<BuiltIn> {
    match binding {
        Some(Varying::BuiltIn(
            place @ (BuiltIn::GlobalInvocationId
            | BuiltIn::LocalInvocationId
            | BuiltIn::LocalInvocationIndex
            | BuiltIn::WorkGroupId
            | BuiltIn::NumWorkGroups),
        )) => Some(*place),
        _ => None,
    }
}
