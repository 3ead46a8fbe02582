//! What is kept of a suspend while its engine carries it out.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::handle::Handle;

use crate::vgpu::objects::message::Origin;

/// A suspend that an engine has not reported yet, and what waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Suspending {
    /// The guest process.
    pub context: u32,
    /// The context.
    pub handle: Handle,
    pub(super) at: EngineAddress,
    pub(super) entry: u32,
    pub(super) fence: u64,
    /// The message to answer; none where the daemon itself asked.
    pub(super) origin: Option<Origin>,
}

impl Suspending {
    /// The engine that has to report it.
    pub(in crate::vgpu) const fn engine(&self) -> EngineAddress {
        self.at
    }
}
