//! Memory that the CPU does not see, and where it lies: residency, priorities, budgets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::memory::MemoryInfo;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::device_page::BUDGET;
use campanile_protocol::packet::Binding;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::Shared;
use crate::error::DriverError;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;

/// A buffer of video memory that only the GPU sees: it is filled and read by copies. Where memory is short it lies in
/// host memory for a while, and comes back, contents preserved, when the GPU needs it.
#[derive(Debug)]
pub struct LocalBuffer {
    shared: Arc<Shared>,
    blob: Option<Blob>,
    resource: u32,
    va: u64,
    size: u64,
}

/// Whether a request for residency waits for others to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails where there is no room, and none can be made.
    Fail,
    /// It waits.
    Wait,
}

/// When memory that is not held is moved out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// When others need the room.
    WhenNeeded,
    /// Now.
    Now,
}

impl Device {
    /// A buffer of video memory, zeroed, of at least `size` bytes, that the CPU does not see.
    ///
    /// # Errors
    /// The quota of the vGPU, or what the host gives to all, is used up; what the transport says.
    pub fn create_local_buffer(&self, size: u64) -> Result<LocalBuffer, DriverError> {
        let _pass = self.shared.control.enter();
        let transport = self.shared.control.transport();
        let blob = transport.create_blob(BlobMemory::Local, size)?;
        match self.shared.map(blob.resource_id(), blob.size()) {
            Ok(va) => Ok(LocalBuffer {
                shared: Arc::clone(&self.shared),
                resource: blob.resource_id(),
                size: blob.size(),
                blob: Some(blob),
                va,
            }),
            Err(error) => {
                self.shared.control.give_up(blob);
                Err(error)
            }
        }
    }

    fn list(
        &self,
        message: &'static str,
        opcode: u32,
        argument: u32,
        buffers: &[&LocalBuffer],
    ) -> Result<Vec<u8>, DriverError> {
        let head = List { count: u32::try_from(buffers.len()).unwrap_or(u32::MAX), argument };
        let _pass = self.shared.control.enter();
        let transport = self.shared.control.transport();
        let mut resources: Vec<u32> =
            buffers.iter().map(|buffer| transport.number(buffer.resource)).collect();
        if resources.len() % 2 == 1 {
            resources.push(0);
        }
        self.shared.control.call(message, opcode, &[head.as_bytes(), resources.as_bytes()])
    }

    /// Has buffers, at most 1024, brought to where the GPU reaches them, and held there until [`Self::evict`] is called
    /// for each as often.
    ///
    /// # Errors
    /// `Refused` with [`OutOfResources`](campanile_protocol::control::status::Status::OutOfResources) where they do not
    /// fit at all, or, with [`WhenFull::Fail`], not now.
    pub fn make_resident(&self, buffers: &[&LocalBuffer], when_full: WhenFull) -> Result<(), DriverError> {
        let flags = if when_full == WhenFull::Fail { memory::RESIDENT_OR_FAIL } else { 0 };
        let payload = self.list("MAKE_RESIDENT", memory::MAKE_RESIDENT, flags, buffers)?;
        self.shared.wait_for_paging(&payload)
    }

    /// Lets go of buffers that were made resident, and has them moved out of the way when that is to be.
    ///
    /// # Errors
    /// The device is lost; what the transport says.
    pub fn evict(&self, buffers: &[&LocalBuffer], when: Eviction) -> Result<(), DriverError> {
        let flags = if when == Eviction::Now { memory::EVICT_NOW } else { 0 };
        let payload = self.list("EVICT", memory::EVICT, flags, buffers)?;
        if when == Eviction::Now { self.shared.wait_for_paging(&payload) } else { Ok(()) }
    }

    /// Sets how late buffers are evicted: one of `PRIORITY_*`, or between. A hint (PRE-41).
    ///
    /// # Errors
    /// There is no such priority.
    pub fn set_priority(&self, buffers: &[&LocalBuffer], priority: u32) -> Result<(), DriverError> {
        self.list("SET_PRIORITY", memory::SET_PRIORITY, priority, buffers).map(|_| ())
    }

