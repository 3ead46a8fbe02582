//! Indices that are bounded in the result.

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
