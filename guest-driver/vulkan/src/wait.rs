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
}

/// Looks until something is so, for what no queue announces: false when the time is over first.
pub(crate) fn look(core: &Core, limit: &Limit, mut is_so: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let begun = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        core.check()?;
        let left = limit.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        if begun.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
        }
    }
}

/// The result of a wait.
pub(crate) fn waited(is_so: bool) -> vk::Result {
    if is_so { vk::Result::SUCCESS } else { vk::Result::TIMEOUT }
}
