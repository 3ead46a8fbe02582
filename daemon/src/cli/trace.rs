//! `campanile ctl trace`: asks a daemon again and again what has happened, and writes all of it into one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::io::IsTerminal;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;
use serde_json::json;
use signal_hook::consts::SIGINT;

use super::perfetto::Answer;
use super::perfetto::Picture;
use crate::operator::client;
use crate::operator::verb::Verb;

/// Between two questions: engines remember 4096 stretches, and events are kept for seconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Traces for that long; what came of it.
///
/// # Errors
/// The daemon does not answer, or the file cannot be written.
pub(super) fn record(
    control: &Path,
    vgpu: Option<&str>,
    file: &Path,
    time: Duration,
) -> anyhow::Result<Value> {
    // Before anything is asked: a file that cannot be is told at once.
    let writing = || format!("writing {}", file.display());
    let target = File::create(file).with_context(writing)?;
    let is_over = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&is_over)).context("watching for an interrupt")?;
    let mut picture = Picture::default();
    let mut question = Question::default();
    let begun = Instant::now();
    loop {
        // The last question is behind the end.
        let is_last = begun.elapsed() >= time || is_over.load(Ordering::Relaxed);
        let answer = client::ask(control, &question.verb(vgpu))?;
        let answer: Answer = serde_json::from_value(answer).context("the daemon's answer")?;
        question.go_on(&answer);
        picture.add(&answer);
        progress(begun.elapsed().min(time), time, picture.len());
        if is_last {
            break;
        }
        thread::sleep(PAUSE.min(time.saturating_sub(begun.elapsed())));
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    let (events, left_out) = (picture.len(), picture.left_out());
    let mut writer = BufWriter::new(target);
    serde_json::to_writer(&mut writer, &picture.finish()).with_context(writing)?;
    writer.flush().with_context(writing)?;
    Ok(json!({ "file": file, "events": events, "left_out": left_out }))
}

fn progress(done: Duration, all: Duration, events: usize) {
    if std::io::stderr().is_terminal() {
        eprint!("\rtracing: {} s of {} s, {events} events ", done.as_secs(), all.as_secs());
    }
}

/// What is asked next.
#[derive(Debug, Default)]
struct Question {
    since_ns: Option<u64>,
    from: BTreeMap<String, u64>,
}

impl Question {
    fn verb(&self, vgpu: Option<&str>) -> Verb {
        Verb::Trace {
            vgpu: vgpu.map(str::to_owned),
            since_ns: self.since_ns,
            from: self.from.clone(),
            perfetto: PathBuf::new(),
            seconds: 0,
        }
    }

    fn go_on(&mut self, answer: &Answer) {
        self.since_ns = Some(answer.now_ns);
        self.from = answer.vgpus.iter().map(|vgpu| (vgpu.name.clone(), vgpu.next)).collect();
    }
}
