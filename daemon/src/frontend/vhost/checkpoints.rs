//! When a device at work is written for a daemon that follows this one if it is killed.
//!
//! ```text
//!             something is to be done                       nothing is left to do, and the last try is long enough ago
//!   HOLDS ───────────────────────────────▶ FORGOTTEN ────────────────────────────────────────────────────────────────▶ HOLDS
//!                                             │  ▲                                                            │
//!                                             │  └── something is to be done ── TRIED ◀── it cannot be written ┘
//!                                             └ killed here: devices are lost
//! ```
//!
//! Writing takes the thread of the vGPU a fiftieth of its time at the most, so that one that is never idle for long, or has
//! much to write, is written more rarely. After a while without any, the next few follow at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::counters::Counters;
use super::device::Device;
use super::handed::Checkpointed;
use super::saved::SavedRing;
use crate::ledger::checkpoint::Checkpoint;
use crate::ledger::keeping::Ledger;
use crate::ledger::read::CHECKPOINT;
use crate::vgpu::state::saved::bytes::Bytes;

/// From one try to the next, so many times as long as it takes.
const SHARE: u32 = 50;
/// As much of that as is not waited for after a while without any.
const BURST: Duration = Duration::from_millis(250);

/// A device at work, as a [`Device`] gives it.
#[derive(Debug)]
pub struct AtWork {
    /// The device, encoded.
    pub device: Vec<u8>,
    /// Files that a daemon after this one needs for that, by their roles.
    pub files: Vec<(String, Arc<File>)>,
}

/// How what was written last stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Holds,
    Forgotten,
    /// Nothing has happened since it could not be written.
    Tried,
}

/// The checkpoints of one connection.
#[derive(Debug)]
pub(super) struct Checkpoints {
    checkpoint: Checkpoint,
    ledger: Arc<Ledger>,
    counters: Arc<Counters>,
    /// What was stored last in each role.
    kept: BTreeMap<String, Arc<File>>,
    standing: Standing,
    /// When the next one may be tried.
    next: Instant,
}

impl Checkpoints {
    /// Of a connection that this ledger is of.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub(super) fn new(ledger: &Arc<Ledger>, counters: &Arc<Counters>) -> io::Result<Self> {
        let checkpoint = Checkpoint::new()?;
        ledger.keep(CHECKPOINT, checkpoint.file().as_fd());
        let (ledger, counters, kept) = (Arc::clone(ledger), Arc::clone(counters), BTreeMap::new());
        let (standing, next) = (Standing::Forgotten, Instant::now());
        Ok(Self { checkpoint, ledger, counters, kept, standing, next })
    }

    /// Something is to be done: what was written holds no more.
    pub(super) fn forget(&mut self) {
        if self.standing == Standing::Holds {
            self.checkpoint.forget();
            self.counters.set_checkpoint_holds(false);
        }
        self.standing = Standing::Forgotten;
    }

    /// How long nothing may be to do until the next one is written; none where none is due.
    pub(super) fn due(&self) -> Option<Duration> {
        let is_due = self.standing == Standing::Forgotten;
        is_due.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Writes the device, where that can be.
    pub(super) fn write(&mut self, device: &mut dyn Device, rings: impl FnOnce() -> Vec<SavedRing>) {
        let begun = Instant::now();
        self.standing = Standing::Tried;
        if let Some(at_work) = device.at_work() {
            match self.put(at_work, rings()) {
                Ok(()) => {
                    self.standing = Standing::Holds;
                    self.counters.set_checkpoint_holds(true);
                }
                Err(error) => log::debug!("{}: no checkpoint: {error}", self.ledger.vgpu()),
            }
        }
        let now = Instant::now();
        let paid = now.checked_sub(BURST).map_or(now, |earliest| self.next.max(earliest));
        self.next = paid + now.saturating_duration_since(begun) * SHARE;
    }

    fn put(&mut self, AtWork { device, files }: AtWork, rings: Vec<SavedRing>) -> io::Result<()> {
        let written = Checkpointed { vgpu: self.ledger.vgpu().to_owned(), rings, device: Bytes(device) };
        let mut bytes = Vec::new();
        ciborium::into_writer(&written, &mut bytes).map_err(io::Error::other)?;
        for (role, file) in files {
            if !self.kept.get(&role).is_some_and(|kept| Arc::ptr_eq(kept, &file)) {
                self.ledger.keep(&role, file.as_fd());
                self.kept.insert(role, file);
            }
        }
        self.checkpoint.write(&bytes)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.forget();
    }
}
