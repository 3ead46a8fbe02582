//! What one vGPU socket has counted.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// Counters of one vGPU, over all its sessions. Readable from anywhere; never reset.
#[derive(Debug, Default)]
pub struct Counters {
    commands: AtomicU64,
    malformed: AtomicU64,
    answers: AtomicU64,
    void: AtomicU64,
    interrupts: AtomicU64,
    kicks: AtomicU64,
    sessions: AtomicU64,
    resets: AtomicU64,
    panics: AtomicU64,
    saves: AtomicU64,
    restores: AtomicU64,
    reconnects: AtomicU64,
    /// Whether the last checkpoint holds.
    checkpoint_holds: AtomicBool,
}

/// One of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Descriptor chains handed to the device as commands.
    Commands,
    /// Descriptor chains that could not be read, and heads that could not be taken.
    Malformed,
    /// Answers accepted from the device, at once or held for a stopped ring.
    Answers,
    /// Answers that came after their epoch.
    Void,
    /// Interrupts sent.
    Interrupts,
    /// Kicks seen; several kicks may be seen as one.
    Kicks,
    /// Connections accepted.
    Sessions,
    /// Resets by the guest.
    Resets,
    /// Sessions ended by a panic.
    Panics,
    /// States handed to a front-end.
    Saves,
    /// Sessions that began with a saved state.
    Restores,
    /// Sessions of a front-end that had another before and brought no state.
    Reconnects,
}

impl Counters {
    /// The count so far.
    pub fn get(&self, count: Count) -> u64 {
        self.cell(count).load(Ordering::Relaxed)
    }

    /// All counts, by name.
    pub fn all(&self) -> [(&'static str, u64); 12] {
        [
            ("commands", Count::Commands),
            ("malformed_chains", Count::Malformed),
            ("answers", Count::Answers),
            ("void_answers", Count::Void),
            ("interrupts", Count::Interrupts),
            ("kicks", Count::Kicks),
            ("sessions", Count::Sessions),
            ("guest_resets", Count::Resets),
            ("panics", Count::Panics),
            ("saves", Count::Saves),
            ("restores", Count::Restores),
            ("reconnects", Count::Reconnects),
        ]
        .map(|(name, count)| (name, self.get(count)))
    }

    /// Whether the devices of the VM would go on if the daemon were killed now.
    pub fn checkpoint_holds(&self) -> bool {
        self.checkpoint_holds.load(Ordering::Relaxed)
    }

    pub(super) fn set_checkpoint_holds(&self, holds: bool) {
        self.checkpoint_holds.store(holds, Ordering::Relaxed);
    }

    pub(super) fn add(&self, count: Count) {
        self.cell(count).fetch_add(1, Ordering::Relaxed);
    }

    fn cell(&self, count: Count) -> &AtomicU64 {
        match count {
            Count::Commands => &self.commands,
            Count::Malformed => &self.malformed,
            Count::Answers => &self.answers,
            Count::Void => &self.void,
            Count::Interrupts => &self.interrupts,
            Count::Kicks => &self.kicks,
            Count::Sessions => &self.sessions,
            Count::Resets => &self.resets,
            Count::Panics => &self.panics,
            Count::Saves => &self.saves,
            Count::Restores => &self.restores,
            Count::Reconnects => &self.reconnects,
        }
    }
}
