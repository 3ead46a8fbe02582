//! A device's own memory: allocated, exported as a descriptor, imported again, copied.
//!
//! ```text
//!   Driver::allocate ─▶ Import ──export──▶ Exported (a descriptor: it outlives device and process)
//!                                             │
//!   Driver::import_exported ◀─────────────────┘   in another device instance, with the same contents
//! ```

use crate::memory::mapping::Access;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::Import;
use crate::vulkan::info::Handle;
pub use crate::vulkan::raw::memory::Exported;
use crate::vulkan::raw::memory::Memory;
use crate::vulkan::raw::transfer::Region;
use crate::vulkan::raw::transfer::Transfer;

impl Driver {
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
        let refused = |reason: &str| VulkanError::Import { length, offset: 0, reason: reason.to_owned() };
        if !from.is_of(self.transfer.gpu()) || !to.is_of(self.transfer.gpu()) {
            return Err(refused("it is another driver's memory that would be copied"));
        }
        if to.access() == Access::ReadOnly || std::ptr::eq(from.memory(), to.memory()) {
            return Err(refused("what would be copied to is read-only, or the same memory"));
        }
        let mut regions = Vec::new();
        let mut done = 0;
        while done < length {
            let size = self.longest.min(length - done);
            let places = from.window(done, size).zip(to.window(done, size));
            let (from, to) = places.ok_or_else(|| refused("memory that would be copied is shorter"))?;
            let [from, to] = [from, to].map(|(buffer, offset)| (buffer.clone(), offset));
            regions.push(Region { from, to, size });
            done += size;
        }
        self.transfer.run(&regions)
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").field("longest", &self.longest).finish_non_exhaustive()
    }
}
