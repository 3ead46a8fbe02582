//! Engines that signal more than they have to say: signals and time in, whether to listen on out. No clock, no I/O.
//!
//! Each signal has the supervisor look at everything once. An engine of good faith signals when it wants its node, gives it back,
//! or has work of another urgency: a few times a millisecond at the most. One that signals without end would have a CPU for itself
//! and the supervisor, so it is not listened to for a while; its word is looked at all the same, each [`LOOK`].

use std::time::Duration;

/// What an engine may spend within a [`WINDOW`].
pub const BUDGET: u32 = 1000;
/// The cost of a signal, or of a step of the supervisor that an engine was in the way of, that changed nothing of what is given: a
/// hundred of them within a window are heard.
pub const FRUITLESS: u32 = 10;
/// The cost of a signal after which its node was given, asked for or given back.
pub const FRUITFUL: u32 = 1;
/// How long a budget lasts, and how long an engine that has spent it is not listened to.
pub const WINDOW: Duration = Duration::from_millis(10);
/// How often engines that are not listened to are looked at.
pub const LOOK: Duration = Duration::from_millis(1);

/// What one engine has spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hearing {
    begun: Duration,
    spent: u32,
    is_muted: bool,
}

impl Hearing {
    /// A signal came at `now`, and was worth `cost`. True where the engine is not to be listened to from now on.
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

    /// Whether it is to be listened to again at `now`; once.
    pub fn is_forgiven(&mut self, now: Duration) -> bool {
        let is_over = self.is_muted && now.saturating_sub(self.begun) >= WINDOW;
        if is_over {
            *self = Self { begun: now, spent: 0, is_muted: false };
        }
        is_over
    }

    /// Whether it is not listened to.
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
    use super::Hearing;
    use super::WINDOW;

    const MOMENT: Duration = Duration::from_nanos(1);

    /// How many signals at `now` are heard before the engine is muted.
    fn heard(hearing: &mut Hearing, cost: u32, now: Duration) -> u32 {
        (0..).find(|_| hearing.spend(cost, now)).unwrap()
    }

    #[test]
    fn a_hundred_signals_without_a_change_are_heard_and_a_thousand_with_one() {
        for (cost, count) in [(FRUITLESS, 100), (FRUITFUL, BUDGET)] {
            let now = WINDOW * 7;
            let mut hearing = Hearing::default();
            assert_eq!(heard(&mut hearing, cost, now), count);
            assert!(hearing.is_muted());
            assert!(!hearing.spend(cost, now), "it is muted already");
            assert!(!hearing.is_forgiven(now + WINDOW - MOMENT) && hearing.is_muted());
            assert!(hearing.is_forgiven(now + WINDOW) && !hearing.is_muted());
            assert!(!hearing.is_forgiven(now + WINDOW), "once");
            assert_eq!(heard(&mut hearing, cost, now + WINDOW), count, "with a whole budget");
        }
    }

    #[test]
    fn signals_of_an_earlier_window_are_forgotten() {
        let mut hearing = Hearing::default();
        for window in 1..50 {
            for _ in 0..100 {
                assert!(!hearing.spend(FRUITLESS, WINDOW * window));
            }
        }
        assert!(hearing.spend(FRUITLESS, WINDOW * 50 - MOMENT), "within the last window");
    }
}
