//! The receiving side (LM-30).
//!
//! ```text
//!   door ── thread a line ──▶ HELLO: every check, then ACCEPT or REFUSED ──▶ pages ──▶ COMPLETE: sealed, STORED
//!                                                                                          │
//!                 front::gpu ── claim (LOAD) ── start (rings begin): MAY_I_RUN ───────────┘
//! ```
//!
//! Kernels come between pages, and [`compiling`] has them compiled by a process of its own until the bundle is loaded.
//!
//! A vGPU has one bundle at a time. Lines, bundles and times are bounded; whatever fails, the bundle is dropped whole, and its
//! name is never taken again.

pub mod arrivals;
pub mod arriving;
pub mod bundle;
pub mod compiling;
pub mod phase;
pub mod receive;
pub mod registry;
mod strangers;
mod visit;
