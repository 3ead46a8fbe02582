//! What the daemon holds for one VM: one budget over all of it, in bytes and in items.
//!
//! ```text
//!   whatever a guest can have more of ── Purse::charge ─▶ Charge, kept with it ── dropped with it ─▶ comes back
//!                                            └── beyond the limit: OverBudget ─▶ OUT_OF_RESOURCES, counted; nothing else
//!
//!   limit ┌ three quarters: the pool, for the VM and for what processes have beyond their own parts
//!         └ one quarter: a part of its own for each process that there can be (MAX_PROCESSES)
//! ```
//!
//! A process that takes all that it can get leaves to others their own parts, so that they go on. What a process still has
//! when it ends, until engines have let go of it, is the pool's. Prices are what the daemon's memory for one thing comes to
//! at the most, with all that follows from it: the end of a thing is paid for with its beginning, and never refused.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use campanile_protocol::engine::block::MAX_PROCESSES;
use serde::Serialize;

/// Bytes that the daemon holds for one VM, where the operator says nothing.
pub const BUDGET_BYTES: u64 = 256 << 20;
/// Bytes of the least budget with which a guest can do anything.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;
/// Bytes of the largest.
pub const MAX_BUDGET_BYTES: u64 = 64 << 30;
/// Bytes of a budget for each item that it allows.
const BYTES_PER_ITEM: u64 = 256;
/// Processes share one quarter of all, each its own part.
const OWN_PARTS: u64 = 4 * MAX_PROCESSES as u64;

/// What is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Guest processes.
    Processes,
    /// Blobs, the page lists of those of guest RAM, and names that processes have for them.
    Blobs,
    /// Contexts, queues, doorbells and open native fences.
    Objects,
    /// Mappings, until engines have let go of them.
    Mappings,
    /// Kernels with their sources, until no message to an engine needs them; and the logs of what engines have compiled.
    Kernels,
    /// Messages and buffers that were begun and are not done.
    Work,
    /// Bodies of messages that wait for an engine.
    Messages,
    /// Paging operations and residency requests.
    Paging,
    /// Files, requests and page lists of the fs front.
    Files,
}

/// All kinds, by the names that the operator sees.
pub const KINDS: [(Kind, &str); 9] = [
    (Kind::Processes, "processes"),
    (Kind::Blobs, "blobs"),
    (Kind::Objects, "objects"),
    (Kind::Mappings, "mappings"),
    (Kind::Kernels, "kernels"),
    (Kind::Work, "work"),
    (Kind::Messages, "messages"),
    (Kind::Paging, "paging"),
    (Kind::Files, "files"),
];

/// Bytes and items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// Items.
    pub items: u64,
}

impl Amount {
    const NONE: Self = Self { bytes: 0, items: 0 };

    fn plus(self, more: Self) -> Option<Self> {
        let bytes = self.bytes.checked_add(more.bytes)?;
        Some(Self { bytes, items: self.items.checked_add(more.items)? })
    }

    const fn minus(self, less: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(less.bytes), items: self.items.saturating_sub(less.items) }
    }

    fn at_most(self, limit: Self) -> Self {
        Self { bytes: self.bytes.min(limit.bytes), items: self.items.min(limit.items) }
    }

    const fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.items <= limit.items
    }
}

/// The daemon holds as much for a VM as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes more of {kind:?} are more than the daemon holds for one VM")]
pub struct OverBudget {
    /// Of what.
    pub kind: Kind,
    /// How much more was asked for.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Books {
    /// What is held of the pool.
    pool: Amount,
    /// Own parts of the processes that there are.
    parts: Amount,
    kinds: [Amount; KINDS.len()],
    refused: u64,
}

/// The budget of one vGPU, whichever VM it serves.
#[derive(Debug)]
pub struct Budget {
    limit: Amount,
    part: Amount,
    books: Mutex<Books>,
}

/// How a budget stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// What is held.
    pub held: Amount,
    /// What may be held.
    pub limit: Amount,
    /// How often something was refused.
    pub refused: u64,
    /// What is held of each kind.
    pub kinds: [(&'static str, Amount); KINDS.len()],
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BUDGET_BYTES)
    }
}

