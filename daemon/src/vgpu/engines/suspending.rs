//! What is kept of a suspend while its engine carries it out.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Origin;

/// A suspend that an engine has not reported yet, and what waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Suspending {
    /// The guest process.
    pub context: GuestProcess,
    /// The context.
    pub handle: ContextHandle,
    pub(in crate::vgpu) at: EngineAddress,
    pub(in crate::vgpu) entry: ContextIndex,
    pub(in crate::vgpu) fence: u64,
    /// The message to answer; none where the daemon itself asked.
    pub(in crate::vgpu) origin: Option<Origin>,
}

impl Suspending {
    /// The engine that has to report it.
    pub(in crate::vgpu) const fn engine(&self) -> EngineAddress {
        self.at
    }
}
