//! Debug information, which is left out of the result.

use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;

/// What an id of debug information stands for.
pub(super) fn debug(index: u32) -> Id {
    Id { kind: Kind::Debug, inst: index, block: NOWHERE, ..Id::default() }
}

/// An instruction of a non-semantic set: dropped, so only its result matters.
pub(super) fn define_debug(module: &mut Module<'_>, index: u32, inst: Inst) -> Result<(), GuardError> {
    if module.id(module.word(inst, 3)).kind != Kind::Debug {
        return Err(wrong(inst, "it is of no instruction set that may be used here"));
    }
    module.define(inst, module.word(inst, 2), debug(index))
}

/// What carries only debug information and is left out of the result.
pub(super) fn is_debug(op: Op) -> bool {
    matches!(
        op,
        Op::String
            | Op::Source
            | Op::SourceExtension
            | Op::SourceContinued
            | Op::Name
            | Op::MemberName
            | Op::ModuleProcessed
            | Op::Line
            | Op::NoLine
            | Op::DecorateString
            | Op::MemberDecorateString
    )
}
