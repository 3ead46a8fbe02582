//! A memory of a session, as something that can move.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::elsewhere::Ahead;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::tracker::Tracker;

use super::lock::locked;
use super::memory::MovingMemory;

/// What a migration does with a memory.
#[derive(Debug, Clone, Copy, Default)]
enum Moves {
    /// Nothing.
    #[default]
    No,
    /// All of it goes while the VM is paused; nothing is tracked for that.
    Paused,
    /// What is written is tracked, for this basis.
    Tracked(BasisHandle),
}

/// One of a session's memories, with the tracker of what is written to it. A migration has a basis of its own, so that
/// no other basis loses bits (DIRTY-29, DIRTY-32), and ends it (LM-57).
#[derive(Debug)]
pub struct TrackedMemory {
    tracker: Arc<Tracker>,
    moves: Mutex<Moves>,
}

impl TrackedMemory {
    /// Of a session's tracker.
    pub fn new(tracker: Arc<Tracker>) -> Self {
        Self { tracker, moves: Mutex::default() }
    }

    fn basis(&self) -> io::Result<BasisHandle> {
        match *locked(&self.moves) {
            Moves::Tracked(basis) => Ok(basis),
            Moves::Paused => Err(io::Error::other("nothing is tracked for a pass that is made in the pause")),
            Moves::No => Err(io::Error::other("no migration has begun")),
        }
    }
}

impl MovingMemory for TrackedMemory {
    fn length(&self) -> u64 {
        self.tracker.length()
    }

    fn page_size(&self) -> u64 {
        self.tracker.caps().page_size
    }

    fn is_tracked(&self) -> bool {
        self.tracker.caps().supported
    }

    fn is_performant(&self) -> bool {
        self.tracker.caps().performant
    }

    fn begin(&self, bits: &mut [u8]) -> io::Result<()> {
        self.end();
        if !self.is_tracked() {
            bits.fill(0xff);
            return Ok(());
        }
        let all = [Range { offset: 0, length: self.tracker.length() }];
        let basis =
            self.tracker.create_memory_basis(self.tracker.segment(), &all).map_err(io::Error::other)?;
        *locked(&self.moves) = Moves::Tracked(basis);
        self.tracker.start_after_history(basis, bits).map_err(io::Error::other)
    }

    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()> {
        if self.is_performant() {
            return self.begin(bits);
        }
        self.end();
        *locked(&self.moves) = Moves::Paused;
        bits.fill(0xff);
        Ok(())
    }

    fn query_and_clear(&self, bits: &mut [u8]) -> io::Result<()> {
        if !self.is_tracked() {
            bits.fill(0xff);
            return Ok(());
        }
        self.tracker.query_dirty_bit_data(self.basis()?, None, bits, true).map_err(io::Error::other)
    }

    fn end(&self) {
        if let Moves::Tracked(basis) = std::mem::take(&mut *locked(&self.moves))
            && let Err(error) = self.tracker.destroy_memory_basis(basis)
        {
            log::error!("the basis of a migration: {error}");
        }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let basis = match *locked(&self.moves) {
            Moves::Tracked(basis) => basis,
            Moves::No if self.is_tracked() => return Err(io::Error::other("no migration has begun")),
            Moves::No | Moves::Paused => self.tracker.whole(),
        };
        self.tracker.read(basis, offset, buffer).map_err(io::Error::other)
    }

