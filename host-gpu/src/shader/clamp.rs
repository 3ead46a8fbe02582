//! Operands that are others in the result: indices, which are bounded, and memory semantics.

/// An index that must be made at most `last` before the instruction uses it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clamp {
    /// Index of the instruction, and which operand it is.
    pub(super) index: u32,
    pub(super) operand: u32,
    /// The type of the index, and the largest that is in bounds.
    pub(super) ty: u32,
    pub(super) last: u64,
}

/// Memory semantics that the result says in Vulkan's words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Semantics {
    /// Index of the instruction, and which operand it is.
    pub(super) index: u32,
    pub(super) operand: u32,
    /// The type of the constant, and its value.
    pub(super) ty: u32,
    pub(super) value: u32,
}
