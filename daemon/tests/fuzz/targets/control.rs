//! An operator's client says anything to a handler of two vGPUs that no VM is connected to: so nothing is written to a file,
//! and no peer is called.

use std::io;
use std::io::Read;
use std::sync::Arc;

use campanile_daemon::confine::Confinement;
use campanile_daemon::confine::confiner::Confiner;
use campanile_daemon::migration::endpoint::Endpoint;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Departure;
use campanile_daemon::migration::target::arriving::Arriving;
use campanile_daemon::operator::client::Reply;
use campanile_daemon::operator::handler::Handler;
use campanile_daemon::operator::held::Held;
use campanile_daemon::operator::line::MAX_LINE;
use campanile_daemon::operator::roster::Roster;
use campanile_daemon::operator::socket;
use campanile_daemon::operator::vgpu::Vgpu;
use campanile_daemon::vgpu::config::Current;
use serde_json::Value;

use super::world::SMALL;
use super::world::config;

/// Names of the vGPUs.
const NAMES: [&str; 2] = ["a", "b"];
/// Bytes of the longest answer here: every vGPU, and its part of a refusal that repeats its line.
const MAX_REPLY: usize = 8 * MAX_LINE;

/// What came of the lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Came {
    /// Whether each was done.
    pub(crate) done: Vec<bool>,
}

/// Bytes that come a few at a time.
struct Pieces<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(self.most);
        self.bytes.read(&mut buffer[..room])
    }
}

fn vgpu(name: &str) -> Vgpu {
    let config = config(SMALL);
    let departure = Arc::new(Departure::new(name.to_owned(), Settings::default()).unwrap());
    let arriving = Arc::new(Arriving::of(&config, Vec::new(), None));
    Vgpu {
        name: name.to_owned(),
        socket: format!("/nowhere/{name}").into(),
        detaches: name == NAMES[0],
        vram_bytes: config.vram_bytes,
        account: Arc::clone(&config.account),
        budget: Arc::clone(&config.budget),
        notify: Arc::clone(&config.notify),
        commands: Arc::clone(&config.orders),
        standing: Arc::clone(&config.standing),
        counters: Arc::default(),
        shell_counters: Arc::default(),
        endpoint: Arc::new(Endpoint::new(departure, arriving, None, None, false)),
        held: Held::default(),
        log: Arc::clone(&config.log),
        meters: Arc::clone(&config.meters),
        engines: config.engines,
        current: Arc::new(Current::new(Arc::clone(&config))),
    }
}

/// The first byte says how many bytes come at a time, and the rest are lines.
pub(crate) fn run(bytes: &[u8]) -> Came {
    let Some((most, lines)) = bytes.split_first() else { return Came::default() };
    let handler = Handler::new(
        Arc::new(Roster::new(NAMES.iter().map(|name| vgpu(name)).collect())),
        None,
        Arc::new(Confiner::new(Confinement::Off)),
    );
    let pieces = Pieces { bytes: lines, most: usize::from(*most).max(1) };
    let mut answers = Vec::new();
    socket::serve(pieces, &mut answers, &handler).expect("a buffer can be read and written");
    let mut came = Came::default();
    for answer in answers.split_inclusive(|byte| *byte == b'\n') {
        assert!(answer.len() <= MAX_REPLY, "an answer of {} bytes", answer.len());
        assert!(answer.ends_with(b"\n") && answer.iter().filter(|byte| byte.is_ascii_control()).count() == 1);
        let reply: Reply = serde_json::from_slice(answer).expect("an answer is a reply");
        assert_eq!(reply.ok, reply.error.is_none(), "{reply:?}");
        assert_eq!(reply.ok, reply.result.is_some(), "{reply:?}");
        came.done.push(reply.ok);
    }
    let ends = lines.iter().filter(|byte| **byte == b'\n').count();
    // One answer a line; one more says that a line is too long, and is the last.
    assert!(came.done.len() <= ends + 1, "{} answers to {ends} lines", came.done.len());
    // However the lines were, the handler serves the next.
    let mut last = Vec::new();
    socket::serve(&b"{\"verb\":\"status\"}\n"[..], &mut last, &handler).expect("as above");
    let status: Reply = serde_json::from_slice(&last).expect("an answer is a reply");
    let count = status.result.as_ref().and_then(|result| result["vgpus"].as_array()).map(Vec::len);
    assert_eq!(count, Some(NAMES.len()), "{status:?}");
    came
}

/// Every command, and lines that are none.
pub(crate) fn lines(most: u8) -> Vec<u8> {
    let commands = [
        r#"{"verb":"status"}"#,
        r#"{"verb":"vram"}"#,
        r#"{"verb":"metrics"}"#,
        r#"{"verb":"migration"}"#,
        r#"{"verb":"timeline","vgpu":"a","last":100}"#,
        r#"{"verb":"timeline"}"#,
        r#"{"verb":"allow","vgpu":"b"}"#,
        r#"{"verb":"notify","vgpu":"a","node":"copy","mode":"on"}"#,
        r#"{"verb":"reset-adapter"}"#,
        r#"{"verb":"reset","vgpu":"a","node":"copy@0"}"#,
        r#"{"verb":"power","vgpu":"a","state":"d3"}"#,
        r#"{"verb":"migrate","vgpu":"a","to":"unix:/nowhere/door","rename":"b"}"#,
        r#"{"verb":"call-off","vgpu":"a"}"#,
        r#"{"verb":"snapshot","vgpu":"a","file":"/nowhere/file"}"#,
        r#"{"verb":"detach","vgpu":"b","file":"/nowhere/file","limit":1}"#,
        r#"{"verb":"attach","vgpu":"a","file":"/nowhere/file"}"#,
        r#"{"verb":"attach","vgpu":"a"}"#,
        r#"{"verb":"allow","vgpu":"c"}"#,
        r#"{"verb":"vgpu","action":"add","spec":"name=c,socket=/nowhere/c,vram=64M"}"#,
        r#"{"verb":"vgpu","action":"remove","vgpu":"a","force":true}"#,
        r#"{"verb":"vgpu","action":"set","vgpu":"a","values":["weight=3"]}"#,
        "no command",
        "",
    ];
    let lines = commands.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat());
    std::iter::once(most).chain(lines).collect()
}

/// How many of [`lines`] are done.
pub(crate) const DONE: usize = 9;

/// What an operator's client may say of a vGPU by that name.
pub(crate) fn allow(name: &Value) -> Vec<u8> {
    format!("\u{7f}{{\"verb\":\"allow\",\"vgpu\":{name}}}\n").into_bytes()
}
