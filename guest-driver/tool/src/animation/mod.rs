//! `campanile-guest animate`: a guest that renders, checks every frame, and moves between daemons meanwhile.
//!
//! ```text
//!   main thread (the VMM)            virtual CPUs (the guest)
//!   ─────────────────────            ────────────────────────
//!   waits for so many frames         renderer   a frame and a trail through a user-mode queue; checks both
//!   moves the VM, reports            copier     copies and fills through a kernel-mode queue; checks them
//!   waits for the end                scribbler  counts in mapped video memory and in guest RAM
//! ```
//!
//! The trail is what makes a lost or repeated frame visible for ever: each frame maps every word of it to a function of
//! the word and the frame's number. Its checksum after so many frames is the same number wherever they were rendered.

pub mod copier;
pub mod guest;
pub mod moved;
#[cfg(feature = "test-vmm")]
pub mod moving;
pub mod renderer;
pub mod run;
pub mod scribbler;
