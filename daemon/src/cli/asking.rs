//! Asking a daemon from a terminal: what takes long says that it goes on.

use std::io;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

use crate::operator::client;
use crate::operator::client::ClientError;
use crate::operator::verb::Verb;

/// How long an answer may take before anything is said, and how often more is.
const SECOND: Duration = Duration::from_secs(1);

/// As [`client::ask`]; a line of the terminal counts the seconds meanwhile, and is gone at the end.
///
/// # Errors
/// The daemon is not there, or refuses.
pub(super) fn ask(control: &Path, verb: &Verb) -> Result<Value, ClientError> {
    if !io::stderr().is_terminal() {
        return client::ask(control, verb);
    }
    let name = serde_json::to_value(verb).ok().and_then(|said| Some(said["verb"].as_str()?.to_owned()));
    let name = name.unwrap_or_default();
    thread::scope(|scope| {
        let (ends, is_over) = mpsc::channel();
        // Without a thread nothing is said.
        let _told = thread::Builder::new().spawn_scoped(scope, move || count(&name, &is_over));
        let answer = client::ask(control, verb);
        drop::<mpsc::Sender<()>>(ends);
        answer
    })
}

fn count(name: &str, is_over: &Receiver<()>) {
    let begun = Instant::now();
    let mut is_told = false;
    while is_over.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
        eprint!("\r{name}: {} s ", begun.elapsed().as_secs());
        is_told = true;
    }
    if is_told {
        eprint!("\r\x1b[K");
    }
}
