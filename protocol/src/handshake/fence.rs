//! A native fence that rises against a waiter that arrives (UMS-131 to UMS-137).
//!
//! ```text
//!   engine                             daemon
//!   CurrentValue = n                   MonitoredValue = m - 1
//!   ── full fence ──                   ── full fence ──
//!   n > MonitoredValue? interrupt      CurrentValue ≥ m? release at once
//! ```

use core::sync::atomic::Ordering;

use super::word::Word;

/// MonitoredValue when no thread waits (UMS-133).
pub const NOBODY: u64 = u64::MAX;

/// Engine: stores a new CurrentValue; true when a waiter must be interrupted (UMS-134).
#[must_use]
pub fn signal<W: Word>(current: &W, monitored: &W, value: u64) -> bool {
    current.store(value, Ordering::Release);
    // PAIRS WITH `monitor`.
    W::full_fence();
    value > monitored.load(Ordering::Relaxed)
}

/// Daemon: sets MonitoredValue for the smallest value that anyone waits for, and returns the CurrentValue read
/// after it (UMS-137). `None`: no thread waits.
pub fn monitor<W: Word>(current: &W, monitored: &W, smallest: Option<u64>) -> u64 {
    monitored.store(smallest.map_or(NOBODY, |value| value.saturating_sub(1)), Ordering::Relaxed);
    // PAIRS WITH `signal`.
    W::full_fence();
    current.load(Ordering::Acquire)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::NOBODY;
    use super::monitor;
    use super::signal;

    fn read(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }

    #[test]
    fn ums_134_a_value_above_the_monitored_one_interrupts() {
        let current = AtomicU64::new(0);
        let monitored = AtomicU64::new(4);
        for (value, interrupts) in [(3, false), (4, false), (5, true), (6, true)] {
            assert_eq!(signal(&current, &monitored, value), interrupts, "{value}");
            assert_eq!(read(&current), value);
        }
    }

    #[test]
    fn ums_137_a_waiter_is_monitored_one_below_its_value_and_learns_the_current_one() {
        let current = AtomicU64::new(9);
        let monitored = AtomicU64::new(1);
        assert_eq!(monitor(&current, &monitored, Some(5)), 9);
        assert_eq!(read(&monitored), 4);
        assert_eq!(monitor(&current, &monitored, Some(0)), 9);
        assert_eq!(read(&monitored), 0);
        assert_eq!(monitor(&current, &monitored, None), 9);
        assert_eq!(read(&monitored), NOBODY);
    }
}
