//! Why a module was refused: which instruction, where, and the rule that it breaks.

use std::borrow::Cow;

use spirv::Op;

/// What the guard found first. The guest's fault, always.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} at word {at}: {reason}")]
pub struct GuardError {
    /// The instruction, by name; a number where SPIR-V has no name for it.
    pub name: String,
    /// The first word of the instruction, counted from the magic number.
    pub at: u32,
    /// The rule that it breaks.
    pub reason: Cow<'static, str>,
}

impl GuardError {
    pub(super) fn new(code: u32, at: u32, reason: impl Into<Cow<'static, str>>) -> Self {
        let name = Op::from_u32(code).map_or_else(|| format!("instruction {code}"), |op| format!("Op{op:?}"));
        Self { name, at, reason: reason.into() }
    }

    /// What is wrong with the module as a whole.
    pub(super) fn module(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { name: "the module".to_owned(), at: 0, reason: reason.into() }
    }
}
