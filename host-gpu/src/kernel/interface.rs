//! What a kernel needs from a dispatch, and whether the protocol can say it.

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;
use crate::kernel::memory::WORKGROUP_LIMIT;
use crate::kernel::program::BINDING_LIMIT;
use crate::kernel::program::Binding;
use crate::kernel::program::BufferAccess;
use crate::kernel::program::CONSTANTS_LIMIT;
use crate::kernel::program::DESCRIPTOR_LIMIT;
use crate::kernel::program::SET_LIMIT;
use crate::shader::interface::BufferKind;
use crate::shader::interface::Shader;
use crate::shader::interface::ShaderBinding;

/// The longest workgroup in x, y and z, and in all: what lavapipe and most devices have.
pub(crate) const WORKGROUP_SIZE_LIMIT: [u32; 3] = [1024, 1024, 64];
pub(crate) const WORKGROUP_INVOCATIONS_LIMIT: u64 = 1024;

/// The part of a kernel that dispatches are checked against.
pub(super) struct Interface {
    pub(super) workgroup: [u32; 3],
    pub(super) bindings: Vec<Binding>,
    pub(super) constants: u32,
    pub(super) workgroup_memory: u32,
}

impl Interface {
    /// Refuses what a dispatch packet cannot bind.
    pub(super) fn of(shader: &Shader) -> Result<Self, KernelError> {
        at_most("bytes in var<immediate>", u64::from(shader.constants), u64::from(CONSTANTS_LIMIT))?;
        at_most("bytes of workgroup memory", shader.workgroup_memory, WORKGROUP_LIMIT)?;
        let bindings: Vec<Binding> = shader.bindings.iter().map(buffer).collect::<Result<_, _>>()?;
        let buffers = bindings.iter().map(|binding| u64::from(binding.count)).sum();
        at_most("buffers", buffers, u64::from(DESCRIPTOR_LIMIT))?;
        Ok(Self {
            workgroup: checked_workgroup(shader.workgroup)?,
            bindings,
            constants: shader.constants,
            workgroup_memory: u32::try_from(shader.workgroup_memory).unwrap_or(u32::MAX),
        })
    }
}

fn at_most(what: &'static str, count: u64, limit: u64) -> Result<(), KernelError> {
    if count > limit { Err(KernelError::Limit { what, count, limit }) } else { Ok(()) }
}

fn buffer(found: &ShaderBinding) -> Result<Binding, KernelError> {
    let what = if found.set >= SET_LIMIT {
        "a buffer in a set above 7"
    } else if found.binding >= BINDING_LIMIT {
        "a buffer with a binding number above 63"
    } else if found.kind == BufferKind::Uniform && found.is_written {
        "a uniform buffer that is written"
    } else {
        let access = if found.is_written { BufferAccess::ReadWrite } else { BufferAccess::Read };
        let ShaderBinding { set, binding, kind, texels, min_size, .. } = *found;
        let count = found.count.unwrap_or(1);
        return Ok(Binding { set, binding, count, kind, texels, access, min_size });
    };
    Err(KernelError::Variable { name: Diagnostic::new(&found.name), what })
}

fn checked_workgroup(size: [u32; 3]) -> Result<[u32; 3], KernelError> {
    for (count, limit) in size.into_iter().zip(WORKGROUP_SIZE_LIMIT) {
        at_most("invocations along one side of a workgroup", u64::from(count), u64::from(limit))?;
    }
    let count = size.into_iter().map(u64::from).product();
    at_most("invocations in a workgroup", count, WORKGROUP_INVOCATIONS_LIMIT)?;
    Ok(size)
}