    /// Bytes of video memory that this VM can have as things are, what it has included. Costs a load: the daemon stores it
    /// when other VMs have taken or given back a good part of what all share.
    pub fn budget(&self) -> u64 {
        let word = self.shared.control.page().word(BUDGET);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// How the memory of this VM's vGPU stands.
    ///
    /// # Errors
    /// What the transport says.
    pub fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let payload = self.shared.control.call("QUERY_MEMORY", memory::QUERY_MEMORY, &[])?;
        MemoryInfo::read_from_bytes(&payload).map_err(|_| DriverError::BadAnswer("QUERY_MEMORY"))
    }
}

/// Pages of one list.
const CHUNK: u64 = memory::MAX_LIST as u64;

impl Device {
    /// Maps each page of a buffer once more, one mapping a page, at neighbouring addresses; the first of them. For
    /// measurements.
    #[doc(hidden)]
    pub fn map_pages(&self, buffer: &LocalBuffer) -> Result<u64, DriverError> {
        let base = self.shared.allocate(buffer.size)?;
        let pages = buffer.size / PAGE_SIZE;
        for first in (0..pages).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
            let one = |page: u64| MapMemory {
                resource: self.shared.control.transport().number(buffer.resource),
                flags: MAP_WRITABLE,
                offset: page * PAGE_SIZE,
                va: base + page * PAGE_SIZE,
                size: PAGE_SIZE,
            };
            let entries: Vec<MapMemory> = (first..pages.min(first + CHUNK)).map(one).collect();
            self.paging_list("MAP_LIST", memory::MAP_LIST, entries.len(), entries.as_bytes())?;
        }
        Ok(base)
    }

    /// Undoes [`Self::map_pages`].
    #[doc(hidden)]
    pub fn unmap_pages(&self, buffer: &LocalBuffer, base: u64) -> Result<(), DriverError> {
        let pages = buffer.size / PAGE_SIZE;
        for first in (0..pages).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
            let one = |page: u64| UnmapMemory { va: base + page * PAGE_SIZE, size: PAGE_SIZE };
            let entries: Vec<UnmapMemory> = (first..pages.min(first + CHUNK)).map(one).collect();
            self.paging_list("UNMAP_LIST", memory::UNMAP_LIST, entries.len(), entries.as_bytes())?;
        }
        self.shared.release(base, buffer.size);
        Ok(())
    }

    fn paging_list(
        &self,
        message: &'static str,
        opcode: u32,
        count: usize,
        entries: &[u8],
    ) -> Result<(), DriverError> {
        let head = List { count: u32::try_from(count).unwrap_or(u32::MAX), argument: 0 };
        let payload = self.shared.control.call(message, opcode, &[head.as_bytes(), entries])?;
        self.shared.wait_for_paging(&payload)
    }
}

impl Shared {
    fn wait_for_paging(&self, payload: &[u8]) -> Result<(), DriverError> {
        let paging = Paging::read_from_bytes(payload).map_err(|_| DriverError::BadAnswer("paging fence"))?;
        self.wait_paging(paging.fence)
    }
}

impl LocalBuffer {
    /// Bytes, a multiple of the page size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// GPU virtual address of the first byte.
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Its name in control messages.
    pub fn resource_id(&self) -> u32 {
        self.resource
    }

    /// All of it, for binding number `slot` of a kernel.
    pub fn binding(&self, slot: u32) -> Binding {
        Binding::new(self.va, self.size, slot)
    }

    /// Part of it, for binding number `slot` of a kernel; `offset` a multiple of 256, `length` of 4.
    pub fn binding_range(&self, slot: u32, offset: u64, length: u64) -> Result<Binding, DriverError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(Binding::new(self.va + offset, length, slot)),
            _ => Err(DriverError::Range { offset, length, size: self.size }),
        }
    }
}

impl Drop for LocalBuffer {
    fn drop(&mut self) {
        self.shared.free_buffer(self.va, self.size, self.blob.take());
    }
}
