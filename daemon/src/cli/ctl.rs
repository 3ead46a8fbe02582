//! `campanile ctl`: one command over the control socket, and its answer for people.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::args::CtlArguments;
use super::asking;
use super::drain;
use super::gantt;
use super::gantt::Timeline;
use super::gantt::label;
use super::migration;
use super::output::print;
use super::table::Table;
use super::trace;
use super::vram;
use crate::operator::verb::Verb;

/// Asks, and prints what came of it.
pub fn run(arguments: &CtlArguments) -> anyhow::Result<()> {
    if let Verb::Trace { vgpu, perfetto, seconds, .. } = &arguments.verb {
        let time = Duration::from_secs(*seconds);
        let result = trace::record(&arguments.control, vgpu.as_deref(), perfetto, time)?;
        if arguments.json {
            print(&format!("{}\n", serde_json::to_string_pretty(&result)?))?;
        } else {
            print(&lines(&result))?;
        }
        return Ok(());
    }
    let mut result = asking::ask(&arguments.control, &arguments.verb)?;
    if let Verb::Drain { wait: true, .. } = arguments.verb {
        result["vms"] = drain::wait(&arguments.control, result["vms"].take())?;
    }
    if let Verb::Timeline { svg: Some(file), .. } = &arguments.verb {
        let picture = gantt::draw(&serde_json::from_value(result.clone())?)?;
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))?;
    }
    if arguments.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&result)?))?;
        return Ok(());
    }
    let text = match &arguments.verb {
        Verb::Vram => vram::picture(&result),
        Verb::Status => status(&result),
        Verb::Metrics => metrics(&result),
        Verb::Drain { .. } => drain::describe(&result),
        Verb::Migration => migration::describe(&result),
        Verb::Reports => reports(&result),
        Verb::Timeline { .. } => timeline(&serde_json::from_value(result)?),
        _ => lines(&result),
    };
    print(&text)?;
    Ok(())
}

/// A value as one word or line.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(word).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", word(value)))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What most commands come to: a name and a value a line.
fn lines(result: &Value) -> String {
    match result {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let value =
                    if list(value).is_empty() && value.is_array() { "none".to_owned() } else { word(value) };
                format!("{}: {value}\n", name.replace('_', " "))
            })
            .collect(),
        other => format!("{}\n", word(other)),
    }
}

fn status(result: &Value) -> String {
    let mut vgpus =
        Table::new(&["VGPU", "VM", "ALLOWED", "MEMORY", "ALLOCATED", "BY KERNEL", "BY DOORBELL", "SOCKET"]);
    let mut engines = Table::new(&["VGPU", "NODE", "ENGINE", "PID", "SPARE", "DOORBELLS", "IN FLIGHT"]);
    let mut budgets = Table::new(&["VGPU", "HELD FOR VM", "OF", "ITEMS", "OF", "REFUSED"]);
    let mut processes = Table::new(&["VGPU", "PROCESS", "DEVICE", "QUEUES", "KERNELS", "MAPPED"]);
    for vgpu in list(&result["vgpus"]) {
        let name = word(&vgpu["name"]);
        let vm = match (&vgpu["error"], vgpu["vm_connected"].as_bool()) {
            (Value::String(error), _) => error.clone(),
            (_, Some(true)) => "connected".to_owned(),
            _ => "none".to_owned(),
        };
        let memory = format!("{} MiB", vgpu["vram_bytes"].as_u64().unwrap_or(0) >> 20);
        let allocated = format!("{} MiB", vgpu["vram_committed_bytes"].as_u64().unwrap_or(0) >> 20);
        let allowed = match &vgpu["quarantined"]["why"] {
            Value::String(why) => format!("no: {why}"),
            _ => "yes".to_owned(),
        };
        let [kernel, user] = ["kernel", "user"].map(|mode| word(&vgpu["submissions"][mode]));
        vgpus.row([name.clone(), vm, allowed, memory, allocated, kernel, user, word(&vgpu["socket"])]);
        let budget = &vgpu["budget"];
        let kib = |of: &Value| format!("{} KiB", of["bytes"].as_u64().unwrap_or(0) >> 10);
        let (held, limit) = (&budget["held"], &budget["limit"]);
        let items = [held, limit].map(|of| word(&of["items"]));
        let [held_items, all_items] = items;
        budgets.row([name.clone(), kib(held), kib(limit), held_items, all_items, word(&budget["refused"])]);
        for engine in list(&vgpu["session"]["engines"]) {
            let fields = ["state", "pid", "spare", "doorbells_in_use", "buffers_in_flight"];
            let place = match engine["engine"].as_u64() {
                None | Some(0) => word(&engine["node"]),
                Some(ordinal) => format!("{}@{ordinal}", word(&engine["node"])),
            };
            let fields = fields.map(|field| word(&engine[field]));
            engines.row([name.clone(), place].into_iter().chain(fields));
        }
        for process in list(&vgpu["session"]["processes"]) {
            let fields = ["context", "device", "queues", "kernels"].map(|field| word(&process[field]));
            let mapped = format!("{} KiB", process["mapped_bytes"].as_u64().unwrap_or(0) >> 10);
            processes.row(std::iter::once(name.clone()).chain(fields).chain([mapped]));
        }
    }
    let held = holding(list(&result["vgpus"]));
    let mut roles = Table::new(&["ROLE", "FILES"]);
    for role in list(&result["daemon"]["roles"]) {
        roles.row(["role", "files"].map(|field| word(&role[field])));
    }
    let workers = workers(list(&result["workers"]));
    let tables = [confinement(&result["daemon"]), roles, workers, held, vgpus, budgets, engines, processes];
    let filled: Vec<String> = tables.iter().filter(|table| !table.is_empty()).map(Table::to_string).collect();
    filled.join("\n")
}

