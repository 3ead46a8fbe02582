//! A device that is taken away from its VM, and comes back: here, or on another host (decision 64).
//!
//! ```text
//!   daemon: LEAVE of the device page is not zero
//!   guest:  PARK_DEVICE ─▶ (token) ─▶ pages put aside, blobs and context closed            device is unplugged
//!   guest:  new context; each blob made again, its `blob_id` = `blob_name(token, its old resource)`, where it is video memory
//!           ATTACH_DEVICE(token, names of the others), the first message ─▶ everything goes on
//! ```
//!
//! Between the two nothing of the process runs, what it waits for goes on waiting, and what it has keeps its handles and
//! GPU addresses. Commands under way are answered when it parks, without the work that their fences are behind: a fence
//! of the same timeline, sent after it has come back, is behind that work.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// No body → [`Parked`], once nothing of the process is on the GPU. Refused with BUSY where it was not asked for, with
/// NOT_SUPPORTED where some of what it has cannot be put aside.
pub const PARK_DEVICE: u32 = 64;
/// [`AttachDevice`], then [`PagesAgain`] entries: the first message of a context. A token that is not known, or that
/// was used, is refused as what is no message. Refused with LEAVING while the device is still to be taken away.
pub const ATTACH_DEVICE: u32 = 65;

/// By what a process that was parked is known: two random numbers, which it keeps secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Parked {
    /// For [`AttachDevice`] alone.
    pub token: u64,
    /// Where the names of its blobs begin.
    pub names: u64,
}

/// Comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachDevice {
    /// What [`Parked`] said.
    pub parked: Parked,
    /// [`crate::PROTOCOL_VERSION`] of the guest.
    pub protocol_version: u32,
    /// The attached resource that is the old device page, made again by its name.
    pub page_resource: u32,
    /// Entries of [`PagesAgain`] that follow.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// A blob of the guest's own pages, which carries no name when it is made again: its pages are others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PagesAgain {
    /// Its name, as [`blob_name`] says.
    pub name: u64,
    /// The attached resource that it is now.
    pub resource: u32,
    /// Zero.
    pub reserved: u32,
}

/// What `blob_id` names a blob of a parked process that is made again: `resource` was its number.
pub const fn blob_name(parked: &Parked, resource: u32) -> u64 {
    parked.names.wrapping_add(resource as u64)
}
