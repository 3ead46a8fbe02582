//! Functions that are added to a module for what its kernels do with images.

use std::collections::HashMap;

use ::spirv::Op;

use super::code::BOOL;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::code::UVEC3;
use super::emit::Emit;
use super::module::Module;
use super::records::IDENTITY;
use super::records::LEVELS;
use super::records::ONE;
use super::records::ZERO;

/// An index that no texel buffer has.
const BEYOND: u32 = u32::MAX;

/// Those that are there already.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    /// By whether it is of any level.
    index: HashMap<bool, u32>,
    size: Option<u32>,
    /// By the type of components.
    swizzle: HashMap<Scalar, u32>,
}

/// Width, height and slices of a level, and the record's second vector.
struct Extent {
    sides: [u32; 3],
    levels: u32,
    mask: u32,
}

impl Emit<'_> {
    fn extent(&mut self, record: u32, lod: Option<u32>) -> Extent {
        let (head, more) = (self.record(record, 0), self.record(record, 1));
        let mut sides = [0, 1, 2].map(|at| self.part(Scalar::Uint, head, at));
        if let Some(lod) = lod {
            let (shrink, one) = (self.part(Scalar::Uint, more, 2), self.code.uint(1));
            let slices = self.op(Op::IMul, UINT, &[lod, shrink]);
            for (side, by) in sides.iter_mut().zip([lod, lod, slices]) {
                let smaller = self.op(Op::ShiftRightLogical, UINT, &[*side, by]);
                *side = self.pick(Op::UGreaterThan, smaller, one);
            }
        }
        let (levels, mask) = (self.part(Scalar::Uint, head, 3), self.part(Scalar::Uint, more, 0));
        Extent { sides, levels, mask }
    }

    /// A level, or the last that a record has words for.
    fn level(&mut self, lod: u32) -> u32 {
        let last = self.code.uint(LEVELS - 1);
        self.pick(Op::ULessThan, lod, last)
    }

    /// The first texel of a level.
    fn start(&mut self, record: u32, lod: u32) -> u32 {
        let (two, three) = (self.code.uint(2), self.code.uint(3));
        let row = self.op(Op::ShiftRightLogical, UINT, &[lod, two]);
        let (row, part) =
            (self.op(Op::IAdd, UINT, &[row, two]), self.op(Op::BitwiseAnd, UINT, &[lod, three]));
        let row = self.op(Op::IAdd, UINT, &[record, row]);
        let starts = self.row(row);
        self.op(Op::VectorExtractDynamic, UINT, &[starts, part])
    }

    /// Whether a coordinate is within an extent.
    fn is_within(&mut self, sides: &[u32; 3], parts: &[u32; 3]) -> u32 {
        let mut all = None;
        for (side, part) in sides.iter().zip(parts) {
            let holds = self.op(Op::ULessThan, BOOL, &[*part, *side]);
            all = Some(match all {
                Some(others) => self.op(Op::LogicalAnd, BOOL, &[others, holds]),
                None => holds,
            });
        }
        all.unwrap_or(0)
    }
}