/// The processes that serve vGPUs, where each has its own.
fn workers(all: &[Value]) -> Table {
    let mut table = Table::new(&["VGPU", "WORKER", "KEEPER", "SERVES", "KEEPERS ENDED"]);
    for worker in all {
        let serves = if worker["serves"] == true { "yes" } else { "no" };
        let [vgpu, pid, keeper, ended] = ["vgpu", "pid", "keeper", "ended"].map(|field| word(&worker[field]));
        table.row([vgpu, pid, keeper, serves.to_owned(), ended]);
    }
    table
}

/// The newest reports on hangs, the newest last.
fn reports(result: &Value) -> String {
    let mut table = Table::new(&["VGPU", "REPORT", "NODE", "REASON", "WHAT"]);
    for vgpu in list(&result["vgpus"]) {
        for report in list(&vgpu["reports"]) {
            let fields = ["report", "node", "reason_name", "what"].map(|field| word(&report[field]));
            table.row([word(&vgpu["name"])].into_iter().chain(fields));
        }
    }
    table.to_string()
}

/// What holds the engines of each vGPU, the last that was started as the kernel showed it.
fn holding(vgpus: &[Value]) -> Table {
    let mut table = Table::new(&[
        "VGPU",
        "ENGINE LIMITS",
        "MEMORY",
        "CPUS",
        "CPU SHARE BY",
        "THREADS BY",
        "USER",
        "OWN NAMESPACES",
        "WHY NO CGROUP",
        "WHY USER",
    ]);
    for vgpu in vgpus {
        let (held, last) = (&vgpu["engine_processes"], &vgpu["engine_processes"]["last_process"]);
        if held.is_null() {
            continue;
        }
        let memory = held["memory_bytes"].as_u64();
        let cpus = held["cpus"].as_u64();
        let of_last = |text: String| if last.is_null() { "-".to_owned() } else { text };
        table.row([
            word(&vgpu["name"]),
            word(&held["limits"]),
            memory.map_or("no limit".to_owned(), |bytes| format!("{} MiB each", bytes >> 20)),
            cpus.map_or("all".to_owned(), |cpus| cpus.to_string()),
            word(&held["cpu_by"]),
            match held["threads_by"].as_array().map(Vec::as_slice) {
                Some([]) => "nothing".to_owned(),
                _ => word(&held["threads_by"]),
            },
            of_last(format!("{}:{}", word(&last["uid"]), word(&last["gid"]))),
            of_last(match list(&last["namespaces"]) {
                [] => "none".to_owned(),
                _ => word(&last["namespaces"]),
            }),
            word(&held["why"]),
            word(&held["why_account"]),
        ]);
    }
    table
}

