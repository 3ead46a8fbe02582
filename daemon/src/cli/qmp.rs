//! A VMM's monitor: QMP, as QEMU speaks it. JSON, one object a line.

use std::collections::VecDeque;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

/// How long the monitor may take to answer a command.
const ANSWER: Duration = Duration::from_secs(60);
/// Bytes of one line.
const MAX_LINE: u64 = 16 << 20;
/// Events that are kept until they are asked for, the last ones.
const MAX_EVENTS: usize = 256;

/// Why a monitor did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The line is broken, or late.
    #[error("{}", path.display())]
    Line {
        /// The monitor's socket.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What came is no QMP.
    #[error("{}: what came is no QMP: {why}", path.display())]
    Form {
        /// The monitor's socket.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The VMM refuses.
    #[error("{command}: {why}")]
    Refused {
        /// The command.
        command: String,
        /// The VMM's words.
        why: String,
    },
    /// An event did not come.
    #[error("no {event} within {after:?}")]
    NoEvent {
        /// Its name.
        event: String,
        /// How long it was waited for.
        after: Duration,
    },
}

/// A monitor that takes commands.
#[derive(Debug)]
pub struct Monitor {
    path: PathBuf,
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    /// What of a line has come so far.
    begun: Vec<u8>,
    events: VecDeque<Value>,
}

impl Monitor {
    /// Connects, and is greeted.
    ///
    /// # Errors
    /// Nobody is there, or it is no monitor.
    pub fn connect(path: &Path) -> Result<Self, QmpError> {
        let broken = |source| QmpError::Line { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(broken)?;
        let lines = BufReader::new(stream.try_clone().map_err(broken)?);
        let (path, begun, events) = (path.to_owned(), Vec::new(), VecDeque::new());
        let mut monitor = Self { path, stream, lines, begun, events };
        let greeting = monitor.read(Instant::now() + ANSWER)?;
        if greeting.get("QMP").is_none() {
            return Err(monitor.malformed("no greeting"));
        }
        monitor.run("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn malformed(&self, why: &str) -> QmpError {
        QmpError::Form { path: self.path.clone(), why: why.to_owned() }
    }

    fn broken(&self, source: io::Error) -> QmpError {
        QmpError::Line { path: self.path.clone(), source }
    }

    /// The next object.
    fn read(&mut self, until: Instant) -> Result<Value, QmpError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.broken(io::ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(|error| self.broken(error))?;
            let room = MAX_LINE.saturating_sub(self.begun.len() as u64);
            match self.lines.by_ref().take(room).read_until(b'\n', &mut self.begun) {
                Ok(0) => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) if !self.begun.ends_with(b"\n") => {
                    if self.begun.len() as u64 >= MAX_LINE {
                        return Err(self.malformed("a line without end"));
                    }
                }
                Ok(_) => {
                    let line = std::mem::take(&mut self.begun);
                    return serde_json::from_slice(&line).map_err(|error| self.malformed(&error.to_string()));
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(self.broken(io::ErrorKind::TimedOut.into()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn keep(&mut self, event: Value) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Runs a command; what it returns.
    ///
    /// # Errors
    /// The VMM refuses it, or is gone.
    pub fn run(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.stream.write_all(line.as_bytes()).map_err(|error| self.broken(error))?;
        let until = Instant::now() + ANSWER;
        loop {
            let mut said = self.read(until)?;
            if said.get("event").is_some() {
                self.keep(said);
            } else if let Some(error) = said.get("error") {
                let why = error["desc"].as_str().unwrap_or("no reason is given").to_owned();
                return Err(QmpError::Refused { command: command.to_owned(), why });
            } else {
                return Ok(said["return"].take());
            }
        }
    }

    /// Waits for an event that fits; its data.
    ///
    /// # Errors
    /// It does not come in time, or the VMM is gone.
    pub fn wait_for(
        &mut self,
        event: &str,
        fits: impl Fn(&Value) -> bool,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        let until = Instant::now() + limit;
        loop {
            let is_it = |said: &Value| said["event"] == *event && fits(&said["data"]);
            if let Some(at) = self.events.iter().position(is_it)
                && let Some(mut said) = self.events.remove(at)
            {
                return Ok(said["data"].take());
            }
            match self.read(until) {
                Ok(said) => self.keep(said),
                Err(QmpError::Line { source, .. }) if source.kind() == io::ErrorKind::TimedOut => {
                    return Err(QmpError::NoEvent { event: event.to_owned(), after: limit });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets what has happened so far.
    pub fn forget_events(&mut self) {
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use serde_json::Value;
    use serde_json::json;

    use super::Monitor;
    use super::QmpError;

    const LONG: Duration = Duration::from_secs(60);

    /// A monitor that says these lines, one set for each command.
    fn with_monitor(says: &[&[Value]], test: impl FnOnce(&mut Monitor)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                writeln!(stream, "{}", json!({ "QMP": {} })).unwrap();
                let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
                commands.next().unwrap().unwrap();
                writeln!(stream, "{}", json!({ "return": {} })).unwrap();
                for lines in says {
                    let _command = commands.next();
                    lines.iter().for_each(|line| writeln!(stream, "{line}").unwrap());
                }
            });
            test(&mut Monitor::connect(&path).unwrap());
        });
    }

    #[test]
    fn answers_and_events_are_told_apart() {
        let deleted = |device: &str| json!({ "event": "DEVICE_DELETED", "data": { "device": device } });
        let says: [&[Value]; 2] = [
            &[deleted("x"), json!({ "return": 7 }), deleted("gpu")],
            &[json!({ "error": { "desc": "no" } })],
        ];
        with_monitor(&says, |monitor| {
            assert_eq!(monitor.run("device_del", &json!({})).unwrap(), 7);
            let data = monitor.wait_for("DEVICE_DELETED", |data| data["device"] == "gpu", LONG).unwrap();
            assert_eq!(data, json!({ "device": "gpu" }));
            let refused = monitor.run("migrate", &json!({})).unwrap_err();
            assert_eq!(refused.to_string(), "migrate: no");
            let gone = monitor.run("cont", &json!({})).unwrap_err();
            assert!(matches!(gone, QmpError::Line { .. }), "{gone}");
        });
    }

    #[test]
    fn what_is_no_qmp_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        for line in ["{}", "hello"] {
            std::thread::scope(|scope| {
                scope.spawn(|| writeln!(listener.accept().unwrap().0, "{line}").unwrap());
                assert!(matches!(Monitor::connect(&path), Err(QmpError::Form { .. })), "{line}");
            });
        }
    }
}
