//! The native fences of one VM: their values, names and openers.
//!
//! ```text
//!   create ─▶ LIVE (1 opener) ◀─open, close─▶ LIVE (n) ──last close──▶ LEAVING ──engines have let go──▶ free
//! ```
//!
//! Fence i has page i of a file of its own, one page each, so that a process which has a fence mapped can change that
//! fence's value and nothing else (decision 25). The global handle is what a process must know to open
//! one: it cannot be guessed.

use std::fs::File;
use std::hash::BuildHasher;
use std::hash::RandomState;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::handle::Handle;

/// Bits of a global handle that are the fence's number.
const INDEX_MASK: u64 = MAX_FENCES as u64 - 1;
const _: () = assert!(MAX_FENCES.is_power_of_two(), "the number is a field of the global handle");

#[derive(Debug)]
struct Fence {
    global: Handle,
    kind: u32,
    openers: u32,
}

/// What a global handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Named {
    /// The fence of this number.
    Live(u32),
    /// One whose last opener has closed it, while engines may still have its page.
    Leaving,
    /// Nothing: it was destroyed, or never was.
    Nothing,
}

/// A global handle that cannot be guessed without the hash.
fn named(hash: u64, index: u32) -> Handle {
    // The lowest bit above the number keeps it from being zero, which names nothing.
    let key = hash | (INDEX_MASK + 1);
    Handle((key & !INDEX_MASK) | u64::from(index))
}

/// All native fences of one VM.
#[derive(Debug)]
pub struct FenceTable {
    file: Arc<File>,
    values: Mapping,
    places: Vec<Option<Fence>>,
    free: Vec<u32>,
    names: RandomState,
    created: u64,
}

impl FenceTable {
    /// Without fences.
    ///
    /// # Errors
    /// The file for the values could not be made or mapped.
    pub fn new() -> io::Result<Self> {
        let bytes = u64::from(MAX_FENCES) * PAGE_SIZE;
        let file = create_memfd("campanile-fences", bytes)?;
        let values =
            Mapping::new(file.try_clone()?, 0, bytes, Access::ReadWrite).map_err(io::Error::other)?;
        let names = RandomState::new();
        let file = Arc::new(file);
        Ok(Self { file, values, places: Vec::new(), free: Vec::new(), names, created: 0 })
    }

