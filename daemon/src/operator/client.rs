//! The other end of the control socket: one request, one answer.

use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use rustix::net::AddressFamily;
use rustix::net::SocketAddrUnix;
use rustix::net::SocketFlags;
use rustix::net::SocketType;
use rustix::net::connect;
use rustix::net::socket_with;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use super::line::Found;
use super::line::Lines;
use super::verb::Verb;

/// Bytes of the longest answer: every vGPU with every process of it.
pub const MAX_ANSWER: usize = 64 << 20;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long an upgrade may take: a daemon starts, and takes every vGPU over.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(240);
/// How long all of a vGPU may take into a file: its memory at the pace of a slow disk, and what guests take to let go.
const FILE_PATIENCE: Duration = Duration::from_secs(3600);

/// How long the answer to a command may take.
pub const fn timeout(verb: &Verb) -> Duration {
    match verb {
        Verb::Upgrade { .. } => UPGRADE_PATIENCE,
        Verb::Snapshot { .. } | Verb::Detach { .. } => FILE_PATIENCE,
        _ => TIMEOUT,
    }
}

/// An answer as it goes over the socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether it was done.
    pub ok: bool,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens there, or none that may be asked.
    #[error("no daemon answers at {}, is it started with --control?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The exchange broke off.
    #[error("the daemon did not answer")]
    Exchange(#[from] io::Error),
    /// What came back is no answer.
    #[error("the daemon's answer makes no sense: {0}")]
    Answer(String),
    /// The daemon says why.
    #[error("{0}")]
    Refused(String),
}

/// Sends one command, and returns what came of it.
///
/// # Errors
/// The daemon is not there, or refuses.
pub fn ask(path: &Path, verb: &Verb) -> Result<Value, ClientError> {
    let failed = |source| ClientError::Connect { path: path.into(), source };
    exchange(UnixStream::connect(path).map_err(failed)?, verb, timeout(verb), MAX_ANSWER)
}

/// As [`ask`], of a daemon that is not trusted to answer: nothing takes longer than `limit`, and the answer has at most `bytes`.
///
/// # Errors
/// As [`ask`]; the daemon has so many clients that it accepts none now.
pub fn ask_within(path: &Path, verb: &Verb, limit: Duration, bytes: usize) -> Result<Value, ClientError> {
    let failed = |source| ClientError::Connect { path: path.into(), source };
    exchange(connect_at_once(path).map_err(failed)?, verb, limit, bytes)
}

/// Connects without waiting to be accepted.
///
/// # Errors
/// Nothing listens there, or there is no room for one more.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// What comes of a connection until then.
#[derive(Debug)]
pub struct Until {
    stream: UnixStream,
    ends: Instant,
}

impl Until {
    /// For so long from now on.
    pub fn new(stream: UnixStream, limit: Duration) -> Self {
        Self { stream, ends: Instant::now() + limit }
    }
}

impl Read for Until {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

fn exchange(
    mut stream: UnixStream,
    verb: &Verb,
    limit: Duration,
    bytes: usize,
) -> Result<Value, ClientError> {
    stream.set_write_timeout(Some(TIMEOUT.min(limit)))?;
    let mut line = serde_json::to_vec(verb).map_err(|error| ClientError::Answer(error.to_string()))?;
    line.push(b'\n');
    // A daemon that does not answer this user has said so, and hung up, before it read anything.
    let sent = stream.write_all(&line);
    let line = match Lines::new(Until::new(stream, limit), bytes).next_line()? {
        Found::Line(line) => line,
        Found::End => {
            sent?;
            return Err(ClientError::Answer("it hung up".to_owned()));
        }
        Found::TooLong => return Err(ClientError::Answer("it does not end".to_owned())),
    };
    let reply: Reply =
        serde_json::from_slice(&line).map_err(|error| ClientError::Answer(error.to_string()))?;
    if reply.ok {
        Ok(reply.result.unwrap_or(Value::Null))
    } else {
        Err(ClientError::Refused(reply.error.unwrap_or_default()))
    }
}
