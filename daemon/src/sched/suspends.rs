//! Suspends that engines have not reported yet: reports and time in, verdicts out (UMS-112). No clock, no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use super::turns::EngineId;
use campanile_host_gpu::ids::ContextIndex;

/// A suspend that an engine was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The engine.
    pub engine: EngineId,
    /// The context entry.
    pub context: ContextIndex,
    /// The fence that must be reported.
    pub fence: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The oldest fence that is not reported.
    oldest: u64,
    since: Duration,
    latest: u64,
    timeout: Duration,
}

/// What is expected, and since when; one entry a context.
#[derive(Debug, Default)]
pub struct Suspends {
    waiting: BTreeMap<(EngineId, ContextIndex), Waiting>,
}

impl Suspends {
    /// From `now` on, this is expected, for `timeout`.
    pub fn expect(&mut self, expected: Expected, timeout: Duration, now: Duration) {
        let Expected { engine, context, fence } = expected;
        let waiting = Waiting { oldest: fence, since: now, latest: fence, timeout };
        self.waiting.entry((engine, context)).or_insert(waiting).latest = fence;
    }

    /// An engine is gone.
    pub fn forget(&mut self, engine: EngineId) {
        self.waiting.retain(|(of, _), _| *of != engine);
    }

    /// Looks at time `now`, given the fence that each context entry of an engine reports. The engines that are late,
    /// each once, and when to look again.
    pub fn look(
        &mut self,
        reported: impl Fn(EngineId, ContextIndex) -> u64,
        now: Duration,
    ) -> (Vec<EngineId>, Option<Duration>) {
        let mut late = Vec::new();
        self.waiting.retain(|&(engine, context), waiting| {
            let reported = reported(engine, context);
            if reported >= waiting.oldest {
                *waiting = Waiting { oldest: waiting.latest, since: now, ..*waiting };
            } else if now.saturating_sub(waiting.since) >= waiting.timeout {
                late.push(engine);
            }
            reported < waiting.latest
        });
        late.dedup();
        for engine in &late {
            self.forget(*engine);
        }
        let next = self.waiting.values().map(|waiting| waiting.since + waiting.timeout).min();
        (late, next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::EngineId;
    use super::Expected;
    use super::Suspends;
    use campanile_host_gpu::ids::ContextIndex;

    const A: EngineId = EngineId(1);
    const TIMEOUT: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn ums_112_a_suspend_that_is_not_reported_in_time_makes_its_engine_late_once() {
        let mut suspends = Suspends::default();
        suspends.expect(Expected { engine: A, context: ContextIndex::new(3), fence: 1 }, TIMEOUT, at(10));
        assert_eq!(suspends.look(|_, _| 0, at(11)), (vec![], Some(at(12))));
        assert_eq!(suspends.look(|_, _| 0, at(12)), (vec![A], None));
        assert_eq!(suspends.look(|_, _| 0, at(13)), (vec![], None));
    }

    #[test]
    fn ums_111_the_report_of_an_earlier_suspend_does_not_satisfy_a_later_one() {
        let mut suspends = Suspends::default();
        suspends.expect(Expected { engine: A, context: ContextIndex::new(3), fence: 1 }, TIMEOUT, at(10));
        suspends.expect(Expected { engine: A, context: ContextIndex::new(3), fence: 2 }, TIMEOUT, at(11));
        assert_eq!(suspends.look(|_, _| 1, at(12)), (vec![], Some(at(14))));
        assert_eq!(suspends.look(|_, _| 1, at(14)), (vec![A], None));
    }

    #[test]
    fn what_is_reported_is_no_longer_waited_for() {
        let mut suspends = Suspends::default();
        suspends.expect(Expected { engine: A, context: ContextIndex::new(3), fence: 1 }, TIMEOUT, at(10));
        assert_eq!(suspends.look(|_, _| 1, at(20)), (vec![], None));
    }
}
