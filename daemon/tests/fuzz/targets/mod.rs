//! What fuzzers call: each target takes any bytes, and panics where something is wrong.
//!
//! ```text
//!   bytes ─▶ input ─┬─▶ stream     lines of a source ─▶ Arrivals ─▶ a claim ─▶ a session
//!                   ├─▶ state      DEVICE_STATE: the shell's part, the session's, the front's
//!                   ├─▶ control    lines of an operator's client ─▶ the handler
//!                   ├─▶ front      requests of a guest, resets, standstills and moves meanwhile
//!                   ├─▶ liar       the same, and an engine that says (`engine`) and stores (`block`) what it likes
//!                   ├─▶ chain      descriptor tables and rings in guest memory ─▶ the queue worker of either front
//!                   └─▶ shader    SPIR-V ─▶ the guard ─▶ the guard once more
//! ```
//!
//! No target has a process or a clock of its own: a vGPU here has no engines ([`world`]), or those of [`liar`], and lines
//! are buffers.
//! `ci/fuzz` builds them with coverage; the tests beside this folder run them over what was found once, and over
//! [`seeds`], on stable Rust and without.

pub(crate) mod chain;
pub(crate) mod change;
pub(crate) mod control;
pub(crate) mod conversation;
pub(crate) mod front;
pub(crate) mod input;
pub(crate) mod instructions;
pub(crate) mod liar;
pub(crate) mod lies;
pub(crate) mod lying_engine;
pub(crate) mod seeds;
pub(crate) mod shader;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod wire;
pub(crate) mod words;
pub(crate) mod world;

use campanile_daemon::frontend::fs::state::Fs;
use campanile_daemon::frontend::gpu::device::Gpu;

/// Names of all targets.
pub(crate) const NAMES: [&str; 9] =
    ["stream", "state", "fs", "gpu", "control", "engine", "block", "chain", "shader"];

/// Gives bytes to the target of that name.
///
/// # Panics
/// Something is wrong with the daemon or the guard, or there is no such target.
pub(crate) fn run(name: &str, bytes: &[u8]) {
    match name {
        "stream" => drop(stream::run(bytes)),
        "state" => drop(state::run(bytes)),
        "control" => drop(control::run(bytes)),
        "fs" => drop(front::run::<Fs>(bytes)),
        "gpu" => drop(front::run::<Gpu>(bytes)),
        // One grammar: their seeds and what was found in them differ.
        "engine" | "block" => drop(liar::run(bytes)),
        "chain" => drop(chain::run(bytes)),
        "shader" => drop(shader::run(bytes)),
        other => panic!("there is no target {other}"),
    }
}
