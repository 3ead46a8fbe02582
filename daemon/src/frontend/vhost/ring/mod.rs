//! One virtqueue, device side.
//!
//! ```text
//!   connection thread ── state.rs: size, addresses, base, start, stop, enable ──┐
//!                                                                               ├─ Mutex<RingState>
//!   queue worker ─────── transfer.rs: pop, answer, release_held, interrupt ─────┘
//!                        chain.rs: one descriptor chain, judged and copied once
//!                        heads.rs: which chains the guest has handed over
//!                        in_flight.rs: their answers that are held, and those that a saved state brings
//!                        interrupts.rs: call and error eventfds, and what is due
//! ```
//!
//! The mutex is held for one step (one chain, one answer), never across a callback of the device.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use state::RingState;

use crate::guest_ram::dirty_log::DirtyLog;

pub(super) mod chain;
mod heads;
mod in_flight;
mod interrupts;
pub(super) mod state;
pub(super) mod transfer;

/// One ring and its lock.
#[derive(Debug)]
pub(super) struct Ring(Mutex<RingState>);

impl Ring {
    pub(super) fn lock(&self) -> MutexGuard<'_, RingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rings of one session.
#[derive(Debug)]
pub(super) struct Rings(Vec<Ring>);

impl Rings {
    pub(super) fn new(count: u16, smallest_answer: usize, log: &Arc<DirtyLog>) -> Self {
        let ring = |index| Ring(Mutex::new(RingState::new(index, smallest_answer, Arc::clone(log))));
        Self((0..count).map(ring).collect())
    }

    pub(super) fn ring(&self, index: usize) -> Option<&Ring> {
        self.0.get(index)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ring> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
