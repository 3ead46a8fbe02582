//! Constants and their values. Specialisation constants take their values here, so that lengths and sizes are known.

use std::collections::HashMap;

use spirv::Op;

use crate::shader::capabilities::Capabilities;
use crate::shader::error::GuardError;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;
use crate::shader::symbols::Value;
use crate::shader::typing::Typing;

/// Takes in constants.
pub(super) struct Constants<'s, 'a> {
    pub(super) symbols: &'s mut Symbols<'a>,
    pub(super) capabilities: &'s Capabilities,
    /// The `SpecId` of each constant that has one.
    pub(super) specialised: &'s HashMap<u32, u32>,
    /// `SpecId` and value, ascending by id.
    pub(super) wished: &'s [(u32, u64)],
}

impl Constants<'_, '_> {
    /// Takes in one of the instructions `OpConstant…`, `OpSpecConstant…` or `OpUndef`.
    pub(super) fn declare(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        let (ty, id) = (self.symbols.module.word(inst, 1), self.symbols.module.word(inst, 2));
        if !self.symbols.is_value(ty) {
            return Err(wrong(inst, "its type is none that a constant can have"));
        }
        if self.capabilities.is_limited(self.symbols, ty) {
            return Err(wrong(inst, "no constant has 8 or 16 bits without Int8, Int16 or Float16"));
        }
        // Memory of workgroups may begin as a larger one; used otherwise it is refused there.
        if inst.op() != Op::ConstantNull {
            self.symbols.check_size(inst, ty)?;
        }
        let mut kind = Kind::Constant;
        let value = match inst.op() {
            Op::ConstantTrue | Op::ConstantFalse | Op::SpecConstantTrue | Op::SpecConstantFalse => {
                inst.length(3, 3)?;
                if self.symbols.shape(ty) != Shape::Bool {
                    return Err(wrong(inst, "its type is not bool"));
                }
                let default = matches!(inst.op(), Op::ConstantTrue | Op::SpecConstantTrue);
                Value::Bits(self.wish(inst, id).map_or(u64::from(default), |bits| u64::from(bits != 0)))
            }
            Op::Constant | Op::SpecConstant => {
                let (default, bits) = self.literal(inst, ty)?;
                Value::Bits(self.wish(inst, id).unwrap_or(default) & mask(bits))
            }
            Op::ConstantNull => {
                inst.length(3, 3)?;
                Value::Null
            }
            Op::ConstantComposite | Op::SpecConstantComposite => {
                self.check_parts(inst, ty, self.symbols.module.rest(inst, 3))?;
                Value::Parts
            }
            Op::SpecConstantOp => self.compute(inst, ty)?,
            Op::Undef => {
                inst.length(3, 3)?;
                kind = Kind::Undef;
                Value::Unknown
            }
            _ => return Err(wrong(inst, "constants of this kind are not offered")),
        };
        let data = u32::try_from(self.symbols.constants.len()).unwrap_or(NOWHERE);
        self.symbols.constants.push(value);
        self.symbols.module.define(inst, id, Id { kind, ty, inst: index, block: NOWHERE, data })
    }

    /// The value that the pipeline gives a specialisation constant.
    fn wish(&self, inst: Inst, id: u32) -> Option<u64> {
        let scalar = matches!(inst.op(), Op::SpecConstant | Op::SpecConstantTrue | Op::SpecConstantFalse);
        let number = self.specialised.get(&id).filter(|_| scalar)?;
        let index = self.wished.binary_search_by_key(number, |(id, _)| *id).ok()?;
        self.wished.get(index).map(|(_, value)| *value)
    }

