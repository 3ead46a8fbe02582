//! A blob resource.

/// Where the bytes of a blob are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobMemory {
    /// Video memory of the vGPU; the CPU sees it through the aperture.
    Vram,
    /// Video memory of the vGPU that no CPU is to see: it cannot be mapped.
    Local,
    /// Pages of the guest, which the GPU reads and writes in place.
    GuestRam,
}

/// A blob that its transport created and has attached. Not `Clone`: destroying it consumes it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Blob {
    pub(crate) resource_id: u32,
    pub(crate) size: u64,
    pub(crate) memory: BlobMemory,
}

impl Blob {
    /// For transports: the blob `resource_id`, of `size` bytes (whole pages), which was created and attached.
    pub fn new(resource_id: u32, size: u64, memory: BlobMemory) -> Self {
        Self { resource_id, size, memory }
    }

    /// The name by which control messages speak of it.
    pub fn resource_id(&self) -> u32 {
        self.resource_id
    }

    /// Bytes, a multiple of the page size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where its bytes are.
    pub fn memory(&self) -> BlobMemory {
        self.memory
    }
}
