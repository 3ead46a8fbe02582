//! The guest's tool, `campanile-guest`, and what the demo on the host has in common with it.
//!
//! ```text
//!   args ─▶ target: the render node (drm), or a daemon's socket (loopback; feature `test-vmm`)
//!           └─▶ info · run · bench · burn · mandelbrot · selftest · trespass (hidden: for tests in a VM)
//! ```
//!
//! Every command opens one device, and ends with one line that says what failed.

pub mod animation;
pub mod args;
pub mod bench;
pub mod burn;
pub mod cli;
pub mod info;
pub mod mandelbrot;
pub mod percentiles;
pub mod picture;
pub mod relay;
pub mod run;
pub mod run_buffer;
pub mod selftest;
pub mod target;
pub mod trespass;
