//! Operations over a subgroup whose operands are not all ids of values, and products of packed integers.

use spirv::Capability;
use spirv::Op;

use crate::shader::body::Body;
use crate::shader::body::Here;
use crate::shader::error::GuardError;
use crate::shader::module::wrong;
use crate::shader::shape::Numeric;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::typing::SUBGROUP;

/// SPIR-V 1.5.
const V1_5: u32 = 0x0001_0500;

impl Body<'_, '_> {
    /// Checks the instruction if it is of a subgroup, or multiplies packed integers, and says whether it is.
    pub(super) fn check_group(&mut self, here: Here) -> Result<bool, GuardError> {
        let inst = here.inst;
        let op = inst.op();
        if matches!(op, Op::SDot | Op::UDot | Op::SUDot | Op::SDotAccSat | Op::UDotAccSat | Op::SUDotAccSat) {
            self.check_dot(here)?;
            return Ok(true);
        }
        let scalar = reduced(op);
        let takes_one = matches!(
            op,
            Op::GroupNonUniformBroadcast | Op::GroupNonUniformQuadBroadcast | Op::GroupNonUniformQuadSwap
        );
        let counts = op == Op::GroupNonUniformBallotBitCount;
        let compares = op == Op::GroupNonUniformAllEqual;
        if scalar.is_none() && !takes_one && !counts && !compares {
            return Ok(false);
        }
        inst.length(5, 7)?;
        if self.word_constant(here, 3)? != SUBGROUP {
            return Err(wrong(inst, "its scope is not the subgroup"));
        }
        let good;
        if let Some(scalar) = scalar {
            let value = self.used(here, 5)?;
            let ty = self.result_of(here, false)?;
            let kind = self.symbols.numeric(ty).is_some_and(|n| n.scalar == scalar);
            let clustered = self.symbols.module.word(inst, 4) == CLUSTERED;
            good = value.ty == ty && kind && self.operation(here, clustered)?;
        } else if counts {
            let value = self.used(here, 5)?;
            let ty = self.result_of(here, false)?;
            let ballot = self.symbols.numeric(value.ty)
                == Some(Numeric { scalar: Scalar::Int, bits: 32, signed: false, count: 4 });
            let word = self.symbols.shape(ty) == (Shape::Int { bits: 32, signed: false });
            good = inst.len == 6 && ballot && word && self.symbols.module.word(inst, 4) <= 2;
        } else if compares {
            let value = self.used(here, 4)?;
            let ty = self.result_of(here, false)?;
            good = inst.len == 5
                && self.symbols.shape(ty) == Shape::Bool
                && self.symbols.numeric(value.ty).is_some();
        } else {
            let (value, lane) = (self.used(here, 4)?, self.used(here, 5)?);
            let ty = self.result_of(here, false)?;
            let index = self.symbols.shape(lane.ty) == (Shape::Int { bits: 32, signed: false });
            let known = self.symbols.integer(self.symbols.module.word(inst, 5));
            let constant = match op {
                Op::GroupNonUniformQuadSwap => known.is_some_and(|direction| direction <= 2),
                _ => known.is_some() || self.symbols.module.version >= V1_5,
            };
            good = inst.len == 6 && value.ty == ty && self.symbols.numeric(ty).is_some() && index && constant;
        }
        if good { Ok(true) } else { Err(wrong(inst, "its operands do not fit each other or its result")) }
    }

    /// The way in which a reduction works, and the size of its clusters.
    fn operation(&self, here: Here, clustered: bool) -> Result<bool, GuardError> {
        let operation = self.symbols.module.word(here.inst, 4);
        if clustered {
            let size = self.word_constant(here, 6)?;
            return Ok(here.inst.len == 7
                && size.is_power_of_two()
                && self.capabilities.has(Capability::GroupNonUniformClustered));
        }
        Ok(operation <= 2
            && here.inst.len == 6
            && self.capabilities.has(Capability::GroupNonUniformArithmetic))
    }

    fn check_dot(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        let saturates = matches!(inst.op(), Op::SDotAccSat | Op::UDotAccSat | Op::SUDotAccSat);
        let operands = if saturates { 3 } else { 2 };
        inst.length(3 + operands, 4 + operands)?;
        let (a, b) = (self.used(here, 3)?, self.used(here, 4)?);
        let sum = if saturates { Some(self.used(here, 5)?) } else { None };
        let ty = self.result_of(here, false)?;
        let unsigned = matches!(inst.op(), Op::UDot | Op::UDotAccSat);
        let (Some(x), Some(y), Some(r)) =
            (self.symbols.numeric(a.ty), self.symbols.numeric(b.ty), self.symbols.numeric(ty))
        else {
            return Err(wrong(inst, "it is not of integers"));
        };
        let packed = x.count == 1;
        let int = |n: Numeric| n.scalar == Scalar::Int;
        let format = inst.len == 4 + operands;
        let declared = match packed {
            true => self.capabilities.has(Capability::DotProductInput4x8BitPacked) && x.bits == 32,
            false if x.bits == 8 => {
                self.capabilities.has(Capability::DotProductInput4x8Bit)
                    || self.capabilities.has(Capability::DotProductInputAll)
            }
            false => self.capabilities.has(Capability::DotProductInputAll),
        };
        let wide = if packed { r.bits >= 8 } else { r.bits >= x.bits };
        // The vectors of a mixed product have different signs; all others are of one type. A word that holds one has no sign of theirs.
        let alike = match inst.op() {
            Op::SUDot | Op::SUDotAccSat => x.bits == y.bits && x.count == y.count && (packed || !y.signed),
            _ => x.bits == y.bits && x.count == y.count,
        };
        let signs = !unsigned || !r.signed && (packed || !x.signed && !y.signed);
        let packs = packed == format && (!format || self.symbols.module.word(inst, inst.len - 1) == 0);
        let good = int(x) && int(y) && int(r) && r.count == 1 && declared && wide && alike && signs && packs;
        if good && sum.is_none_or(|sum| sum.ty == ty) {
            return Ok(());
        }
        Err(wrong(inst, "its operands do not fit each other, its result or the declared capabilities"))
    }
}

/// `GroupOperation` of clusters.
const CLUSTERED: u32 = 3;

/// What a reduction reduces.
fn reduced(op: Op) -> Option<Scalar> {
    Some(match op {
        Op::GroupNonUniformIAdd
        | Op::GroupNonUniformIMul
        | Op::GroupNonUniformSMin
        | Op::GroupNonUniformUMin
        | Op::GroupNonUniformSMax
        | Op::GroupNonUniformUMax
        | Op::GroupNonUniformBitwiseAnd
        | Op::GroupNonUniformBitwiseOr
        | Op::GroupNonUniformBitwiseXor => Scalar::Int,
        Op::GroupNonUniformFAdd
        | Op::GroupNonUniformFMul
        | Op::GroupNonUniformFMin
        | Op::GroupNonUniformFMax => Scalar::Float,
        Op::GroupNonUniformLogicalAnd | Op::GroupNonUniformLogicalOr | Op::GroupNonUniformLogicalXor => {
            Scalar::Bool
        }
        _ => return None,
    })
}
