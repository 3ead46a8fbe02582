//! How much memory vGPUs may promise to their guests: each by its own quota, and all together.
//!
//! ```text
//!   host limit   [ min of a │ min of b │ … │ shared: first come, first served ]
//!   vGPU a         0 ……… min  ──beyond min──▶ out of the shared part ……… max
//! ```
//!
//! What is counted is what guests have allocated, wherever it lies. All sums are checked. Shared by the threads of all
//! vGPUs: an allocation takes two short locks, always the account's before the pool's.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;

/// Steps in which watchers are told of what is left.
const STEPS: u64 = 64;

/// What one vGPU may have, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// This much is always to be had, whatever others have.
    pub min: u64,
    /// And never more than this. What exceeds the video memory lies in host memory for the time being.
    pub max: u64,
}

/// Why an allocation is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The vGPU's own maximum.
    #[error("{wanted} bytes are more than the {left} that are left of the vGPU's {max}")]
    Vgpu {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        left: u64,
        /// Its maximum.
        max: u64,
    },
    /// The host's.
    #[error("{wanted} bytes are more than the {left} that are left of what the host gives to all vGPUs")]
    Host {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
}

/// Why vGPUs do not fit on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the guaranteed minima of all vGPUs, {minima} bytes, are more than the {total} that the host gives")]
pub struct TooManyMinima {
    /// Their sum.
    pub minima: u64,
    /// What there is.
    pub total: u64,
}

/// The part of the host's memory that no vGPU is guaranteed.
pub struct Pool {
    left: Option<Mutex<u64>>,
    /// Bytes of a step: watchers are told when what is left comes to another.
    step: u64,
    watchers: Mutex<Vec<Weak<Watcher>>>,
}

