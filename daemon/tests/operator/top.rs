//! `campanile top` on a terminal.

use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;

use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::open;
use rustix::pty::OpenptFlags;
use rustix::pty::grantpt;
use rustix::pty::openpt;
use rustix::pty::ptsname;
use rustix::pty::unlockpt;
use rustix::termios::Winsize;
use rustix::termios::tcsetwinsize;

use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::work::work;

const VGPUS: &str = "[[vgpu]]\nname = \"blue\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n\
                     [[vgpu]]\nname = \"green\"\nsocket = \"@/b.sock\"\nvram = \"64M\"\n";

/// A terminal, and what makes the other side of it.
pub(crate) fn terminal() -> (File, impl Fn() -> Stdio) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    tcsetwinsize(&master, Winsize { ws_row: 30, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let side = move || {
        Stdio::from(open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap())
    };
    (File::from(master), side)
}

#[test]
fn a_look_is_a_table_or_json() {
    let served = Served::with(&format!("status = \"@/status\"\n{VGPUS}"));
    let status = served.folder.file("status");
    let look = |more: &[&str]| {
        let arguments = ["top", "--control", status.to_str().unwrap(), "--interval", "50", "--once"];
        let output = campanile(&[&arguments, more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    work(&served, || {
        let json: serde_json::Value = serde_json::from_str(&look(&["--json"])).unwrap();
        let [blue, green] = &json["vgpus"].as_array().unwrap()[..] else { panic!("{json}") };
        assert_eq!((&blue["vgpu"], &blue["state"]), (&"blue".into(), &"running".into()));
        assert_eq!((&green["vgpu"], &green["state"]), (&"green".into(), &"no VM".into()));
        assert!(blue["vram_bytes"].as_u64().unwrap() >= 1 << 20, "{json}");
        assert_eq!(blue["nodes"][1]["node"], "copy");
        let table = look(&[]);
        assert!(table.starts_with("VGPU") && table.contains("green") && table.contains("no VM"), "{table}");
    });
}

#[test]
fn a_screen_shows_the_vgpus_takes_keys_and_leaves_the_terminal_as_it_was() {
    let served = Served::with(VGPUS);
    let (mut terminal, side) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(["top", "--interval", "50", "--control"]).arg(served.folder.file("control"));
    let mut child = command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    drop(command);
    let mut screen = String::new();
    let mut shows = |terminal: &mut File, part: &str| {
        while !screen.contains(part) {
            let mut bytes = [0; 4096];
            let count =
                terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{part}: {error} after\n{screen}"));
            screen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        screen.clear();
    };
    shows(&mut terminal, "green");
    terminal.write_all(b"/lu").unwrap();
    shows(&mut terminal, "Esc");
    terminal.write_all(b"\rq").unwrap();
    // The other screen is left.
    shows(&mut terminal, "\u{1b}[?1049l");
    assert!(child.wait().unwrap().success());
}
