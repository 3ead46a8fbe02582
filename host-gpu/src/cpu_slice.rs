//! How soon a thread that wakes up has a CPU on which another thread computes.
//!
//! ```text
//!   wake-up ─▶ CPU of a thread with a longer slice ─▶ at once (Linux 6.12)
//!          └─▶ … of one whose slice is as long     ─▶ when that is over, which is looked at in ticks: up to 10 ms
//! ```
//!
//! Work goes from a ring through several threads that each run for some microseconds, and CPUs may be busy with guests, or with
//! kernels on a CPU driver. So those threads ask for short slices; compilers and a driver's own threads do not. A thread's
//! share of the CPUs does not depend on it.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

/// The shortest that Linux gives.
const SHORTEST: Duration = Duration::from_micros(100);

/// Asks for the shortest slices, for the calling thread and for threads and processes that it starts later. Where that
/// cannot be had, it has the kernel's own.
pub fn shorten() {
    report(request(SHORTEST));
}

/// Goes back to the kernel's own slices, as [`shorten`] does to short ones.
pub fn restore() {
    report(request(Duration::ZERO));
}

fn report(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        log::debug!("a thread keeps its CPU slice: {error}");
    }
}

/// Asks for slices of this length, zero for the kernel's own. Kernels before 6.12 take no notice.
///
/// # Errors
/// What the kernel says, where a sandbox forbids it.
fn request(length: Duration) -> io::Result<()> {
    let mut attributes = current()?;
    if !matches!(attributes.sched_policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH) {
        // Of another scheduling class, by an operator's choice: it has no such slices.
        return Ok(());
    }
    attributes.sched_runtime = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the kernel reads as many bytes as the structure says that it has; thread 0 is the calling one.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// What the kernel has noted of the calling thread.
fn current() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    let mut attributes = libc::sched_attr {
        size: u32::try_from(size).unwrap_or_default(),
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes `size` bytes at the most, which are there; thread 0 is the calling one.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

fn check(returned: libc::c_long) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::SHORTEST;
    use super::current;
    use super::request;

    /// What the calling thread asked for, as far as this kernel notes it.
    fn slice() -> Duration {
        Duration::from_nanos(current().unwrap().sched_runtime)
    }

    /// Whether this kernel has slices that are asked for.
    fn is_noted() -> bool {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }

    #[test]
    fn a_slice_that_is_asked_for_goes_to_later_threads_too_and_can_be_given_back() {
        let own = slice();
        let nice = current().unwrap().sched_nice;
        let asked = thread::spawn(|| {
            request(SHORTEST).unwrap();
            let later = thread::spawn(|| {
                let inherited = slice();
                request(Duration::ZERO).unwrap();
                (inherited, slice())
            });
            (slice(), later.join().unwrap(), current().unwrap().sched_nice)
        });
        let (short, (inherited, restored), nice_after) = asked.join().unwrap();
        let expected = if is_noted() { SHORTEST } else { own };
        assert_eq!((short, inherited, restored), (expected, expected, own));
        assert_eq!((slice(), nice_after), (own, nice), "nothing else changes, and no other thread");
    }
}
