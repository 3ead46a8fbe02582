//! What happened, in a line each.

use std::collections::VecDeque;

use crate::sample::Sample;

/// Lines that are kept.
const KEPT: usize = 200;

/// Counts that are events, and how one and several are told.
const TOLD: [(&str, &str, &str); 12] = [
    ("engines_reset", "engine reset", "engines reset"),
    ("engines_lost", "engine lost", "engines lost"),
    ("adapters_reset", "reset of everything", "resets of everything"),
    ("devices_lost", "device lost", "devices lost"),
    ("quarantines", "time quarantined", "times quarantined"),
    ("timeouts_ignored", "timeout ignored", "timeouts ignored"),
    ("broken_grants", "engine ended for its grant word", "engines ended for their grant word"),
    ("processes_blocked", "guest process blocked", "guest processes blocked"),
    ("sessions", "VMM connected", "VMMs connected"),
    ("guest_resets", "reset by the guest", "resets by the guest"),
    ("panics", "panic of the daemon", "panics of the daemon"),
    ("refused_by_budget", "refusal by the budget", "refusals by the budget"),
];

/// The newest lines.
#[derive(Debug, Default)]
pub struct Events(VecDeque<String>);

impl Events {
    /// Adds what rose between two looks; `time` says when.
    pub fn note(&mut self, time: &str, before: &Sample, after: &Sample) {
        for vgpu in &after.vgpus {
            let Some(was) = before.vgpus.iter().find(|was| was.name == vgpu.name) else { continue };
            for (counter, one, several) in TOLD {
                let count = |of: &crate::sample::Vgpu| of.counters.get(counter).copied().unwrap_or(0);
                let more = count(vgpu).saturating_sub(count(was));
                let words = if more == 1 { one } else { several };
                if more > 0 {
                    self.0.push_back(format!("{time} {}: {more} {words}", vgpu.name));
                }
            }
        }
        while self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    /// Newest first.
    pub fn newest(&self) -> impl Iterator<Item = &str> {
        self.0.iter().rev().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::Events;
    use super::KEPT;
    use crate::sample::Sample;
    use crate::sample::Vgpu;

    #[test]
    fn what_rose_is_an_event_and_the_oldest_are_forgotten() {
        let sample = |resets: u64| {
            let counters = [("engines_reset".to_owned(), resets), ("kicks".to_owned(), resets)].into();
            Sample {
                at: Instant::now(),
                vgpus: vec![Vgpu { name: "a".to_owned(), counters, ..Vgpu::default() }],
            }
        };
        let mut events = Events::default();
        events.note("10:00", &sample(1), &sample(1));
        assert_eq!(events.newest().count(), 0);
        events.note("10:01", &sample(1), &sample(3));
        assert_eq!(events.newest().collect::<Vec<_>>(), ["10:01 a: 2 engines reset"]);
        events.note("10:01", &sample(3), &sample(4));
        assert_eq!(events.newest().next(), Some("10:01 a: 1 engine reset"));
        (0..2 * KEPT).for_each(|_| events.note("10:02", &sample(1), &sample(2)));
        assert_eq!(events.newest().count(), KEPT);
    }
}
