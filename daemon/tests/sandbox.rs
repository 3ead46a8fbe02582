//! What an engine process, and the daemon itself, cannot do, seen from outside and tried from inside.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test stops here")]

#[path = "sandbox/attempts.rs"]
mod attempts;
#[path = "sandbox/daemon.rs"]
mod daemon;
#[path = "sandbox/held.rs"]
mod held;
#[path = "sandbox/outside.rs"]
mod outside;
#[path = "sandbox/role_calls.rs"]
mod role_calls;
#[path = "sandbox/roles.rs"]
mod roles;
