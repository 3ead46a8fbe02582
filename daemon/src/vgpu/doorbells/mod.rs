//! Doorbells: the guest's constant cells, and the finite slots that watch them.
//!
//! ```text
//!            connect, dedicated model: slot first, then status
//!   RETRY ──────────────────────────────────────────────────────▶ OWN(slot)      CONNECTED
//!     ▲ ▲ ▲ ◀── victim, F1, change of mode: status first, then slot ──┘
//!     │ │ │
//!     │ │ │  connect, global model: the cell of its process stands for it too
//!     │ │ └────────────────────────────────────────────────────▶ SHARED(entry)  CONNECTED, never a victim (UMS-15)
//!     │ │ ◀── F1, change of mode ─────────────────────────────────────┘
//!     │ │
//!     │ │    connect in notify mode, either model: no engine polls
//!     │ └──────────────────────────────────────────────────────▶ NOTIFIED       CONNECTED_NOTIFY, never a victim
//!     │   ◀── F1, change of mode ─────────────────────────────────────┘
//!     │
//!     └── each of them ──device lost──▶ ABORT                                   for good (UMS-54)
//! ```
//!
//! [`super::objects::doorbell_state`] is one doorbell, [`slots`] the physical doorbells of one engine, [`line`] the connects that wait for one,
//! [`rate`] how often a guest may connect, [`modes`] what the operator chose at start, [`switch`] what he changes
//! later. But for the switch all are plain data, with time passed in: the object layer stores status words and slots in
//! the order that they say (UMS-56, UMS-57, UMS-67, UMS-70).
//!
//! A connect is served in turn: in a line, round robin among the processes of a guest and in order within each. It
//! waits while every slot was given away only a moment ago and nothing was done through it ([`slots::MIN_HOLD`]), or
//! while the guest has used up its [`rate`]. That is what bounds a fight over one doorbell (UMS-77).

pub mod connects;
pub mod drain;
pub mod drains;
pub mod line;
pub mod modes;
pub mod rate;
pub mod requests;
pub mod room;
pub mod slots;
pub mod switch;
#[cfg(test)]
mod tests;
