//! The processes that run already when this one starts, or that have lost their parent: found by locks and sockets in the folder.

use std::fs;
use std::io;

use rustix::process::Pid;

use super::folder::Folder;
use super::plan::silence;
use super::process::Process;
use super::service::Found;
use crate::caller::Caller;
use crate::file_lock::holder;
use crate::operator::client::connect_at_once;
use crate::sched::broker::line::Line;

/// The schedule, if there is one.
///
/// # Errors
/// The lock cannot be read, or the system refuses to watch the process.
pub(super) fn found_schedule(folder: &Folder) -> io::Result<Option<Found>> {
    let holder = || holder(&folder.schedule_lock());
    let Some(pid) = holder()? else { return Ok(None) };
    let found = Process::find(pid, || Ok(holder()? == Some(pid)))?;
    let serves = || Line::connect(&folder.schedule()).is_ok_and(|line| line.peer() == Some(pid));
    Ok(found.map(|process| Found { process, serves: serves(), silence: None }))
}

/// What serves a vGPU already: the keeper of a worker, or a worker whose keeper has ended.
///
/// # Errors
/// As of these.
pub(super) fn found(folder: &Folder, vgpu: &str) -> io::Result<Option<Found>> {
    match found_keeper(folder, vgpu)? {
        None => found_worker(folder, vgpu),
        found => Ok(found),
    }
}

/// The keeper of a worker, if there is one. Where the worker does not answer, its keeper is about to start the next one, and says so.
///
/// # Errors
/// The lock cannot be read, or the system refuses to watch the process.
fn found_keeper(folder: &Folder, vgpu: &str) -> io::Result<Option<Found>> {
    let holder = || holder(&folder.keeper(vgpu));
    let Some(pid) = holder()? else { return Ok(None) };
    let found = Process::find(pid, || Ok(holder()? == Some(pid)))?;
    let serves = || connect_at_once(&folder.control(vgpu)).is_ok();
    Ok(found.map(|process| Found { process, serves: serves(), silence: None }))
}

/// The worker of a vGPU that has no keeper any more, if there is one.
///
/// # Errors
/// The system refuses to watch it.
fn found_worker(folder: &Folder, vgpu: &str) -> io::Result<Option<Found>> {
    let of = || {
        let caller = connect_at_once(&folder.control(vgpu)).and_then(|stream| Caller::of(&stream)).ok()?;
        let pid = Pid::from_raw(caller.process)?;
        // The socket may be of a process before this one, whose number is another's.
        let line = fs::read(format!("/proc/{}/cmdline", caller.process)).ok()?;
        let own = format!("--worker={vgpu}");
        line.split(|byte| *byte == 0).any(|word| word == own.as_bytes()).then_some(pid)
    };
    let Some(pid) = of() else { return Ok(None) };
    let found = Process::find(pid, || Ok(of() == Some(pid)))?;
    // No keeper hears it.
    Ok(found.map(|process| Found { process, serves: true, silence: Some(silence()) }))
}
