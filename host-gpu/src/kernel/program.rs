//! A kernel that passed: what a driver may be given.

/// The name of the entry point in every emitted module, whatever the guest called it.
pub const ENTRY: &str = "main";

/// How many buffers a kernel may bind: binding numbers are below this.
pub const BINDING_LIMIT: u32 = 16;

/// Where a kernel that asks for the number of workgroups reads it: three words that the driver binds. No guest can have
/// a buffer there.
pub const GRID_BINDING: u32 = BINDING_LIMIT;

/// Bytes of those three words.
pub const GRID_BYTES: u64 = 12;

/// How many bytes of constants (`var<immediate>`, push constants) a kernel may take: what every Vulkan device
/// has (`maxPushConstantsSize` ≥ 128).
pub const CONSTANTS_LIMIT: u32 = 128;

/// What a kernel does with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferAccess {
    /// Loads only.
    Read,
    /// Stores and atomics too.
    ReadWrite,
}

/// One storage buffer of group 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Always 0 in this version.
    pub group: u32,
    /// Below [`BINDING_LIMIT`].
    pub binding: u32,
    /// What its instructions do.
    pub access: BufferAccess,
    /// The fewest bytes that may be bound: the fixed part and one element of a runtime-sized array.
    pub min_size: u64,
}

/// What keeps an index into a buffer in bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferChecks {
    /// The emitted code: out of bounds reads zero and writes nothing, inner arrays included.
    Kernel,
    /// The device's `robustBufferAccess2`: the same at the end of the bound range, but an inner array of fixed
    /// length may be overrun into the rest of the same range. For SPIR-V, and WGSL with atomics at a computed index.
    Device,
}

/// A validated, bounds-checked compute kernel with exactly one entry point. Only the sanitizer makes one, and
/// drivers rely on it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kernel {
    /// The module, written by the guard.
    pub spirv: Vec<u32>,
    /// The entry point in `spirv`: [`ENTRY`].
    pub entry: String,
    /// Invocations per workgroup in x, y, z.
    pub workgroup: [u32; 3],
    /// Every buffer that the entry point uses, ascending by binding.
    pub bindings: Vec<Binding>,
    /// Bytes of constants that a dispatch must bring, a multiple of 4, at most [`CONSTANTS_LIMIT`].
    pub constants: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Whether it asks for the number of workgroups. The device would report that of a slice, so the kernel reads that of
    /// the whole grid at [`GRID_BINDING`], which is not one of `bindings`.
    pub uses_num_workgroups: bool,
    /// What checks its buffer indices.
    pub buffer_checks: BufferChecks,
}
