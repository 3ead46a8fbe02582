//! Engines that hold their node and get nowhere: progress and time in, verdicts out. No clock, no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;

use super::turns::EngineId;

#[derive(Debug, Clone, Copy)]
struct Watched {
    progress: Progress,
    since: Duration,
    reported: bool,
}

/// Samples progress at the cadence of the timeout (UMS-115): whoever works is not asked, only looked at.
#[derive(Debug)]
pub struct Watchdog {
    timeout: Duration,
    watched: BTreeMap<EngineId, Watched>,
}

impl Watchdog {
    /// Work may stand still for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, watched: BTreeMap::new() }
    }

    /// How often to look while any engine holds a node: a hang is found after 1 to 1.25 timeouts.
    pub fn period(&self) -> Duration {
        self.timeout / 4
    }

    /// Looks at an engine that holds its node at time `now`. True once when it hangs: it has had work, not exempt
    /// (UMS-27), on which it got no step further for the timeout.
    pub fn look(&mut self, engine: EngineId, progress: Progress, now: Duration) -> bool {
        let fresh = Watched { progress, since: now, reported: false };
        let watched = self.watched.entry(engine).or_insert(fresh);
        if watched.progress != progress || progress.work == Work::Nothing || progress.is_exempt {
            *watched = fresh;
            return false;
        }
        let hangs = now.saturating_sub(watched.since) >= self.timeout && !watched.reported;
        watched.reported |= hangs;
        hangs
    }

    /// The engine holds no node, or is gone.
    pub fn forget(&mut self, engine: EngineId) {
        self.watched.remove(&engine);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;

    use super::EngineId;
    use super::Watchdog;

    const A: EngineId = EngineId(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn progress(steps: u32, work: Work, is_exempt: bool) -> Progress {
        Progress { steps, is_exempt, work }
    }

    #[test]
    fn ums_115_work_without_a_step_for_the_timeout_is_reported_once() {
        let mut watchdog = Watchdog::new(at(2));
        let stuck = progress(7, Work::UserQueue(3), false);
        assert!(!watchdog.look(A, stuck, at(10)));
        assert!(!watchdog.look(A, stuck, at(11)));
        assert!(watchdog.look(A, stuck, at(12)));
        assert!(!watchdog.look(A, stuck, at(13)));
        watchdog.forget(A);
        assert!(!watchdog.look(A, stuck, at(20)));
    }

    #[test]
    fn a_step_begins_the_time_anew() {
        let mut watchdog = Watchdog::new(at(2));
        for now in 0..20 {
            let steps = u32::try_from(now).unwrap();
            assert!(!watchdog.look(A, progress(steps, Work::HwQueue, false), at(now)));
        }
    }

    #[test]
    fn ums_27_neither_no_work_nor_exempt_work_ever_hangs() {
        let mut watchdog = Watchdog::new(at(2));
        for still in [progress(1, Work::Nothing, false), progress(1, Work::UserQueue(1), true)] {
            for now in 0..20 {
                assert!(!watchdog.look(A, still, at(now)));
            }
        }
    }
}
