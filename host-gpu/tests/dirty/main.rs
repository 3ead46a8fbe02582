//! Dirty tracking without engines: what a caller of the tracker sees.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bases;
mod caps;
mod model;
mod queries;
mod shadow;
mod support;
mod tracking;
mod visible;
