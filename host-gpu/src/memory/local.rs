//! Local memory that lies in a device's own: no CPU reaches it, and everything that is to be done with it the device does.
//!
//! ```text
//!   video memory   [ visible: a file │ local: the device's own, by its descriptor │ save areas: the same file ]
//!                    0 ──▶ start        start ──▶ start + bytes
//! ```
//!
//! Offsets are those in the video memory, whatever it is made of. The descriptor is opaque: only the driver that gave it knows
//! what is behind it, and it is never mapped.

use std::fmt::Debug;
use std::sync::Arc;

use campanile_protocol::page_table::SegmentId;
use serde::Deserialize;
use serde::Serialize;

use super::mapping::Mapping;

/// What a driver must know of memory to import it by its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Passport {
    /// Bytes of the allocation.
    pub length: u64,
    /// Vulkan's index of its type.
    pub type_index: u32,
    /// UUIDs of device and driver.
    pub uuids: [[u8; 16]; 2],
}

/// Local memory of a vGPU in a device's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalMemory {
    /// Where it begins in the video memory, bytes.
    pub start: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of the file that what is evicted lies in.
    pub evicted_bytes: u64,
    /// How it is imported.
    pub passport: Passport,
}

/// One side of a copy by the device.
#[derive(Debug, Clone, Copy)]
pub enum Side<'a> {
    /// Local memory, by the offset in the video memory.
    Local(u64),
    /// A mapped segment, and the offset in it.
    Segment(SegmentId, &'a Arc<Mapping>, u64),
}

/// A device did not do what was asked of it: nothing is known of the target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DeviceFailed {
    /// Why.
    pub text: String,
    /// Whether the device itself has failed, and not what was asked.
    pub is_lost: bool,
}

impl DeviceFailed {
    /// What was asked cannot be.
    pub fn refused(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_lost: false }
    }
}

/// A device that has local memory, as those see it that work on it. Whatever is asked is done when the call returns.
pub trait LocalDevice: Debug + Send {
    /// Copies `length` bytes. Where the sides have bytes in common, what is in the target then is some of what was in both.
    ///
    /// # Errors
    /// A range is not there, or the device failed.
    fn copy(&mut self, from: Side<'_>, to: Side<'_>, length: u64) -> Result<(), DeviceFailed>;

    /// Fills with a word; offset and length are multiples of 4.
    ///
    /// # Errors
    /// A range is not there, or the device failed.
    fn fill(&mut self, offset: u64, length: u64, word: u32) -> Result<(), DeviceFailed>;

    /// Reads bytes, few of them.
    ///
    /// # Errors
    /// A range is not there, or the device failed.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceFailed>;

    /// A segment is gone, or another has its number.
    fn forget(&mut self, segment: SegmentId);
}
