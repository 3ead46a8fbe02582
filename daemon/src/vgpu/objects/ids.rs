//! Numbers and handles by which rooms name what another room owns.

use std::fmt;

use campanile_protocol::handle::Handle;

/// Number of an allocation within a vGPU; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

/// A context of a guest process, by the handle that its guest has for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextHandle(Handle);

impl ContextHandle {
    /// The context that a message or a saved state names so.
    pub const fn new(handle: Handle) -> Self {
        Self(handle)
    }

    /// As guests know it.
    pub const fn get(self) -> Handle {
        self.0
    }
}

impl fmt::Debug for ContextHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What the objects of a table are named by.
pub trait Name: Copy {
    /// The name that is this handle.
    fn of(handle: Handle) -> Self;
    /// The handle.
    fn handle(self) -> Handle;
}

impl Name for Handle {
    fn of(handle: Handle) -> Self {
        handle
    }

    fn handle(self) -> Handle {
        self
    }
}

impl Name for ContextHandle {
    fn of(handle: Handle) -> Self {
        Self::new(handle)
    }

    fn handle(self) -> Handle {
        self.get()
    }
}