    /// The literal of a number, and how many bits its type has.
    fn literal(&self, inst: Inst, ty: u32) -> Result<(u64, u32), GuardError> {
        let (Shape::Int { bits, .. } | Shape::Float { bits }) = self.symbols.shape(ty) else {
            return Err(wrong(inst, "its type is not a number"));
        };
        let words = if bits > 32 { 5 } else { 4 };
        inst.length(words, words)?;
        let (low, high) = (self.symbols.module.word(inst, 3), self.symbols.module.word(inst, 4));
        Ok((u64::from(low) | u64::from(high) << 32, bits))
    }

    /// Constituents of a constant composite: constants, each of the type of its place.
    fn check_parts(&self, inst: Inst, ty: u32, parts: &[u32]) -> Result<(), GuardError> {
        let count = match self.symbols.shape(ty) {
            Shape::Vector { count, .. } | Shape::Matrix { count, .. } | Shape::Array { count, .. } => {
                count as usize
            }
            Shape::Struct => self.symbols.members(ty).len(),
            _ => return Err(wrong(inst, "its type is not composite")),
        };
        if parts.len() != count {
            return Err(wrong(inst, format!("it has {} constituents, its type {count}", parts.len())));
        }
        for (index, part) in (0..).zip(parts) {
            let meaning = self.symbols.module.id(*part);
            let constant = matches!(meaning.kind, Kind::Constant | Kind::Undef);
            if !constant || Some(meaning.ty) != self.symbols.part(ty, index) {
                return Err(wrong(
                    inst,
                    format!("constituent {index} is no constant of the type of its place"),
                ));
            }
        }
        Ok(())
    }

    /// An operation on constants: typed like the instruction, and computed where it is of whole numbers.
    fn compute(&mut self, inst: Inst, ty: u32) -> Result<Value, GuardError> {
        inst.length(5, u32::MAX)?;
        let op = Op::from_u32(self.symbols.module.word(inst, 3)).filter(|op| CONSTANT_OPS.contains(op));
        let op = op.ok_or_else(|| wrong(inst, "this operation on constants is not offered"))?;
        let operands = self.symbols.module.rest(inst, 4).to_vec();
        if matches!(op, Op::CompositeExtract | Op::CompositeInsert | Op::VectorShuffle) {
            let literals = match op {
                Op::CompositeExtract => 1,
                _ => 2,
            };
            let constants = operands.get(..literals).ok_or_else(|| wrong(inst, "it has too few operands"))?;
            self.check_constants(inst, constants)?;
            Typing::of(self.symbols).check_composite(inst, op, ty, &operands)?;
            return Ok(match op {
                Op::CompositeExtract => self.symbols.extract(&operands),
                _ => Value::Unknown,
            });
        }
        self.check_constants(inst, &operands)?;
        Typing::of(self.symbols).check_rule(inst, op as u32, ty, &operands)?;
        let Some(result) = self.symbols.numeric(ty).filter(|n| n.count == 1 && n.scalar != Scalar::Float)
        else {
            return Ok(Value::Unknown);
        };
        let operand = |index: usize| {
            let id = operands.get(index).copied()?;
            let number = self.symbols.numeric(self.symbols.module.id(id).ty)?;
            (number.scalar != Scalar::Float)
                .then(|| self.symbols.bits(id).map(|bits| (bits, number.bits)))
                .flatten()
        };
        let computed = evaluate(op, &operand, result.bits);
        Ok(computed.map_or(Value::Unknown, |bits| Value::Bits(bits & mask(result.bits))))
    }

    fn check_constants(&self, inst: Inst, ids: &[u32]) -> Result<(), GuardError> {
        for id in ids {
            if !matches!(self.symbols.module.id(*id).kind, Kind::Constant | Kind::Undef) {
                return Err(wrong(inst, format!("operand {id} is not a constant declared before")));
            }
            self.symbols.check_size(inst, self.symbols.module.id(*id).ty)?;
        }
        Ok(())
    }
}

/// As many one bits.
pub(super) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn signed((value, bits): (u64, u32)) -> i64 {
    let unused = 64_u32.saturating_sub(bits);
    (value << unused).cast_signed() >> unused
}

