//! Many guests on one engine, by a virtual clock: the policies that the daemon runs, without a GPU.
//!
//! ```text
//!   Options ──▶ load: guests, contexts, what they want ──▶ machine ──▶ figures ──▶ text, JSON, picture
//!                                                           │
//!       policy over vGPUs (the most urgent band with work) ─┤ the same code as in the daemon
//!       policy over contexts, one each vGPU ────────────────┘
//!
//!   cost: the same policy over all contexts at once, by the real clock
//! ```
//!
//! A dispatch stops at the end of the slices that are in flight. All but the cost is the same for the same seed.

pub mod cost;
pub mod figures;
pub mod guest;
pub mod load;
pub mod machine;
pub mod options;
pub mod picture;
pub mod random;
pub mod spread;
pub mod svg;
