//! The same stream in a file.
//!
//! ```text
//!   HELLO | pages … | state (snapshots only) | COMPLETE
//! ```
//!
//! A *side file* takes the place of a line where no peer is configured: the saved state names it, and the daemon that
//! removes it decides which side runs. A *snapshot* has the state too. Both are written under another name, and are there
//! whole or not at all. Frames are as on a line, so that a file that was changed or cut off is refused.

pub mod read;
pub mod side;
pub mod write;
