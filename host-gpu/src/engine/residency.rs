//! Tells the daemon what is not resident, and not more often than it helps.

use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::residency;
use campanile_protocol::engine::residency::WANTED_ENTRIES;
use campanile_protocol::engine::residency::WANTED_TAKEN;
use campanile_protocol::engine::residency::WANTED_WRITTEN;
use zerocopy::IntoBytes;

use super::words::load;
use crate::memory::mapping::Mapping;
use crate::memory::wants::Wants;

/// How long the daemon has before it is told the same again.
const PATIENCE: Duration = Duration::from_millis(5);

/// Remembers what was asked for.
#[derive(Debug, Default)]
pub struct Asker {
    asked: Vec<(u64, u64)>,
    since: Option<Instant>,
}

impl Asker {
    /// Passes on what was found missing. True when the daemon must be signalled.
    pub fn report(&mut self, shared: &Mapping, wants: &Wants) -> bool {
        if wants.is_empty() {
            return false;
        }
        if self.since.is_none_or(|since| since.elapsed() >= PATIENCE) {
            self.asked.clear();
            self.since = Some(Instant::now());
        }
        let mut written = load(shared, WANTED_WRITTEN);
        let before = written;
        for wanted in wants.take() {
            let name = (wanted.root, wanted.va);
            let is_full = written.wrapping_sub(load(shared, WANTED_TAKEN)) >= WANTED_ENTRIES;
            if is_full || self.asked.contains(&name) {
                continue;
            }
            self.asked.push(name);
            if let Some(slice) = shared.slice(residency::wanted(written), wanted.as_bytes().len() as u64) {
                slice.copy_from(wanted.as_bytes());
            }
            written = written.wrapping_add(1);
        }
        if let Some(word) = shared.word(WANTED_WRITTEN).filter(|_| written != before) {
            // PAIRS WITH adapter/residency.rs `take_wanted`: the entries are there first.
            word.store(written, Ordering::Release);
        }
        written != before
    }
}
