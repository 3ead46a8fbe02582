//! Time that a test moves.

use std::cell::Cell;
use std::time::Duration;
use std::time::Instant;

thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// What this thread's clock says, where it is virtual.
pub(super) fn now() -> Option<Instant> {
    NOW.get()
}

/// While it lives, time stands still for this thread but where it is moved.
#[derive(Debug)]
pub struct VirtualTime(());

impl VirtualTime {
    /// Time stands still from now on.
    pub fn begin() -> Self {
        NOW.set(Some(Instant::now()));
        Self(())
    }

    /// Moves it.
    pub fn pass(&self, time: Duration) {
        NOW.set(NOW.get().map(|now| now + time));
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        NOW.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::VirtualTime;
    use crate::clock;

    #[test]
    fn virtual_time_passes_where_it_is_moved_and_on_its_own_thread_alone() {
        let time = VirtualTime::begin();
        let begun = clock::now();
        assert_eq!((clock::is_virtual(), clock::now()), (true, begun));
        time.pass(Duration::from_secs(3600));
        assert_eq!(clock::now() - begun, Duration::from_secs(3600));
        assert!(!thread::spawn(clock::is_virtual).join().unwrap());
        drop(time);
        assert!(!clock::is_virtual());
    }
}