impl Module {
    /// `uint index(record, at, [lod])`: of the texel at a coordinate, which is beyond all where there is none.
    pub(super) fn index_function(&mut self, has_levels: bool) -> u32 {
        if let Some(known) = self.helpers.index.get(&has_levels) {
            return *known;
        }
        let mut emit = Emit::new(&mut self.code, self.table);
        let (word, words) = (emit.code.ty(UINT), emit.code.ty(UVEC3));
        let parameters: &[u32] = if has_levels { &[word, words, word] } else { &[word, words] };
        let (id, given) = emit.function(word, parameters);
        let (record, at) = (given[0], given[1]);
        let lod = given.get(2).map(|lod| (*lod, emit.level(*lod)));
        let Extent { sides, levels, mask } = emit.extent(record, lod.map(|(_, level)| level));
        let parts = [0, 1, 2].map(|part| emit.part(Scalar::Uint, at, part));
        let mut is_within = emit.is_within(&sides, &parts);
        let slice = emit.op(Op::IMul, UINT, &[sides[0], sides[1]]);
        let slice = emit.op(Op::IAdd, UINT, &[slice, mask]);
        let inverse = emit.op(Op::Not, UINT, &[mask]);
        let slice = emit.op(Op::BitwiseAnd, UINT, &[slice, inverse]);
        let (slices, rows) =
            (emit.op(Op::IMul, UINT, &[parts[2], slice]), emit.op(Op::IMul, UINT, &[parts[1], sides[0]]));
        let mut index = emit.op(Op::IAdd, UINT, &[slices, rows]);
        index = emit.op(Op::IAdd, UINT, &[index, parts[0]]);
        if let Some((wished, level)) = lod {
            let start = emit.start(record, level);
            index = emit.op(Op::IAdd, UINT, &[index, start]);
            let is_there = emit.op(Op::ULessThan, BOOL, &[wished, levels]);
            is_within = emit.op(Op::LogicalAnd, BOOL, &[is_within, is_there]);
        }
        let beyond = emit.code.uint(BEYOND);
        let index = emit.op(Op::Select, UINT, &[is_within, index, beyond]);
        emit.give(index);
        self.helpers.index.insert(has_levels, id);
        id
    }

    /// `uvec3 size(record, lod)`.
    pub(super) fn size_function(&mut self) -> u32 {
        if let Some(known) = self.helpers.size {
            return known;
        }
        let mut emit = Emit::new(&mut self.code, self.table);
        let (word, words) = (emit.code.ty(UINT), emit.code.ty(UVEC3));
        let (id, given) = emit.function(words, &[word, word]);
        let lod = emit.level(given[1]);
        let Extent { sides, .. } = emit.extent(given[0], Some(lod));
        let size = emit.vector(Scalar::Uint, &sides);
        emit.give(size);
        self.helpers.size = Some(id);
        id
    }

    /// `vec4 swizzle(record, texel)`: the components in the order of the view.
    pub(super) fn swizzle_function(&mut self, of: Scalar) -> u32 {
        if let Some(known) = self.helpers.swizzle.get(&of) {
            return *known;
        }
        let mut emit = Emit::new(&mut self.code, self.table);
        let texels = Type(of, 4);
        let (word, texel) = (emit.code.ty(UINT), emit.code.ty(texels));
        let (id, given) = emit.function(texel, &[word, texel]);
        let more = emit.record(given[0], 1);
        let (order, identity) = (emit.part(Scalar::Uint, more, 1), emit.code.uint(IDENTITY));
        let is_swapped = emit.op(Op::INotEqual, BOOL, &[order, identity]);
        let (swap, merge, keep) = (emit.code.id(), emit.code.id(), emit.code.id());
        emit.branch(is_swapped, [swap, keep, merge]);
        emit.begin(swap);
        let one = if of == Scalar::Float { 1.0_f32.to_bits() } else { 1 };
        let (zero, one) = (emit.code.constant(Type(of, 1), 0), emit.code.constant(Type(of, 1), one));
        let parts = [0, 8, 16, 24].map(|shift| {
            let (shift, byte) = (emit.code.uint(shift), emit.code.uint(0xff));
            let which = emit.op(Op::ShiftRightLogical, UINT, &[order, shift]);
            let which = emit.op(Op::BitwiseAnd, UINT, &[which, byte]);
            let three = emit.code.uint(3);
            let component = emit.op(Op::BitwiseAnd, UINT, &[which, three]);
            let found = emit.op(Op::VectorExtractDynamic, Type(of, 1), &[given[1], component]);
            [(ZERO, zero), (ONE, one)].into_iter().fold(found, |found, (code, value)| {
                let code = emit.code.uint(code);
                let is_it = emit.op(Op::IEqual, BOOL, &[which, code]);
                emit.op(Op::Select, Type(of, 1), &[is_it, value, found])
            })
        });
        let swapped = emit.vector(of, &parts);
        emit.go(merge);
        emit.begin(keep);
        emit.go(merge);
        emit.begin(merge);
        let all = emit.typed(Op::Phi, texel, &[swapped, swap, given[1], keep]);
        emit.give(all);
        self.helpers.swizzle.insert(of, id);
        id
    }
}
