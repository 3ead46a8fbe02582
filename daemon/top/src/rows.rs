//! What was between two looks.

use serde::Serialize;

use crate::sample::Latency;
use crate::sample::Node;
use crate::sample::Sample;
use crate::sample::Vgpu;

/// What a vGPU did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub vgpu: String,
    /// In a word: running, no VM, D3, quarantined, or why it does not answer.
    pub state: String,
    /// What it had of each node.
    pub nodes: Vec<NodeShare>,
    /// Buffers in hardware queues.
    pub queued: u64,
    /// Connected doorbells.
    pub doorbells: u64,
    /// Buffers a second, of kernel-mode and of user-mode queues.
    pub submissions_per_second: f64,
    /// Mean time from SUBMIT to the fence, where there was one.
    pub latency_us: Option<f64>,
    /// Bytes that its guests have allocated.
    pub vram_bytes: u64,
    /// Bytes that they may allocate.
    pub vram_limit_bytes: u64,
    /// Bytes that were moved to host memory.
    pub evicted_bytes: u64,
}

/// What a vGPU had of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeShare {
    /// Number of the physical adapter.
    pub engine: u8,
    /// Its name.
    pub node: String,
    /// Percent of the time.
    pub busy_percent: f64,
    /// Percent of the time that was due by weight and cap.
    pub due_percent: f64,
}

/// What the vGPUs of `after` did since `before`.
pub fn between(before: &Sample, after: &Sample) -> Vec<Row> {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
    let none = Vgpu::default();
    let row = |vgpu: &Vgpu| {
        let was = before.vgpus.iter().find(|was| was.name == vgpu.name).unwrap_or(&none);
        row(was, vgpu, seconds)
    };
    after.vgpus.iter().map(row).collect()
}

fn row(was: &Vgpu, is: &Vgpu, seconds: f64) -> Row {
    let engines = || is.session.iter().flat_map(|session| &session.engines);
    let submissions = |vgpu: &Vgpu| -> u64 {
        let modes = ["submissions", "user_submissions"];
        modes.into_iter().filter_map(|mode| vgpu.counters.get(mode)).sum()
    };
    Row {
        vgpu: is.name.clone(),
        state: state(is),
        nodes: is.nodes.iter().map(|node| share(was, node, seconds)).collect(),
        queued: engines().map(|engine| engine.buffers_in_flight).sum(),
        doorbells: engines().map(|engine| engine.doorbells_in_use).sum(),
        submissions_per_second: number(submissions(is).saturating_sub(submissions(was))) / seconds,
        latency_us: latency(was.submit_to_fence, is.submit_to_fence),
        vram_bytes: is.vram_committed_bytes,
        vram_limit_bytes: is.vram_max_bytes,
        evicted_bytes: is.session.as_ref().map_or(0, |session| session.memory.evicted),
    }
}

fn state(vgpu: &Vgpu) -> String {
    match (&vgpu.quarantined, &vgpu.error, &vgpu.session) {
        (Some(quarantine), _, _) => format!("quarantined: {}", quarantine.why),
        (None, Some(error), _) => error.clone(),
        (None, None, Some(session)) if session.power != "D0" && !session.power.is_empty() => {
            session.power.clone()
        }
        (None, None, Some(_)) => "running".to_owned(),
        (None, None, None) if vgpu.vm_connected => "running".to_owned(),
        (None, None, None) => "no VM".to_owned(),
    }
}

fn share(was: &Vgpu, node: &Node, seconds: f64) -> NodeShare {
    let before = was.nodes.iter().find(|of| (of.engine, &of.node) == (node.engine, &node.node));
    let percent = |time: fn(&Node) -> u64| {
        let more = time(node).saturating_sub(before.map_or(0, time));
        (number(more) / 1e7 / seconds).min(100.0)
    };
    NodeShare {
        engine: node.engine,
        node: node.node.clone(),
        busy_percent: percent(|node| node.held_ns),
        due_percent: percent(|node| node.due_ns),
    }
}

fn latency(was: Latency, is: Latency) -> Option<f64> {
    let count = is.count.saturating_sub(was.count);
    (count > 0).then(|| number(is.sum_ns.saturating_sub(was.sum_ns)) / 1e3 / number(count))
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::between;
    use crate::sample::Latency;
    use crate::sample::Node;
    use crate::sample::Sample;
    use crate::sample::Vgpu;

    fn vgpu(held_ns: u64, due_ns: u64, submissions: u64, sum_ns: u64) -> Vgpu {
        Vgpu {
            name: "a".to_owned(),
            nodes: vec![Node { engine: 0, node: "copy".to_owned(), held_ns, due_ns }],
            submit_to_fence: Latency { count: submissions, sum_ns },
            counters: [("submissions".to_owned(), submissions)].into(),
            ..Vgpu::default()
        }
    }

    #[test]
    fn a_row_is_what_came_between_two_looks() {
        let at = Instant::now();
        let before = Sample { at, vgpus: vec![vgpu(1_000_000_000, 0, 10, 5_000)] };
        let after = Sample {
            at: at + Duration::from_secs(2),
            vgpus: vec![vgpu(1_500_000_000, 1_000_000_000, 14, 45_000)],
        };
        let rows = between(&before, &after);
        assert_eq!((rows[0].nodes[0].busy_percent, rows[0].nodes[0].due_percent), (25.0, 50.0));
        assert_eq!((rows[0].submissions_per_second, rows[0].latency_us), (2.0, Some(10.0)));
        assert_eq!(rows[0].state, "no VM");
        let same = between(&after, &after);
        assert_eq!((same[0].nodes[0].busy_percent, same[0].latency_us), (0.0, None));
    }
}
