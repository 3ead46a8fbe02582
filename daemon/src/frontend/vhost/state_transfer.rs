//! The device's state on its way to or from the front-end: a thread and a descriptor for each transfer, bounded in bytes
//! and in time.
//!
//! ```text
//!   SET_DEVICE_STATE_FD(SAVE) ─▶ worker: rings and device are asked ─▶ thread: makes bytes, writes them, closes ─▶ Cell
//!   SET_DEVICE_STATE_FD(LOAD) ─▶ thread: reads to the end, decodes ─▶ worker: device and rings take it ─────────▶ Cell
//!   CHECK_DEVICE_STATE ◀── waits for the Cell
//! ```

use campanile_host_gpu::log_limit::inherit;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;

use super::device::Save;
use super::saved::MAX_STATE;
use super::saved::Own;
use super::saved::SavedRing;
use super::saved::SavedShell;

/// Bytes written at once: a pipe that takes any takes so many without blocking (`PIPE_BUF`), whatever its flags.
const AT_ONCE: usize = 4096;

/// How long the other end of a descriptor may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// For the next byte.
    pub(super) step: Duration,
    /// For all of them.
    pub(super) whole: Duration,
}

/// What front-ends get.
pub(super) const TIMEOUT: Timeouts =
    Timeouts { step: Duration::from_secs(10), whole: Duration::from_secs(60) };

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Save,
    Load,
}

/// What a transfer came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Done {
    /// The bytes are where they should be.
    AsSaved,
    /// LOAD, of a state that is of no use here, for this reason: the guest finds a new device.
    Anew(String),
}

type Outcome = Result<Done, String>;

/// What came of a transfer: set once, by the holder of its [`Promise`].
#[derive(Debug, Default)]
struct Cell {
    outcome: Mutex<Option<Outcome>>,
    set: Condvar,
}

/// Sets the outcome of a transfer; dropped, it says that nothing came of it.
#[derive(Debug)]
pub(super) struct Promise(Arc<Cell>);

impl Promise {
    pub(super) fn keep(self, outcome: Outcome) {
        self.set(outcome);
    }

    fn set(&self, outcome: Outcome) {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        self.0.set.notify_all();
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.set(Err("it was given up before it was done".into()));
    }
}

/// A transfer, for the connection thread.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) direction: Direction,
    cell: Arc<Cell>,
}

impl Transfer {
    pub(super) fn new(direction: Direction) -> (Self, Promise) {
        let cell = Arc::new(Cell::default());
        (Self { direction, cell: Arc::clone(&cell) }, Promise(cell))
    }

    pub(super) fn is_over(&self) -> bool {
        self.cell.outcome.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for the outcome for a while. `None`: not yet.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        let outcome = self.cell.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, _) = self
            .cell
            .set
            .wait_timeout_while(outcome, timeout, |outcome| outcome.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }
}

/// SAVE, for the worker: it adds what rings and device say, and starts the thread.
#[derive(Debug)]
pub(super) struct SaveOrder {
    pub(super) file: File,
    pub(super) shell: SavedShell,
    pub(super) promise: Promise,
}

impl SaveOrder {
    /// `make` runs on the thread.
    pub(super) fn start(self, rings: Vec<SavedRing>, make: Save) {
        let Self { file, mut shell, promise } = self;
        shell.rings = rings;
        // The promise moves with the closure: a thread that cannot be had breaks it.
        let spawned = thread::Builder::new().name("vgpu-save".into()).spawn(inherit(move || {
            let sent = make().and_then(|device| {
                let stream = shell.encode(&device).map_err(|error| chain(&error))?;
                send(&file, &stream, TIMEOUT)
                    .map_err(|error| format!("the front-end takes no state: {error}"))
            });
            // The front-end waits for the end of the stream.
            drop(file);
            promise.keep(sent.map(|()| Done::AsSaved));
        }));
        if let Err(error) = spawned {
            log::error!("no thread to save with: {error}");
        }
    }
}

/// LOAD, for the worker: what was read, and fits.
#[derive(Debug)]
pub(super) struct LoadOrder {
    /// The epoch that it was asked for in; a guest that has reset the device since wants nothing of it.
    pub(super) epoch: u64,
    pub(super) rings: Vec<SavedRing>,
    pub(super) device: Vec<u8>,
    pub(super) may_begin_anew: bool,
    pub(super) promise: Promise,
}

/// What a state must fit, on the reading thread.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) epoch: u64,
    pub(super) features: u64,
    pub(super) config: Vec<u8>,
    pub(super) smallest_answer: usize,
    pub(super) queues: usize,
    /// The guest has no device any more where it comes from: a new one is better than none.
    pub(super) may_begin_anew: bool,
}

/// Begins to read a state, on a thread that gives it to `post` when it is there.
pub(super) fn load(
    file: File,
    target: Target,
    promise: Promise,
    post: impl FnOnce(LoadOrder) + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new().name("vgpu-load".into()).spawn(inherit(move || {
        let read = read_state(file, &target, TIMEOUT);
        match read {
            Ok((rings, device)) => {
                let Target { epoch, may_begin_anew, .. } = target;
                let order = LoadOrder { epoch, rings, device, may_begin_anew, promise };
                post(order);
            }
            Err(text) => promise.keep(Err(text)),
        }
    }))?;
    Ok(())
}

fn read_state(file: File, target: &Target, timeouts: Timeouts) -> Result<(Vec<SavedRing>, Vec<u8>), String> {
    let stream =
        receive(&file, timeouts).map_err(|error| format!("the front-end gives no state: {error}"))?;
    drop(file);
    let (shell, device) = SavedShell::decode(&stream).map_err(|error| chain(&error))?;
    let Target { features, config, smallest_answer, queues, .. } = target;
    let own = Own { features: *features, config, smallest_answer: *smallest_answer, queues: *queues };
    shell.judge(own).map_err(|error| chain(&error))?;
    Ok((shell.rings, device.to_vec()))
}

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Waits until a descriptor is ready, or gives up.
fn ready(file: &File, flags: PollFlags, timeouts: Timeouts, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        let timeout = Timespec::try_from(left.min(timeouts.step)).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, flags)], Some(&timeout)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn send(mut file: &File, mut bytes: &[u8], timeouts: Timeouts) -> io::Result<()> {
    let deadline = Instant::now() + timeouts.whole;
    while !bytes.is_empty() {
        ready(file, PollFlags::OUT, timeouts, deadline)?;
        match file.write(&bytes[..bytes.len().min(AT_ONCE)]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if retries(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(mut file: &File, timeouts: Timeouts) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeouts.whole;
    let (mut stream, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        ready(file, PollFlags::IN, timeouts, deadline)?;
        match file.read(&mut buffer) {
            Ok(0) => return Ok(stream),
            Ok(count) if stream.len() + count > MAX_STATE => {
                return Err(io::Error::other(format!("more than {MAX_STATE} bytes")));
            }
            Ok(count) => stream.extend_from_slice(&buffer[..count]),
            Err(error) if retries(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn retries(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests;
