//! What a hang costs those who did nothing wrong.
//!
//! ```text
//!   loss      one hang after the other: found after how long, and the next packet of an innocent process after that
//!   stalls    innocents that never stop: how long each stands still at most, beside hangs and beside as much other work
//! ```

pub mod figures;
pub mod guilty;
pub mod loss;
pub mod stalls;
