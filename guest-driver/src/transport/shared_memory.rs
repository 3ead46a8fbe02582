//! Memory that this process shares with the device.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;

use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vm_memory::VolatileSlice;

/// One run of bytes that is contiguous in this process: whole pages.
#[derive(Debug)]
pub struct Piece {
    /// The mapping that holds it.
    pub region: Arc<MmapRegion>,
    /// Where in the mapping it starts.
    pub region_offset: usize,
    /// Bytes.
    pub length: u64,
}

/// Bytes of a mapped blob. Cheap to clone; the mapping lives as long as the last clone, whatever becomes of the
/// blob or the device.
///
/// The bytes may lie in several pieces (a guest's page list need not be contiguous): [`Self::slice`] and the words
/// reach only what is in one piece, [`Self::read`] and [`Self::write`] cross them. A piece is whole pages, and
/// starts at a multiple of the page size, so words and structures that cross no page are always reachable.
#[derive(Debug, Clone)]
pub struct SharedMemory {
    backing: Arc<Backing>,
}

#[derive(Debug)]
struct Backing {
    /// (first byte, piece), ascending and without gaps.
    pieces: Vec<(u64, Piece)>,
    length: u64,
    /// What must not be used again while these bytes can be reached.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl SharedMemory {
    /// For transports: the bytes of `pieces`, one after the other. `keep` is dropped with the last clone.
    pub fn new(pieces: Vec<Piece>, keep: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let mut length = 0;
        let pieces = pieces
            .into_iter()
            .map(|piece| {
                let start = length;
                length += piece.length;
                (start, piece)
            })
            .collect();
        Self { backing: Arc::new(Backing { pieces, length, _keep: keep }) }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.backing.length
    }

    /// Whether there are no bytes. Never true of a mapped blob.
    pub fn is_empty(&self) -> bool {
        self.backing.length == 0
    }

    /// The piece that holds byte `offset`, where in its mapping the byte is, and the bytes from there to its end.
    fn find(&self, offset: u64) -> Option<(&MmapRegion, usize, u64)> {
        let pieces = &self.backing.pieces;
        let after = pieces.partition_point(|(start, _)| *start <= offset);
        let (start, piece) = pieces.get(after.checked_sub(1)?)?;
        let within = offset - start;
        let left = piece.length.checked_sub(within)?;
        let place = piece.region_offset.checked_add(usize::try_from(within).ok()?)?;
        Some((&piece.region, place, left))
    }

    /// The bytes `offset .. offset + length`, or `None` where they are not all inside, or not in one piece.
    pub fn slice(&self, offset: u64, length: u64) -> Option<VolatileSlice<'_>> {
        let (region, place, left) = self.find(offset)?;
        if length > left {
            return None;
        }
        region.get_slice(place, usize::try_from(length).ok()?).ok()
    }

    /// The 64-bit word at byte `offset`, or `None` where it is outside or misaligned.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let (region, place, left) = self.find(offset)?;
        if left < 8 {
            return None;
        }
        region.get_atomic_ref(place).ok()
    }

    /// The 32-bit word at byte `offset`, or `None` where it is outside or misaligned.
    pub fn word32(&self, offset: u64) -> Option<&AtomicU32> {
        let (region, place, left) = self.find(offset)?;
        if left < 4 {
            return None;
        }
        region.get_atomic_ref(place).ok()
    }

    /// The byte at `offset`, or `None` where it is outside.
    pub fn byte(&self, offset: u64) -> Option<&AtomicU8> {
        let (region, place, left) = self.find(offset)?;
        if left < 1 {
            return None;
        }
        region.get_atomic_ref(place).ok()
    }

    /// Copies `bytes` out from `offset` on, across pieces. `None`, and nothing copied, where they are not all inside.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.check(offset, bytes.len())?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (slice, count) = self.head(at, rest.len())?;
            let (now, later) = rest.split_at_mut(count);
            slice.copy_to(now);
            at += count as u64;
            rest = later;
        }
        Some(())
    }

    /// Copies `bytes` in from `offset` on, across pieces. `None`, and nothing copied, where they are not all inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        self.check(offset, bytes.len())?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (slice, count) = self.head(at, rest.len())?;
            let (now, later) = rest.split_at(count);
            slice.copy_from(now);
            at += count as u64;
            rest = later;
        }
        Some(())
    }

    fn check(&self, offset: u64, length: usize) -> Option<()> {
        let end = offset.checked_add(u64::try_from(length).ok()?)?;
        (end <= self.len()).then_some(())
    }

    /// As many of the `wanted` bytes at `offset` as one piece holds.
    fn head(&self, offset: u64, wanted: usize) -> Option<(VolatileSlice<'_>, usize)> {
        let (region, place, left) = self.find(offset)?;
        let count = wanted.min(usize::try_from(left).unwrap_or(usize::MAX));
        Some((region.get_slice(place, count).ok()?, count))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use vm_memory::MmapRegion;

    use super::Piece;
    use super::SharedMemory;

    fn two_pages_swapped() -> SharedMemory {
        let region = Arc::new(MmapRegion::new(8192).unwrap());
        let piece = |region_offset| Piece { region: Arc::clone(&region), region_offset, length: 4096 };
        SharedMemory::new(vec![piece(4096), piece(0)], None)
    }

    #[test]
    fn bytes_cross_pieces_and_words_do_not() {
        let memory = two_pages_swapped();
        memory.write(4092, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mut back = [0; 8];
        memory.read(4092, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(memory.slice(4092, 8).is_none());
        assert!(memory.word(4092).is_none());
        assert_eq!(memory.word32(4096).unwrap().load(Ordering::Relaxed), u32::from_le_bytes([5, 6, 7, 8]));
    }

    #[test]
    fn nothing_outside_is_reached() {
        let memory = two_pages_swapped();
        assert_eq!(memory.len(), 8192);
        assert!(memory.word(8192).is_none());
        assert!(memory.word(8188).is_none());
        assert!(memory.word(1).is_none());
        assert!(memory.slice(u64::MAX, 1).is_none());
        assert!(memory.read(8190, &mut [0; 4]).is_none());
        assert!(memory.write(u64::MAX - 1, &[0; 4]).is_none());
    }
}
