//! A device's own memory: allocated, exported as a descriptor, imported again, copied.
//!
//! ```text
//!   Driver::allocate ─▶ Import ──export──▶ Exported (a descriptor: it outlives device and process)
//!                                             │
//!   Driver::import_exported ◀─────────────────┘   in another device instance, with the same contents
//! ```

use std::os::fd::OwnedFd;

use crate::memory::local::Passport;
use crate::memory::mapping::Access;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::Import;
use crate::vulkan::info::Handle;
pub use crate::vulkan::raw::memory::Exported;
use crate::vulkan::raw::memory::Memory;
use crate::vulkan::raw::memory::local_left;
use crate::vulkan::raw::transfer::Filled;
use crate::vulkan::raw::transfer::Region;
use crate::vulkan::raw::transfer::Transfer;

impl Driver {
    /// Bytes of the device's own memory that may be had now, as its driver says; none where it does not.
    pub fn local_left(&self) -> Option<u64> {
        local_left(&self.gpu)
    }

    /// Memory of the device's own, of undefined contents, which kernels can bind; it can be exported as `handle`.
    ///
    /// # Errors
    /// The device has none that is as large, has no more of it, or exports none as `handle`.
    pub fn allocate(&self, length: u64, handle: Option<Handle>) -> Result<Import, VulkanError> {
        let memory = Memory::allocate_local(&self.gpu, length, handle)?;
        Import::over(&self.gpu, memory.into(), length, Access::ReadWrite)
    }

    /// The memory that another device instance exported, all of it, with what is in it.
    ///
    /// # Errors
    /// It is of another device or driver, has another size, or is none.
    pub fn import_exported(&self, exported: Exported) -> Result<Import, VulkanError> {
        let length = exported.length;
        let memory = Memory::import_exported(&self.gpu, exported)?;
        Import::over(&self.gpu, memory.into(), length, Access::ReadWrite)
    }
}

impl Exported {
    /// What [`Self::of`] has to be told.
    pub fn passport(&self) -> Passport {
        Passport { length: self.length, type_index: self.type_index, uuids: self.uuids }
    }

    /// Memory that was exported as an opaque descriptor, with what is known of it.
    pub fn of(descriptor: OwnedFd, passport: &Passport) -> Self {
        let Passport { length, type_index, uuids } = *passport;
        Self { descriptor, handle: Handle::OpaqueFd, length, type_index, uuids }
    }
}

impl Import {
    /// A descriptor of memory that [`Driver::allocate`] made to be exported so. Memory is shared from then on, not copied.
    ///
    /// # Errors
    /// It was made otherwise, or the driver refuses.
    pub fn export(&self, handle: Handle) -> Result<Exported, VulkanError> {
        self.memory().export(handle)
    }
}

/// Copies by the device, on the queue of its driver.
pub struct Copier {
    transfer: Transfer,
    /// The longest region whose ends lie in one buffer of each side, bytes.
    longest: u64,
}

impl Copier {
    /// One for memory of `driver`.
    ///
    /// # Errors
    /// Vulkan's.
    pub fn new(driver: &Driver) -> Result<Self, VulkanError> {
        let longest = driver.limits().binding_length;
        Ok(Self { transfer: Transfer::new(&driver.gpu)?, longest })
    }

    /// Copies the first `length` bytes, and sleeps until they are there, for kernels and for the host.
    ///
    /// # Errors
    /// One of them is shorter, the target is read-only, they are of another driver or the same memory; or Vulkan's.
    pub fn copy(&mut self, from: &Import, to: &Import, length: u64) -> Result<(), VulkanError> {
        if std::ptr::eq(from.memory(), to.memory()) {
            let reason = "what would be copied to is the same memory".to_owned();
            return Err(VulkanError::Import { length, offset: 0, reason });
        }
        self.copy_range((from, 0), (to, 0), length)
    }

    /// Copies `length` bytes from one place to another, which do not overlap, and sleeps until they are there.
    ///
    /// # Errors
    /// A range is not in its memory, the two overlap, the target is read-only, they are of another driver; or Vulkan's.
    pub fn copy_range(
        &mut self,
        (from, from_offset): (&Import, u64),
        (to, to_offset): (&Import, u64),
        length: u64,
    ) -> Result<(), VulkanError> {
        let refused =
            |reason: &str| VulkanError::Import { length, offset: to_offset, reason: reason.to_owned() };
        if !from.is_of(self.transfer.gpu()) || !to.is_of(self.transfer.gpu()) {
            return Err(refused("it is another driver's memory that would be copied"));
        }
        if to.access() == Access::ReadOnly {
            return Err(refused("what would be copied to is read-only"));
        }
        if std::ptr::eq(from.memory(), to.memory()) && from_offset.abs_diff(to_offset) < length {
            return Err(refused("what would be copied to is what would be copied"));
        }
        let mut regions = Vec::new();
        let mut done = 0;
        while done < length {
            let size = self.longest.min(length - done);
            let at = from_offset.checked_add(done).zip(to_offset.checked_add(done));
            let places =
                at.and_then(|(source, target)| from.window(source, size).zip(to.window(target, size)));
            let (from, to) = places.ok_or_else(|| refused("memory that would be copied is shorter"))?;
            let [from, to] = [from, to].map(|(buffer, offset)| (buffer.clone(), offset));
            regions.push(Region { from, to, size });
            done += size;
        }
        from.bring(from_offset, length, false)?;
        to.bring(to_offset, length, true)?;
        self.transfer.run(&regions)?;
        from.settle()?;
        to.settle()
    }

    /// Fills `length` bytes from `offset` on with a word, both multiples of 4, and sleeps until that is done.
    ///
    /// # Errors
    /// It is not all in that memory, not of whole words, read-only, or another driver's; or Vulkan's.
    pub fn fill(&mut self, to: &Import, offset: u64, length: u64, word: u32) -> Result<(), VulkanError> {
        let refused = |reason: &str| VulkanError::Import { length, offset, reason: reason.to_owned() };
        if !to.is_of(self.transfer.gpu()) || to.access() == Access::ReadOnly {
            return Err(refused("what would be filled is read-only, or another driver's memory"));
        }
        if !offset.is_multiple_of(4) || !length.is_multiple_of(4) {
            return Err(refused("what would be filled is not of whole words"));
        }
        let mut ranges = Vec::new();
        let mut done = 0;
        while done < length {
            let size = self.longest.min(length - done) / 4 * 4;
            let place = offset.checked_add(done).and_then(|at| to.window(at, size));
            let (buffer, offset) = place.ok_or_else(|| refused("memory that would be filled is shorter"))?;
            ranges.push(Filled { buffer: buffer.clone(), offset, size });
            done += size;
        }
        to.bring(offset, length, true)?;
        self.transfer.fill(&ranges, word)?;
        to.settle()
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("longest", &self.longest).finish_non_exhaustive()
    }
}
