//! The processes of a keeper: its daemon, and what that leaves behind.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitOptions;
use rustix::process::WaitStatus;
use rustix::process::getpid;
use rustix::process::kill_process;

use super::store::Store;
use crate::host::heartbeat;
use crate::host::upgrade::channel::Channel;
use crate::service_manager::BEHIND;
use crate::service_manager::HAS_STORE;

/// In the environment of a daemon that has a keeper, the number of that process: its standard input is the channel to it.
pub(super) const HAS_KEEPER: &str = "CAMPANILE_KEEPER";
/// How long what a daemon has left may take to end by itself: longer than an engine may take to stop what it runs.
const GRACE: Duration = Duration::from_millis(250);
/// How long the keeper may take to say what it has.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Starts this program as a daemon with this command line, and tells it what is in the store, and how long it may give no sign of life.
///
/// # Errors
/// The program cannot be started, or ends before it has heard that.
pub(super) fn spawn(program: &Path, line: &[OsString], store: &Store, silence: Duration) -> io::Result<Pid> {
    let (own, its) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.args(line.iter().skip(1)).env("NOTIFY_SOCKET", store.address());
    command.env(HAS_KEEPER, getpid().as_raw_nonzero().to_string());
    command.env_remove(HAS_STORE);
    match store.outer() {
        Some(outer) => command.env(BEHIND, outer),
        None => command.env_remove(BEHIND),
    };
    command.env(heartbeat::SILENCE, silence.as_micros().to_string());
    let child = command.stdin(Stdio::from(OwnedFd::from(its))).spawn()?;
    let (names, files) = store.contents();
    if let Err(error) = Channel::from(own).send(&names, &files, LIMIT) {
        // Why it has ended is seen when it is waited for.
        log::warn!("keeper: telling the daemon what it goes on with: {error}");
    }
    Ok(Pid::from_child(&child))
}

/// A child that has ended, if there is one.
pub(super) fn ended() -> io::Result<Option<(Pid, WaitStatus)>> {
    match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended),
        Err(Errno::CHILD) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits for what a daemon has left, which puts aside what it runs and ends, and kills what does not in time: nothing of it writes to the memory of
/// a VM when this returns. `children` is readable when one has ended.
pub(super) fn end_children(children: &UnixStream) -> io::Result<()> {
    let until = Instant::now() + GRACE;
    // The successor of an upgrade that this process was not told of would serve what the next daemon does.
    for child in listed_children()?.into_iter().filter(|child| !is_engine(*child)) {
        let _gone = kill_process(child, Signal::KILL);
    }
    loop {
        // First, so that none that ends after the look is missed.
        drain(children);
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
            Ok(None) => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return kill_children();
        }
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(children, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn kill_children() -> io::Result<()> {
    loop {
        for child in listed_children()? {
            // It may have ended meanwhile.
            let _gone = kill_process(child, Signal::KILL);
        }
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether a process is one that the daemon has started as an engine.
fn is_engine(process: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero()));
    line.is_ok_and(|line| line == b"campanile\0engine\0")
}

fn listed_children() -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid().as_raw_nonzero();
    let listed = fs::read_to_string(format!("/proc/self/task/{own}/children"))?;
    Ok(listed.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// The file of the program that a process executes, by its name also where another lies there by now.
pub(super) fn program(pid: Pid) -> io::Result<PathBuf> {
    let link = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()))?;
    let name = link.as_os_str().as_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(name.strip_suffix(b" (deleted)").unwrap_or(name))))
}

/// The parent of a process, if it is there.
pub(super) fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name of the program is in brackets, and may have any in it.
    let (_, after) = stat.rsplit_once(") ")?;
    Pid::from_raw(after.split(' ').nth(1)?.parse().ok()?)
}

/// How a process has ended, for people.
pub(super) fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("with status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => format!("{status:?}"),
    }
}

/// Takes what has come of a signal.
pub(super) fn drain(mut signals: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(signals.read(&mut bytes), Ok(1..)) {}
}
