//! Which side may run a vGPU that was sent elsewhere: two pure machines, and what each says to the other (design §10.8).
//!
//! ```text
//!   source (Holder)                                  target (Claimant)
//!   Runs ── complete ──▶ Offered                     Stored ── load ──▶ Claimed
//!    ▲                    │  │                                           │ started: MAY_I_RUN ─▶
//!    │◀─ thaw: REVOKE ────┘  │ MAY_I_RUN: GRANTED ─▶                     ▼
//!    │                       ▼                                         Asks ── GRANTED ──▶ Runs
//!    │◀─ REVOKED ── Recalls ◀┴ thaw ── Granted                           │
//!                      │ COMMITTED, or no answer                         └ DECLINED, REVOKE, or no answer ──▶ Dropped
//!                      ▼
//!                    Gone
//! ```
//!
//! The source decides alone: as long as it has granted nothing, it may run again, whether the target can be reached or not,
//! and a later request is declined. Once it has granted, only the target knows whether the guest runs there, and a
//! source that cannot get that answer never runs again: a lost device, but never two runners.
//!
//! | which side ends | before the bundle is complete | complete, not granted | granted |
//! |---|---|---|---|
//! | source daemon | source VMM: device lost; target drops | target drops; its device is lost when it starts | target runs |
//! | target daemon | source goes on | source goes on when it thaws; target VMM: device lost | source's device is lost when it thaws |
//! | source VMM | source ends; target drops | grants at once, and is gone: target runs when it starts | target runs |
//! | target VMM | nothing: it has no part yet | source goes on when it thaws | source goes on when it thaws and the target had not started; else its device is lost |

pub mod claimant;
pub mod holder;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transitions;
