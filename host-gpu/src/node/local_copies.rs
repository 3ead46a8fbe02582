//! Local memory of a device's own, worked on by a device instance of its own: what guests copy, and what the daemon has moved.
//!
//! ```text
//!   execution thread ─▶ LocalCopies ─┐                      each its own device instance and queue
//!   control thread   ─▶ Mover ───────┴─▶ the same memory, imported by its descriptor
//! ```
//!
//! Every call returns when the device is done, so what follows in any other instance sees it. Host memory that takes part is imported
//! where it first does; of the video memory's file only the head, since what is behind that is a hole.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use campanile_protocol::page_table::SegmentId;

use crate::memory::local::DeviceFailed;
use crate::memory::local::LocalDevice;
use crate::memory::local::LocalMemory;
use crate::memory::local::Side;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram::create_memfd;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::local::Copier;
use crate::vulkan::local::Exported;

/// Bytes that are read at once.
const SCRATCH: u64 = 64 * 1024;
/// The longest piece that is zeroed in one submission, bytes.
const PIECE: u64 = 64 << 20;

/// A device instance that copies from and to local memory.
pub struct LocalCopies {
    local: LocalMemory,
    memory: Import,
    imports: HashMap<SegmentId, Import>,
    /// For what is read: mapped, and imported.
    scratch: (Arc<Mapping>, Import),
    copier: Copier,
    driver: Driver,
}

impl From<VulkanError> for DeviceFailed {
    fn from(error: VulkanError) -> Self {
        let is_refusal = matches!(
            error,
            VulkanError::Import { .. }
                | VulkanError::NotTaken { .. }
                | VulkanError::Allocate { .. }
                | VulkanError::Share { .. }
        );
        Self { text: error.to_string(), is_lost: !is_refusal }
    }
}

impl LocalCopies {
    /// Imports local memory into `driver`, and tries it, so that later calls need nothing of the system that this one did not.
    ///
    /// # Errors
    /// It is none of this device's, or shorter than it is said to be; or Vulkan's.
    pub fn new(driver: Driver, local: LocalMemory, descriptor: OwnedFd) -> Result<Self, DeviceFailed> {
        let memory = import(&driver, &local, descriptor)?;
        let file = create_memfd("campanile-scratch", SCRATCH);
        let file = file.map_err(|error| DeviceFailed::refused(error.to_string()))?;
        let scratch = Mapping::new(file, 0, SCRATCH, Access::ReadWrite);
        let scratch = scratch.map_err(|error| DeviceFailed::refused(error.to_string()))?;
        let scratch = Arc::new(scratch);
        let imported = driver.import(&HostRange::whole(&scratch, Access::ReadWrite))?;
        let copier = Copier::new(&driver)?;
        let imports = HashMap::new();
        let mut copies = Self { local, memory, imports, scratch: (scratch, imported), copier, driver };
        copies.read(local.start, &mut [0; 8])?;
        Ok(copies)
    }

    /// Has the memory of a side imported.
    fn prepare(&mut self, side: Side<'_>) -> Result<(), DeviceFailed> {
        let Side::Segment(id, mapping, _) = side else { return Ok(()) };
        if !self.imports.contains_key(&id) {
            let range = visible_part(&self.local, id, mapping);
            self.imports.insert(id, self.driver.import(&range)?);
        }
        Ok(())
    }

    /// Copies within local memory where both sides have bytes in common: piece by piece, in order.
    fn copy_overlapping(&mut self, from: u64, to: u64, length: u64) -> Result<(), DeviceFailed> {
        let (from, to) = (within(&self.local, from, length)?, within(&self.local, to, length)?);
        let mut done = 0;
        while done < length {
            let size = SCRATCH.min(length - done);
            let Self { memory, scratch: (_, scratch), copier, .. } = self;
            copier.copy_range((memory, from + done), (scratch, 0), size)?;
            copier.copy_range((scratch, 0), (memory, to + done), size)?;
            done += size;
        }
        Ok(())
    }

    /// Copies between local memory, from `offset` on, and host memory that is imported for this once.
    ///
    /// # Errors
    /// As [`LocalDevice::copy`].
    pub fn copy_with(&mut self, host: &HostRange, offset: u64, is_to_host: bool) -> Result<(), DeviceFailed> {
        let at = within(&self.local, offset, host.length)?;
        let import = self.driver.import(host)?;
        let (local, other) = ((&self.memory, at), (&import, 0));
        let (from, to) = if is_to_host { (local, other) } else { (other, local) };
        Ok(self.copier.copy_range(from, to, host.length)?)
    }
}

