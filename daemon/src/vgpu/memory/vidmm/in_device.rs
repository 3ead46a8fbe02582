//! Local memory of a device's own, as one session has it: what is free, in use, to be zeroed, or filled.
//!
//! ```text
//!   free and zero ──allocate──▶ in use ──release──▶ unclean ──zeroed by the copy engine──▶ free and zero
//!        │                        ▲                    │
//!        └──────────── filled: contents of a state that is on its way, until its allocations take them
//! ```
//!
//! Whatever was in use is zeroed by the device before it can be handed out again; at the start of a session that is all of it, but for
//! the first one, which gets it as it was allocated. Owned by the vGPU's thread.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::device_local::DeviceLocal;
use super::local_reader::LocalReader;
use super::ranges::Ranges;

/// That memory, as one session has it.
#[derive(Debug)]
pub struct InDevice {
    reader: Arc<LocalReader>,
    /// What was in use and is not zero.
    unclean: Ranges,
    /// What is being zeroed: offset and bytes.
    zeroing: Vec<(u64, u64)>,
    /// What was filled, and belongs to no allocation yet.
    filled: Vec<(u64, u64)>,
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

/// What is in a piece that is to be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Claimed {
    /// Zeroes.
    Zero,
    /// What was in use before, in some of it at least.
    Unclean,
}

impl InDevice {
    /// For a session that begins: what of `local`, all of which is free, is not zero is taken out of it.
    pub(super) fn begin(reader: Arc<LocalReader>, local: &mut Ranges) -> Self {
        let mut this = Self { reader, unclean: Ranges::new(0, 0), zeroing: Vec::new(), filled: Vec::new() };
        let device = this.device();
        if !device.begin_session(local) {
            this.unclean = std::mem::replace(local, Ranges::new(0, 0));
        }
        this
    }

    fn device(&self) -> Arc<DeviceLocal> {
        Arc::clone(&self.reader.port().device)
    }

    /// The memory, for engines.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.reader.port().device.descriptor()
    }

    /// What reads it for the daemon.
    pub fn reader(&self) -> &Arc<LocalReader> {
        &self.reader
    }

    /// Takes what is not free out of `local`, which is all of it.
    pub(super) fn take_out_of(&self, local: &mut Ranges) {
        let pieces = self.unclean.iter().chain(self.zeroing.iter().copied());
        pieces.chain(self.filled.iter().copied()).for_each(|(offset, length)| {
            local.reserve(offset, length);
        });
    }

    /// A piece is given back.
    pub(super) fn keep(&mut self, offset: u64, length: u64) {
        self.unclean.release(offset, length);
    }

    /// Takes what is to be zeroed; it is free when [`Self::note`] is told so.
    pub(super) fn take(&mut self) -> Vec<(u64, u64)> {
        let pieces: Vec<_> = std::mem::replace(&mut self.unclean, Ranges::new(0, 0)).iter().collect();
        self.zeroing.extend(&pieces);
        pieces
    }

    /// What became of a piece; true where it is free.
    #[must_use]
    pub(super) fn note(&mut self, piece: (u64, u64), outcome: Zeroed) -> bool {
        let Some(index) = self.zeroing.iter().position(|other| *other == piece) else { return false };
        self.zeroing.swap_remove(index);
        match outcome {
            Zeroed::Done => self.device().is_not_stale(piece.0, piece.1),
            Zeroed::NotYet => self.unclean.release(piece.0, piece.1),
            Zeroed::Never => {}
        }
        outcome == Zeroed::Done
    }

    /// What is free, or will be as soon as it is zeroed.
    pub(super) fn soon(&self, free: &Ranges) -> Ranges {
        let mut free = free.clone();
        let pieces = self.unclean.iter().chain(self.zeroing.iter().copied());
        pieces.for_each(|(offset, length)| free.release(offset, length));
        free
    }

    /// Takes a piece that no allocation has for contents that come, and says what is in it; none where an allocation or another such
    /// piece has some of it.
    pub(super) fn claim(&mut self, free: &mut Ranges, offset: u64, length: u64) -> Option<Claimed> {
        let end = offset.checked_add(length)?;
        let zero = free.bytes_within(offset, end);
        if length == 0 || zero + self.unclean.bytes_within(offset, end) != length {
            return None;
        }
        free.take_all_within(offset, end);
        self.unclean.take_all_within(offset, end);
        self.filled.push((offset, length));
        Some(if zero == length { Claimed::Zero } else { Claimed::Unclean })
    }

    /// Contents are there, of all pieces that were claimed.
    pub fn is_filled(&self) {
        self.filled.iter().for_each(|(offset, length)| self.device().is_not_stale(*offset, *length));
    }

    /// Allocations are about to take what was filled: it is free until [`Self::keep_rest`].
    #[must_use]
    pub(super) fn offer(&mut self, free: &mut Ranges) -> Vec<(u64, u64)> {
        let pieces = std::mem::take(&mut self.filled);
        pieces.iter().for_each(|(offset, length)| free.release(*offset, *length));
        pieces
    }

    /// They have: what is free of these pieces is not zero.
    pub(super) fn keep_rest(&mut self, free: &mut Ranges, pieces: &[(u64, u64)]) {
        for (offset, length) in pieces {
            let rest: Vec<_> = free.within(*offset, offset + length).collect();
            free.take_all_within(*offset, offset + length);
            rest.iter().for_each(|(offset, length)| self.unclean.release(*offset, *length));
        }
    }
}
