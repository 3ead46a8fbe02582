//! What is counted of a session.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// Counts of one vGPU, over all its sessions.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commands that got an error response.
    pub refused_commands: AtomicU64,
    /// Control messages.
    pub control_messages: AtomicU64,
    /// Control messages that got a status other than OK.
    pub refused_messages: AtomicU64,
    /// Doorbells connected.
    pub connects: AtomicU64,
    /// Doorbells that lost their slot to another.
    pub victims: AtomicU64,
    /// Times that the line of connects stood: every slot had just been given away, or its guest connects too often.
    pub connects_delayed: AtomicU64,
    /// NOTIFY messages.
    pub notifies: AtomicU64,
    /// Rings that no physical doorbell saw, and a look did: after a connect, after a disconnect (UMS-71), for a NOTIFY.
    pub found_by_look: AtomicU64,
    /// Transitions of an engine to F1.
    pub f1_transitions: AtomicU64,
    /// Transitions of the device to D3.
    pub d3_transitions: AtomicU64,
    /// Kernel-mode submissions.
    pub submissions: AtomicU64,
    /// Last-queued words behind what was done (UMS-88).
    pub last_queued_errors: AtomicU64,
    /// Devices put in error.
    pub devices_lost: AtomicU64,
    /// Engines reset: replaced, with nobody lost but whose work they ran.
    pub engines_reset: AtomicU64,
    /// Engines lost with all their devices.
    pub engines_lost: AtomicU64,
}

impl Counters {
    /// All counts, by name.
    pub fn all(&self) -> [(&'static str, u64); 12] {
        [
            ("refused_commands", &self.refused_commands),
            ("control_messages", &self.control_messages),
            ("refused_messages", &self.refused_messages),
            ("connects", &self.connects),
            ("victims", &self.victims),
            ("f1_transitions", &self.f1_transitions),
            ("d3_transitions", &self.d3_transitions),
            ("submissions", &self.submissions),
            ("last_queued_errors", &self.last_queued_errors),
            ("devices_lost", &self.devices_lost),
            ("engines_reset", &self.engines_reset),
            ("engines_lost", &self.engines_lost),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
