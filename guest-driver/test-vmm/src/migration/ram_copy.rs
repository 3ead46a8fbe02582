//! Guest RAM on its way to new memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use campanile_protocol::PAGE_SIZE;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;

use super::cpu_writes::CpuWrites;
use crate::guest_ram;
use crate::guest_ram::GuestRam;
use campanile_guest_driver::transport::error::TransportError;

/// The new memory, and which pages of it are behind.
#[derive(Debug)]
pub(super) struct RamCopy {
    pub(super) file: Arc<File>,
    mapping: MmapRegion,
    writes: CpuWrites,
}

impl RamCopy {
    /// New memory, of which nothing is up to date. From here on the CPUs' writes are tracked.
    pub(super) fn new(ram: &GuestRam) -> Result<Self, TransportError> {
        let (file, mapping) = guest_ram::memory(ram.region().size() as u64)?;
        let writes = CpuWrites::of(ram.region()).map_err(refused)?;
        Ok(Self { file, mapping, writes })
    }

    /// Copies everything; the pages copied.
    pub(super) fn all(&self, ram: &GuestRam) -> u64 {
        let pages = self.mapping.size() as u64 / PAGE_SIZE;
        (0..pages).for_each(|page| self.page(ram, page));
        pages
    }

    /// Copies these pages, and those that the CPUs wrote since the last time: how many of the latter, and of all.
    pub(super) fn some(&self, ram: &GuestRam, pages: &[u64]) -> Result<(u64, u64), TransportError> {
        let written = self.writes.take().map_err(refused)?;
        let all: BTreeSet<_> = written.iter().chain(pages).copied().collect();
        all.iter().for_each(|page| self.page(ram, *page));
        Ok((written.len() as u64, all.len() as u64))
    }

    fn page(&self, ram: &GuestRam, page: u64) {
        let place = usize::try_from(page * PAGE_SIZE).ok();
        let length = usize::try_from(PAGE_SIZE).expect("a page is small");
        if let Some(place) = place
            && let (Ok(old), Ok(new)) =
                (ram.region().get_slice(place, length), self.mapping.get_slice(place, length))
        {
            old.copy_to_volatile_slice(new);
        }
    }
}

fn refused(source: std::io::Error) -> TransportError {
    TransportError::System {
        what: "tracking of the pages that the guest's CPUs write",
        source: source.into(),
    }
}
