//! Doorbells: the guest's constant cells, and the finite slots that watch them.
//!
//! ```text
//!                      connect (slot first, then status)
//!   RETRY ─────────────────────────────────────────────▶ CONNECTED(slot)
//!     ▲  ◀───────────────────────────────────────────────   │
//!     │     victim, F1: status first, then slot               │ device lost
//!     │                                                       ▼
//!     └────────────────────── device lost ──────────────▶ ABORT        for good (UMS-54)
//! ```
//!
//! [`state`] is one doorbell, [`slots`] the physical doorbells of one engine. Both are plain data: the object
//! layer stores status words and slots in the order that they say (UMS-56, UMS-57, UMS-67, UMS-70).

pub mod slots;
pub mod state;
#[cfg(test)]
mod tests;
