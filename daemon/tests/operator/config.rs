//! Files of configuration.

use std::fs;
use std::fs::File;
use std::process::Command;
use std::process::Stdio;

use crate::served::Folder;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;

/// The file that packages install.
const SHIPPED: &str = include_str!("../../../packaging/campanile.toml");

fn vgpu(name: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n")
}

#[test]
fn a_daemon_serves_what_its_files_say_and_the_command_line_wins() {
    let quiet = "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\n";
    let folder = Folder::with(&format!("{quiet}doorbells = 3\nspin = 1\n{}", vgpu("a")));
    folder.write("conf.d/10-b.toml", &format!("vm-budget = \"32M\"\n{}weight = 300\n", vgpu("b")));
    folder.write("conf.d/20-budget.toml", "vm-budget = \"48M\"\n");
    let socket = folder.file("other.sock");
    let spec = format!("name=b,socket={},vram=32M", socket.display());
    let served = Served::of(folder, &["--vgpu", &spec]);
    let status = served.ask(&["status"]);
    let [a, b] = &status["vgpus"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&a["name"], &a["vram_bytes"]), (&"a".into(), &(64 << 20).into()));
    assert_eq!((&b["name"], &b["vram_bytes"]), (&"b".into(), &(32 << 20).into()));
    assert_eq!(b["socket"], socket.to_str().unwrap());
    assert_eq!(a["budget"]["limit"]["bytes"], 48 << 20, "the last file that says it");
}

