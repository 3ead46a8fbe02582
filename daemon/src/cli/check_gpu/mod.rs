//! `campanile check-gpu`: whether the Vulkan devices of this machine can serve, and how fast they are.
//!
//! ```text
//!   run ─▶ vulkan::check (devices, trials, figures) ─▶ report (verdict, JSON) ─▶ text
//! ```

pub mod args;
pub mod report;
pub mod run;
mod text;
