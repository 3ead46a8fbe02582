//! Engines that hold their node and make no progress: progress and time in, verdicts out. No clock, no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;

use super::turns::EngineId;

#[derive(Debug, Clone, Copy)]
struct Watched {
    progress: Progress,
    since: Duration,
    asked: Option<Duration>,
    reported: bool,
}

/// The result of a look at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It works, or has nothing to do.
    Fine,
    /// It makes no progress: it should be asked to yield, and the timeout runs from now on (TDR-11, TDR-12).
    Ask,
    /// It was asked, and did nothing at all for the timeout.
    Hangs,
}

/// Samples progress at the cadence of the timeout (UMS-115): an engine that works is not asked, only looked at.
#[derive(Debug, Default)]
pub struct Watchdog {
    watched: BTreeMap<EngineId, Watched>,
}

/// Work that stands still for so long is asked to yield, however long the timeout: asking costs an engine that still
/// can two system calls, and not asking delays all other work of its vGPU.
const LONGEST_PERIOD: Duration = Duration::from_millis(25);

/// How often to look at an engine of this timeout while it holds a node. Standing still is noticed after 1 to 2 of
/// these, and is a hang one timeout later.
fn period(timeout: Duration) -> Duration {
    (timeout / 4).min(LONGEST_PERIOD)
}

impl Watchdog {
    /// Looks at an engine that holds its node at time `now`. It hangs, which is said once, when it has had work, not
    /// exempt (UMS-27), on which it got no step further for `timeout` after it was asked to yield. Returns the verdict,
    /// and when to look again.
    pub fn look(
        &mut self,
        engine: EngineId,
        progress: Progress,
        timeout: Duration,
        now: Duration,
    ) -> (Verdict, Duration) {
        let later = now + period(timeout);
        let fresh = Watched { progress, since: now, asked: None, reported: false };
        let watched = self.watched.entry(engine).or_insert(fresh);
        if watched.progress != progress || progress.work == Work::Nothing || progress.is_exempt {
            *watched = fresh;
            return (Verdict::Fine, later);
        }
        let Some(asked) = watched.asked else {
            if now.saturating_sub(watched.since) < period(timeout) {
                return (Verdict::Fine, later);
            }
            watched.asked = Some(now);
            return (Verdict::Ask, later);
        };
        if watched.reported {
            return (Verdict::Fine, later);
        }
        let due = asked + timeout;
        if now < due {
            return (Verdict::Fine, later.min(due));
        }
        watched.reported = true;
        (Verdict::Hangs, later)
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
    use super::Verdict;
    use super::Watchdog;

    const A: EngineId = EngineId(1);
    const TIMEOUT: Duration = Duration::from_secs(2);

    fn look(watchdog: &mut Watchdog, progress: Progress, milliseconds: u64) -> Verdict {
        watchdog.look(A, progress, TIMEOUT, Duration::from_millis(milliseconds)).0
    }

    fn progress(steps: u32, work: Work, is_exempt: bool) -> Progress {
        Progress { steps, is_exempt, work }
    }

    #[test]
    fn ums_115_work_without_a_step_for_the_timeout_is_reported_once() {
        let mut watchdog = Watchdog::default();
        let stuck = progress(7, Work::UserQueue(3), false);
        assert_eq!(look(&mut watchdog, stuck, 10_000), Verdict::Fine);
        assert_eq!(look(&mut watchdog, stuck, 10_024), Verdict::Fine);
        assert_eq!(look(&mut watchdog, stuck, 10_025), Verdict::Ask);
        assert_eq!(look(&mut watchdog, stuck, 12_024), Verdict::Fine);
        assert_eq!(look(&mut watchdog, stuck, 12_025), Verdict::Hangs);
        assert_eq!(look(&mut watchdog, stuck, 13_000), Verdict::Fine);
        watchdog.forget(A);
        assert_eq!(look(&mut watchdog, stuck, 20_000), Verdict::Fine);
        assert_eq!(look(&mut watchdog, stuck, 20_025), Verdict::Ask, "it is as any other");
    }

    #[test]
    fn ums_115_an_engine_is_looked_at_four_times_within_its_timeout_or_more_often() {
        let periods = [8, 40, 100, 2_000].map(|timeout| super::period(Duration::from_millis(timeout)));
        assert_eq!(periods.map(|period| period.as_millis()), [2, 10, 25, 25]);
    }

    #[test]
    fn tdr_11_tdr_12_tdr_36_the_clock_runs_from_the_request_to_yield_and_never_before_one() {
        let mut watchdog = Watchdog::default();
        let stuck = progress(7, Work::HwQueue, false);
        assert_eq!(look(&mut watchdog, stuck, 0), Verdict::Fine);
        // However late it is: first it is asked.
        assert_eq!(look(&mut watchdog, stuck, 60_000), Verdict::Ask);
        assert_eq!(look(&mut watchdog, stuck, 61_999), Verdict::Fine);
        assert_eq!(look(&mut watchdog, stuck, 62_000), Verdict::Hangs);
    }

    #[test]
    fn tdr_14_work_that_is_done_within_the_delay_never_hangs() {
        let mut watchdog = Watchdog::default();
        for packet in 0..20 {
            let steps = progress(packet, Work::HwQueue, false);
            let begun = u64::from(packet) * 2_024;
            assert_eq!(look(&mut watchdog, steps, begun), Verdict::Fine);
            assert_eq!(look(&mut watchdog, steps, begun + 25), Verdict::Ask);
            assert_eq!(look(&mut watchdog, steps, begun + 2_024), Verdict::Fine);
        }
    }

    #[test]
    fn tdr_11_looks_at_the_times_that_are_returned_find_a_hang_two_periods_after_the_timeout_at_the_latest() {
        for timeout in [40, 100, 200, 2_000].map(Duration::from_millis) {
            for stuck_at in (0..60).map(Duration::from_millis) {
                let mut watchdog = Watchdog::default();
                let mut now = Duration::ZERO;
                loop {
                    let steps = u32::try_from(now.min(stuck_at).as_millis()).unwrap();
                    let progress = progress(steps, Work::HwQueue, false);
                    let (verdict, next) = watchdog.look(A, progress, timeout, now);
                    if verdict == Verdict::Hangs {
                        break;
                    }
                    now = next;
                }
                let stood = now - stuck_at;
                assert!(stood >= timeout && stood <= timeout + 2 * super::period(timeout), "{stood:?}");
            }
        }
    }

    #[test]
    fn tdr_22_neither_no_work_nor_exempt_work_ever_hangs() {
        let mut watchdog = Watchdog::default();
        for still in [progress(1, Work::Nothing, false), progress(1, Work::UserQueue(1), true)] {
            for now in 0..20 {
                assert_eq!(look(&mut watchdog, still, now * 1000), Verdict::Fine);
            }
        }
    }
}
