//! Local memory in a device's own: the daemon holds its descriptor and never sees a byte of it.
//!
//! ```text
//!   free and zero ──allocate──▶ in use ──release──▶ unclean ──zeroed by the copy engine──▶ free and zero
//! ```
//!
//! Whatever was in use is zeroed by the device before it can be handed out again; at the start of a session that is all of it, but for
//! the first one, which gets it as it was allocated. Owned by the vGPU's thread.

use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::local::Passport;

use super::ranges::Ranges;

/// A device's memory that is the local memory of one vGPU, as long as this lives.
#[derive(Debug)]
pub struct DeviceLocal {
    descriptor: OwnedFd,
    /// How engines import it.
    pub passport: Passport,
    /// No session has had it.
    is_new: AtomicBool,
}

impl DeviceLocal {
    /// Memory that was allocated just now, and is zero.
    pub fn new(descriptor: OwnedFd, passport: Passport) -> Self {
        Self { descriptor, passport, is_new: AtomicBool::new(true) }
    }
}

/// That memory, as one session has it.
#[derive(Debug)]
pub struct InDevice {
    device: Arc<DeviceLocal>,
    /// What was in use and is not zero: offset and bytes.
    unclean: Vec<(u64, u64)>,
    /// What is being zeroed.
    zeroing: Vec<(u64, u64)>,
}

/// What became of a piece that was to be zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroed {
    /// It is zero.
    Done,
    /// It is still to be zeroed.
    NotYet,
    /// It cannot be: it is never used again.
    Never,
}

impl InDevice {
    /// For a session that begins: what of `local`, all of which is free, is not zero is taken out of it.
    pub(super) fn begin(device: Arc<DeviceLocal>, local: &mut Ranges) -> Self {
        let mut unclean = Vec::new();
        if !device.is_new.swap(false, Ordering::AcqRel) {
            unclean.extend(local.iter());
            unclean.iter().for_each(|(offset, length)| {
                local.reserve(*offset, *length);
            });
        }
        Self { device, unclean, zeroing: Vec::new() }
    }

    /// The descriptor, for engines.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.descriptor.as_fd()
    }

    /// A piece is given back.
    pub(super) fn keep(&mut self, offset: u64, length: u64) {
        self.unclean.push((offset, length));
    }

    /// Takes what is to be zeroed; it is free when [`Self::note`] is told so.
    pub(super) fn take(&mut self) -> Vec<(u64, u64)> {
        let pieces = std::mem::take(&mut self.unclean);
        self.zeroing.extend(&pieces);
        pieces
    }

    /// What became of a piece; true where it is free.
    #[must_use]
    pub(super) fn note(&mut self, piece: (u64, u64), outcome: Zeroed) -> bool {
        let Some(index) = self.zeroing.iter().position(|other| *other == piece) else { return false };
        self.zeroing.swap_remove(index);
        if outcome == Zeroed::NotYet {
            self.unclean.push(piece);
        }
        outcome == Zeroed::Done
    }

    /// What is free, or will be as soon as it is zeroed.
    pub(super) fn soon(&self, free: &Ranges) -> Ranges {
        let mut free = free.clone();
        let pieces = self.unclean.iter().chain(&self.zeroing);
        pieces.for_each(|(offset, length)| free.release(*offset, *length));
        free
    }
}
