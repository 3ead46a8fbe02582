//! Memory that two sides share, on real threads: what one side has written plainly, the words let the other side see.
//!
//! Values alone show little here, since this machine's CPUs order most stores by themselves. `ci/tsan` runs these tests under
//! ThreadSanitizer, which sees the order that words make: a plain store and a plain load without one between them is a
//! race, whatever was read. All is in one mapping, for it knows memory by its address.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod grants;
mod report;
mod rings;
mod support;
mod twin;
