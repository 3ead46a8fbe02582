//! How a guest moves to another host.
//!
//! ```text
//!   session ── SavedSession ──▶ state: bytes ──▶ the front-end's device-state transfer, or a file ──▶ state ──▶ session
//! ```

pub mod inspect;
pub mod state;
