//! Commands that take long, on a terminal and in a script; the daemon is a socket that answers when it is told to.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use crate::served::campanile;
use crate::served::text;
use crate::top::terminal;

const ANSWER: &str =
    "{\"ok\":true,\"result\":{\"file\":\"/f\",\"pages\":1,\"passes\":2,\"bytes\":3145728}}\n";
const SAYS: &str = "/f: 1 pages in 2 passes, 3 MiB";

#[test]
fn what_takes_long_counts_seconds_on_a_terminal_and_says_nothing_in_a_script() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control");
    let daemon = UnixListener::bind(&socket).unwrap();
    let asked = |daemon: &UnixListener| {
        let (stream, _) = daemon.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert!(line.contains("\"verb\":\"snapshot\""), "{line}");
        stream
    };
    let arguments = ["snapshot", "--control", socket.to_str().unwrap(), "--vgpu", "a", "/f"];
    let (mut terminal, side) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let mut child = command.args(arguments).stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    drop(command);
    let mut stream = asked(&daemon);
    let mut screen = String::new();
    let mut shows = |part: &str| {
        while !screen.contains(part) {
            let mut bytes = [0; 4096];
            let count =
                terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{part}: {error} after\n{screen}"));
            screen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        screen.clone()
    };
    shows("snapshot: 2 s");
    stream.write_all(ANSWER.as_bytes()).unwrap();
    let screen = shows(SAYS);
    assert!(screen.contains(&format!("\r\u{1b}[K{SAYS}")), "the line of seconds is gone: {screen:?}");
    assert!(child.wait().unwrap().success());
    // No terminal: the answer alone.
    let output = thread::scope(|scope| {
        scope.spawn(|| asked(&daemon).write_all(ANSWER.as_bytes()).unwrap());
        campanile(&arguments)
    });
    assert_eq!((text(&output.stdout), text(&output.stderr)), (format!("{SAYS}\n"), String::new()));
}
