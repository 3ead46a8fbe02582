//! The operator's interface: one Unix socket, one JSON object a line, both ways.
//!
//! ```text
//!   campanile ctl ──{"verb":"status"}──▶ socket (mode 0600) ── thread a client ──▶ handler ──orders──▶ vGPU's thread
//!        ◀──{"ok":true,"result":…}────────────────────────────────────┘ ◀──────────────┘
//! ```
//!
//! [`verb::Verb`] is the one table of commands: what `campanile ctl` takes, what goes over the socket, and what
//! [`handler::Handler`] does. Lines and clients are bounded: a line has at most [`line::MAX_LINE`] bytes, a client that
//! neither reads nor writes is dropped, and where there are too many clients the oldest makes room for the newest. No
//! client can make a vGPU's thread wait.

pub mod client;
pub mod console;
pub mod estate;
pub mod handler;
pub mod held;
pub mod http;
pub mod line;
pub mod metrics;
pub mod roster;
pub mod socket;
pub mod verb;
pub mod vgpu;
pub mod web;
