//! `campanile top`: what the vGPUs of a daemon do, on a terminal.
//!
//! ```text
//!   control or status socket ──status, metrics──▶ sample ──two of them──▶ rows, events ──▶ view ──▶ terminal
//!                                                                           ▲
//!   keys ──▶ state: sort, filter, pause ────────────────────────────────────┘
//! ```
//!
//! One thread: it asks, draws, and waits for a key until it is time to ask again. It changes nothing of the daemon, so the socket
//! for looking only will do.

pub mod args;
pub mod events;
pub mod rows;
pub mod run;
pub mod sample;
pub mod state;
pub mod view;
