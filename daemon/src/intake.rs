//! Whether the daemon takes VMs that it does not have: it does not while it is drained.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

/// What keeps others out, in words.
pub const DRAINED: &str = "this daemon is being drained (`campanile ctl drain`)";

/// Open from the start: VMMs connect, other daemons bring vGPUs, and the operator makes some.
#[derive(Debug, Default)]
pub struct Intake {
    is_closed: AtomicBool,
}

impl Intake {
    /// Opens or closes it. What was let in before stays.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::SeqCst);
    }

    /// Whether nothing more is let in.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Lets one in, which `note` makes known to those that look for what is there; None where nothing is let in. It is known before this
    /// looks: either a drain that begins meanwhile finds it there, or it finds the drain.
    pub fn enter<T>(&self, note: impl FnOnce() -> T) -> Option<T> {
        let noted = note();
        // SYNC POINT: a drain closes before it looks for what is there.
        (!self.is_closed()).then_some(noted)
    }
}

#[cfg(test)]
mod tests {
    use super::Intake;

    #[test]
    fn what_is_noted_while_a_drain_begins_is_not_let_in() {
        let intake = Intake::default();
        assert_eq!(intake.enter(|| 7), Some(7));
        assert_eq!(intake.enter(|| intake.set_closed(true)), None, "the drain may not have seen it");
        assert_eq!(intake.enter(|| ()), None);
        intake.set_closed(false);
        assert_eq!(intake.enter(|| 8), Some(8));
    }
}
