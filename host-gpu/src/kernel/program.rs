//! A kernel that passed: what a driver may be given.

use std::fmt;

use campanile_protocol::packet;

pub use crate::shader::interface::BufferKind;
pub use crate::shader::interface::Texels;

/// The name of the entry point in every emitted module, whatever the guest called it.
pub const ENTRY: &str = "main";

/// Binding numbers of a kernel are below this in each of its descriptor sets.
pub const BINDING_LIMIT: u32 = 64;

/// Descriptor sets of a kernel are below this, and below what the device has.
pub const SET_LIMIT: u32 = 8;

/// How many buffers a kernel may bind, elements of arrays counted: as many as a dispatch carries.
pub const DESCRIPTOR_LIMIT: u32 = packet::MAX_BINDINGS;

/// Where in set 0 a kernel that asks for the number of workgroups reads it: three words that the driver binds. No guest can
/// have a buffer there.
pub const GRID_BINDING: u32 = BINDING_LIMIT;

/// Bytes of those three words.
pub const GRID_BYTES: u64 = 12;

/// How many bytes of constants (`var<immediate>`, push constants) a kernel may take at most, where the device takes so many:
/// each takes at least [`CONSTANTS_EVERYWHERE`].
pub const CONSTANTS_LIMIT: u32 = packet::MAX_CONSTANTS;

/// How many bytes of constants every Vulkan device takes (`maxPushConstantsSize` ≥ 128).
pub const CONSTANTS_EVERYWHERE: u32 = 128;

/// What a kernel does with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferAccess {
    /// Loads only.
    Read,
    /// Stores and atomics too.
    ReadWrite,
}

/// One binding of a kernel: a buffer, or an array of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The descriptor set, below [`SET_LIMIT`].
    pub set: u32,
    /// The number within the set, below [`BINDING_LIMIT`].
    pub binding: u32,
    /// How many buffers it has; 1 where it is no array.
    pub count: u32,
    /// Kind of buffer.
    pub kind: BufferKind,
    /// What it takes the texels of a texel buffer for.
    pub texels: Option<Texels>,
    /// What its instructions do.
    pub access: BufferAccess,
    /// The fewest bytes that may be bound: the fixed part and one element of a runtime-sized array.
    pub min_size: u64,
}

/// Names one buffer among those that a dispatch binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BindingPoint {
    /// The descriptor set.
    pub set: u32,
    /// The number within the set.
    pub binding: u32,
    /// Which of an array; 0 where the binding is none.
    pub element: u32,
}

impl BindingPoint {
    /// A binding of set 0 that is no array.
    pub const fn plain(binding: u32) -> Self {
        Self { set: 0, binding, element: 0 }
    }

    /// The one among `bindings` that has it.
    pub fn find(self, bindings: &[Binding]) -> Option<&Binding> {
        let at = |wanted: &&Binding| (wanted.set, wanted.binding) == (self.set, self.binding);
        bindings.iter().find(at).filter(|found| self.element < found.count)
    }
}

impl fmt::Display for BindingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, binding, element } = self;
        match (set, element) {
            (0, 0) => write!(f, "binding {binding}"),
            (_, 0) => write!(f, "binding {binding} of set {set}"),
            _ => write!(f, "element {element} of binding {binding} of set {set}"),
        }
    }
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
    /// Every buffer that the entry point uses, ascending by set and binding.
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
    /// Invocations of each subgroup; 0 for the device's choice.
    pub subgroup_size: u32,
}

impl Kernel {
    /// How many buffers of a kind a dispatch binds; the grid is not one of them.
    pub fn buffers(&self, kind: BufferKind) -> u32 {
        self.bindings
            .iter()
            .filter(|binding| binding.kind == kind)
            .fold(0, |sum, b| sum.saturating_add(b.count))
    }

    /// Every buffer that a dispatch must bind.
    pub fn points(&self) -> impl Iterator<Item = (BindingPoint, &Binding)> {
        points(&self.bindings)
    }
}

/// Every buffer of `bindings`, those of arrays one by one.
pub fn points(bindings: &[Binding]) -> impl Iterator<Item = (BindingPoint, &Binding)> {
    bindings.iter().flat_map(|of| {
        let Binding { set, binding, count, .. } = *of;
        (0..count).map(move |element| (BindingPoint { set, binding, element }, of))
    })
}
