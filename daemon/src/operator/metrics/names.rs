//! What the counts of a vGPU are called, and say.

/// Counts by the name that [`crate::vgpu::counters`] and the sockets give them, and what each says.
pub const COUNTS: [(&str, &str); 44] = [
    ("refused_commands", "virtio-gpu commands that got an error response"),
    ("control_messages", "Control messages of guests"),
    ("refused_messages", "Control messages that got a status other than OK"),
    ("connects", "Doorbells that were connected"),
    ("victims", "Doorbells that lost their slot to another"),
    ("notifies", "NOTIFY messages, of doorbells that no engine polls"),
    ("connects_delayed", "Times that connects had to wait for a slot, or for the rate limit"),
    ("found_by_look", "Rings that no physical doorbell saw and a look found"),
    ("f1_transitions", "Transitions of an engine to F1"),
    ("d3_transitions", "Transitions of the device to D3"),
    ("preemptions", "Preempt commands to engines"),
    ("last_queued_errors", "Last-queued words behind what was done"),
    ("devices_lost", "Devices of guest processes that were put in error"),
    ("engines_reset", "Engines that were replaced by themselves"),
    ("engines_lost", "Engines that could not be replaced by themselves"),
    ("adapters_reset", "Resets of everything of the vGPU"),
    ("quarantines", "Times that the vGPU was quarantined"),
    ("processes_blocked", "Guest processes that get no device any more"),
    ("timeouts_in_vain", "Engines that had gone on by the time their reset was due"),
    ("timeouts_ignored", "Engines that hung and were let be, by --tdr-debug"),
    ("broken_grants", "Engines that were ended because they broke the protocol of their grant word"),
    ("evictions", "Allocations that were moved to host memory"),
    ("relocations", "Allocations that were moved within video memory"),
    ("restores", "Allocations that were brought back to video memory"),
    ("residency_faults", "Times that queues came to something that was not resident"),
    ("freezes", "Times that everything was brought to a standstill, for a migration"),
    ("freezes_forced", "Engines that did not stand still in time, and were ended"),
    ("parked", "Guest processes that have parked their devices"),
    ("returned", "Guest processes that have come back"),
    ("stayed_away", "Guest processes that have not come back, and were ended"),
    ("reports_written", "Reports on hangs in the state directory"),
    ("reports_left_out", "Reports on hangs that were not written: no directory, or too many"),
    ("commands", "Descriptor chains that were handed to the device"),
    ("malformed_chains", "Descriptor chains that could not be read"),
    ("answers", "Answers to descriptor chains"),
    ("void_answers", "Answers that came after their epoch"),
    ("interrupts", "Interrupts that were sent"),
    ("kicks", "Kicks that were seen"),
    ("sessions", "Connections of VMMs"),
    ("guest_resets", "Resets of the device by the guest"),
    ("panics", "Sessions that were ended by a panic of the daemon"),
    ("saves", "States that were handed to a VMM"),
    ("state_restores", "Sessions that began with a saved state"),
    ("reconnects", "Sessions of a VMM that had another before and brought no state"),
];

/// What the sockets count by a name that sessions have too.
pub const fn of_socket(name: &str) -> &str {
    match name.as_bytes() {
        b"restores" => "state_restores",
        _ => name,
    }
}

/// What a count says.
pub fn help(name: &str) -> Option<&'static str> {
    COUNTS.iter().find_map(|(of, help)| (*of == name).then_some(*help))
}

#[cfg(test)]
mod tests {
    use super::COUNTS;
    use super::help;
    use super::of_socket;
    use crate::frontend::vhost::counters::Counters as ShellCounters;
    use crate::vgpu::counters::Counters;

    #[test]
    fn every_count_has_a_name_of_its_own_and_says_what_it_is() {
        // Submissions are shown by their mode.
        let of_sessions = Counters::default().all().into_iter().map(|(name, _)| name);
        let of_sessions = of_sessions.filter(|name| *name != "submissions");
        let of_sockets = ShellCounters::default().all().into_iter().map(|(name, _)| of_socket(name));
        let names: Vec<_> = of_sessions.chain(of_sockets).collect();
        for name in &names {
            assert!(help(name).is_some(), "{name} is not in the table");
            assert_eq!(names.iter().filter(|other| other == &name).count(), 1, "{name}");
        }
        assert_eq!(names.len(), COUNTS.len(), "the table has what is not counted");
    }
}
