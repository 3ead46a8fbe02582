//! Messages about native fences: 64-bit values that queues, nodes and processes of one VM wait for and signal.
//!
//! A fence has one global handle, by which processes of the same VM open it, and one local handle per opener
//! (UMS-142). Its value lies in a page that the daemon keeps; each opener has it mapped at a GPU address of its
//! choice, for the packets FENCE_WAIT and FENCE_SIGNAL. What the CPU wants of it goes through these messages.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::handle::Handle;

/// [`CreateNativeFence`] → [`NativeFenceOpened`].
pub const CREATE_NATIVE_FENCE: u32 = 48;
/// [`OpenNativeFence`] → [`NativeFenceOpened`].
pub const OPEN_NATIVE_FENCE: u32 = 49;
/// [`super::message::Named`], a local handle. The last one closed destroys the fence (UMS-142). Waits through this
/// handle are answered `InvalidHandle`.
pub const CLOSE_NATIVE_FENCE: u32 = 50;
/// [`NativeFenceValue`]; answered when the fence's value is that or more, or the device of the waiter is lost.
pub const WAIT_NATIVE_FENCE: u32 = 51;
/// [`NativeFenceValue`]: the CPU stores the value (UMS-139).
pub const SIGNAL_NATIVE_FENCE: u32 = 52;
/// [`super::message::Named`], a local handle → [`CurrentValue`].
pub const QUERY_NATIVE_FENCE: u32 = 53;

/// Type DEFAULT: CPU and GPU wait and signal (UMS-143).
pub const NATIVE_FENCE_DEFAULT: u32 = 0;
/// Type INTRA_GPU: no CPU waits, signals or reads; each is answered `NotSupported` (UMS-143).
pub const NATIVE_FENCE_INTRA_GPU: u32 = 1;

/// Creates a native fence, and opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateNativeFence {
    /// `NATIVE_FENCE_*`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The value that it starts with.
    pub initial_value: u64,
    /// GPU virtual address for its page, a multiple of the page size. The value is the page's first word.
    pub va: u64,
}

/// Opens a fence that a process of the same VM has created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenNativeFence {
    /// Its global handle.
    pub global: Handle,
    /// As in [`CreateNativeFence`].
    pub va: u64,
}

/// A native fence that was created or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NativeFenceOpened {
    /// The opener's own name for it.
    pub fence: Handle,
    /// The VM's name for it: the same for all openers.
    pub global: Handle,
    /// `NATIVE_FENCE_*`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// A fence and a value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NativeFenceValue {
    /// A local handle.
    pub fence: Handle,
    /// Waited for, or stored.
    pub value: u64,
}

/// A fence's CurrentValue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CurrentValue {
    /// The value.
    pub value: u64,
}
