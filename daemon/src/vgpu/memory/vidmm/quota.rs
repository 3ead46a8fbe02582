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
    watchers: Mutex<Vec<Watcher>>,
}

/// An observer that is told when there is more or less left. Called by any thread; does not block.
pub type Watcher = Box<dyn Fn() + Send + Sync>;

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
    pub fn watch(&self, watcher: Watcher) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }

    /// What was left has changed.
    fn changed(&self, before: u64, after: u64) {
        if before / self.step != after / self.step {
            self.watchers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|watcher| watcher());
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::Account;
    use super::Budget;
    use super::Pool;
    use super::Quota;
    use super::QuotaError;

    fn pair(total: u64, quotas: [Quota; 2]) -> [Account; 2] {
        let pool = Pool::new(Some(total), quotas.map(|quota| quota.min)).unwrap();
        quotas.map(|quota| Account::new(quota, Arc::clone(&pool)))
    }

    #[test]
    fn a_minimum_that_changes_is_taken_of_the_host_beyond_what_is_allocated() {
        let quota = |min, max| Quota { min, max };
        let [a, b] = pair(100, [quota(10, 100), quota(20, 100)]);
        a.commit(30).unwrap();
        assert_eq!(b.budget(), Budget { committed: 0, available: 70 });
        a.set_min(25).unwrap();
        assert_eq!(b.budget().available, 70, "its minimum is within what it has");
        a.set_min(60).unwrap();
        assert_eq!((b.budget().available, a.budget().available), (40, 50));
        assert_eq!(a.set_min(90), Err(QuotaError::Host { wanted: 30, left: 20 }));
        assert_eq!(a.set_min(101), Err(QuotaError::Vgpu { wanted: 101, left: 100, max: 100 }));
        assert_eq!(a.quota(), quota(60, 100), "nothing was changed");
        a.set_min(0).unwrap();
        assert_eq!((b.budget().available, a.budget().available), (70, 50));
        a.release(30);
        assert_eq!((b.budget().available, a.budget().available), (100, 80));
    }

    #[test]
    fn a_minimum_is_there_whatever_others_take() {
        let [a, b] = pair(100, [Quota { min: 30, max: 200 }, Quota { min: 20, max: 50 }]);
        a.commit(80).unwrap();
        assert_eq!(a.commit(1), Err(QuotaError::Host { wanted: 1, left: 0 }));
        assert_eq!(b.budget().available, 20);
        assert_eq!(b.commit(21), Err(QuotaError::Host { wanted: 21, left: 20 }));
        b.commit(20).unwrap();
        a.release(10);
        assert_eq!(b.budget().available, 10);
        b.commit(10).unwrap();
        a.release(70);
        assert_eq!(b.commit(21), Err(QuotaError::Vgpu { wanted: 21, left: 20, max: 50 }));
        assert_eq!(a.budget().available, 70);
    }

    #[test]
    fn sums_that_overflow_are_refused() {
        let [a, _] = pair(u64::MAX, [Quota { min: 0, max: u64::MAX }, Quota { min: 0, max: 1 }]);
        a.commit(u64::MAX).unwrap();
        assert!(a.commit(1).is_err());
        assert!(a.commit(u64::MAX).is_err());
        assert!(Pool::new(Some(u64::MAX), [u64::MAX, 1]).is_ok(), "a sum past the end is the end");
        assert!(Pool::new(Some(10), [6, 5]).is_err());
    }

    /// How often watchers are told of each of these changes: bytes allocated, or freed where negative.
    fn told(pool: &Arc<Pool>, account: &Account, changes: &[i64]) -> Vec<u64> {
        let count = Arc::new(AtomicU64::new(0));
        let its = Arc::clone(&count);
        pool.watch(Box::new(move || {
            its.fetch_add(1, Ordering::Relaxed);
        }));
        let change = |bytes: &i64| {
            match u64::try_from(*bytes) {
                Ok(bytes) => account.commit(bytes).unwrap(),
                Err(_) => account.release(bytes.unsigned_abs()),
            }
            count.swap(0, Ordering::Relaxed)
        };
        changes.iter().map(change).collect()
    }

    #[test]
    fn watchers_are_told_when_what_is_left_for_all_passes_a_step_and_at_no_other_time() {
        let quota = Quota { min: 50, max: u64::MAX };
        let of = |total: Option<u64>| {
            let pool = Pool::new(total, [quota.min]).unwrap();
            let account = Account::new(quota, Arc::clone(&pool));
            assert_eq!(account.quota(), quota);
            (pool, account)
        };
        // 64 steps of 100 bytes, beside the minimum.
        let (pool, account) = of(Some(6450));
        let changes = [50, 1, 98, 1, 1, -1, -1, -99, -50];
        assert_eq!(told(&pool, &account, &changes), [0, 1, 0, 0, 1, 1, 0, 1, 0]);
        // A byte is the shortest step.
        let (pool, account) = of(Some(60));
        assert_eq!(told(&pool, &account, &[50, 1, 9, -10]), [0, 1, 1, 1]);
        let (pool, account) = of(None);
        assert_eq!(told(&pool, &account, &[50, 1 << 40, -50]), [0, 0, 0]);
        assert_eq!(account.budget(), Budget { committed: 1 << 40, available: u64::MAX - (1 << 40) });
    }

    #[test]
    fn many_threads_never_get_more_than_there_is() {
        let accounts = Arc::new(pair(1000, [Quota { min: 100, max: 900 }, Quota { min: 50, max: 700 }]));
        let workers: Vec<_> = (0..8)
            .map(|worker: usize| {
                let accounts = Arc::clone(&accounts);
                thread::spawn(move || {
                    let account = &accounts[worker % 2];
                    let mut held = Vec::new();
                    for round in 0..20_000u64 {
                        let bytes = round.wrapping_mul(2_654_435_761) % 97 + 1;
                        if account.commit(bytes).is_ok() {
                            held.push(bytes);
                        }
                        let [a, b] = accounts.each_ref().map(|account| account.budget().committed);
                        assert!(a <= 900 && b <= 700, "{a} and {b}");
                        if round % 3 != 0 {
                            held.pop().into_iter().for_each(|bytes| account.release(bytes));
                        }
                    }
                    held.into_iter().for_each(|bytes| account.release(bytes));
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let [a, b] = accounts.each_ref().map(Account::budget);
        assert_eq!((a.committed, a.available), (0, 900));
        assert_eq!((b.committed, b.available), (0, 700));
        accounts[0].commit(900).unwrap();
        assert_eq!(accounts[1].budget().available, 100, "no byte was lost");
    }
}