impl Budget {
    /// A budget of `bytes`, and of an item for every 256 of them.
    pub fn new(bytes: u64) -> Self {
        let limit = Amount { bytes, items: bytes / BYTES_PER_ITEM };
        let part = Amount { bytes: limit.bytes / OWN_PARTS, items: limit.items / OWN_PARTS };
        Self { limit, part, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of all is no process's own part.
    fn pool(&self) -> Amount {
        let parts = Amount { bytes: self.limit.bytes / 4, items: self.limit.items / 4 };
        self.limit.minus(parts)
    }

    /// A purse of the VM as a whole, which has no part of its own.
    pub fn vm(self: &Arc<Self>) -> Purse {
        Purse(Arc::new(Account { budget: Arc::clone(self), own: Mutex::default() }))
    }

    /// The purse of a new process, with a part of its own.
    ///
    /// # Errors
    /// What has ended, and engines still have, leaves no room for one.
    pub fn process(self: &Arc<Self>) -> Result<Purse, OverBudget> {
        let mut books = self.books();
        let parts = books.parts.plus(self.part);
        let fits = |parts: &Amount| parts.plus(books.pool).is_some_and(|all| all.fits(self.limit));
        let Some(parts) = parts.filter(fits) else {
            books.refused += 1;
            return Err(OverBudget { kind: Kind::Processes, bytes: self.part.bytes });
        };
        books.parts = parts;
        let own = Mutex::new(Own { part: self.part, used: Amount::NONE });
        Ok(Purse(Arc::new(Account { budget: Arc::clone(self), own })))
    }

    /// How it stands.
    pub fn standing(&self) -> Statement {
        let books = self.books();
        let kinds = KINDS.map(|(kind, name)| (name, books.kinds[kind as usize]));
        let held = kinds.iter().fold(Amount::NONE, |all, (_, held)| all.plus(*held).unwrap_or(all));
        Statement { held, limit: self.limit, refused: books.refused, kinds }
    }
}

#[derive(Debug, Default)]
struct Own {
    /// What no other process can have.
    part: Amount,
    used: Amount,
}

impl Own {
    /// What it has of the pool.
    const fn beyond(&self, used: Amount) -> Amount {
        used.minus(self.part)
    }
}

#[derive(Debug)]
struct Account {
    budget: Arc<Budget>,
    own: Mutex<Own>,
}

impl Account {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, kind: Kind, more: Amount) -> Result<(), OverBudget> {
        let (mut own, mut books) = (self.own(), self.budget.books());
        let taken = own.used.plus(more).and_then(|used| {
            let pool = books.pool.minus(own.beyond(own.used)).plus(own.beyond(used))?;
            // However full the pool is: what is within the part is still to be had.
            let is_within = own.beyond(used) == own.beyond(own.used);
            (is_within || pool.fits(self.budget.pool())).then_some((used, pool))
        });
        let Some((used, pool)) = taken else {
            books.refused += 1;
            return Err(OverBudget { kind, bytes: more.bytes });
        };
        (own.used, books.pool) = (used, pool);
        let held = &mut books.kinds[kind as usize];
        *held = held.plus(more).unwrap_or(*held);
        Ok(())
    }

    fn give_back(&self, kind: Kind, less: Amount) {
        let (mut own, mut books) = (self.own(), self.budget.books());
        let used = own.used.minus(less);
        books.pool = books.pool.minus(own.beyond(own.used).minus(own.beyond(used)));
        own.used = used;
        let held = &mut books.kinds[kind as usize];
        *held = held.minus(less);
    }

    /// Gives up its part: what it still holds is charged to the pool.
    fn close(&self) {
        let (mut own, mut books) = (self.own(), self.budget.books());
        let still = own.used.at_most(own.part);
        books.parts = books.parts.minus(own.part);
        books.pool = books.pool.plus(still).unwrap_or(books.pool);
        own.part = Amount::NONE;
    }
}

/// What a process, or the VM as a whole, pays from. What was paid with it outlives it.
#[derive(Debug)]
pub struct Purse(Arc<Account>);

impl Purse {
    /// One more item, of `bytes`. It is held until the charge is dropped.
    ///
    /// # Errors
    /// Beyond the budget; nothing was charged.
    pub fn charge(&self, kind: Kind, bytes: u64) -> Result<Charge, OverBudget> {
        self.0.take(kind, Amount { bytes, items: 1 })?;
        Ok(Charge { account: Arc::clone(&self.0), kind, bytes })
    }

    /// So many items more, of `bytes` each, at the price of looking at the books once.
    ///
    /// # Errors
    /// All of them are beyond the budget; nothing was charged.
    pub fn charge_each(&self, kind: Kind, bytes: u64, count: usize) -> Result<Charges, OverBudget> {
        let left = count as u64;
        self.0.take(kind, Amount { bytes: bytes.saturating_mul(left), items: left })?;
        Ok(Charges { account: Arc::clone(&self.0), kind, bytes, left })
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// One item that is held, and was charged.
#[derive(Debug)]
#[must_use = "what was charged comes back when this is dropped"]
pub struct Charge {
    account: Arc<Account>,
    kind: Kind,
    bytes: u64,
}

impl Charge {
    /// The item is of `bytes` from here on.
    ///
    /// # Errors
    /// Beyond the budget; it is as it was.
    pub fn resize(&mut self, bytes: u64) -> Result<(), OverBudget> {
        let amount = |bytes| Amount { bytes, items: 0 };
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.account.take(self.kind, amount(more))?,
            None => self.account.give_back(self.kind, amount(self.bytes - bytes)),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.kind, Amount { bytes: self.bytes, items: 1 });
    }
}

/// Items that were charged together. What is not taken out of it comes back when it is dropped.
#[derive(Debug)]
#[must_use = "what was charged comes back when this is dropped"]
pub struct Charges {
    account: Arc<Account>,
    kind: Kind,
    /// Of each.
    bytes: u64,
    left: u64,
}

impl Iterator for Charges {
    type Item = Charge;

    fn next(&mut self) -> Option<Charge> {
        self.left = self.left.checked_sub(1)?;
        Some(Charge { account: Arc::clone(&self.account), kind: self.kind, bytes: self.bytes })
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        if self.left > 0 {
            let less = Amount { bytes: self.bytes * self.left, items: self.left };
            self.account.give_back(self.kind, less);
        }
    }
}

/// Bytes of a list of `count` entries of `each`.
pub(in crate::vgpu) fn list_bytes(count: usize, each: usize) -> u64 {
    u64::try_from(count.saturating_mul(each)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
