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
}
