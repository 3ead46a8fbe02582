//! Instructions that are added between those of the program.

use ::spirv::Op;

use super::code::Code;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::code::push;

/// Instructions that are being written.
pub(super) struct Emit<'c> {
    pub(super) code: &'c mut Code,
    pub(super) words: Vec<u32>,
}

impl<'c> Emit<'c> {
    pub(super) fn new(code: &'c mut Code) -> Self {
        Self { code, words: Vec::new() }
    }

    /// An instruction with a result.
    pub(super) fn op(&mut self, op: Op, ty: Type, operands: &[u32]) -> u32 {
        let ty = self.code.ty(ty);
        self.typed(op, ty, operands)
    }

    /// The same, of a type by its id.
    pub(super) fn typed(&mut self, op: Op, ty: u32, operands: &[u32]) -> u32 {
        let id = self.code.id();
        push(&mut self.words, op, &[&[ty, id], operands].concat());
        id
    }

    /// A component of a vector.
    pub(super) fn part(&mut self, of: Scalar, vector: u32, at: u32) -> u32 {
        self.op(Op::CompositeExtract, Type(of, 1), &[vector, at])
    }

    /// A component of a scalar or vector of integers, as a word without a sign.
    pub(super) fn word(&mut self, Type(of, count): Type, value: u32, at: u32) -> u32 {
        let part = if count == 1 { value } else { self.part(of, value, at) };
        if of == Scalar::Uint { part } else { self.op(Op::Bitcast, UINT, &[part]) }
    }

    /// A vector of these components.
    pub(super) fn vector(&mut self, of: Scalar, parts: &[u32]) -> u32 {
        let count = u32::try_from(parts.len()).unwrap_or(0);
        self.op(Op::CompositeConstruct, Type(of, count), parts)
    }
}
