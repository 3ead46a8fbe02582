//! The daemon's processes, from outside.

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::daemon::Daemon;
use crate::daemon::until;

/// Ends the engines of the first VM until one is not replaced any more.
pub(crate) fn lose_engine(daemon: &Daemon, is_lost: impl Fn() -> bool) {
    let other = daemon.engine(1);
    until("the engine is lost", || {
        for pid in daemon.children().into_iter().filter(|pid| *pid != other) {
            // It may be gone already.
            let _gone = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
        }
        is_lost()
    });
}

/// Sends a signal to a process that is there.
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}