/// What confines the daemon itself: a row for its threads of each name.
fn confinement(daemon: &Value) -> Table {
    let mut table =
        Table::new(&["DAEMON", "CONFINED", "USER", "NEW PRIVILEGES", "CAPABILITIES", "SECCOMP", "DUMPABLE"]);
    let yes_or_no = |value: &Value, yes: &'static str, no: &'static str| match value.as_bool() {
        Some(is) => if is { yes } else { no }.to_owned(),
        None => "-".to_owned(),
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for thread in list(&daemon["threads"]) {
        let row = vec![
            format!("{} {}", word(&daemon["pid"]), word(&thread["name"])),
            yes_or_no(&daemon["confined"], "yes", "no"),
            format!("{}:{}", word(&thread["uid"]), word(&thread["gid"])),
            yes_or_no(&thread["no_new_privs"], "never", "possible"),
            match word(&thread["capabilities"]) {
                none if none.chars().all(|digit| digit == '0') => "none".to_owned(),
                some => some,
            },
            yes_or_no(&thread["seccomp"], "filter", "off"),
            yes_or_no(&daemon["dumpable"], "yes", "no"),
        ];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.into_iter().for_each(|row| table.row(row));
    table
}

fn metrics(result: &Value) -> String {
    let mut table = Table::new(&["VGPU", "COUNTER", "COUNT"]);
    for vgpu in list(&result["vgpus"]) {
        for (counter, count) in vgpu["counters"].as_object().into_iter().flatten() {
            table.row([word(&vgpu["name"]), counter.clone(), word(count)]);
        }
    }
    table.to_string()
}

/// What each context had of its engine, summed up; the stretches themselves are for pictures and scripts.
fn timeline(timeline: &Timeline) -> String {
    let mut table = Table::new(&["VGPU", "NODE", "CONTEXT", "STRETCHES", "PREEMPTED", "ENGINE TIME"]);
    for vgpu in &timeline.vgpus {
        for engine in &vgpu.engines {
            for context in &engine.contexts {
                let stretches = context.stretches.iter();
                let preempted = stretches.clone().filter(|stretch| stretch.preempted).count();
                let time: u64 = stretches.map(|stretch| stretch.end_ns - stretch.begin_ns).sum();
                table.row([
                    vgpu.name.clone(),
                    gantt::node(engine),
                    label(context),
                    context.stretches.len().to_string(),
                    preempted.to_string(),
                    format!("{} ms", gantt::milliseconds(time)),
                ]);
            }
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::lines;
    use super::reports;
    use super::status;

    #[test]
    fn a_status_shows_every_vgpu_engine_and_process() {
        let thread = |name: &str, capabilities: &str| {
            json!({ "name": name, "uid": 7, "gid": 8, "no_new_privs": true, "capabilities": capabilities,
                    "seccomp": name == "control" })
        };
        let daemon = json!({ "pid": 42, "confined": true, "dumpable": false, "no_new_privs": true,
            "threads": [thread("control", "0000000000000000"), thread("main", "00000000000000c0"), thread("main", "00000000000000c0")] });
        let workers = json!([{ "vgpu": "a", "pid": 11, "keeper": 10, "serves": true, "ended": 0 },
                             { "vgpu": "d", "pid": null, "keeper": null, "serves": false, "ended": 2 }]);
        let text = status(&json!({ "daemon": daemon, "workers": workers, "vgpus": [
            { "name": "a", "socket": "/run/a", "vram_bytes": 64 << 20, "vm_connected": true,
              "submissions": { "kernel": 4711, "user": 815 }, "session": {
                "engines": [{ "node": "copy", "state": "asleep", "pid": 7, "spare": "ready",
                              "doorbells_in_use": 1, "buffers_in_flight": 0 },
                            { "node": "copy", "engine": 1, "state": "off", "spare": "none", "doorbells_in_use": 0,
                              "buffers_in_flight": 0 }],
                "processes": [{ "context": 3, "device": "lost: hung", "queues": 2, "kernels": 1,
                                "mapped_bytes": 8192 }] } },
            { "name": "b", "socket": "/run/b", "vram_bytes": 32 << 20, "vm_connected": false, "engine_processes":
              { "limits": "rlimits", "why": "no cgroup here", "why_account": "made up", "cpu_by": "autogroup", "threads_by": ["RLIMIT_NPROC", "pid namespace"], "memory_bytes": 4u64 << 30, "cpus": null, "last_process":
                { "pid": 9, "uid": 7, "gid": 8, "namespaces": ["ipc", "net"] } } },
            { "name": "d", "error": "its process does not answer" },
            { "name": "c", "engine_processes": { "limits": "cgroup", "why": null, "threads_by": [], "memory_bytes": null, "cpus": 2,
              "last_process": null } },
        ] }));
        for part in [
            "connected",
            "64 MiB",
            "/run/b",
            "asleep",
            "ready",
            "lost: hung",
            "8 KiB",
            "copy@1",
            "4711       815 ",
            "a     11      10      yes     0",
            "d     -       -       no      2",
            "d     its process does not answer",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        for row in [
            "42 control  yes       7:8   never           none              filter   no\n",
            "42 main     yes       7:8   never           00000000000000c0  off      no\n",
            "b     rlimits        4096 MiB each  all   autogroup     RLIMIT_NPROC, pid namespace  7:8   ipc, net        no cgroup here  made up\n",
            "c     cgroup         no limit       2     -             nothing                      -     -               -               -\n",
        ] {
            assert_eq!(text.matches(row).count(), 1, "{row} is not once in\n{text}");
        }
    }

    #[test]
    fn reports_are_a_row_each() {
        let report = |number: u64| json!({ "report": number, "node": "copy", "reason_name": "GUEST_TIMEOUT", "what": "the engine was reset" });
        let text = reports(
            &json!({ "vgpus": [{ "name": "a", "reports": [report(7), report(8)] }, { "name": "b", "reports": [] }] }),
        );
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert_eq!(rows[1].trim_end(), "a     7       copy  GUEST_TIMEOUT  the engine was reset");
    }

    #[test]
    fn other_answers_are_a_line_each() {
        assert_eq!(lines(&json!({ "engines_reset": ["copy", "compute"] })), "engines reset: copy, compute\n");
        assert_eq!(lines(&json!({ "needs_restart": [] })), "needs restart: none\n");
    }
}
