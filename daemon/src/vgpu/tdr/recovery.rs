//! What replaces engines and resets the vGPU: [`super::engine_reset`], [`super::adapter_reset`], [`super::timeouts`], and looks at
//! what does not answer, [`super::liveness_checks`]. It stands above whatever finds that an engine is no good.

use crate::vgpu::vm::Vm;

/// Timeout detection and recovery: engines that hang or lie are replaced, or all is reset.
#[derive(Debug)]
pub struct Recovery<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Recovery<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}
