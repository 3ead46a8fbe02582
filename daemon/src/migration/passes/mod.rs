//! Passes over the dirty pages: of the brownout, during which the guest runs (DIRTY-57), and the last, when it is paused.
//!
//! ```text
//!   query and clear ──▶ copy ──▶ leave zero pages out ──▶ pack ──▶ wait for the bandwidth ──▶ send     one pass
//!        ▲                                                                                    │
//!        └────────── more is left than fits the pause, and the pass limit is not reached ─────┘
//! ```
//!
//! Bits are cleared before pages are read (DIRTY-51), so that a write in between is seen by the next pass. The threads that do
//! this have the lowest weight that a thread can have without being starved (nice 19): a guest's work goes first
//! (LM-13, LM-14).

pub mod dirty_bitmap;
pub mod pace;
pub mod pass;
pub mod plan;