/// `op` on operands of given widths; `None` where SPIR-V leaves the result open.
fn evaluate(op: Op, operand: &dyn Fn(usize) -> Option<(u64, u32)>, width: u32) -> Option<u64> {
    let a = operand(0);
    if op == Op::Select {
        return Some(operand(if a?.0 == 1 { 1 } else { 2 })?.0);
    }
    let (a, b) = (a?, operand(1));
    let (x, sx) = (a.0, signed(a));
    match op {
        Op::SNegate => return Some(x.wrapping_neg()),
        Op::Not => return Some(!x),
        Op::LogicalNot => return Some(x ^ 1),
        Op::UConvert => return Some(x),
        Op::SConvert => return Some(sx.cast_unsigned()),
        _ => {}
    }
    let b = b?;
    let (y, sy) = (b.0, signed(b));
    let shift = || u32::try_from(y).ok().filter(|shift| *shift < width);
    Some(match op {
        Op::IAdd => x.wrapping_add(y),
        Op::ISub => x.wrapping_sub(y),
        Op::IMul => x.wrapping_mul(y),
        Op::UDiv => x.checked_div(y)?,
        Op::UMod => x.checked_rem(y)?,
        Op::SDiv => sx.checked_div(sy)?.cast_unsigned(),
        Op::SRem => sx.checked_rem(sy)?.cast_unsigned(),
        Op::SMod => {
            let rest = sx.checked_rem(sy)?;
            (if rest != 0 && (rest < 0) != (sy < 0) { rest + sy } else { rest }).cast_unsigned()
        }
        Op::ShiftLeftLogical => x << shift()?,
        Op::ShiftRightLogical => x >> shift()?,
        Op::ShiftRightArithmetic => (sx >> shift()?).cast_unsigned(),
        Op::BitwiseAnd | Op::LogicalAnd => x & y,
        Op::BitwiseOr | Op::LogicalOr => x | y,
        Op::BitwiseXor | Op::LogicalNotEqual => x ^ y,
        Op::IEqual | Op::LogicalEqual => u64::from(x == y),
        Op::INotEqual => u64::from(x != y),
        Op::ULessThan => u64::from(x < y),
        Op::ULessThanEqual => u64::from(x <= y),
        Op::UGreaterThan => u64::from(x > y),
        Op::UGreaterThanEqual => u64::from(x >= y),
        Op::SLessThan => u64::from(sx < sy),
        Op::SLessThanEqual => u64::from(sx <= sy),
        Op::SGreaterThan => u64::from(sx > sy),
        Op::SGreaterThanEqual => u64::from(sx >= sy),
        _ => return None,
    })
}

/// What `OpSpecConstantOp` may do in a shader.
const CONSTANT_OPS: [Op; 38] = [
    Op::SConvert,
    Op::UConvert,
    Op::FConvert,
    Op::SNegate,
    Op::Not,
    Op::IAdd,
    Op::ISub,
    Op::IMul,
    Op::UDiv,
    Op::SDiv,
    Op::UMod,
    Op::SRem,
    Op::SMod,
    Op::ShiftRightLogical,
    Op::ShiftRightArithmetic,
    Op::ShiftLeftLogical,
    Op::BitwiseOr,
    Op::BitwiseXor,
    Op::BitwiseAnd,
    Op::VectorShuffle,
    Op::CompositeExtract,
    Op::CompositeInsert,
    Op::LogicalOr,
    Op::LogicalAnd,
    Op::LogicalNot,
    Op::LogicalEqual,
    Op::LogicalNotEqual,
    Op::Select,
    Op::IEqual,
    Op::INotEqual,
    Op::ULessThan,
    Op::SLessThan,
    Op::UGreaterThan,
    Op::SGreaterThan,
    Op::ULessThanEqual,
    Op::SLessThanEqual,
    Op::UGreaterThanEqual,
    Op::SGreaterThanEqual,
];
