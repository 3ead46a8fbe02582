//! The signs of life that a service manager waits for (`WATCHDOG=1`, sd_watchdog_enabled(3)): as long as the supervisor makes rounds.
//!
//! A daemon that is stopped, or whose supervisor stands still, gives none, is killed, and another goes on with its VMs.

use std::env;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fd_store;
use crate::sched::schedule::Schedule;
use crate::service_manager;

/// How long a daemon may be silent, in the environment, microseconds. It holds for a successor, too, which `WATCHDOG_PID` does not name.
pub(crate) const SILENCE: &str = "WATCHDOG_USEC";

/// How long the daemon may be silent, where something waits for signs of life.
pub(crate) fn silence() -> Option<Duration> {
    let text = env::var(SILENCE).ok()?;
    text.parse().ok().filter(|micros| *micros > 0).map(Duration::from_micros)
}

/// The thread that gives them; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Gives signs of life, where something waits for them.
    ///
    /// # Errors
    /// No thread could be had.
    pub(super) fn start(schedule: &Arc<dyn Schedule>) -> io::Result<Option<Self>> {
        let Some(silence) = silence().filter(|_| service_manager::socket().is_some()) else {
            return Ok(None);
        };
        let schedule = Arc::clone(schedule);
        let say = || {
            service_manager::say_alive();
            fd_store::follow_keeper();
        };
        Self::every(silence / 4, move || schedule.pulse(), say).map(Some)
    }

    /// Says so each `period` in which `pulse` has changed.
    fn every(
        period: Duration,
        pulse: impl Fn() -> u64 + Send + 'static,
        say: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let beat = move || {
            let mut before = None;
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let now = Some(pulse());
                if now != before {
                    say();
                }
                before = now;
            }
        };
        let thread = thread::Builder::new().name("heartbeat".to_owned()).spawn(beat)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that gives signs of life panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_host_gpu::sched::choice::Choice;

    use super::Heartbeat;
    use crate::sched::awake::Awake;
    use crate::sched::schedule::Schedule;
    use crate::sched::thread::Supervisor;

    /// How long a test waits for what comes at once.
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_supervisor_that_makes_rounds_is_said_to_be_alive_again_and_again() {
        let supervisor = Arc::new(Supervisor::start(Choice::default(), 20, Awake::off()).unwrap());
        let (said, heard) = mpsc::channel();
        let its = Arc::clone(&supervisor);
        let beat = Heartbeat::every(
            Duration::from_millis(1),
            move || its.pulse(),
            move || {
                let _over = said.send(());
            },
        );
        for _ in 0..5 {
            heard.recv_timeout(LONG).expect("no sign of life comes");
        }
        drop(beat.unwrap());
        let (before, begun) = (supervisor.pulse(), Instant::now());
        while supervisor.pulse() == before {
            assert!(begun.elapsed() < LONG, "it makes no round, though it was asked to");
            std::thread::yield_now();
        }
    }

    #[test]
    fn of_a_supervisor_that_stands_still_no_sign_of_life_is_given() {
        let (said, heard) = mpsc::channel();
        let (asks, asked) = mpsc::sync_channel(0);
        let beat = Heartbeat::every(
            Duration::from_millis(1),
            move || {
                // It is asked once more for each time that the test takes.
                let _over = asks.send(());
                0
            },
            move || {
                let _over = said.send(());
            },
        );
        for _ in 0..5 {
            asked.recv_timeout(LONG).expect("it is not looked at");
        }
        // Of the last look it may not have said anything yet; of the first four it has said all.
        let count = heard.try_iter().count();
        drop(asked);
        drop(beat.unwrap());
        assert_eq!(count, 1, "it has made one round at the most");
    }
}
