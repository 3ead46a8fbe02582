//! The stock virtiofs driver, and guest processes that use the one file of the device, for a loopback VM.
//!
//! ```text
//!   FuseContext ── call ─▶ IOCTL ─┐
//!               ── stage ─▶ WRITE ┼─▶ request: one FUSE request as a chain, as the driver lays it out ─▶ virt_queue
//!   RegisteredPages ─────▶ READ ──┘      (the pages of a read are its last descriptors)
//! ```
//!
//! Where a real process has pages of its own, here it has pages of guest RAM, which is what its kernel makes of them.

pub mod context;
pub mod file;
pub mod request;
mod waiting;