    fn read_ahead(&self, offset: u64, length: u64) -> Option<Ahead<'_>> {
        let basis = match *locked(&self.moves) {
            Moves::Tracked(basis) => basis,
            Moves::Paused => self.tracker.whole(),
            Moves::No => return None,
        };
        self.tracker.read_ahead(basis, offset, length)
    }
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use campanile_host_gpu::dirty::basis::Range;
    use campanile_host_gpu::dirty::method::Method;

    use super::TrackedMemory;
    use crate::migration::memory::MovingMemory;
    use crate::migration::pages::PAGE;
    use crate::migration::passes::dirty_bitmap::DirtyBitmap;
    use crate::vgpu::memory::vidmm::vram::AREA_REGION;
    use crate::vgpu::memory::vidmm::vram::VideoMemory;

    #[test]
    fn lm_05_what_was_written_before_a_migration_or_came_with_one_is_told_at_its_beginning() {
        let memory = VideoMemory::new(64 * PAGE, 64 * PAGE, Method::BoundRanges).unwrap();
        // As at the target: no query, only marks for what comes.
        memory.file().write_all_at(&[1; 4096], 5 * PAGE).unwrap();
        memory.tracker().mark(5 * PAGE, PAGE);
        let moving = TrackedMemory::new(Arc::clone(memory.tracker()));
        // 64 pages, and the region of save areas.
        let mut bits = vec![0; 8 + usize::try_from(AREA_REGION / PAGE / 8).unwrap()];
        let first = |bits: &[u8]| [bits[0], bits[1]];
        assert!(moving.query_and_clear(&mut bits).is_err(), "none has begun");
        moving.begin(&mut bits).unwrap();
        assert_eq!(first(&bits), [1 << 5, 0]);
        assert!(bits[2..].iter().all(|bits| *bits == 0));
        memory.tracker().mark(9 * PAGE, 1);
        moving.query_and_clear(&mut bits).unwrap();
        assert_eq!(first(&bits), [0, 2]);
        let mut page = [0; 4096];
        moving.read(5 * PAGE, &mut page).unwrap();
        assert_eq!(page, [1; 4096]);
        // The next one is told all of it again.
        moving.begin(&mut bits).unwrap();
        assert_eq!(first(&bits), [1 << 5, 2]);
    }

    /// Sends all that is to be sent; how many pages that is.
    fn sent(dirty: &mut DirtyBitmap, memories: [&dyn MovingMemory; 2]) -> u64 {
        let mut pages = 0;
        while let Some(batch) = dirty.next_batch() {
            for (offset, length) in batch.ranges {
                memories[batch.memory.index()].read(offset, &mut vec![0; length]).unwrap();
                pages += length as u64 / PAGE;
            }
        }
        pages
    }

    #[test]
    fn dirty_44_pages_that_the_guests_cpu_can_write_are_sent_once_and_again_when_it_has_written_them() {
        let memories = [(); 2].map(|()| VideoMemory::new(64 * PAGE, 64 * PAGE, Method::BoundRanges).unwrap());
        let [first, second] = [0, 1].map(|at: usize| TrackedMemory::new(Arc::clone(memories[at].tracker())));
        let moving: [&dyn MovingMemory; 2] = [&first, &second];
        let visible = Range { offset: 8 * PAGE, length: 20 * PAGE };
        memories[0].tracker().set_cpu_visible(visible, true);
        memories[0].file().write_all_at(&[1; 4096], 9 * PAGE).unwrap();
        memories[1].tracker().mark(5 * PAGE, PAGE);
        // A migration that ended, and the next: all of it again, and each page once.
        for _ in 0..2 {
            let mut dirty = DirtyBitmap::begin(moving).unwrap();
            assert_eq!(sent(&mut dirty, moving), 20 + 1);
            dirty.query(moving).unwrap();
            assert_eq!(sent(&mut dirty, moving), 0, "nothing was written since");
            memories[0].file().write_all_at(&[2; 4096], 11 * PAGE).unwrap();
            memories[1].tracker().mark(5 * PAGE, PAGE);
            dirty.query(moving).unwrap();
            assert_eq!(sent(&mut dirty, moving), 2);
            memories[0].file().write_all_at(&[3; 4096], 11 * PAGE).unwrap();
            moving.iter().for_each(|memory| memory.end());
        }
        // Before anything is sent, what is still to be sent is not told to be more.
        let mut dirty = DirtyBitmap::begin(moving).unwrap();
        dirty.query(moving).unwrap();
        assert_eq!(sent(&mut dirty, moving), 20 + 1);
        dirty.query(moving).unwrap();
        assert_eq!(sent(&mut dirty, moving), 0);
    }
}