    /// Fences of another session: number, global handle, type, value and openers of each. `None` where a number or a
    /// handle cannot be, or is there twice.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(fences: &[(u32, Handle, u32, u64, u32)]) -> io::Result<Option<Self>> {
        let mut table = Self::new()?;
        for &(index, global, kind, value, openers) in fences {
            let place = index as usize;
            let is_named = global.0 & INDEX_MASK == u64::from(index) && global.0 > INDEX_MASK;
            if index >= MAX_FENCES || !is_named || openers == 0 {
                return Ok(None);
            }
            if table.places.len() <= place {
                table.places.resize_with(place + 1, || None);
            }
            let Some(slot) = table.places.get_mut(place).filter(|slot| slot.is_none()) else {
                return Ok(None);
            };
            *slot = Some(Fence { global, kind, openers });
            if let Some(word) = table.value(index) {
                word.store(value, Ordering::Release);
            }
        }
        let free = (0u32..).zip(&table.places).filter(|(_, place)| place.is_none());
        table.free = free.map(|(index, _)| index).collect();
        Ok(Some(table))
    }

    /// Whether a fence has openers.
    pub fn is_open(&self, index: u32) -> bool {
        matches!(self.places.get(index as usize), Some(Some(fence)) if fence.openers > 0)
    }

    /// The values, for engines to map.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// CurrentValue of a fence.
    pub fn value(&self, index: u32) -> Option<&AtomicU64> {
        self.values.word(u64::from(index) * PAGE_SIZE)
    }

    /// A new fence with one opener: its number and global handle. `None`: there are [`MAX_FENCES`].
    pub fn create(&mut self, kind: u32, initial_value: u64) -> Option<(u32, Handle)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.places.len()).ok().filter(|index| *index < MAX_FENCES)?;
                self.places.push(None);
                index
            }
        };
        self.created += 1;
        let global = named(self.names.hash_one(self.created), index);
        *self.places.get_mut(index as usize)? = Some(Fence { global, kind, openers: 1 });
        self.value(index)?.store(initial_value, Ordering::Release);
        Some((index, global))
    }

    /// What a global handle names.
    pub fn find(&self, global: Handle) -> Named {
        let index = u32::try_from(global.0 & INDEX_MASK).unwrap_or(u32::MAX);
        match self.places.get(index as usize) {
            Some(Some(fence)) if fence.global == global && fence.openers > 0 => Named::Live(index),
            Some(Some(fence)) if fence.global == global => Named::Leaving,
            _ => Named::Nothing,
        }
    }

    /// The type of a fence.
    pub fn kind(&self, index: u32) -> Option<u32> {
        Some(self.places.get(index as usize)?.as_ref()?.kind)
    }

    /// One more opener of a live fence.
    pub fn open(&mut self, index: u32) {
        if let Some(Some(fence)) = self.places.get_mut(index as usize) {
            fence.openers += 1;
        }
    }

    /// One opener less; true when it was the last, and the fence must be freed once engines have let go (UMS-142).
    #[must_use]
    pub fn close(&mut self, index: u32) -> bool {
        let Some(Some(fence)) = self.places.get_mut(index as usize) else { return false };
        fence.openers = fence.openers.saturating_sub(1);
        fence.openers == 0
    }

    /// Gives the place of a fence back that is no longer reached. What was written into its page goes.
    pub fn free(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        if place.take().is_none() {
            return;
        }
        self.free.push(index);
        for at in (0..PAGE_SIZE).step_by(8) {
            if let Some(word) = self.values.word(u64::from(index) * PAGE_SIZE + at) {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Number and global handle of every fence that engines must know.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Handle)> + '_ {
        (0u32..).zip(&self.places).filter_map(|(index, place)| Some((index, place.as_ref()?.global)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::fences::MAX_FENCES;
    use campanile_protocol::handle::Handle;

    use super::FenceTable;
    use super::INDEX_MASK;
    use super::Named;
    use super::named;

    #[test]
    fn ums_142_the_last_close_destroys_and_a_global_handle_is_never_used_again() {
        let mut table = FenceTable::new().unwrap();
        let (index, global) = table.create(0, 7).unwrap();
        table.open(index);
        assert!(!table.close(index), "one opener is left");
        assert_eq!(table.find(global), Named::Live(index));
        table.value(index).unwrap().store(9, Ordering::Release);
        assert!(table.close(index));
        assert_eq!(table.find(global), Named::Leaving);
        table.free(index);
        assert_eq!(table.find(global), Named::Nothing);
        let (again, other) = table.create(0, 0).unwrap();
        assert_eq!(again, index, "the place is used again");
        assert_ne!(other, global);
        assert_eq!((table.find(global), table.find(other)), (Named::Nothing, Named::Live(again)));
        assert_eq!(table.value(again).unwrap().load(Ordering::Acquire), 0);
        assert_eq!(table.find(Handle::NONE), Named::Nothing);
    }

    #[test]
    fn ums_142_a_global_handle_has_its_number_and_a_key_that_is_never_zero() {
        let least = INDEX_MASK + 1;
        for hash in [0, least, INDEX_MASK, u64::MAX] {
            for index in [0, 5, MAX_FENCES - 1] {
                let Handle(global) = named(hash, index);
                assert_eq!((global & INDEX_MASK, global & least), (u64::from(index), least), "{hash:#x}");
            }
        }
        assert_eq!(named(u64::MAX, 0), Handle(!INDEX_MASK), "all of the hash is in it");
    }

    #[test]
    fn ums_142_there_is_a_bound_and_handles_of_two_vms_differ() {
        let mut table = FenceTable::new().unwrap();
        let all: Vec<_> = (0..MAX_FENCES).map(|_| table.create(0, 0).unwrap().1).collect();
        assert_eq!(table.create(0, 0), None);
        assert_eq!(table.iter().count(), all.len(), "and nothing of it is left");
        let mut other = FenceTable::new().unwrap();
        let (_, of_other) = other.create(0, 0).unwrap();
        assert!(!all.contains(&of_other) && table.find(of_other) == Named::Nothing);
    }

    #[test]
    fn ums_142_nothing_of_a_fence_is_left_in_its_page_for_the_next() {
        let mut table = FenceTable::new().unwrap();
        // Not the first, whose page begins at 0.
        let before = table.create(0, 5).unwrap().0;
        let (index, _) = table.create(0, 7).unwrap();
        let start = u64::from(index) * PAGE_SIZE;
        let word =
            |table: &FenceTable, at: u64| table.values.word(start + at).unwrap().load(Ordering::Acquire);
        for at in (0..PAGE_SIZE).step_by(8) {
            table.values.word(start + at).unwrap().store(9, Ordering::Release);
        }
        assert!(table.close(index));
        table.free(index);
        assert!((0..PAGE_SIZE).step_by(8).all(|at| word(&table, at) == 0));
        assert_eq!(table.value(before).unwrap().load(Ordering::Acquire), 5, "and its neighbours stay");
    }

    #[test]
    fn lm_45_restored_fences_keep_their_places_and_the_others_are_free() {
        let (global, other) = (Handle(0x7000_0002), Handle(0x8000_0005));
        let table = FenceTable::of(&[(2, global, 1, 40, 3), (5, other, 0, 50, 1)]).unwrap();
        let mut table = table.unwrap();
        assert_eq!((table.find(global), table.kind(2)), (Named::Live(2), Some(1)));
        assert_eq!([2, 5].map(|index| table.value(index).unwrap().load(Ordering::Acquire)), [40, 50]);
        assert_eq!([table.close(2), table.close(2), table.close(2)], [false, false, true], "its openers");
        let mut places: Vec<u32> = (0..5).map(|_| table.create(0, 0).unwrap().0).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 3, 4, 6], "those between, and then the next");
        for wrong in [
            &[(2, global, 1, 40, 0)][..],
            &[(2, global, 1, 40, 1), (2, global, 1, 40, 1)],
            &[(3, global, 1, 40, 1)],
            &[(2, Handle(2), 1, 40, 1)],
            &[(MAX_FENCES, Handle(1 << 20), 1, 40, 1)],
            &[(MAX_FENCES - 1, Handle(u64::from(MAX_FENCES) - 1), 1, 40, 1)],
        ] {
            assert!(FenceTable::of(wrong).unwrap().is_none(), "{wrong:?}");
        }
    }
}
