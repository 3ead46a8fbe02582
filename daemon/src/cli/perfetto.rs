//! What a trace has gathered, as the JSON of Chrome's trace events, which ui.perfetto.dev opens.
//!
//! A vGPU is a process there, and has a track for each node (what it ran, preemptions, doorbells that were connected, resets), one
//! for submissions of kernel-mode queues (from SUBMIT to fence), one for passes of migrations, and a counter of what user-mode queues
//! have done.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::json;

use super::gantt;
use crate::vgpu::control::history::EngineHistory;

/// Events of a file at the most: the viewer takes some hundred megabytes.
const MOST: usize = 1_000_000;
/// The track of migrations, behind those of nodes.
const MIGRATION: usize = 1000;

/// The answer to `trace`.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) now_ns: u64,
    pub(super) vgpus: Vec<Traced>,
}

/// What happened to a vGPU.
#[derive(Debug, Deserialize)]
pub(super) struct Traced {
    pub(super) name: String,
    /// What the engines ran of late.
    engines: Vec<EngineHistory>,
    events: Vec<Event>,
    /// The sequence number of its next event.
    pub(super) next: u64,
    /// Events that were not kept.
    forgotten: u64,
    user_submissions: u64,
    /// Those of the migration under way, or the last.
    #[serde(default)]
    passes: Vec<Pass>,
}

#[derive(Debug, Deserialize)]
struct Event {
    sequence: u64,
    kind: String,
    begin_ns: u64,
    end_ns: u64,
    engine: u8,
    node: String,
    process: Option<u32>,
    cause: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pass {
    pass: u32,
    is_last: bool,
    begin_ns: u64,
    end_ns: u64,
    #[serde(default)]
    wire_bytes: u64,
}

/// A vGPU, as far as it is drawn.
#[derive(Debug, Default)]
struct Process {
    /// Its tracks: the nodes, as they are called.
    nodes: Vec<String>,
    /// By node: where the last stretch ended.
    drawn_until: BTreeMap<String, u64>,
    last_pass: u64,
    user_submissions: Option<u64>,
}

/// All that was gathered.
#[derive(Debug, Default)]
pub(super) struct Picture {
    processes: BTreeMap<String, Process>,
    /// With the time at which each begins.
    events: Vec<(u64, Value)>,
    left_out: u64,
    /// The beginning of the trace, nanoseconds.
    begin: Option<u64>,
}

/// Microseconds, as the format has them.
fn micros(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6
}

/// The track of a node in its process, from 1.
fn track(process: &mut Process, node: &str) -> usize {
    let known = process.nodes.iter().position(|known| known == node);
    known.map_or_else(
        || {
            process.nodes.push(node.to_owned());
            process.nodes.len()
        },
        |at| at + 1,
    )
}

impl Picture {
    /// How many events there are.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// How many are not there: too many, or forgotten by the daemon before they were asked for.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Adds an answer, but for what an earlier one had.
    pub(super) fn add(&mut self, answer: &Answer) {
        let begin = *self.begin.get_or_insert(answer.now_ns);
        for vgpu in &answer.vgpus {
            let process = self.processes.entry(vgpu.name.clone()).or_default();
            let mut new = Vec::new();
            self.left_out = self.left_out.saturating_add(vgpu.forgotten);
            ran(process, &vgpu.engines, begin, &mut new);
            vgpu.events.iter().for_each(|event| happened(process, event, &mut new));
            moved(process, &vgpu.passes, begin, &mut new);
            if process.user_submissions.replace(vgpu.user_submissions) != Some(vgpu.user_submissions) {
                let counted = json!({ "ph": "C", "name": "user-mode submissions", "tid": 0,
                                      "args": { "retired": vgpu.user_submissions } });
                new.push((answer.now_ns, counted));
            }
            let room = MOST.saturating_sub(self.events.len());
            self.left_out = self
                .left_out
                .saturating_add(u64::try_from(new.len().saturating_sub(room)).unwrap_or(u64::MAX));
            for (at, mut event) in new.into_iter().take(room) {
                event["ts"] = json!(micros(at));
                event["pid"] = json!(vgpu.name);
                self.events.push((at, event));
            }
        }
    }