#[test]
fn all_that_is_wrong_is_told_with_its_place_and_what_is_right() {
    let folder = Folder::with(
        "tdr-timout = 5\nspin = \"many\"\nengines = 300\nprofile = \"fast\"\nno-window = 1\n\n\
         [[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"lots\"\n[[vgpu]]\nname = \"b\"\ncolour = 1\nweight = 0\n",
    );
    folder.write("conf.d/x.toml", "slice = [1\n");
    let output = campanile(&["config", "check", &folder.config()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let main = folder.config();
    for (place, part) in [
        (":1:1: ", "\"tdr-timeout\""),
        (":2:8: ", "a whole number"),
        (":3:11: ", "0..=255"),
        (":4:11: ", "default, latency"),
        (":5:13: ", "true or false"),
        (":10:8: ", "512M or 2G"),
        (":13:1: ", "colour"),
        (":14:10: ", "1 to 10000"),
    ] {
        let line = said.lines().find(|line| line.starts_with(&format!("{main}{place}")));
        assert!(line.is_some_and(|line| line.contains(part)), "{place}{part} is missing in\n{said}");
    }
    assert!(said.contains("conf.d/x.toml:"), "{said}");
    let served = campanile(&["serve", "--config", &main]);
    assert!(
        !served.status.success() && text(&served.stderr).contains(&format!("{main}:1:1: ")),
        "it starts nothing"
    );
}

#[test]
fn what_cannot_be_together_is_told_where_it_was_said() {
    let main = format!("control = \"@/a.sock\"\nvram-total = \"64M\"\n{}vram-min = \"48M\"\n", vgpu("a"));
    let folder = Folder::with(&main);
    folder.write("conf.d/a.toml", &format!("{}vram-min = \"48M\"\n", vgpu("a")));
    let output = campanile(&["config", "check", &folder.config()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let (main, more) = (folder.config(), folder.file("conf.d/a.toml"));
    for line in [
        format!("{}:2:1: vGPU a: another vGPU has this name", more.display()),
        format!("{}:3:1: vGPU a: its socket", more.display()),
        format!("{main}:1:1: --control: its socket"),
        format!(
            "{main}:2:1: the guaranteed minima of all vGPUs, 100663296 bytes, are more than the 67108864"
        ),
    ] {
        assert!(said.contains(&line), "{line} is missing in\n{said}");
    }
}

#[test]
fn names_and_sockets_that_are_there_twice_are_told_also_where_something_else_is_wrong() {
    let twice = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"lots\"\n";
    let folder = Folder::with(&format!("{}{twice}", vgpu("a")));
    folder.write("conf.d/a.toml", &vgpu("a").replace("a.sock", "b.sock"));
    let output = campanile(&["config", "check", &folder.config()]);
    let (main, more) = (folder.config(), folder.file("conf.d/a.toml"));
    let expected = [
        format!("{main}:8:8: vram: \"lots\" is no size; write 512M or 2G"),
        format!("{main}:6:1: vGPU a: another vGPU has this name"),
        format!(
            "{main}:7:1: vGPU a: its socket {0} is the one of vGPU a, too",
            folder.file("a.sock").display()
        ),
        format!("{}:2:1: vGPU a: another vGPU has this name", more.display()),
        format!("campanile: {main}: 4 faults"),
    ];
    assert_eq!(text(&output.stderr).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn what_no_daemon_could_serve_is_told_and_counted() {
    let named = |name: &str| vgpu("a").replace("name = \"a\"", &format!("name = \"{name}\""));
    let long = "n".repeat(65);
    for (config, place, why) in [
        ("spin = -5\n".to_owned(), ":1:8: ", "spin: \"-5\" is not possible; a whole number"),
        (
            format!("engines = 3\nvulkan-device = \"a,b\"\n{}", vgpu("a")),
            ":2:1: ",
            "vulkan-device: 2 devices for 3 linked adapters (engines); one for all is possible, or one for each",
        ),
        ("spin = 99999999999999999999\n".to_owned(), ":1:8: ", "99999999999999999999 is too large"),
        ("vram = \"64M\"\ncontrol = \"@/c\"\n".to_owned(), ":1:1: ", "there is none"),
        (
            format!("metrics = \"tcp:127.0.0.1:9\"\nweb = \"127.0.0.1:9\"\n{}", vgpu("a")),
            ":2:1: ",
            "its port 127.0.0.1:9 is the one of --metrics, too",
        ),
        (named("\\u001b[31m"), ":2:8: ", "control character"),
        (named(&long), ":2:8: ", "a name of 65 bytes; 64 are possible"),
        (format!("control = \"/{long}/{long}\"\n"), ":1:1: ", "a path of 132 bytes; 107 are possible"),
    ] {
        let folder = Folder::with(&config);
        let output = campanile(&["config", "check", &folder.config()]);
        let (said, main) = (text(&output.stderr), folder.config());
        let [fault, count] = &said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(fault.starts_with(&format!("{main}{place}")) && fault.contains(why), "{said}");
        assert_eq!(*count, format!("campanile: {main}: 1 fault"));
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}

#[test]
fn folders_that_must_be_there_first_are_noted_and_one_that_is_made_is_not() {
    let sockets = "control = \"@/none/control\"\nstatus = \"@/status\"\nmetrics = \"unix:@/more/metrics\"\n";
    let made = "state-dir = \"@/state\"\nworkers = \"@/workers\"\n";
    let peer = "migrate-listen = \"unix:@/peers/a\"\n";
    let folder = Folder::with(&format!("{sockets}{made}{}{peer}", vgpu("a")));
    let output = campanile(&["config", "check", &folder.config()]);
    let (said, main) = (text(&output.stderr), folder.config());
    let note = |line: u32, what: &str, name: &str| {
        let name = folder.file(name);
        format!(
            "note: {main}:{line}:1: {what}: {} is no folder yet; the daemon does not make it",
            name.display()
        )
    };
    let listens = 6 + u32::try_from(vgpu("a").lines().count()).unwrap();
    let expected =
        [note(listens, "migrate-listen", "peers"), note(1, "control", "none"), note(3, "metrics", "more")];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert_eq!(text(&output.stdout), format!("{main}: 1 vGPU, no fault\n"));
}

#[test]
fn a_file_that_is_named_and_cannot_be_used_is_told_where_it_was_said() {
    let folder = Folder::with(&format!("spin = 5\nvulkan-driver = \"@/driver.json\"\n{}", vgpu("a")));
    let output = campanile(&["config", "check", &folder.config()]);
    let said = text(&output.stderr);
    assert!(said.contains("campanile.toml:2:1: ") && said.contains("driver.json"), "{said}");
    let output = campanile(&["config", "check", folder.file("none.toml").to_str().unwrap()]);
    assert!(text(&output.stderr).contains("none.toml: cannot be read"), "{}", text(&output.stderr));
}

#[test]
fn the_shipped_file_is_the_example_and_right() {
    let example = campanile(&["config", "example"]);
    assert!(
        text(&example.stdout) == SHIPPED,
        "`campanile config example > packaging/campanile.toml` mends it"
    );
    let folder = Folder::with("");
    folder.write("shipped.toml", SHIPPED);
    let output = campanile(&["config", "check", folder.file("shipped.toml").to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn an_executor_that_is_none_leaves_a_daemon_without_a_compute_node_and_the_log_says_why() {
    let folder = Folder::with(&format!("{QUIET}{}", vgpu("a")));
    let log = folder.file("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("CAMPANILE_EXECUTOR", "tpu");
    let _served = Served::run(folder, command, &[], Stdio::from(File::create(&log).unwrap()));
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("no compute node, only copies"), "{said}");
    assert!(said.contains("CAMPANILE_EXECUTOR is \"tpu\", neither cpu nor gpu"), "{said}");
}
