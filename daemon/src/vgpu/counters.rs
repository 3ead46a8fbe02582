//! What is counted of a session.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::measures::Measures;

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
    /// Preempt commands to engines: kernel-mode work made room for other contexts.
    pub preemptions: AtomicU64,
    /// Last-queued words behind what was done (UMS-88).
    pub last_queued_errors: AtomicU64,
    /// Devices put in error.
    pub devices_lost: AtomicU64,
    /// Engines reset: replaced, with no device lost but those whose work they ran.
    pub engines_reset: AtomicU64,
    /// Engines that could not be replaced, or not so often: their resets were promoted.
    pub engines_lost: AtomicU64,
    /// Resets of everything of this vGPU.
    pub adapters_reset: AtomicU64,
    /// Times that this vGPU was quarantined.
    pub quarantines: AtomicU64,
    /// Processes that get no device any more.
    pub processes_blocked: AtomicU64,
    /// Engines that had gone on by the time their reset was due.
    pub timeouts_in_vain: AtomicU64,
    /// Engines that hung, and were let be by debug mode.
    pub timeouts_ignored: AtomicU64,
    /// Engines that were ended because they broke the protocol of their grant word.
    pub broken_grants: AtomicU64,
    /// Allocations that were moved to host memory.
    pub evictions: AtomicU64,
    /// Allocations that moved within video memory, so that another found room in one piece.
    pub relocations: AtomicU64,
    /// Allocations that were brought back.
    pub restores: AtomicU64,
    /// Times that queues came to something that was not resident.
    pub residency_faults: AtomicU64,
    /// Times that everything was brought to a standstill, for a migration.
    pub freezes: AtomicU64,
    /// Engines that did not stand still in time, and were ended where they were.
    pub freezes_forced: AtomicU64,
    /// Guest processes that have parked their devices.
    pub parked: AtomicU64,
    /// Those that have come back.
    pub returned: AtomicU64,
    /// Those that have not, and were ended.
    pub stayed_away: AtomicU64,
    /// Reports in the state directory.
    pub reports_written: AtomicU64,
    /// Reports that were not written: no directory, or too many.
    pub reports_left_out: AtomicU64,
    /// What is measured beside.
    pub measures: Measures,
}

impl Counters {
    /// All counts, by name.
    pub fn all(&self) -> [(&'static str, u64); 33] {
        [
            ("refused_commands", &self.refused_commands),
            ("control_messages", &self.control_messages),
            ("refused_messages", &self.refused_messages),
            ("connects", &self.connects),
            ("victims", &self.victims),
            ("notifies", &self.notifies),
            ("connects_delayed", &self.connects_delayed),
            ("found_by_look", &self.found_by_look),
            ("f1_transitions", &self.f1_transitions),
            ("d3_transitions", &self.d3_transitions),
            ("submissions", &self.submissions),
            ("preemptions", &self.preemptions),
            ("last_queued_errors", &self.last_queued_errors),
            ("devices_lost", &self.devices_lost),
            ("engines_reset", &self.engines_reset),
            ("engines_lost", &self.engines_lost),
            ("adapters_reset", &self.adapters_reset),
            ("quarantines", &self.quarantines),
            ("processes_blocked", &self.processes_blocked),
            ("timeouts_in_vain", &self.timeouts_in_vain),
            ("timeouts_ignored", &self.timeouts_ignored),
            ("broken_grants", &self.broken_grants),
            ("evictions", &self.evictions),
            ("relocations", &self.relocations),
            ("restores", &self.restores),
            ("residency_faults", &self.residency_faults),
            ("freezes", &self.freezes),
            ("freezes_forced", &self.freezes_forced),
            ("parked", &self.parked),
            ("returned", &self.returned),
            ("stayed_away", &self.stayed_away),
            ("reports_written", &self.reports_written),
            ("reports_left_out", &self.reports_left_out),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
