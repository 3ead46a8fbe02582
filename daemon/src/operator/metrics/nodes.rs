//! Nodes of a vGPU: their times, and what its thread says of them.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use serde_json::Value as Json;

use super::family::Families;
use super::family::Kind;
use super::family::Labels;
use super::family::Value;
use crate::operator::vgpu::Vgpu;
use crate::sched::meter::Preemption;

/// A family of nodes: its name, what it says, of what kind, and the field of the thread's description.
type OfThread = (&'static str, &'static str, Kind, &'static str);

const OF_THREAD: [OfThread; 4] = [
    ("queue_depth", "Buffers in the hardware queue of a node", Kind::Gauge, "buffers_in_flight"),
    ("doorbells_connected", "Connected doorbells of a node", Kind::Gauge, "doorbells_in_use"),
    (
        "last_submitted_fence",
        "Newest kernel-mode fence that an engine was given",
        Kind::Gauge,
        "last_submitted_fence",
    ),
    (
        "last_completed_fence",
        "Newest kernel-mode fence that an engine has reached",
        Kind::Gauge,
        "last_completed_fence",
    ),
];

/// Adds the nodes of a vGPU; `session` is what its thread says, if it does.
pub fn add(families: &mut Families, vgpu: &Vgpu, session: Option<&Json>) {
    for at in EngineAddress::all(vgpu.engines) {
        let labels = labels(vgpu, at);
        let times = vgpu.meters.times(at);
        for (name, help, time) in [
            ("node_busy_seconds", "Time for which the vGPU had the node", times.held),
            (
                "node_due_seconds",
                "Time of the node that was due to the vGPU by weight and cap, while it wanted it",
                times.due,
            ),
            ("node_wanted_seconds", "Time for which the vGPU had the node or waited for it", times.wanted),
        ] {
            let seconds = Value::Fraction(time.as_secs_f64());
            families.family(name, help, Kind::Counter).add(labels.clone(), seconds);
        }
        for what in Preemption::ALL {
            let (name, help) = match what {
                Preemption::Yield => (
                    "yield_seconds",
                    "From a request to an engine to yield its node, until the node was free",
                ),
                Preemption::Command => (
                    "preempt_seconds",
                    "From a preempt command to an engine, until it had put back what it had",
                ),
            };
            let took = Value::Distribution(vgpu.meters.preemptions(at, what));
            families.family(name, help, Kind::Histogram).add(labels.clone(), took);
        }
        let engines = session.and_then(|session| session["engines"].as_array());
        let is_it = |engine: &&Json| {
            engine["node"] == node_name(at.node) && engine["engine"].as_u64() == Some(u64::from(at.engine))
        };
        let Some(engine) = engines.and_then(|engines| engines.iter().find(is_it)) else { continue };
        for (name, help, kind, field) in OF_THREAD {
            let value = Value::Whole(engine[field].as_u64().unwrap_or(0));
            families.family(name, help, kind).add(labels.clone(), value);
        }
        let runs = u64::from(engine["pid"].is_u64());
        families
            .family("engine_up", "Whether the engine process runs", Kind::Gauge)
            .add(labels, Value::Whole(runs));
    }
}

/// The labels of a node.
fn labels(vgpu: &Vgpu, at: EngineAddress) -> Labels {
    let node = node_name(at.node).to_owned();
    vec![("vgpu", vgpu.name.clone()), ("engine", at.engine.to_string()), ("node", node)]
}
