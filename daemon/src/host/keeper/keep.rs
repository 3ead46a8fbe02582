//! A keeper, and how a daemon takes what its keeper has kept.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitStatus;
use rustix::process::kill_process;
use signal_hook::consts::SIGCHLD;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::pipe;

use super::message::Said;
use super::process;
use super::process::HAS_KEEPER;
use super::process::LIMIT;
use super::store::Store;
use crate::fd_store;
use crate::host::heartbeat;
use crate::host::upgrade::channel::Channel;

/// Daemons that may be killed within [`WITHIN`].
const MOST: usize = 5;
/// As systemd's StartLimitIntervalSec.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a daemon that serves may give no sign of life, where the environment does not say it (`WATCHDOG_USEC`).
const SILENCE: Duration = Duration::from_secs(30);

/// Whether this process has a keeper.
pub fn is_kept() -> bool {
    env::var_os(HAS_KEEPER).is_some()
}

/// Takes what the keeper of this process has kept.
///
/// # Errors
/// Standard input is no channel to a keeper.
pub fn receive() -> io::Result<()> {
    let channel = Channel::of_stdin()?;
    let (names, files) = channel.receive::<Vec<String>>(LIMIT)?;
    if names.len() != files.len() {
        return Err(io::Error::other(format!(
            "the keeper names {} descriptors and sends {}",
            names.len(),
            files.len()
        )));
    }
    fd_store::deliver(names.into_iter().zip(files));
    Ok(())
}

/// How a keeper ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// As its daemon did: its exit status.
    With(u8),
    /// The daemons are killed one after the other.
    GivenUp,
}

/// The daemon of a keeper.
#[derive(Debug)]
struct Daemon {
    pid: Pid,
    /// It has said that it serves.
    is_ready: bool,
    /// When it gave a sign of life last.
    alive: Instant,
}

impl Daemon {
    fn new(pid: Pid) -> Self {
        Self { pid, is_ready: false, alive: Instant::now() }
    }
}

/// A keeper.
#[derive(Debug)]
struct Keeper {
    line: Vec<OsString>,
    store: Store,
    daemon: Daemon,
    /// When daemons were killed.
    killed: VecDeque<Instant>,
    /// It was told to end.
    is_ending: bool,
    /// How long the daemon may give no sign of life.
    silence: Duration,
}

/// Keeps a daemon with this command line, until it ends by itself, or is told to.
///
/// # Errors
/// A daemon cannot be started, or the system refused something.
pub fn run(line: Vec<OsString>) -> io::Result<Ended> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = |signal| {
        let (own, its) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        pipe::register(signal, its)?;
        Ok::<_, io::Error>(own)
    };
    let (children, terminate, interrupt) = (signals(SIGCHLD)?, signals(SIGTERM)?, signals(SIGINT)?);
    let store = Store::open()?;
    let silence = heartbeat::silence().unwrap_or(SILENCE);
    let daemon = Daemon::new(process::spawn(&line, &store, silence)?);
    let mut keeper = Keeper { line, store, daemon, killed: VecDeque::new(), is_ending: false, silence };
    loop {
        let fds = [keeper.store.socket(), children.as_fd(), terminate.as_fd(), interrupt.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let patience = keeper.patience().map(Timespec::try_from).and_then(Result::ok);
        match poll(&mut fds, patience.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let [told, ended, terminated, interrupted] = fds.map(|fd| !fd.revents().is_empty());
        // First: what a daemon said before it was killed counts.
        if told || ended {
            keeper.listen()?;
        }
        if terminated || interrupted {
            let of = if terminated { &terminate } else { &interrupt };
            process::drain(of);
            keeper.is_ending = true;
            // It may have ended by itself.
            let _gone = kill_process(keeper.daemon.pid, Signal::TERM);
        }
        if ended {
            process::drain(&children);
            if let Some(ended) = keeper.reap()? {
                return Ok(ended);
            }
        }
        if keeper.patience().is_some_and(|left| left.is_zero()) {
            let silence = keeper.silence.as_secs_f32();
            log::error!("keeper: the daemon has given no sign of life for {silence} s: killed");
            keeper.daemon.alive = Instant::now();
            let _gone = kill_process(keeper.daemon.pid, Signal::KILL);
        }
    }
}

impl Keeper {
    /// How long the next sign of life may take; for ever, of a daemon that does not serve yet.
    fn patience(&self) -> Option<Duration> {
        self.daemon.is_ready.then(|| self.silence.saturating_sub(self.daemon.alive.elapsed()))
    }

    /// Takes what the daemon says.
    fn listen(&mut self) -> io::Result<()> {
        let daemon = self.daemon.pid;
        // The successor of an upgrade is a child of the daemon before it.
        let may_speak = |pid: Pid| pid == daemon || process::parent(pid) == Some(daemon);
        while let Some(said) = self.store.hear(may_speak)? {
            match said {
                Said::Ready => (self.daemon.is_ready, self.daemon.alive) = (true, Instant::now()),
                Said::Alive => self.daemon.alive = Instant::now(),
                Said::Main(pid) => {
                    log::info!("keeper: the daemon is process {pid:?} from here on");
                    self.daemon.pid = pid;
                }
                Said::Kept | Said::Other => {}
            }
        }
        Ok(())
    }

    /// Waits for what has ended. How this process ends, if it does.
    fn reap(&mut self) -> io::Result<Option<Ended>> {
        while let Some((pid, status)) = process::ended()? {
            if pid == self.daemon.pid {
                return self.outlive(status);
            }
        }
        Ok(None)
    }

    /// The daemon has ended: another goes on, unless it was to end.
    fn outlive(&mut self, status: WaitStatus) -> io::Result<Option<Ended>> {
        let code = status.exit_status().map(|code| u8::try_from(code).unwrap_or(u8::MAX));
        process::end_children()?;
        if self.is_ending || code == Some(0) {
            return Ok(Some(Ended::With(code.unwrap_or(0))));
        }
        if let Some(code) = code.filter(|_| !self.daemon.is_ready) {
            return Ok(Some(Ended::With(code)));
        }
        let now = Instant::now();
        self.killed.push_back(now);
        self.killed.retain(|at| now.duration_since(*at) < WITHIN);
        let how = process::describe(status);
        if self.killed.len() > MOST {
            log::error!(
                "keeper: the daemon has ended {MOST} times within {} s, now {how}: given up",
                WITHIN.as_secs()
            );
            return Ok(Some(Ended::GivenUp));
        }
        let pid = process::spawn(&self.line, &self.store, self.silence)?;
        log::error!(
            "keeper: the daemon has ended, {how}; process {pid:?} goes on with {} descriptors",
            self.store.len()
        );
        self.daemon = Daemon::new(pid);
        Ok(None)
    }
}
