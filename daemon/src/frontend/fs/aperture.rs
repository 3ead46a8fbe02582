//! The aperture: memory of an `ivshmem-plain` device, which the VMM lists with guest RAM.
//!
//! It is found by its size: the one region that has it and does not begin at address 0. Ranges of it are handed out here,
//! zeroed; no guest says an address.

use std::collections::BTreeMap;
use std::sync::Arc;

use campanile_protocol::virtio_gpu::blob::MemEntry;
use vm_memory::Bytes;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;

use crate::guest_ram::memory::GuestRam;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;
/// Largest piece of a page list.
const PIECE: u64 = 1 << 30;

/// The aperture of one VM.
#[derive(Debug)]
pub struct Aperture {
    /// Bytes that the operator says it has; 0: there is none.
    bytes: u64,
    memory: Option<Arc<GuestRam>>,
    /// Guest-physical address.
    address: Option<u64>,
    /// Bytes of each free range, by its first.
    free: BTreeMap<u64, u64>,
}

impl Aperture {
    /// Nothing of it is taken.
    pub fn new(bytes: u64) -> Self {
        let free = if bytes == 0 { BTreeMap::new() } else { BTreeMap::from([(0, bytes)]) };
        Self { bytes, memory: None, address: None, free }
    }

    /// Bytes that the operator says it has.
    pub fn wanted(&self) -> u64 {
        self.bytes
    }

    /// Bytes of what was found.
    pub fn found(&self) -> u64 {
        if self.address.is_some() { self.bytes } else { 0 }
    }

    /// Guest memory is now this. True where the aperture is there now and was not, or the other way round.
    pub fn look(&mut self, memory: &Arc<GuestRam>) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let is_it = |region: &&_| {
            let region: &&crate::guest_ram::memory::GuestRegion = region;
            region.len() == self.bytes && region.start_addr().0 != 0
        };
        let mut candidates = memory.iter().filter(is_it);
        let address = match (candidates.next(), candidates.next()) {
            (Some(one), None) => Some(one.start_addr().0),
            _ => None,
        };
        let changes = address.is_some() != self.address.is_some();
        self.address = address;
        self.memory = Some(Arc::clone(memory));
        changes
    }

    /// It lies where that one does.
    pub fn place_as(&mut self, other: &Self) {
        (self.address, self.memory) = (other.address, other.memory.clone());
    }

    /// Takes a range of whole pages.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        self.address?;
        let (offset, length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        let (offset, length) = (*offset, *length);
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    /// Takes this range, which a state says is taken.
    pub fn take_at(&mut self, offset: u64, bytes: u64) -> bool {
        let Some((start, length)) = self.free.range(..=offset).next_back().map(|(at, length)| (*at, *length))
        else {
            return false;
        };
        let end = offset.checked_add(bytes).filter(|end| bytes > 0 && *end <= start + length);
        let Some(end) = end else { return false };
        self.free.remove(&start);
        if offset > start {
            self.free.insert(start, offset - start);
        }
        if end < start + length {
            self.free.insert(end, start + length - end);
        }
        true
    }

    /// Gives a range back.
    pub fn give_back(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some((before, length)) =
            self.free.range(..offset).next_back().map(|(at, length)| (*at, *length))
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Clears a range, and gives its pages as a page list.
    pub fn clear(&self, offset: u64, bytes: u64) -> Option<Vec<MemEntry>> {
        let (address, memory) = (self.address?, self.memory.as_ref()?);
        let zeroes = [0; PAGE_BYTES];
        for page in (0..bytes).step_by(PAGE_BYTES) {
            memory.write_slice(&zeroes, GuestAddress(address + offset + page)).ok()?;
        }
        let pieces = (0..bytes).step_by(usize::try_from(PIECE).ok()?);
        let piece = |at: u64| {
            let length = u32::try_from((bytes - at).min(PIECE)).ok()?;
            Some(MemEntry { address: address + offset + at, length, padding: 0 })
        };
        pieces.map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::Aperture;

    #[test]
    fn nothing_is_handed_out_of_what_was_not_found() {
        assert_eq!(Aperture::new(1 << 20).take(4096), None);
    }

    proptest! {
        #[test]
        fn no_byte_is_handed_out_twice(steps in vec((1..9u64, 0..4usize), 1..80)) {
            let all = 32 * 4096;
            let mut aperture = Aperture { address: Some(1 << 32), ..Aperture::new(all) };
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pages, which) in steps {
                if which == 0 || taken.is_empty() {
                    let bytes = pages * 4096;
                    if let Some(offset) = aperture.take(bytes) {
                        let apart = |(at, length): &(u64, u64)| offset + bytes <= *at || at + length <= offset;
                        prop_assert!(offset + bytes <= all && taken.iter().all(apart));
                        taken.push((offset, bytes));
                    }
                } else {
                    let (offset, bytes) = taken.remove(which % taken.len());
                    aperture.give_back(offset, bytes);
                }
            }
            // What a state says is taken can be taken anew, once.
            let mut other = Aperture::new(all);
            for (offset, bytes) in &taken {
                prop_assert!(other.take_at(*offset, *bytes));
                prop_assert!(!other.take_at(*offset, *bytes));
            }
            prop_assert_eq!(&other.free, &aperture.free);
            for (offset, bytes) in taken {
                aperture.give_back(offset, bytes);
            }
            prop_assert_eq!(aperture.free, [(0, all)].into());
        }
    }
}
