//! One look at a daemon.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use serde::Deserialize;

/// What was seen at one time.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The vGPUs, in the daemon's order.
    pub vgpus: Vec<Vgpu>,
}

/// A vGPU, as the daemon's `status` has it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Vgpu {
    /// Its name.
    pub name: String,
    /// Whether a VM is connected.
    pub vm_connected: bool,
    /// Why it is quarantined, if it is.
    pub quarantined: Option<Quarantine>,
    /// Why its thread does not answer, if it does not.
    pub error: Option<String>,
    /// What its guests have allocated.
    pub vram_committed_bytes: u64,
    /// What they may allocate.
    pub vram_max_bytes: u64,
    /// Times of its nodes.
    pub nodes: Vec<Node>,
    /// From SUBMIT to the fence.
    pub submit_to_fence: Latency,
    /// What its thread says.
    pub session: Option<Session>,
    /// What was counted.
    #[serde(skip)]
    pub counters: BTreeMap<String, u64>,
}

/// A quarantine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Quarantine {
    /// Why.
    pub why: String,
}

/// Times of a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Number of the physical adapter.
    pub engine: u8,
    /// Its name.
    pub node: String,
    /// It had the node.
    pub held_ns: u64,
    /// That was due to it.
    pub due_ns: u64,
}

/// How long submissions took.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// All together.
    pub sum_ns: u64,
}

/// What the thread of a vGPU says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its engines.
    pub engines: Vec<Engine>,
    /// Its memory.
    pub memory: Memory,
    /// D0, D3.
    pub power: String,
}

/// An engine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Engine {
    /// Buffers in its hardware queue.
    pub buffers_in_flight: u64,
    /// Connected doorbells.
    pub doorbells_in_use: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Moved to host memory.
    pub evicted: u64,
}

#[derive(Debug, Deserialize)]
struct Counted {
    name: String,
    counters: BTreeMap<String, u64>,
}

impl Sample {
    /// Looks.
    ///
    /// # Errors
    /// The daemon does not answer, or not so.
    pub fn take(socket: &Path) -> anyhow::Result<Self> {
        let mut status = client::ask(socket, &Verb::Status)?;
        let mut metrics = client::ask(socket, &Verb::Metrics)?;
        let at = Instant::now();
        let strange = "the daemon's answer is of another version";
        let mut vgpus: Vec<Vgpu> = serde_json::from_value(status["vgpus"].take()).context(strange)?;
        let counted: Vec<Counted> = serde_json::from_value(metrics["vgpus"].take()).context(strange)?;
        for Counted { name, counters } in counted {
            if let Some(vgpu) = vgpus.iter_mut().find(|vgpu| vgpu.name == name) {
                vgpu.counters = counters;
            }
        }
        Ok(Self { at, vgpus })
    }
}
