//! What a guest process waits for, and the native fences that it has open.

use campanile_protocol::handle::Handle;

use super::message::Origin;
use crate::vgpu::objects::ids::ContextHandle;

/// A guest process that waits for a progress fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Where its answer goes.
    pub origin: Origin,
    /// The queue.
    pub queue: Handle,
    /// The value.
    pub value: u64,
}

/// A native fence that a guest process has open (UMS-142).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFence {
    /// The fence's number.
    pub index: u32,
    /// Where its page is mapped.
    pub va: u64,
}

/// A guest process that waits for a native fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeWait {
    /// Where its answer goes.
    pub origin: Origin,
    /// The local handle.
    pub fence: Handle,
    /// The fence's number.
    pub index: u32,
    /// The value.
    pub value: u64,
}

/// A context whose first buffer waits for a native fence, outside of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuWait {
    /// The context.
    pub context: ContextHandle,
    /// The fence's number.
    pub index: u32,
    /// The value.
    pub value: u64,
}
