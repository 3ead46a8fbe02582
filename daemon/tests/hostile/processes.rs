//! The daemon's processes, from outside.

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

/// Sends a signal to a process that is there.
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}
