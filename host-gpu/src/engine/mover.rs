//! Moves of memory by the device, beside the work of guests: what the daemon asks of a copy engine whose local memory is a device's own.
//!
//! They run on the control thread, over a device instance of their own, so that none waits for a guest's work. The daemon sees to
//! it that no guest reaches the memory meanwhile.

use std::sync::Arc;

use campanile_protocol::page_table::SegmentId;

use super::message::MoveSide;
use crate::memory::local::DeviceFailed;
use crate::memory::local::LocalDevice;
use crate::memory::local::Side;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::node::local_copies::LocalCopies;
use crate::vulkan::import::HostRange;

/// What moves memory.
#[derive(Debug)]
pub struct Mover {
    copies: LocalCopies,
    visible: Arc<Mapping>,
    evicted: Arc<Mapping>,
}

impl Mover {
    /// Over local memory, the file of the video memory, and what is evicted.
    pub fn new(copies: LocalCopies, visible: Arc<Mapping>, evicted: Arc<Mapping>) -> Self {
        Self { copies, visible, evicted }
    }

    /// Copies `bytes`, and returns when they are there.
    ///
    /// # Errors
    /// The device failed, or neither side is local memory.
    pub fn carry_out(&mut self, from: MoveSide, to: MoveSide, bytes: u64) -> Result<(), DeviceFailed> {
        let Self { copies, visible, evicted } = self;
        let seen = |offset| Side::Segment(SegmentId::VRAM, visible, offset);
        let kept = |offset| HostRange {
            mapping: Arc::clone(evicted),
            offset,
            length: bytes,
            access: Access::ReadWrite,
        };
        match (from, to) {
            (MoveSide::Zero, MoveSide::Local(to)) => copies.fill(to, bytes, 0),
            (MoveSide::Local(from), MoveSide::Local(to)) => {
                copies.copy(Side::Local(from), Side::Local(to), bytes)
            }
            (MoveSide::Local(from), MoveSide::Visible(to)) => copies.copy(Side::Local(from), seen(to), bytes),
            (MoveSide::Visible(from), MoveSide::Local(to)) => copies.copy(seen(from), Side::Local(to), bytes),
            (MoveSide::Local(from), MoveSide::Evicted(to)) => copies.copy_with(&kept(to), from, true),
            (MoveSide::Evicted(from), MoveSide::Local(to)) => copies.copy_with(&kept(from), to, false),
            (from, to) => {
                Err(DeviceFailed::refused(format!("{from:?} to {to:?} is no move of local memory")))
            }
        }
    }
}
