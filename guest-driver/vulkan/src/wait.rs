//! Waits of the CPU, and their time limits.

use std::time::Duration;
use std::time::Instant;

use ash::vk;

use crate::abi::Outcome;
use crate::device::Core;

/// How long a wait polls before it sleeps between two looks.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(200);

/// When a wait is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    until: Option<Instant>,
}

impl Limit {
    /// So many nanoseconds from now; the greatest number is for ever.
    pub(crate) fn after(nanoseconds: u64) -> Self {
        let limit = (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds));
        Self { until: limit.and_then(|limit| Instant::now().checked_add(limit)) }
    }

    /// What is left; none where it never ends.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// Sleeps part by part, each at most `glance`, until something is so, `sleep` says that it has slept enough, or the time is over.
pub(crate) fn wait_in_parts(
    limit: &Limit,
    glance: Duration,
    is_so: impl Fn() -> Outcome<bool>,
    mut sleep: impl FnMut(Duration) -> Outcome<bool>,
) -> Outcome {
    while !is_so()? && !limit.is_over() {
        if sleep(limit.left().map_or(glance, |left| left.min(glance)))? {
            break;
        }
    }
    Ok(())
}

/// Looks until something is so, for what no queue announces: false when the time is over first.
pub(crate) fn look(core: &Core, limit: &Limit, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let begun = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        core.check()?;
        if limit.is_over() {
            return Ok(false);
        }
        if begun.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(limit.left().map_or(NAP, |left| left.min(NAP)));
        }
    }
}

/// The result of a wait.
pub(crate) fn waited(is_so: bool) -> vk::Result {
    if is_so { vk::Result::SUCCESS } else { vk::Result::TIMEOUT }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::Limit;
    use super::wait_in_parts;

    const GLANCE: Duration = Duration::from_millis(2);

    #[test]
    fn a_sleep_that_nothing_ends_is_left_for_what_has_happened_meanwhile() {
        let slept = Cell::new(0);
        wait_in_parts(
            &Limit::after(u64::MAX),
            GLANCE,
            || Ok(slept.get() == 3),
            |part| {
                assert_eq!(part, GLANCE);
                slept.set(slept.get() + 1);
                Ok(false)
            },
        )
        .unwrap();
        assert_eq!(slept.get(), 3);
    }

    #[test]
    fn without_time_nobody_sleeps() {
        assert!(Limit::after(0).is_over());
        wait_in_parts(&Limit::after(0), GLANCE, || Ok(false), |_| unreachable!()).unwrap();
        assert!(!Limit::after(u64::MAX).is_over());
        assert!(!Limit::after(u64::MAX - 1).is_over(), "longer than clocks run");
    }
}
