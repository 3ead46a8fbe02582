//! `campanile ctl reload`, and sockets for looking only.

use serde_json::json;

use crate::served::Served;
use crate::served::text;
use crate::work::work;

const QUIET: &str = "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\n";

fn vgpu(name: &str, more: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n{more}")
}

/// What a daemon says after its main file has become this.
fn reloaded(served: &Served, config: &str) -> serde_json::Value {
    served.folder.write("campanile.toml", &format!("{QUIET}{config}"));
    served.ask(&["reload"])
}

#[test]
fn what_can_change_is_changed_while_a_guest_runs_and_the_rest_is_named() {
    let served = Served::with(&format!("spin = 5\nvram-total = \"128M\"\n{}", vgpu("a", "")));
    work(&served, || {
        let answer = reloaded(&served, &format!("spin = 5\nvram-total = \"128M\"\n{}", vgpu("a", "")));
        assert_eq!(answer, json!({ "changed": [], "needs_restart": [], "failed": [] }));
        let other = format!(
            "spin = 6\nvram-total = \"128M\"\ntdr-timeout = 500\nlog-level = \"warn\"\n{}{}",
            vgpu("a", "weight = 300\ncap = 50\nbands = \"focus\"\nvram-min = \"32M\"\nsingle-use = true\n"),
            vgpu("b", "")
        );
        let answer = reloaded(&served, &other);
        assert_eq!(
            answer["changed"],
            json!([
                "log-level",
                "tdr-timeout",
                "vGPU a: weight",
                "vGPU a: cap",
                "vGPU a: bands",
                "vGPU a: vram-min",
                "vGPU b: it is new"
            ])
        );
        assert_eq!(answer["needs_restart"], json!(["spin", "vGPU a: single-use"]));
        assert_eq!(answer["failed"], json!([]));
        let status = served.ask(&["status"]);
        let a = &status["vgpus"][0];
        let tuning = json!({ "weight": 300, "cap_percent": 50, "highest_band": "focus", "tdr_timeout_ms": [500, 500] });
        assert_eq!(a["tuning"], tuning, "{status}");
        assert_eq!(
            (&a["vram_min_bytes"], &a["session"]["memory"]["guaranteed"]),
            (&json!(32 << 20), &json!(32 << 20))
        );
        // What needs a restart is named until there was one; what was changed is not.
        let answer = served.ask(&["reload"]);
        assert_eq!((&answer["changed"], answer["needs_restart"].as_array().unwrap().len()), (&json!([]), 2));
    });
    // The guest that comes next, too.
    work(&served, || assert_eq!(served.ask(&["status"])["vgpus"][0]["tuning"]["weight"], 300));
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing_and_says_where() {
    let served = Served::with(&vgpu("a", ""));
    served.folder.write("campanile.toml", &format!("{QUIET}{}", vgpu("a", "weight = 300\ncap = 0\n")));
    let output = served.ctl(&["reload"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("campanile.toml:9:7: ") && said.contains("1 to 100"), "{said}");
    std::fs::remove_file(served.folder.config()).unwrap();
    let output = served.ctl(&["reload"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("campanile.toml: cannot be read: No such file"), "{said}");
    assert_eq!(served.ask(&["status"])["vgpus"][0]["tuning"]["weight"], 100);
}

#[test]
fn an_answer_that_finds_no_room_is_a_failure_that_says_so() {
    let served = Served::with(&vgpu("a", ""));
    let control = served.folder.file("control");
    for verb in [&["status"][..], &["status", "--json"], &["vram"], &["metrics"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["ctl", "--control", control.to_str().unwrap()]).args(verb).stdout(full);
        let output =
            command.stderr(std::process::Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("writing to standard output: No space left"), "{said}");
    }
}

#[test]
fn a_socket_for_looking_answers_what_changes_nothing_and_the_daemons_group_may_connect() {
    use std::os::unix::fs::PermissionsExt;
    let served = Served::with(&format!("status = \"@/status\"\n{}", vgpu("a", "")));
    let socket = served.folder.file("status");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    let path = socket.to_str().unwrap();
    let ask = |verb: &[&str]| crate::served::campanile(&[&["ctl", "--control", path], verb].concat());
    for verb in [&["status"][..], &["vram"], &["metrics"], &["migration"], &["timeline"]] {
        let output = ask(verb);
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {}", text(&output.stderr));
    }
    for verb in [&["reload"][..], &["reset", "--vgpu", "a"], &["snapshot", "--vgpu", "a", "/tmp/never"]] {
        let output = ask(verb);
        assert_eq!(output.status.code(), Some(4), "{verb:?}");
        assert!(text(&output.stderr).contains("for looking only"), "{}", text(&output.stderr));
    }
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let served = Served::with(&vgpu("a", ""));
    assert_eq!(served.ctl(&["status"]).status.code(), Some(0));
    assert_eq!(served.ctl(&["dance"]).status.code(), Some(2));
    assert_eq!(served.ctl(&["allow", "--vgpu", "z"]).status.code(), Some(4));
    let none = crate::served::campanile(&["ctl", "--control", "/nonexistent/socket", "status"]);
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stderr));
    assert_eq!(text(&none.stderr).matches("No such file").count(), 1, "{}", text(&none.stderr));
}
