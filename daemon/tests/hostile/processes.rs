//! The daemon's processes, from outside.

use rustix::process::Signal;

use crate::daemon::Daemon;
use crate::daemon::until;
use crate::signals::try_signal;

/// Ends the engines of the first VM until one is not replaced any more.
pub(crate) fn lose_engine(daemon: &Daemon, is_lost: impl Fn() -> bool) {
    let other = daemon.engine(1);
    until("the engine is lost", || {
        for pid in daemon.children().into_iter().filter(|pid| *pid != other) {
            // It may be gone already.
            let _gone = try_signal(pid, Signal::KILL);
        }
        is_lost()
    });
}
