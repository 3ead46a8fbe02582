//! The order rules: which side stores what first, and which looks again.
//!
//! Five handshakes keep Campanile's shared memory from losing a ring, a wake-up or an interrupt. Each is a
//! pair of functions over [`Word`], one a side, so that what runs is what the model checker has seen
//! (`RUSTFLAGS="--cfg loom" cargo test -p campanile-protocol --lib loom`); each has a twin with its fence
//! taken out, which the checker must catch.
//!
//! | handshake | first | then | so that |
//! |---|---|---|---|
//! | [`doorbell`] | guest: write pointer, then status | daemon: status, then (engine) write pointer | a ring is seen, or the guest reads RETRY |
//! | [`doorbell`], global | guest: write pointer, then swap | engine: swap, then every write pointer | no ring hides another |
//! | [`power`] | engine: asleep, then work words | daemon: work words, then power | an engine never sleeps on work |
//! | [`fence`] | engine: CurrentValue, then MonitoredValue | daemon: MonitoredValue, then CurrentValue | a waiter is never missed |
//! | [`grant`] | supervisor: GRANTED | engine: YIELDED | one vGPU at a time on a node |
//! | [`signalled`] | engine: handle, then written; or overflow | daemon: overflow, then written | a report is never lost |

pub mod doorbell;
pub mod fence;
pub mod grant;
#[cfg(all(test, loom))]
mod loom;
pub mod power;
pub mod signalled;
pub mod word;
