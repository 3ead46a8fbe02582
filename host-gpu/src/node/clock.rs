//! The clock of engines and supervisor: monotonic, one for all processes of the machine.

use std::time::Duration;

use rustix::time::ClockId;
use rustix::time::clock_gettime;

/// Time since the machine's own beginning.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// The same in nanoseconds, for shared memory.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
