//! `campanile ctl trace`: a file for the Perfetto viewer.

use std::process::Command;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use serde_json::Value;

use crate::served::Folder;
use crate::served::NEVER;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::vgpus::guest;

const VGPU: &str = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n";

/// The events of a kind, in the order of the file.
fn of<'a>(events: &'a [Value], cat: &str, ph: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["cat"] == cat && event["ph"] == ph).collect()
}

fn at(event: &Value) -> f64 {
    event["ts"].as_f64().unwrap()
}

#[test]
fn a_trace_has_what_happened_while_it_was_taken_in_the_order_of_time() {
    let served = Served::with(VGPU);
    let file = served.folder.file("trace.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("ctl").arg("--control").arg(served.folder.file("control"));
    let mut trace = command.args(["trace", "--seconds", "2", "--perfetto"]).arg(&file).spawn().unwrap();
    let (_vm, device) = guest(&served, "a");
    let context = device.create_context(Node::Copy).unwrap();
    let buffer = device.create_buffer(1 << 20).unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), 1 << 20, 7).unwrap();
    let mut by_kernel = context.create_kernel_queue().unwrap();
    // As long as it takes: some of it is within the trace.
    while trace.try_wait().unwrap().is_none() {
        let ticket = by_kernel.submit(&commands).unwrap();
        by_kernel.wait(ticket, Some(NEVER)).unwrap();
        let mut by_doorbell = context.create_user_queue(&QueueOptions::default()).unwrap();
        by_doorbell.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        served.ask(&["reset", "--vgpu", "a", "--node", "copy"]);
    }
    assert!(trace.wait().unwrap().success());
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let all = document["traceEvents"].as_array().unwrap();
    let (names, events): (Vec<Value>, Vec<Value>) = all.iter().cloned().partition(|event| event["ph"] == "M");
    let names: Vec<_> = names.iter().map(|name| name["args"]["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"vGPU a") && names.contains(&"copy"), "{names:?}");
    assert!(events.windows(2).all(|pair| at(&pair[0]) <= at(&pair[1])), "not in the order of time");
    let (runs, doorbells, resets) =
        (of(&events, "run", "X"), of(&events, "doorbell", "i"), of(&events, "reset", "i"));
    assert!(!doorbells.is_empty() && !resets.is_empty(), "{} and {}", doorbells.len(), resets.len());
    assert!(resets.iter().all(|reset| reset["name"] == "reset: forced"));
    // Each submission begins before its fence, and a stretch that its engine ran lies within: of those that were asked for before the
    // engine was reset.
    let (begun, over) = (of(&events, "submission", "b"), of(&events, "submission", "e"));
    assert!(!begun.is_empty() && begun.len() == over.len());
    let mut with_a_run = 0;
    for (submit, fence) in begun.iter().zip(&over) {
        assert!(submit["id"] == fence["id"] && at(submit) < at(fence), "{submit} and {fence}");
        let inside =
            |run: &&&Value| run["tid"] == submit["tid"] && at(run) > at(submit) && at(run) < at(fence);
        with_a_run += usize::from(runs.iter().any(|run| inside(&run)));
    }
    assert!(with_a_run > 0, "{} submissions", begun.len());
    let counts: Vec<u64> = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|event| event["args"]["retired"].as_u64().unwrap())
        .collect();
    assert!(counts.windows(2).all(|pair| pair[0] <= pair[1]) && counts.last() > Some(&0), "{counts:?}");
}

#[test]
fn a_trace_that_cannot_be_says_why() {
    let served = Served::with(VGPU);
    let nowhere = served.folder.file("none/trace.json");
    let output = served.ctl(&["trace", "--perfetto", nowhere.to_str().unwrap()]);
    assert!(!output.status.success() && text(&output.stderr).contains("none/trace.json"));
    let file = served.folder.file("trace.json");
    let output = served.ctl(&["trace", "--vgpu", "z", "--perfetto", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert_eq!(served.ctl(&["trace", "--seconds", "0", "--perfetto", "x"]).status.code(), Some(2));
}

#[test]
fn a_log_is_json_where_that_is_wanted() {
    let folder = Folder::with("log-format = \"json\"\nspares = \"off\"\ncpu-latency = \"off\"\n");
    // It ends at once: its socket cannot be.
    let nowhere = "name=a,socket=/nonexistent/a,vram=64M";
    let output = campanile(&["serve", "--config", &folder.config(), "--vgpu", nowhere]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(said.lines().count() - lines.len() <= 1, "the error itself is text:\n{said}");
    let first = &lines[0];
    for field in ["time", "level", "target", "thread", "message"] {
        assert!(first[field].is_string(), "{field} of {first}");
    }
    assert!(lines.iter().any(|line| line["message"].as_str().unwrap().contains("configuration: ")), "{said}");
}
