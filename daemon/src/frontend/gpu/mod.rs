//! The gpu front: a virtio-gpu device (id 16) with one capability set, and no display.
//!
//! ```text
//!   chain ─▶ Header ─▶ command ─▶ session ─▶ OK now │ error now │ token: answered when due
//!                                              └── fence flag: behind its timeline
//! ```

pub mod commands;
pub mod device;
mod waiting;
