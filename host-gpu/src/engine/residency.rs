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
use crate::clock;
use crate::memory::mapping::Mapping;
use crate::memory::wants::Wants;

/// How long the daemon has before it is told the same again.
const TIMEOUT: Duration = Duration::from_millis(5);

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
        if self.since.is_none_or(|since| clock::since(since) >= TIMEOUT) {
            self.asked.clear();
            self.since = Some(clock::now());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::residency;
    use campanile_protocol::engine::residency::WANTED_ENTRIES;
    use campanile_protocol::engine::residency::WANTED_TAKEN;
    use campanile_protocol::engine::residency::WANTED_WRITTEN;
    use campanile_protocol::engine::residency::Wanted;

    use super::Asker;
    use super::TIMEOUT;
    use super::load;
    use crate::clock::virtual_time::VirtualTime;
    use crate::engine::words::read;
    use crate::engine::words::store;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;
    use crate::memory::wants::Wants;

    const ROOT: u64 = 3;

    fn shared() -> Mapping {
        let file = create_memfd("block", block::BLOCK_BYTES).unwrap();
        Mapping::new(file, 0, block::BLOCK_BYTES, Access::ReadWrite).unwrap()
    }

    /// Queue 7 comes to these addresses, which are evicted; whether the daemon must be signalled.
    fn report(asker: &mut Asker, shared: &Mapping, addresses: impl IntoIterator<Item = u64>) -> bool {
        let wants = Wants::default();
        wants.begin(7, 1);
        addresses.into_iter().for_each(|va| wants.note(ROOT, va, true));
        asker.report(shared, &wants)
    }

    fn written(shared: &Mapping) -> u64 {
        load(shared, WANTED_WRITTEN)
    }

    #[test]
    fn what_is_missing_is_told_once_and_again_when_the_daemon_had_its_time() {
        let time = VirtualTime::begin();
        let (mut asker, shared) = (Asker::default(), shared());
        assert!(!report(&mut asker, &shared, []) && written(&shared) == 0, "nothing is missing");
        assert!(report(&mut asker, &shared, [0x1000, 0x2000]));
        let told = |count| read::<Wanted>(&shared, residency::wanted(count)).unwrap();
        assert_eq!(written(&shared), 2);
        assert_eq!([0, 1].map(|count| (told(count).root, told(count).va)), [(ROOT, 0x1000), (ROOT, 0x2000)]);
        assert_eq!((told(0).queue, told(0).token), (7, told(1).token));
        time.pass(TIMEOUT / 2);
        assert!(!report(&mut asker, &shared, [0x2000]), "it was told just now");
        assert!(
            report(&mut asker, &shared, [0x1000, 0x3000]) && written(&shared) == 3,
            "what is new is told"
        );
        assert_eq!(told(2).va, 0x3000);
        // Since the first of them.
        time.pass(TIMEOUT / 2);
        assert!(report(&mut asker, &shared, [0x2000]));
        assert_eq!((written(&shared), told(3).va), (4, 0x2000));
        assert!(!report(&mut asker, &shared, [0x2000]));
    }

    #[test]
    fn what_does_not_fit_is_told_when_there_is_room() {
        let _time = VirtualTime::begin();
        let (mut asker, shared) = (Asker::default(), shared());
        // Counts begin anywhere, and go round.
        let before = u64::MAX - 3;
        [WANTED_WRITTEN, WANTED_TAKEN].into_iter().for_each(|word| store(&shared, word, before));
        let most = WANTED_ENTRIES - 1;
        assert!(report(&mut asker, &shared, (0..most).map(|page| page << 12)));
        assert!(report(&mut asker, &shared, [most << 12, 100 << 12]));
        assert_eq!(written(&shared), before.wrapping_add(WANTED_ENTRIES), "the last has no room");
        assert!(!report(&mut asker, &shared, [100 << 12]));
        store(&shared, WANTED_TAKEN, before.wrapping_add(1));
        assert!(report(&mut asker, &shared, [100 << 12]), "it was not told yet");
        let last = residency::wanted(before.wrapping_add(WANTED_ENTRIES));
        assert_eq!(read::<Wanted>(&shared, last).unwrap().va, 100 << 12);
    }
}
