//! A limit on the signals of an engine: signals and time in, whether to watch its eventfd out. No clock, no I/O.
//!
//! Each signal has the supervisor examine all engines once. A well-behaved engine signals when it wants its node, gives it back,
//! or has work of another urgency: a few times a millisecond at the most. An engine that signals without end would keep a CPU of
//! its own and the supervisor busy, so its eventfd is muted for a while; its grant word is still read, each [`LOOK`].

use std::time::Duration;

/// What an engine may spend within a [`WINDOW`].
pub const BUDGET: u32 = 1000;
/// The cost of a signal after which no grant changed, or of a step of the supervisor that the engine made void: a hundred of them
/// within a window are allowed.
pub const FRUITLESS: u32 = 10;
/// The cost of a signal after which its node was granted, revoked or released.
pub const FRUITFUL: u32 = 1;
/// How long a budget lasts, and how long an engine that has spent it is muted.
pub const WINDOW: Duration = Duration::from_millis(10);
/// How often the words of muted engines are read.
pub const LOOK: Duration = Duration::from_millis(1);

/// What one engine has spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignalBudget {
    begun: Duration,
    spent: u32,
    is_muted: bool,
}

impl SignalBudget {
    /// Charges a signal that came at `now`. True where the engine is to be muted from now on.
    pub fn spend(&mut self, cost: u32, now: Duration) -> bool {
        if self.is_muted {
            return false;
        }
        if now.saturating_sub(self.begun) >= WINDOW {
            (self.begun, self.spent) = (now, 0);
        }
        self.spent += cost;
        if self.spent > BUDGET {
            (self.begun, self.is_muted) = (now, true);
        }
        self.is_muted
    }

    /// Whether the mute ends at `now`; true once.
    pub fn ends_mute(&mut self, now: Duration) -> bool {
        let is_over = self.is_muted && now.saturating_sub(self.begun) >= WINDOW;
        if is_over {
            *self = Self { begun: now, spent: 0, is_muted: false };
        }
        is_over
    }

    /// Whether its eventfd is not watched.
    pub const fn is_muted(&self) -> bool {
        self.is_muted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BUDGET;
    use super::FRUITFUL;
    use super::FRUITLESS;
    use super::SignalBudget;
    use super::WINDOW;

    const MOMENT: Duration = Duration::from_nanos(1);

    /// How many signals at `now` are allowed before the engine is muted.
    fn allowed(budget: &mut SignalBudget, cost: u32, now: Duration) -> u32 {
        (0..).find(|_| budget.spend(cost, now)).unwrap()
    }

    #[test]
    fn a_hundred_signals_without_a_change_are_allowed_and_a_thousand_with_one() {
        for (cost, count) in [(FRUITLESS, 100), (FRUITFUL, BUDGET)] {
            let now = WINDOW * 7;
            let mut budget = SignalBudget::default();
            assert_eq!(allowed(&mut budget, cost, now), count);
            assert!(budget.is_muted());
            assert!(!budget.spend(cost, now), "it is muted already");
            assert!(!budget.ends_mute(now + WINDOW - MOMENT) && budget.is_muted());
            assert!(budget.ends_mute(now + WINDOW) && !budget.is_muted());
            assert!(!budget.ends_mute(now + WINDOW), "once");
            assert_eq!(allowed(&mut budget, cost, now + WINDOW), count, "with a whole budget");
        }
    }

    #[test]
    fn signals_of_an_earlier_window_are_forgotten() {
        let mut budget = SignalBudget::default();
        for window in 1..50 {
            for _ in 0..100 {
                assert!(!budget.spend(FRUITLESS, WINDOW * window));
            }
        }
        assert!(budget.spend(FRUITLESS, WINDOW * 50 - MOMENT), "within the last window");
    }
}