/// Where an offset in the video memory lies in local memory, with `length` bytes.
fn within(local: &LocalMemory, offset: u64, length: u64) -> Result<u64, DeviceFailed> {
    let at = offset.checked_sub(local.start);
    let fits = |at: &u64| at.checked_add(length).is_some_and(|end| end <= local.bytes);
    at.filter(fits).ok_or_else(|| {
        DeviceFailed::refused(format!(
            "{length} bytes at {offset:#x} of the video memory are not local memory"
        ))
    })
}

/// All of a segment, but of the video memory only the head, in front of local memory.
pub fn visible_part(local: &LocalMemory, id: SegmentId, mapping: &Arc<Mapping>) -> HostRange {
    let whole = HostRange::whole(mapping, Access::ReadWrite);
    if id == SegmentId::VRAM { HostRange { length: local.start.min(whole.length), ..whole } } else { whole }
}

/// Imports local memory, which has at least the bytes that it is said to have.
///
/// # Errors
/// It is none of this device's, or shorter; or Vulkan's.
pub fn import(driver: &Driver, local: &LocalMemory, descriptor: OwnedFd) -> Result<Import, DeviceFailed> {
    let memory = driver.import_exported(Exported::of(descriptor, &local.passport))?;
    if memory.len() < local.bytes || local.bytes == 0 {
        let (is, said) = (memory.len(), local.bytes);
        return Err(DeviceFailed::refused(format!("local memory of {is} bytes, and not of {said}")));
    }
    Ok(memory)
}

/// Allocates `bytes` of a device's own memory, zeroes and exports them.
///
/// # Errors
/// The device has no more, or cannot export it; or Vulkan's.
pub fn allocate(driver: &Driver, bytes: u64) -> Result<Exported, VulkanError> {
    use crate::vulkan::info::Handle;

    let memory = driver.allocate(bytes, Some(Handle::OpaqueFd))?;
    let mut copier = Copier::new(driver)?;
    let mut at = 0;
    while at < memory.len() {
        let length = PIECE.min(memory.len() - at);
        copier.fill(&memory, at, length, 0)?;
        at += length;
    }
    memory.export(Handle::OpaqueFd)
}

impl LocalDevice for LocalCopies {
    fn copy(&mut self, from: Side<'_>, to: Side<'_>, length: u64) -> Result<(), DeviceFailed> {
        if let (Side::Local(from), Side::Local(to)) = (from, to)
            && from.abs_diff(to) < length
        {
            return self.copy_overlapping(from, to, length);
        }
        self.prepare(from)?;
        self.prepare(to)?;
        let Self { local, memory, imports, copier, .. } = self;
        let place = |side: Side<'_>| -> Result<(&Import, u64), DeviceFailed> {
            match side {
                Side::Local(offset) => Ok((&*memory, within(local, offset, length)?)),
                Side::Segment(id, _, offset) => {
                    let import = imports.get(&id);
                    Ok((import.ok_or_else(|| DeviceFailed::refused("it is not imported"))?, offset))
                }
            }
        };
        Ok(copier.copy_range(place(from)?, place(to)?, length)?)
    }

    fn fill(&mut self, offset: u64, length: u64, word: u32) -> Result<(), DeviceFailed> {
        let at = within(&self.local, offset, length)?;
        Ok(self.copier.fill(&self.memory, at, length, word)?)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceFailed> {
        let mut done = 0;
        for part in into.chunks_mut(usize::try_from(SCRATCH).unwrap_or(1)) {
            let length = part.len() as u64;
            let at = within(&self.local, offset.saturating_add(done), length)?;
            self.copier.copy_range((&self.memory, at), (&self.scratch.1, 0), length)?;
            let seen = self.scratch.0.slice(0, length);
            seen.ok_or_else(|| DeviceFailed::refused("a part that is too long".to_owned()))?.copy_to(part);
            done += length;
        }
        Ok(())
    }

    fn forget(&mut self, segment: SegmentId) {
        self.imports.remove(&segment);
    }
}

impl fmt::Debug for LocalCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCopies").field("local", &self.local).finish_non_exhaustive()
    }
}