    /// The file, in the order of time.
    pub(super) fn finish(mut self) -> Value {
        self.events.sort_by_key(|(at, _)| *at);
        let mut all = Vec::with_capacity(self.events.len());
        let names: Vec<&String> = self.processes.keys().collect();
        for (index, (name, process)) in self.processes.iter().enumerate() {
            let named = |kind: &str, tid: usize, name: String| json!({ "ph": "M", "name": kind, "pid": index + 1, "tid": tid, "args": { "name": name } });
            all.push(named("process_name", 0, format!("vGPU {name}")));
            for (at, node) in process.nodes.iter().enumerate() {
                all.push(named("thread_name", at + 1, node.clone()));
            }
            if process.last_pass > 0 {
                all.push(named("thread_name", MIGRATION, "migration".to_owned()));
            }
        }
        for (_, mut event) in self.events {
            let at = names.iter().position(|name| event["pid"] == **name);
            event["pid"] = json!(at.map_or(0, |at| at + 1));
            all.push(event);
        }
        // Times are microseconds; Perfetto takes a `displayTimeUnit` for that of the times, and makes milliseconds of seconds.
        json!({ "traceEvents": all })
    }
}

/// What the engines ran: each log is in the order of time, and may begin with what was drawn.
fn ran(process: &mut Process, engines: &[EngineHistory], begin: u64, new: &mut Vec<(u64, Value)>) {
    for engine in engines {
        let node = gantt::node(engine);
        let tid = track(process, &node);
        let until = process.drawn_until.get(&node).copied().unwrap_or(begin);
        let mut last = until;
        for context in &engine.contexts {
            let name = gantt::label(context);
            for stretch in context.stretches.iter().filter(|stretch| stretch.begin_ns >= until) {
                last = last.max(stretch.end_ns);
                let dur = micros(stretch.end_ns.saturating_sub(stretch.begin_ns));
                let run = json!({ "ph": "X", "cat": "run", "name": name, "tid": tid, "dur": dur,
                                  "args": { "band": stretch.band, "preempted": stretch.preempted } });
                new.push((stretch.begin_ns, run));
                if stretch.preempted {
                    let aside = json!({ "ph": "i", "s": "t", "cat": "preempt", "name": "put aside", "tid": tid,
                                        "args": { "context": name } });
                    new.push((stretch.end_ns, aside));
                }
            }
        }
        process.drawn_until.insert(node, last);
    }
}

fn happened(process: &mut Process, event: &Event, new: &mut Vec<(u64, Value)>) {
    let node = match event.engine {
        0 => event.node.clone(),
        engine => format!("{}@{engine}", event.node),
    };
    let tid = track(process, &node);
    let args = json!({ "process": event.process, "node": node });
    match event.kind.as_str() {
        "submission" => {
            for (at, ph) in [(event.begin_ns, "b"), (event.end_ns, "e")] {
                let part = json!({ "ph": ph, "cat": "submission", "name": format!("submission to {node}"),
                                   "id": event.sequence, "tid": tid, "args": args });
                new.push((at, part));
            }
        }
        kind => {
            let name = match (kind, &event.cause) {
                ("doorbell", _) => "doorbell connected".to_owned(),
                ("preempt", _) => "preempt command".to_owned(),
                ("reset", Some(cause)) => format!("reset: {cause}"),
                (other, _) => other.to_owned(),
            };
            let instant = json!({ "ph": "i", "s": "t", "cat": kind, "name": name, "tid": tid, "args": args });
            new.push((event.begin_ns, instant));
        }
    }
}

fn moved(process: &mut Process, passes: &[Pass], begin: u64, new: &mut Vec<(u64, Value)>) {
    let known = process.last_pass.max(begin);
    for pass in passes.iter().filter(|pass| pass.end_ns > known) {
        process.last_pass = process.last_pass.max(pass.end_ns);
        let dur = micros(pass.end_ns.saturating_sub(pass.begin_ns));
        let name = format!("pass {}", pass.pass);
        let drawn = json!({ "ph": "X", "cat": "migration", "name": name, "tid": MIGRATION, "dur": dur,
                            "args": { "vm_paused": pass.is_last, "sent_bytes": pass.wire_bytes } });
        new.push((pass.begin_ns, drawn));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use serde_json::json;

    use super::Answer;
    use super::Picture;

    fn answer(now_ns: u64, stretches: &Value, events: &Value, passes: &Value) -> Answer {
        let contexts = json!([{ "process": 3, "context": 5, "entry": [0, 1], "stretches": stretches }]);
        let engines = json!([{ "node": "copy", "engine": 1, "forgotten": 0, "contexts": contexts }]);
        let vgpu = json!({ "name": "a", "engines": engines, "events": events, "next": 9, "forgotten": 2,
                           "user_submissions": 7, "passes": passes });
        serde_json::from_value(json!({ "now_ns": now_ns, "vgpus": [vgpu] })).unwrap()
    }

    fn event(sequence: u64, kind: &str, begin_ns: u64, end_ns: u64) -> Value {
        json!({ "sequence": sequence, "kind": kind, "begin_ns": begin_ns, "end_ns": end_ns, "engine": 1, "node": "copy",
                "process": 3, "cause": "forced" })
    }

    #[test]
    fn all_that_answers_have_is_drawn_once_and_in_the_order_of_time() {
        let run = |begin: u64, end: u64, preempted: bool| json!({ "begin_ns": begin, "end_ns": end, "band": "normal", "preempted": preempted });
        let mut picture = Picture::default();
        let pass =
            json!([{ "pass": 1, "is_last": false, "begin_ns": 2500, "end_ns": 2600, "wire_bytes": 64 }]);
        picture.add(&answer(1000, &json!([run(100, 900, false)]), &json!([]), &json!([])));
        let events = json!([
            event(1, "submission", 1500, 2300),
            event(2, "reset", 2400, 2400),
            event(3, "doorbell", 1400, 1400)
        ]);
        picture.add(&answer(3000, &json!([run(1600, 1800, true), run(1900, 2200, false)]), &events, &pass));
        picture.add(&answer(
            4000,
            &json!([run(1900, 2200, false), run(3000, 3100, false)]),
            &json!([]),
            &pass,
        ));
        assert_eq!(picture.left_out(), 6);
        let file = picture.finish();
        assert!(file["displayTimeUnit"].is_null(), "viewers would scale times by it");
        let all = file["traceEvents"].as_array().unwrap();
        let (names, drawn): (Vec<_>, Vec<_>) = all.iter().partition(|event| event["ph"] == "M");
        let names: Vec<_> = names.iter().map(|name| name["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["vGPU a", "copy@1", "migration"]);
        let told: Vec<_> = drawn
            .iter()
            .map(|event| {
                (
                    event["ts"].as_f64().unwrap(),
                    event["ph"].as_str().unwrap(),
                    event["name"].as_str().unwrap(),
                )
            })
            .collect();
        let expected = [
            (1.0, "C", "user-mode submissions"),
            (1.4, "i", "doorbell connected"),
            (1.5, "b", "submission to copy@1"),
            (1.6, "X", "process 3, context 5"),
            (1.8, "i", "put aside"),
            (1.9, "X", "process 3, context 5"),
            (2.3, "e", "submission to copy@1"),
            (2.4, "i", "reset: forced"),
            (2.5, "X", "pass 1"),
            (3.0, "X", "process 3, context 5"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (found, expected) in told.iter().zip(expected) {
            assert!(
                (found.0 - expected.0).abs() < 1e-6 && (found.1, found.2) == (expected.1, expected.2),
                "{found:?}"
            );
        }
        assert!(drawn.iter().all(|event| event["pid"] == 1), "{file}");
    }
}
