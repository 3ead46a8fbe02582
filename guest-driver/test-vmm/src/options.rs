//! What a loopback VM is made of.

use std::time::Duration;

/// Settings of a [`super::vm::LoopbackVm`]. The default is what QEMU and the stock guest kernel do.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// What the device is.
    pub device: DeviceKind,
    /// Bytes of the aperture of an fs device, as an ivshmem device has it; 0 for none. A migration leaves it where it is.
    pub aperture: u64,
    /// Bytes of guest RAM, a multiple of the page size.
    pub ram: u64,
    /// Guest-physical address of the first byte of RAM. Not zero, so that an address taken for an offset shows.
    pub ram_base: u64,
    /// Descriptors of each ring, a power of two.
    pub queue_size: u16,
    /// Whether EVENT_IDX is accepted where offered (virtio 1.3, 2.7.10).
    pub event_idx: bool,
    /// Whether INDIRECT_DESC is accepted where offered, and then used for every chain of more than one descriptor.
    pub indirect: bool,
    /// How the pages of GuestRam blobs and of long commands lie in RAM.
    pub pages: PageLayout,
    /// Whether a mapped window enters the vhost-user memory table, as it does under QEMU.
    pub window_in_memory_table: bool,
    /// When the device's own requests are served.
    pub back_channel: BackChannel,
    /// Longest wait for the answer to a command that is no submission, and for room on the ring.
    pub command_timeout: Duration,
    /// Longest wait for the answer to a vhost-user message; past it the VM hangs up.
    pub message_timeout: Duration,
    /// Longest wait for the device's state, on its way out or in.
    pub transfer_timeout: Duration,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            device: DeviceKind::Gpu,
            aperture: 0,
            ram: 64 << 20,
            ram_base: 1 << 30,
            queue_size: 256,
            event_idx: true,
            indirect: true,
            pages: PageLayout::Contiguous,
            window_in_memory_table: true,
            back_channel: BackChannel::LikeQemu,
            command_timeout: Duration::from_secs(30),
            message_timeout: Duration::from_secs(30),
            transfer_timeout: Duration::from_secs(120),
        }
    }
}

/// What the stock driver finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A virtio-gpu device.
    Gpu,
    /// A virtio-fs device: see [`super::fuse`].
    Fs,
}

/// How the pages of one allocation lie in guest RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageLayout {
    /// One run.
    Contiguous,
    /// Runs of at most so many pages, in descending order of address, so that no two neighbours are adjacent.
    /// The process's own mapping is in pieces, too: see [`campanile_guest_driver::transport::shared_memory::SharedMemory`].
    Scattered {
        /// Pages of a run, at least 1.
        run_pages: u32,
    },
}

/// When the VMM serves what the device asks of it (SHMEM_MAP, SHMEM_UNMAP).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackChannel {
    /// As QEMU: never while it waits for the answer to a message of its own; a map is answered first and enters the
    /// memory table right after, on the same thread. A device that deadlocks QEMU deadlocks this VM, until
    /// [`VmOptions::message_timeout`] ends it.
    LikeQemu,
    /// At any time; the memory table changes from another thread.
    AnyTime,
}
