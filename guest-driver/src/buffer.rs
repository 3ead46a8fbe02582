//! Memory that program and GPU share.

use std::sync::Arc;

use campanile_protocol::packet::Binding;

use crate::device::Device;
use crate::device::Shared;
use crate::device::reachable;
use crate::error::DriverError;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;
use crate::transport::shared_memory::SharedMemory;

/// A buffer, mapped for the CPU and for the GPU.
#[derive(Debug)]
pub struct Buffer {
    shared: Arc<Shared>,
    blob: Option<Blob>,
    resource: u32,
    memory: SharedMemory,
    va: u64,
    size: u64,
}

impl Device {
    /// A buffer of video memory, zeroed, of at least `size` bytes. In a VM without a window onto video memory it lies
    /// in guest RAM instead.
    pub fn create_buffer(&self, size: u64) -> Result<Buffer, DriverError> {
        Buffer::create(&self.shared, BlobMemory::Vram, size)
    }

    /// Maps the whole of a resource that something else made into this device's address space, at the address that
    /// is returned. The daemon refuses one of another process: for tests.
    #[doc(hidden)]
    pub fn map_resource(&self, resource: u32, size: u64) -> Result<u64, DriverError> {
        self.shared.map(resource, size)
    }

    /// A buffer in guest RAM that the GPU reads and writes in place.
    pub fn create_guest_buffer(&self, size: u64) -> Result<Buffer, DriverError> {
        Buffer::create(&self.shared, BlobMemory::GuestRam, size)
    }
}

impl Buffer {
    pub(crate) fn create(shared: &Arc<Shared>, kind: BlobMemory, size: u64) -> Result<Self, DriverError> {
        let _pass = shared.control.enter();
        let transport = shared.control.transport();
        let blob = transport.create_blob(reachable(&**transport, kind), size);
        let blob = blob.map_err(|error| shared.control.explain(error.into()))?;
        let placed = transport.map(&blob).map_err(DriverError::from).and_then(|memory| {
            let va = shared.map(blob.resource_id(), blob.size())?;
            Ok((memory, va))
        });
        match placed {
            Ok((memory, va)) => {
                let (resource, size) = (blob.resource_id(), blob.size());
                Ok(Self { shared: Arc::clone(shared), blob: Some(blob), resource, memory, va, size })
            }
            Err(error) => {
                shared.control.give_up(blob);
                Err(shared.control.explain(error))
            }
        }
    }

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

    /// The CPU's view.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// All of it, for binding number `slot` of a kernel.
    pub fn binding(&self, slot: u32) -> Binding {
        Binding::new(self.va, self.size, slot)
    }

    /// Part of it, for binding number `slot` of a kernel; `offset` a multiple of 256, `length` of 4.
    pub fn binding_range(&self, slot: u32, offset: u64, length: u64) -> Result<Binding, DriverError> {
        self.check(offset, length)?;
        Ok(Binding::new(self.va + offset, length, slot))
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), DriverError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DriverError::Range { offset, length, size: self.size }),
        }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        let length = bytes.len() as u64;
        self.memory.read(offset, bytes).ok_or(DriverError::Range { offset, length, size: self.size })
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DriverError> {
        let length = bytes.len() as u64;
        self.memory.write(offset, bytes).ok_or(DriverError::Range { offset, length, size: self.size })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.free_buffer(self.va, self.size, self.blob.take());
    }
}