/// An observer that is told when there is more or less left, as long as it is held. Called by any thread; does not block.
pub type Watcher = dyn Fn() + Send + Sync;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Pool {
    /// What is left of `total` beyond the minima of all vGPUs; without a total there is no limit.
    ///
    /// # Errors
    /// The minima are more than the total.
    pub fn new(
        total: Option<u64>,
        minima: impl IntoIterator<Item = u64>,
    ) -> Result<Arc<Self>, TooManyMinima> {
        let Some(total) = total else {
            return Ok(Arc::new(Self { left: None, step: 1, watchers: Mutex::default() }));
        };
        let minima = minima.into_iter().fold(0, u64::saturating_add);
        let left = total.checked_sub(minima).ok_or(TooManyMinima { minima, total })?;
        let step = (left / STEPS).max(1);
        Ok(Arc::new(Self { left: Some(Mutex::new(left)), step, watchers: Mutex::default() }))
    }

    /// Tells an observer of changes, from now on.
    pub fn watch(&self, watcher: &Arc<Watcher>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|known| known.strong_count() > 0);
        watchers.push(Arc::downgrade(watcher));
    }

    /// What was left has changed.
    fn changed(&self, before: u64, after: u64) {
        if before / self.step != after / self.step {
            let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.iter().filter_map(Weak::upgrade).for_each(|watcher| watcher());
        }
    }

    fn left(&self) -> Option<MutexGuard<'_, u64>> {
        Some(self.left.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What one vGPU has promised to its guests, over all its sessions.
#[derive(Debug)]
pub struct Account {
    pool: Arc<Pool>,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    quota: Quota,
    committed: u64,
}

impl Standing {
    /// Bytes of `committed` that the minimum does not cover.
    fn beyond(&self, committed: u64) -> u64 {
        committed.saturating_sub(self.quota.min)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a guest is told of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes allocated.
    pub committed: u64,
    /// Bytes that can be allocated besides, as things are.
    pub available: u64,
}

impl Account {
    /// Of a vGPU that has nothing yet, and whose minimum `pool` knows.
    pub fn new(quota: Quota, pool: Arc<Pool>) -> Self {
        Self { pool, standing: Mutex::new(Standing { quota, committed: 0 }) }
    }

    /// Of a vGPU that comes later: its minimum is taken of what is left.
    ///
    /// # Errors
    /// The host has less left. Nothing was changed.
    pub fn open(quota: Quota, pool: &Arc<Pool>) -> Result<Self, QuotaError> {
        let account = Self::new(Quota { min: 0, ..quota }, Arc::clone(pool));
        account.set_min(quota.min)?;
        Ok(account)
    }

    /// The vGPU is gone: all that it had, and was to have at the least, is given back, and it gets no more.
    pub fn close(&self) {
        let _within = self.set_min(0);
        let mut standing = self.standing();
        let committed = standing.committed;
        standing.quota = Quota { min: 0, max: committed };
        drop(standing);
        self.release(committed);
        self.standing().quota.max = 0;
    }

    /// What it may have.
    pub fn quota(&self) -> Quota {
        self.standing().quota
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much is always to be had from now on. The maximum stays: sessions have made room for it, and told guests.
    ///
    /// # Errors
    /// It is more than the maximum, or than the host has left. Nothing was changed.
    pub fn set_min(&self, least: u64) -> Result<(), QuotaError> {
        let mut standing = self.standing();
        let max = standing.quota.max;
        if least > max {
            return Err(QuotaError::Vgpu { wanted: least, left: max, max });
        }
        // What it takes of the whole: its minimum, or what it has, whichever is more.
        let taken = |min: u64| min.max(standing.committed);
        let (before, after) = (taken(standing.quota.min), taken(least));
        let mut changed = None;
        if let Some(mut left) = self.pool.left() {
            let wanted = after.saturating_sub(before);
            let rest = left.checked_sub(wanted).ok_or(QuotaError::Host { wanted, left: *left })?;
            let rest = rest.saturating_add(before.saturating_sub(after));
            changed = Some((*left, rest));
            *left = rest;
        }
        standing.quota.min = least;
        drop(standing);
        changed.into_iter().for_each(|(before, after)| self.pool.changed(before, after));
        Ok(())
    }

    /// Promises `bytes` more.
    ///
    /// # Errors
    /// They are too many, for the vGPU or for the host. Nothing was changed.
    pub fn commit(&self, bytes: u64) -> Result<(), QuotaError> {
        let mut standing = self.standing();
        let max = standing.quota.max;
        let after = standing.committed.checked_add(bytes).filter(|after| *after <= max);
        let left = max.saturating_sub(standing.committed);
        let after = after.ok_or(QuotaError::Vgpu { wanted: bytes, left, max })?;
        let shared = standing.beyond(after) - standing.beyond(standing.committed);
        let mut changed = None;
        if let Some(mut left) = self.pool.left() {
            let covered = bytes - shared;
            let host = QuotaError::Host { wanted: bytes, left: covered.saturating_add(*left) };
            let rest = left.checked_sub(shared).ok_or(host)?;
            changed = Some((*left, rest));
            *left = rest;
        }
        standing.committed = after;
        drop(standing);
        changed.into_iter().for_each(|(before, after)| self.pool.changed(before, after));
        Ok(())
    }

    /// Takes a promise back.
    pub fn release(&self, bytes: u64) {
        let mut standing = self.standing();
        let after = standing.committed.saturating_sub(bytes);
        let shared = standing.beyond(standing.committed) - standing.beyond(after);
        let mut changed = None;
        if let Some(mut left) = self.pool.left() {
            let rest = left.saturating_add(shared);
            changed = Some((*left, rest));
            *left = rest;
        }
        standing.committed = after;
        drop(standing);
        changed.into_iter().for_each(|(before, after)| self.pool.changed(before, after));
    }

    /// How things stand.
    pub fn budget(&self) -> Budget {
        let Standing { quota, committed } = *self.standing();
        let own = quota.max.saturating_sub(committed);
        let guaranteed = quota.min.saturating_sub(committed);
        let host = self.pool.left().map_or(u64::MAX, |left| guaranteed.saturating_add(*left));
        Budget { committed, available: own.min(host) }
    }
}

#[cfg(test)]
mod tests;
