//! Constants and their values. Specialisation constants take their values here, so that lengths and sizes are known.

use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::types::Scalar;
use crate::shader::types::Shape;

/// What is known of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// All zero.
    Null,
    /// A scalar, as many low bits as its type has; 0 or 1 for a bool.
    Bits(u64),
    /// Its parts are the operands of its instruction.
    Parts,
    /// Computed by the driver: never a length.
    Unknown,
}

impl Guard<'_> {
    /// What is known of constant `id`; `None` if it is none.
    pub(super) fn value(&self, id: u32) -> Option<Value> {
        let meaning = self.module.id(id);
        (meaning.kind == Kind::Constant).then(|| self.constants.get(meaning.data as usize).copied()).flatten()
    }

    /// The value of an integer constant, sign-extended where its type is signed. `None` where it is negative.
    pub(super) fn integer(&self, id: u32) -> Option<u64> {
        let Shape::Int { bits, signed } = self.shape(self.module.id(id).ty) else { return None };
        match self.value(id)? {
            Value::Null => Some(0),
            Value::Bits(value) if !signed || value >> (bits - 1) == 0 => Some(value),
            _ => None,
        }
    }

    /// The low bits of a scalar constant.
    fn bits(&self, id: u32) -> Option<u64> {
        match self.value(id)? {
            Value::Null => Some(0),
            Value::Bits(value) => Some(value),
            _ => None,
        }
    }

    /// Takes in one of the instructions `OpConstant…`, `OpSpecConstant…` or `OpUndef`.
    pub(super) fn declare_constant(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        let (ty, id) = (self.module.word(inst, 1), self.module.word(inst, 2));
        if !self.is_value(ty) {
            return Err(wrong(inst, "its type is none that a constant can have"));
        }
        if self.is_limited(ty) {
            return Err(wrong(inst, "no constant has 8 or 16 bits without Int8, Int16 or Float16"));
        }
        self.check_size(inst, ty)?;
        let mut kind = Kind::Constant;
        let value = match inst.op() {
            Op::ConstantTrue | Op::ConstantFalse | Op::SpecConstantTrue | Op::SpecConstantFalse => {
                inst.length(3, 3)?;
                if self.shape(ty) != Shape::Bool {
                    return Err(wrong(inst, "its type is not bool"));
                }
                let default = matches!(inst.op(), Op::ConstantTrue | Op::SpecConstantTrue);
                Value::Bits(u64::from(default))
            }
            Op::Constant | Op::SpecConstant => Value::Bits(self.literal(inst, ty)?),
            Op::ConstantNull => {
                inst.length(3, 3)?;
                Value::Null
            }
            Op::ConstantComposite | Op::SpecConstantComposite => {
                self.check_parts(inst, ty, self.module.rest(inst, 3))?;
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
        let data = u32::try_from(self.constants.len()).unwrap_or(NOWHERE);
        self.constants.push(value);
        self.module.define(inst, id, Id { kind, ty, inst: index, block: NOWHERE, data })
    }

    fn literal(&self, inst: Inst, ty: u32) -> Result<u64, GuardError> {
        let (Shape::Int { bits, .. } | Shape::Float { bits }) = self.shape(ty) else {
            return Err(wrong(inst, "its type is not a number"));
        };
        let words = if bits > 32 { 5 } else { 4 };
        inst.length(words, words)?;
        let (low, high) = (self.module.word(inst, 3), self.module.word(inst, 4));
        Ok((u64::from(low) | u64::from(high) << 32) & mask(bits))
    }

    /// Constituents of a constant composite: constants, each of the type of its place.
    fn check_parts(&self, inst: Inst, ty: u32, parts: &[u32]) -> Result<(), GuardError> {
        let count = match self.shape(ty) {
            Shape::Vector { count, .. } | Shape::Matrix { count, .. } | Shape::Array { count, .. } => {
                count as usize
            }
            Shape::Struct => self.members(ty).len(),
            _ => return Err(wrong(inst, "its type is not composite")),
        };
        if parts.len() != count {
            return Err(wrong(inst, format!("it has {} constituents, its type {count}", parts.len())));
        }
        for (index, part) in (0..).zip(parts) {
            let meaning = self.module.id(*part);
            let constant = matches!(meaning.kind, Kind::Constant | Kind::Undef);
            if !constant || Some(meaning.ty) != self.part(ty, index) {
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
        let op = Op::from_u32(self.module.word(inst, 3)).filter(|op| CONSTANT_OPS.contains(op));
        let op = op.ok_or_else(|| wrong(inst, "this operation on constants is not offered"))?;
        let operands = self.module.rest(inst, 4).to_vec();
        if matches!(op, Op::CompositeExtract | Op::CompositeInsert | Op::VectorShuffle) {
            let literals = match op {
                Op::CompositeExtract => 1,
                _ => 2,
            };
            let constants = operands.get(..literals).ok_or_else(|| wrong(inst, "it has too few operands"))?;
            self.check_constants(inst, constants)?;
            self.check_composite(inst, op, ty, &operands)?;
            return Ok(match op {
                Op::CompositeExtract => self.extract(&operands),
                _ => Value::Unknown,
            });
        }
        self.check_constants(inst, &operands)?;
        self.check_rule(inst, op as u32, ty, &operands)?;
        let Some(result) = self.numeric(ty).filter(|n| n.count == 1 && n.scalar != Scalar::Float) else {
            return Ok(Value::Unknown);
        };
        let operand = |index: usize| {
            let id = operands.get(index).copied()?;
            let number = self.numeric(self.module.id(id).ty)?;
            (number.scalar != Scalar::Float).then(|| self.bits(id).map(|bits| (bits, number.bits))).flatten()
        };
        let computed = evaluate(op, &operand, result.bits);
        Ok(computed.map_or(Value::Unknown, |bits| Value::Bits(bits & mask(result.bits))))
    }

    fn check_constants(&self, inst: Inst, ids: &[u32]) -> Result<(), GuardError> {
        for id in ids {
            if !matches!(self.module.id(*id).kind, Kind::Constant | Kind::Undef) {
                return Err(wrong(inst, format!("operand {id} is not a constant declared before")));
            }
        }
        Ok(())
    }

    /// The part of a constant that `[composite, index, …]` names.
    fn extract(&self, operands: &[u32]) -> Value {
        let [composite, path @ ..] = operands else { return Value::Unknown };
        let mut id = *composite;
        for index in path {
            match self.value(id) {
                Some(Value::Null) => return Value::Null,
                Some(Value::Parts) => {}
                _ => return Value::Unknown,
            }
            let parts = self.module.rest(self.module.definition(id), 3);
            match parts.get(*index as usize) {
                Some(part) => id = *part,
                None => return Value::Unknown,
            }
        }
        self.value(id).filter(|value| *value != Value::Parts).unwrap_or(Value::Unknown)
    }

    /// The three values of a constant vector.
    pub(super) fn triple(&self, id: u32) -> Option<[u32; 3]> {
        let mut values = [0; 3];
        for (index, slot) in (0..).zip(&mut values) {
            let Value::Bits(bits) = self.extract(&[id, index]) else { return None };
            *slot = u32::try_from(bits).ok()?;
        }
        Some(values)
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
