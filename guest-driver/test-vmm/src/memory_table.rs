//! What the device has been told of guest memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use vhost::VhostUserMemoryRegionInfo;
use vm_memory::MmapRegion;

use super::guest_ram::GuestRam;
use super::window::Maps;

/// The regions that exist, and those that the device knows.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    ram: Arc<GuestRam>,
    /// What RAM is, for this device.
    ram_file: Arc<File>,
    aperture: Option<Arc<GuestRam>>,
    pub(super) window: Option<Arc<Maps>>,
    /// What was sent, and not taken back.
    pub(super) sent: Vec<Region>,
    /// Whether the device runs; before, QEMU keeps changes to itself.
    pub(super) live: bool,
}

/// A region of guest memory.
#[derive(Debug, Clone)]
pub(super) struct Region {
    address: u64,
    mapping: Arc<MmapRegion>,
    file: Arc<File>,
    file_offset: u64,
}

impl Region {
    /// Whether the device would see the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.address == other.address && Arc::ptr_eq(&self.file, &other.file)
    }

    /// As messages tell it.
    pub(super) fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.address,
            memory_size: self.mapping.size() as u64,
            userspace_addr: self.mapping.as_ptr().addr() as u64,
            mmap_offset: self.file_offset,
            mmap_handle: self.file.as_raw_fd(),
        }
    }
}

impl MemoryTable {
    /// A table of RAM that lies in `ram_file`, and of the memory of an ivshmem device, where there is one.
    pub(crate) fn new(ram: Arc<GuestRam>, ram_file: Arc<File>, aperture: Option<Arc<GuestRam>>) -> Self {
        Self { ram, ram_file, aperture, window: None, sent: Vec::new(), live: false }
    }

    /// From now on maps of the window are guest memory, too.
    pub(super) fn add_window(&mut self, window: Arc<Maps>) {
        self.window = Some(window);
    }

    /// All that there is now.
    pub(super) fn wanted(&self) -> Vec<Region> {
        let ram = Region {
            address: self.ram.base(),
            mapping: Arc::clone(self.ram.region()),
            file: Arc::clone(&self.ram_file),
            file_offset: 0,
        };
        let maps = self.window.iter().flat_map(|window| window.regions()).map(|(address, map)| Region {
            address,
            mapping: map.mapping,
            file: map.file,
            file_offset: map.file_offset,
        });
        let aperture = self.aperture.iter().map(|aperture| Region {
            address: aperture.base(),
            mapping: Arc::clone(aperture.region()),
            file: aperture.file(),
            file_offset: 0,
        });
        std::iter::once(ram).chain(aperture).chain(maps).collect()
    }

    /// First guest-physical address above everything that is there, or may come: the device may map more of the window
    /// at any time, and must find a log that is long enough for it.
    pub(super) fn end(&self) -> u64 {
        let ends = self.wanted().into_iter().map(|region| region.address + region.mapping.size() as u64);
        ends.chain(self.window.as_ref().and_then(|window| window.end())).max().unwrap_or_default()
    }

    /// Guest-physical address of RAM's first byte.
    pub(super) fn ram_address(&self) -> u64 {
        self.ram.base()
    }

    /// Address of RAM's first byte in this process: what ring addresses count from.
    pub(super) fn ram_user_address(&self) -> u64 {
        self.ram.region().as_ptr().addr() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::PAGE_SIZE;

    use super::MemoryTable;
    use crate::guest_ram::GuestRam;
    use crate::window::Maps;
    use crate::window::WINDOW_BASE;

    #[test]
    fn a_log_is_long_enough_for_what_the_device_may_yet_map() {
        let ram = GuestRam::new(16 * PAGE_SIZE, PAGE_SIZE).unwrap();
        let mut table = MemoryTable::new(Arc::clone(&ram), ram.file(), None);
        assert_eq!(table.end(), 17 * PAGE_SIZE);
        table.add_window(Maps::new(0));
        assert_eq!(table.end(), 17 * PAGE_SIZE);
        table.add_window(Maps::new(4 * PAGE_SIZE));
        assert_eq!(table.end(), WINDOW_BASE + 4 * PAGE_SIZE);
    }
}
