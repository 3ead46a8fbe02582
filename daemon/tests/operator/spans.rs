//! Spans in the log: what a line is about, and how long work took.

use std::fs;
use std::fs::File;
use std::process::Command;
use std::process::Stdio;

use serde_json::Value;
use serde_json::json;

use crate::served::Folder;
use crate::served::Served;
use crate::served::until;
use crate::work::work;

const CONFIG: &str =
    "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\nlog-format = \"json\"\n";
const VGPU: &str = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n";

/// A daemon that logs so into the file `log`, with this filter in its environment.
fn served(level: &str, filter: Option<&str>) -> Served {
    let folder = Folder::with(&format!("{CONFIG}log-level = \"{level}\"\n{VGPU}"));
    let log = File::create(folder.file("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env_remove("RUST_LOG").envs(filter.map(|filter| ("RUST_LOG", filter)));
    Served::run(folder, command, &[], Stdio::from(log))
}

/// All lines, each of which is an object.
fn lines(served: &Served) -> Vec<Value> {
    let log = fs::read_to_string(served.folder.file("log")).unwrap();
    // The last may not be whole yet.
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The spans of the lines that begin so.
fn spans(served: &Served, begin: &str) -> Vec<Value> {
    let lines = lines(served).into_iter();
    lines
        .filter(|line| line["message"].as_str().unwrap().starts_with(begin))
        .map(|line| line["spans"].clone())
        .collect()
}

fn has_submissions(served: &Served) -> bool {
    !spans(served, "submission ended").is_empty()
}

/// What each end of a buffer says of it.
fn check_submissions(served: &Served) {
    let ended = spans(served, "submission ended after ");
    let span = ended[0][0].as_object().unwrap();
    assert_eq!(
        (&span["name"], &span["vgpu"], &span["node"]),
        (&json!("submission"), &json!("a"), &json!("copy"))
    );
    let fields = ["process", "queue", "fence", "took_us"];
    assert!(fields.iter().all(|name| span[*name].is_u64()) && !span.contains_key("fault"), "{span:?}");
    // Each was given to the engine, and ran within it.
    let runs = spans(served, "run ended after ");
    let of_it = runs
        .iter()
        .find(|spans| ["process", "queue", "fence"].iter().all(|name| spans[0][*name] == span[*name]));
    let [whole, run] = &of_it.unwrap().as_array().unwrap()[..] else { panic!("{of_it:?}") };
    assert_eq!((&whole["name"], &run["name"]), (&json!("submission"), &json!("run")));
    assert!(run["took_us"].as_u64().unwrap() <= span["took_us"].as_u64().unwrap(), "{run} {span:?}");
}

#[test]
fn a_buffer_has_a_span_from_submit_to_fence_where_the_level_says_debug_and_none_where_it_does_not() {
    let served = served("info", None);
    work(&served, || ());
    assert!(!has_submissions(&served), "{:?}", lines(&served));
    let config = served.folder.config();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"info\"", "\"debug\"")).unwrap();
    assert_eq!(served.ask(&["reload"])["changed"], json!(["log-level"]));
    work(&served, || ());
    until("a submission that has ended", || has_submissions(&served));
    check_submissions(&served);
}

#[test]
fn a_filter_lets_spans_through_and_nothing_else_of_that_level() {
    let served = served("error", Some("info,campanile::span=debug"));
    work(&served, || ());
    until("a submission that has ended", || has_submissions(&served));
    check_submissions(&served);
    let debug = lines(&served).into_iter().filter(|line| line["level"] == "DEBUG");
    assert!(debug.into_iter().all(|line| line["target"] == "campanile::span"));
}

#[test]
fn lines_within_a_reset_and_a_command_have_what_they_are_about() {
    let served = served("info", None);
    work(&served, || {
        served.ask(&["reset", "--vgpu", "a", "--node", "copy"]);
    });
    let asked = spans(&served, "control socket: uid ");
    let [control] = &asked[0].as_array().unwrap()[..] else { panic!("{asked:?}") };
    assert_eq!(
        (&control["name"], &control["uid"]),
        (&json!("control"), &json!(rustix::process::geteuid().as_raw()))
    );
    assert!(control["pid"].as_u64().unwrap() > 1, "{control}");
    let of_reset = lines(&served).into_iter().filter(|line| line["spans"][0]["name"] == "reset");
    let span = of_reset.map(|line| line["spans"][0].clone()).next().expect("a line within the reset");
    assert_eq!(span, json!({ "name": "reset", "vgpu": "a", "node": "copy", "cause": "forced" }));
}
