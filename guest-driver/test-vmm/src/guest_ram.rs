//! Guest RAM: one memfd, and which of its pages are taken.

use std::fs::File;
use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use rustix::fs::MemfdFlags;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vm_memory::VolatileSlice;

use super::options::PageLayout;
use super::page_space::PageSpace;
use super::pause::lock::Held;
use super::pause::lock::Lock;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::Piece;
use campanile_guest_driver::transport::shared_memory::SharedMemory;

/// The RAM of a loopback VM.
#[derive(Debug)]
pub(crate) struct GuestRam {
    region: Arc<MmapRegion>,
    base: u64,
    /// What `region` shows now; its own record is of the first one.
    file: Lock<Arc<File>>,
    space: Lock<PageSpace>,
}

impl GuestRam {
    /// `bytes` of zeroed RAM from guest-physical address `base` on.
    pub(crate) fn new(bytes: u64, base: u64) -> Result<Arc<Self>, TransportError> {
        let limit = u64::MAX / 2 - base.min(u64::MAX / 2);
        if bytes == 0 || bytes > limit || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(TransportError::Size { what: "guest RAM in whole pages", bytes, limit });
        }
        let (file, region) = memory(bytes)?;
        Ok(Arc::new(Self {
            region: Arc::new(region),
            base,
            file: Lock::new(file),
            space: Lock::new(PageSpace::new(bytes / PAGE_SIZE)),
        }))
    }

    /// The mapping, which stays where it is for the life of the VM.
    pub(crate) fn region(&self) -> &Arc<MmapRegion> {
        &self.region
    }

    /// The memory that is guest RAM now.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file.lock())
    }

    /// Shows another memory of the same size at the same addresses. No virtual CPU runs.
    pub(crate) fn replace(&self, file: Arc<File>) -> Result<(), TransportError> {
        super::remap::remap(&self.region, &file, 0, true)
            .map_err(|source| TransportError::System { what: "a map of guest RAM", source: source.into() })?;
        *self.file.lock() = file;
        Ok(())
    }

    /// Guest-physical address of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Pages that are free.
    pub(crate) fn free_pages(&self) -> u64 {
        self.space().free_pages()
    }

    fn space(&self) -> Held<'_, PageSpace> {
        self.space.lock()
    }

    /// Takes enough pages for `bytes`, with whatever was in them.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        bytes: u64,
        layout: PageLayout,
    ) -> Result<RamBlock, TransportError> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        let first_page = self.space().allocate(pages).ok_or(TransportError::OutOfGuestRam { bytes })?;
        Ok(RamBlock { ram: Arc::clone(self), first_page, pages, layout })
    }
}

/// Zeroed memory of whole pages, and a mapping of it.
pub(crate) fn memory(bytes: u64) -> Result<(Arc<File>, MmapRegion), TransportError> {
    let refused = |source| TransportError::System { what: "memory for guest RAM", source };
    let memfd =
        rustix::fs::memfd_create("loopback-ram", MemfdFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
    rustix::fs::ftruncate(&memfd, bytes).map_err(|e| refused(e.into()))?;
    let file = File::from(memfd);
    let size = usize::try_from(bytes).map_err(|e| refused(e.into()))?;
    let clone = file.try_clone().map_err(|e| refused(e.into()))?;
    let region = MmapRegion::from_file(FileOffset::new(clone, 0), size).map_err(|e| refused(e.into()))?;
    Ok((Arc::new(file), region))
}

/// Pages of guest RAM; dropping the block gives them back.
#[derive(Debug)]
pub(crate) struct RamBlock {
    ram: Arc<GuestRam>,
    first_page: u64,
    pages: u64,
    layout: PageLayout,
}

/// One contiguous run of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Bytes from the start of RAM.
    offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

impl RamBlock {
    /// Bytes, whole pages.
    pub(crate) fn size(&self) -> u64 {
        self.pages * PAGE_SIZE
    }

    /// Guest-physical address of the first byte of a contiguous block.
    pub(crate) fn address(&self) -> u64 {
        self.ram.base + self.first_page * PAGE_SIZE
    }

    /// The runs in the order of the block's bytes.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let start = self.first_page * PAGE_SIZE;
        let PageLayout::Scattered { run_pages } = self.layout else {
            return vec![Run { offset: start, length: self.size() }];
        };
        let step = u64::from(run_pages.max(1)) * PAGE_SIZE;
        let count = self.size().div_ceil(step);
        let run = |at: u64| Run { offset: start + at * step, length: step.min(self.size() - at * step) };
        (0..count).rev().map(run).collect()
    }

    /// Guest-physical address of a run of this block.
    pub(crate) fn run_address(&self, run: Run) -> u64 {
        self.ram.base + run.offset
    }

    /// The same bytes as the process sees them. The pages stay taken while they can be reached.
    pub(crate) fn shared(self: &Arc<Self>) -> SharedMemory {
        let piece = |run: Run| Piece {
            region: Arc::clone(&self.ram.region),
            region_offset: usize::try_from(run.offset).expect("RAM is mapped, so its offsets are usize"),
            length: run.length,
        };
        SharedMemory::new(self.runs().into_iter().map(piece).collect(), Some(Arc::clone(self) as _))
    }

    /// Bytes `offset .. offset + length` of a contiguous block.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> VolatileSlice<'_> {
        assert!(offset as u64 + length as u64 <= self.size(), "a block is asked only for its own bytes");
        self.ram.region.get_slice(self.place(offset), length).expect("a block lies inside RAM")
    }

    /// Where byte `offset` of a contiguous block is in the mapping of RAM.
    pub(crate) fn place(&self, offset: usize) -> usize {
        usize::try_from(self.first_page * PAGE_SIZE).expect("RAM is mapped, so its offsets are usize")
            + offset
    }

    /// The mapping that holds the block.
    pub(crate) fn region(&self) -> &MmapRegion {
        &self.ram.region
    }

    /// Overwrites the block with zeros.
    pub(crate) fn zero(&self) {
        let step = usize::try_from(PAGE_SIZE).expect("a page is small");
        for page in 0..usize::try_from(self.pages).expect("RAM is mapped, so its pages are usize") {
            self.slice(page * step, step).copy_from(&[0_u8; 4096]);
        }
    }
}

impl Drop for RamBlock {
    fn drop(&mut self) {
        self.ram.space().release(self.first_page, self.pages);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::GuestRam;
    use super::PageLayout;

    #[test]
    fn scattered_runs_are_not_adjacent_and_cover_the_block() {
        let ram = GuestRam::new(1 << 20, 1 << 30).unwrap();
        let block = ram.allocate(5 * 4096, PageLayout::Scattered { run_pages: 2 }).unwrap();
        let runs = block.runs();
        assert_eq!(runs.iter().map(|run| run.length).collect::<Vec<_>>(), [4096, 8192, 8192]);
        assert!(runs.windows(2).all(|pair| pair[0].offset + pair[0].length != pair[1].offset));
    }

    #[test]
    fn pages_stay_taken_while_they_are_mapped() {
        let ram = GuestRam::new(1 << 20, 1 << 30).unwrap();
        let before = ram.free_pages();
        let block = Arc::new(ram.allocate(4096, PageLayout::Contiguous).unwrap());
        let shared = block.shared();
        drop(block);
        assert_eq!(ram.free_pages(), before - 1);
        drop(shared);
        assert_eq!(ram.free_pages(), before);
    }
}
