//! What a device is and how much it can.

use std::fmt;

use crate::vulkan::priority::GlobalPriorities;

/// What sort of thing a device is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU that another host lends.
    Virtual,
    /// A driver that runs kernels on the CPU, such as lavapipe.
    Cpu,
    /// None of these.
    Other,
}

/// How host memory comes to the device, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportMethod {
    /// `VK_EXT_external_memory_host`: the device works on the very pages.
    HostPointer,
    /// The device works on memory of its own, and what work binds is copied there and back: see [`super::staging`].
    Copy,
}

/// How a device's own memory leaves it, as a file descriptor that another device instance of the same GPU can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handle {
    /// `VK_KHR_external_memory_fd`: only the same driver on the same device knows what is in it. It cannot be mapped.
    OpaqueFd,
    /// `VK_EXT_external_memory_dma_buf`: the kernel knows it, and other drivers may.
    DmaBuf,
}

impl Handle {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::OpaqueFd, Self::DmaBuf];
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpaqueFd => "opaque fd",
            Self::DmaBuf => "dma-buf",
        })
    }
}

/// The handles by which a device exports buffers and imports them again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handles {
    /// [`Handle::OpaqueFd`].
    pub opaque_fd: bool,
    /// [`Handle::DmaBuf`].
    pub dma_buf: bool,
}

impl Handles {
    /// Whether `handle` is one of them.
    pub const fn has(self, handle: Handle) -> bool {
        match handle {
            Handle::OpaqueFd => self.opaque_fd,
            Handle::DmaBuf => self.dma_buf,
        }
    }
}

/// What a driver says that a process may have of a heap now (`VK_EXT_memory_budget`), bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// This process may have, with what it has, as others have theirs now.
    pub may_have: u64,
    /// It has.
    pub has: u64,
}

impl Budget {
    /// More that it may have.
    pub const fn left(&self) -> u64 {
        self.may_have.saturating_sub(self.has)
    }
}

/// Memory and queues of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// Bytes of the heaps that are the device's own.
    pub local_bytes: u64,
    /// Bytes of the largest heap whose memory is the device's own and that the host can map, too.
    pub visible_bytes: u64,
    /// How many heaps there are.
    pub heaps: usize,
    /// How many types of memory there are.
    pub types: usize,
    /// Of the heap that local memory is allocated in; none where the driver does not say.
    pub budget: Option<Budget>,
    /// The families of its queues, in Vulkan's order.
    pub families: Vec<Family>,
    /// That of these whose queue runs kernels.
    pub used: u32,
}

/// A family of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Vulkan has flags of the same names")]
pub struct Family {
    pub graphics: bool,
    pub compute: bool,
    pub transfer: bool,
    /// How many queues it has.
    pub queues: u32,
    /// Bits of a timestamp that are valid; 0 where it has none.
    pub timestamp_bits: u32,
    /// Global priorities that its queues can have.
    pub priorities: GlobalPriorities,
}

/// What the operator sees of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The device's own name.
    pub name: String,
    /// The driver's name: `llvmpipe`.
    pub driver: String,
    /// The driver's version in its own words: `Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)`.
    pub driver_version: String,
    /// The Vulkan version that the device implements: major, minor, patch.
    pub api_version: [u32; 3],
    /// What sort of device it is.
    pub kind: Kind,
    /// How it gets at host memory.
    pub import: ImportMethod,
    /// The numbers that programs know it by.
    pub identity: Identity,
}

/// Numbers of a device, as Vulkan reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Vulkan has properties of the same names")]
pub struct Identity {
    pub vendor: u32,
    pub device: u32,
    pub api_version: u32,
    pub driver_version: u32,
    pub device_uuid: [u8; 16],
    pub driver_uuid: [u8; 16],
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.api_version;
        let Self { name, driver, driver_version, .. } = self;
        write!(f, "{name}, driver {driver} {driver_version}, Vulkan {major}.{minor}.{patch}")
    }
}

/// How much a device can, as far as a dispatch or an import depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Workgroups per dimension, base included.
    pub groups: [u32; 3],
    /// The longest range that one binding may cover, bytes.
    pub binding_length: u64,
    /// The longest range that a uniform buffer may cover, bytes.
    pub uniform_length: u64,
    /// What the offset of a binding must be a multiple of, bytes.
    pub binding_alignment: u64,
    /// What the address and length of imported memory must be multiples of, bytes.
    pub import_alignment: u64,
    /// The longest allocation of its memory, bytes (`maxMemoryAllocationSize`).
    pub allocation_length: u64,
    /// Invocations per dimension of a workgroup.
    pub workgroup: [u32; 3],
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Descriptor sets of a kernel.
    pub sets: u32,
    /// Storage buffers of a kernel, that of the grid among them.
    pub storage_buffers: u32,
    /// Uniform buffers of a kernel.
    pub uniform_buffers: u32,
    /// Uniform texel buffers of a kernel.
    pub uniform_texels: u32,
    /// Storage texel buffers of a kernel.
    pub storage_texels: u32,
    /// Texels of one of either kind.
    pub texel_elements: u32,
    /// Bytes of constants of a kernel.
    pub constants: u32,
    /// Invocations of a subgroup of a kernel that asks for no size.
    pub subgroup_size: u32,
    /// The smallest and the largest size of subgroups that a kernel may ask for; zeros where it may ask for none.
    pub subgroup_sizes: [u32; 2],
}
