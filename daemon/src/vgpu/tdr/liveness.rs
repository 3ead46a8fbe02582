//! Engines that run nothing, and whether they still would: observations and time in, verdicts out. No clock, no I/O.
//!
//! Who works is watched by his progress, by the supervisor. An engine that sleeps is asked nothing. What is left is one
//! that has nothing to do, or waits, and looks just like one that is stopped: it is asked to acknowledge something,
//! which any engine does at once. So an engine that stands still is found when work comes to it, at the latest.

use std::time::Duration;

/// What can be seen of an engine from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Its progress word: it changes while it works.
    pub progress: u64,
    /// Whether that says that something runs.
    pub runs: bool,
    /// Whether it sleeps with nothing to do.
    pub is_asleep: bool,
    /// What it was asked to acknowledge last.
    pub asked: u64,
    /// What it has acknowledged.
    pub acknowledged: u64,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Nothing; look again while it is awake.
    Fine,
    /// Ask it to acknowledge something.
    Ask,
    /// It was asked and did nothing for the timeout.
    Dead,
}

/// One engine's state, as seen over time.
#[derive(Debug, Default)]
pub struct Liveness {
    seen: Option<(Observation, Duration)>,
}

impl Liveness {
    /// Looks at it at time `now`.
    pub fn look(&mut self, observed: Observation, timeout: Duration, now: Duration) -> Verdict {
        let owes = observed.acknowledged < observed.asked;
        if observed.runs || (observed.is_asleep && !owes) {
            self.seen = None;
            return Verdict::Fine;
        }
        let Some((_, since)) = self.seen.filter(|(seen, _)| *seen == observed) else {
            self.seen = Some((observed, now));
            return Verdict::Fine;
        };
        if now.saturating_sub(since) < timeout {
            return Verdict::Fine;
        }
        self.seen = None;
        if owes { Verdict::Dead } else { Verdict::Ask }
    }

    /// Another process.
    pub fn forget(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Liveness;
    use super::Observation;
    use super::Verdict;

    const TIMEOUT: Duration = Duration::from_secs(2);
    const IDLE: Observation =
        Observation { progress: 7, runs: false, is_asleep: false, asked: 3, acknowledged: 3 };

    fn look(liveness: &mut Liveness, observed: Observation, second: u64) -> Verdict {
        liveness.look(observed, TIMEOUT, Duration::from_secs(second))
    }

    #[test]
    fn tdr_27_an_idle_engine_that_answers_is_fine_for_ever() {
        let mut liveness = Liveness::default();
        let mut engine = IDLE;
        for second in 0..100 {
            match look(&mut liveness, engine, second) {
                Verdict::Ask => {
                    engine.asked += 1;
                    engine.acknowledged = engine.asked;
                }
                verdict => assert_eq!(verdict, Verdict::Fine),
            }
        }
        assert!(engine.asked > 30, "it was asked");
    }

    #[test]
    fn one_that_does_not_answer_is_dead_a_timeout_after_it_was_asked() {
        let mut liveness = Liveness::default();
        assert_eq!(look(&mut liveness, IDLE, 0), Verdict::Fine);
        assert_eq!(look(&mut liveness, IDLE, 1), Verdict::Fine);
        assert_eq!(look(&mut liveness, IDLE, 2), Verdict::Ask);
        let asked = Observation { asked: 4, ..IDLE };
        assert_eq!(look(&mut liveness, asked, 2), Verdict::Fine);
        assert_eq!(look(&mut liveness, asked, 3), Verdict::Fine);
        assert_eq!(look(&mut liveness, asked, 4), Verdict::Dead);
    }

    #[test]
    fn neither_who_works_nor_who_sleeps_is_asked() {
        let mut liveness = Liveness::default();
        for second in 0..20 {
            let works = Observation { runs: true, acknowledged: 0, ..IDLE };
            assert_eq!(look(&mut liveness, works, second), Verdict::Fine);
            let sleeps = Observation { is_asleep: true, ..IDLE };
            assert_eq!(look(&mut liveness, sleeps, second), Verdict::Fine);
        }
        // A sleeper that is asked for something must wake.
        let poked = Observation { is_asleep: true, acknowledged: 2, ..IDLE };
        assert_eq!(look(&mut liveness, poked, 20), Verdict::Fine);
        assert_eq!(look(&mut liveness, poked, 22), Verdict::Dead);
    }

    #[test]
    fn what_was_seen_of_a_process_says_nothing_of_the_next() {
        let mut liveness = Liveness::default();
        let owes = Observation { asked: 4, ..IDLE };
        assert_eq!(look(&mut liveness, owes, 0), Verdict::Fine);
        liveness.forget();
        assert_eq!(look(&mut liveness, owes, 2), Verdict::Fine, "it is seen for the first time");
        assert_eq!(look(&mut liveness, owes, 4), Verdict::Dead);
    }
}
