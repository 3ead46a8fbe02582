//! The commands of a page, in one shell.

use std::fmt::Write;
use std::fs;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::process::Stdio;
use std::thread;

use crate::blocks;
use crate::blocks::Block;
use crate::blocks::Kind;
use crate::blocks::lines;
use crate::commands::programs;

/// Seconds that all commands of a page may take before they count as hanging.
const NEVER: &str = "180";
/// Where the guides have metrics, and the web page.
const ADDRESSES: [&str; 2] = ["127.0.0.1:9464", "127.0.0.1:9465"];

/// A GPU of the guides, and the device that is here.
const GPU: (&str, &str) = ("h100", "llvmpipe");

/// What goes before all commands. `ready` waits until as many daemons as it says have told that they serve.
const HEAD: &str = r#"
set -euo pipefail
started=0
stop() { for job in $(jobs -p); do kill "$job"; wait "$job" || true; done; }
trap stop EXIT
ready() {
    started=$((started + 1))
    until [ "$(wc -l <"$READY")" -ge "$started" ]; do
        kill -0 "$1" || { echo "this daemon has ended" >&2; exit 1; }
        sleep 0.05
    done
}
cd "$HOME"
"#;

/// A folder with all that the guides name by absolute paths.
struct Place {
    folder: tempfile::TempDir,
    addresses: [String; ADDRESSES.len()],
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["run", "etc", "state", "home"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        // All at once, so that each is another one.
        let free = ADDRESSES.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        Self { folder, addresses: free.map(|socket| socket.local_addr().unwrap().to_string()) }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// A text of the guides with paths of this place.
    fn here(&self, text: &str) -> String {
        let at = |name: &str| self.file(name).to_str().unwrap().to_owned();
        let text = text
            .replace("/run/campanile", &at("run"))
            .replace("/etc/campanile", &at("etc"))
            .replace("/var/lib/campanile", &at("state"))
            .replace(GPU.0, GPU.1);
        let addresses = ADDRESSES.iter().zip(&self.addresses);
        addresses.fold(text, |text, (theirs, own)| text.replace(theirs, own))
    }
}

/// The whole script of a page. Each block has a file for what it prints.
fn script(place: &Place, blocks: &[Block]) -> String {
    let mut script = HEAD.to_owned();
    for block in blocks {
        match &block.kind {
            Kind::File(path) => {
                let path = place.here(path);
                let folder = Path::new(&path).parent().filter(|folder| *folder != Path::new(""));
                let folder = folder.unwrap_or(Path::new(".")).display();
                let text = place.here(&block.text);
                write!(script, "mkdir -p '{folder}'\ncat >'{path}' <<'END-OF-FILE'\n{text}END-OF-FILE\n")
                    .unwrap();
            }
            Kind::Run => {
                let lines = lines(block);
                let is_daemon = |line: &String| {
                    line.starts_with("campanile serve") || line.starts_with("campanile schedule")
                };
                if lines.iter().any(is_daemon) {
                    script.push_str("stop\n");
                }
                writeln!(script, "exec >'{}' 2>&1", place.file(&output(block)).display()).unwrap();
                for line in &lines {
                    let here = place.here(line);
                    if is_daemon(line) {
                        let command = here.split(" #").next().unwrap_or_default().trim_end();
                        writeln!(script, "{} &\nready $!", command.trim_end_matches('&')).unwrap();
                    } else {
                        writeln!(script, "echo 'the block at line {}' >>\"$PROGRESS\"\n{here}", block.line)
                            .unwrap();
                    }
                }
            }
            _ => {}
        }
    }
    script
}

fn output(block: &Block) -> String {
    format!("output.{}", block.line)
}

/// Runs what is marked so in a page, and holds what it prints against what the page says.
pub(crate) fn run_page(name: &str) {
    let (_, text) = blocks::pages().into_iter().find(|(page, _)| page == name).unwrap();
    let blocks = blocks::of(&text);
    assert!(blocks.iter().any(|block| block.kind == Kind::Run), "{name} has nothing to run");
    let place = Place::new();
    let (ready, notify) = (place.file("ready"), place.file("notify"));
    let listener = UnixDatagram::bind(&notify).unwrap();
    let mut told = File::create(&ready).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(count) = listener.recv(&mut bytes) {
            if String::from_utf8_lossy(&bytes[..count]).lines().any(|line| line == "READY=1") {
                std::io::Write::write_all(&mut told, b"ready\n").unwrap();
            }
        }
    });
    let path = std::env::var("PATH").unwrap_or_default();
    // It ends its whole process group, daemons among it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", NEVER, "bash", "-c", &script(&place, &blocks)]).stdin(Stdio::null());
    command.env("PATH", format!("{}:{path}", programs().display())).env("HOME", place.file("home"));
    command.env("READY", &ready).env("NOTIFY_SOCKET", &notify).env("PROGRESS", place.file("progress"));
    let status = command.status().unwrap();
    let printed = |block: &Block| fs::read_to_string(place.file(&output(block))).unwrap_or_default();
    if !status.success() {
        let progress = fs::read_to_string(place.file("progress")).unwrap_or_default();
        let all: String = blocks.iter().map(printed).collect();
        panic!("{name}, {}: {status}:\n{all}", progress.lines().last().unwrap_or("line 0"));
    }
    let mut said = String::new();
    for block in &blocks {
        match &block.kind {
            Kind::Run => said = printed(block),
            Kind::Says => hold(&place, name, block, &said),
            _ => {}
        }
    }
}

/// Each line of the page is one that was printed.
fn hold(place: &Place, name: &str, block: &Block, said: &str) {
    for line in block.text.lines().filter(|line| !line.trim().is_empty()) {
        let expected = place.here(line);
        assert!(
            said.lines().any(|line| is_like(line.trim_end(), expected.trim_end())),
            "{name}:{}: no line is\n{line}\nin\n{said}",
            block.line
        );
    }
}

/// Whether a line is as the page has it, where `…` stands for anything.
fn is_like(line: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut is_open = false;
    for part in parts {
        is_open = part.is_empty();
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    is_open || rest.is_empty()
}

#[test]
fn three_points_stand_for_anything() {
    assert!(is_like("a 12 MiB of b", "a … MiB …"));
    assert!(is_like("a", "a") && !is_like("ab", "a") && !is_like("b", "a…") && !is_like("a b", "a …c"));
}
