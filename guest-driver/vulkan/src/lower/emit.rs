//! Instructions of the functions that are added, one behind the other.

use ::spirv::Op;

use super::code::Code;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::code::UVEC4;
use super::code::push;

/// The buffer of records, as instructions reach it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// The variable.
    pub(super) variable: u32,
    /// A pointer to a vector of it.
    pub(super) pointer: u32,
}

/// Instructions that are being written.
pub(super) struct Emit<'c> {
    pub(super) code: &'c mut Code,
    pub(super) table: Table,
    pub(super) words: Vec<u32>,
}

impl<'c> Emit<'c> {
    pub(super) fn new(code: &'c mut Code, table: Table) -> Self {
        Self { code, table, words: Vec::new() }
    }

    /// Begins a function of these parameters; its id, and theirs.
    pub(super) fn function(&mut self, result: u32, parameters: &[u32]) -> (u32, Vec<u32>) {
        let ty = self.code.type_of(Op::TypeFunction, &[&[result], parameters].concat());
        let id = self.code.id();
        push(&mut self.words, Op::Function, &[result, id, 0, ty]);
        let mut ids = Vec::with_capacity(parameters.len());
        for ty in parameters {
            let id = self.code.id();
            push(&mut self.words, Op::FunctionParameter, &[*ty, id]);
            ids.push(id);
        }
        self.label();
        (id, ids)
    }

    /// Ends it with a value, and puts it behind the others.
    pub(super) fn give(mut self, value: u32) {
        push(&mut self.words, Op::ReturnValue, &[value]);
        push(&mut self.words, Op::FunctionEnd, &[]);
        self.code.added.append(&mut self.words);
    }

    /// Begins a block.
    pub(super) fn label(&mut self) -> u32 {
        let id = self.code.id();
        self.begin(id);
        id
    }

    pub(super) fn begin(&mut self, label: u32) {
        push(&mut self.words, Op::Label, &[label]);
    }

    /// Goes on in one of two blocks, which meet in `merge`.
    pub(super) fn branch(&mut self, condition: u32, [then, otherwise, merge]: [u32; 3]) {
        push(&mut self.words, Op::SelectionMerge, &[merge, 0]);
        push(&mut self.words, Op::BranchConditional, &[condition, then, otherwise]);
    }

    pub(super) fn go(&mut self, to: u32) {
        push(&mut self.words, Op::Branch, &[to]);
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

    /// Vector `at` of the record that begins at vector `record`.
    pub(super) fn record(&mut self, record: u32, at: u32) -> u32 {
        let at = self.code.uint(at);
        let place = self.op(Op::IAdd, UINT, &[record, at]);
        self.row(place)
    }

    /// A vector of the table by its number.
    pub(super) fn row(&mut self, place: u32) -> u32 {
        let (Table { variable, pointer }, first) = (self.table, self.code.uint(0));
        let place = self.typed(Op::AccessChain, pointer, &[variable, first, place]);
        self.op(Op::Load, UVEC4, &[place])
    }

    /// The smaller, or the larger, of two words without a sign.
    pub(super) fn pick(&mut self, op: Op, a: u32, b: u32) -> u32 {
        let holds = self.op(op, super::code::BOOL, &[a, b]);
        self.op(Op::Select, UINT, &[holds, a, b])
    }
}
