//! Whether an instruction keeps to its row of `rules.rs`.

use spirv::GlslStd450Op;
use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::wrong;
use crate::shader::rules;
use crate::shader::rules::In;
use crate::shader::rules::Out;
use crate::shader::rules::Rule;
use crate::shader::shape::Numeric;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// Checks results and operands by their types.
pub(super) struct Typing<'s, 'a> {
    symbols: &'s Symbols<'a>,
}

impl<'s, 'a> Typing<'s, 'a> {
    /// By these types and constants.
    pub(super) fn of(symbols: &'s Symbols<'a>) -> Self {
        Self { symbols }
    }

    /// Checks `operands`, values of an instruction `code` at `inst` with a result of type `ty`.
    pub(super) fn check_rule(
        &self,
        inst: Inst,
        code: u32,
        ty: u32,
        operands: &[u32],
    ) -> Result<(), GuardError> {
        let rule = rules::of(code)
            .ok_or_else(|| wrong(inst, "this instruction is not offered to compute kernels here"))?;
        self.keep(inst, rule, ty, operands)
    }

    /// Checks `operands` against `rule`.
    pub(super) fn keep(&self, inst: Inst, rule: Rule, ty: u32, operands: &[u32]) -> Result<(), GuardError> {
        if operands.len() != rule.ins.len() {
            return Err(wrong(
                inst,
                format!("it has {} operands where {} belong", operands.len(), rule.ins.len()),
            ));
        }
        if !self.comes_out(rule.out, ty) {
            return Err(wrong(inst, format!("its result has a type other than {:?}", rule.out)));
        }
        let first = operands.first().map_or(0, |id| self.symbols.module.id(*id).ty);
        for (index, (wanted, id)) in rule.ins.iter().zip(operands).enumerate() {
            let given = self.symbols.module.id(*id).ty;
            if given == 0 || !self.goes_in(*wanted, *id, given, ty, first) {
                return Err(wrong(inst, format!("operand {index} has a type other than {wanted:?}")));
            }
        }
        Ok(())
    }

    /// Checks an instruction of `GLSL.std.450` whose result of type `ty` is defined.
    pub(super) fn check_glsl(
        &self,
        inst: Inst,
        number: u32,
        ty: u32,
        operands: &[u32],
    ) -> Result<(), GuardError> {
        if let Some(rule) = rules::of_glsl(number) {
            return self.keep(inst, rule, ty, operands);
        }
        let square = |ty: u32| match self.symbols.shape(ty) {
            Shape::Matrix { column, count } => match self.symbols.shape(column) {
                Shape::Vector { of, count: rows } if rows == count => Some(of),
                _ => None,
            },
            _ => None,
        };
        if let [matrix] = *operands {
            let given = self.symbols.module.id(matrix).ty;
            let good = match GlslStd450Op::from_u32(number) {
                Some(GlslStd450Op::Determinant) => square(given) == Some(ty),
                Some(GlslStd450Op::MatrixInverse) => square(given).is_some() && given == ty,
                _ => false,
            };
            if good {
                return Ok(());
            }
        }
        let split = match GlslStd450Op::from_u32(number) {
            Some(GlslStd450Op::FrexpStruct) => Some(Scalar::Int),
            Some(GlslStd450Op::ModfStruct) => Some(Scalar::Float),
            _ => None,
        };
        let given = operands.first().map_or(0, |id| self.symbols.module.id(*id).ty);
        if let (Some(second), [_], [a, b]) = (split, operands, self.symbols.members(ty)) {
            let (x, y) = (self.symbols.numeric(*a), self.symbols.numeric(*b));
            if let (Some(x), Some(y)) = (x, y)
                && *a == given
                && x.scalar == Scalar::Float
                && y.count == x.count
                && y.scalar == second
                && (second == Scalar::Float && a == b || second == Scalar::Int && y.bits == 32)
            {
                return Ok(());
            }
        }
        Err(wrong(
            inst,
            format!("instruction {number} of GLSL.std.450 is not offered here, or its operands do not fit"),
        ))
    }

    /// Checks that `parts` make up a value of type `ty`.
    pub(super) fn check_construct(&self, inst: Inst, ty: u32, parts: &[u32]) -> Result<(), GuardError> {
        let type_of = |id: &u32| self.symbols.module.id(*id).ty;
        let good = match self.symbols.shape(ty) {
            Shape::Vector { of, count } => {
                let components = parts.iter().map(|part| match self.symbols.shape(type_of(part)) {
                    Shape::Vector { of: inner, count } if inner == of => count,
                    _ if type_of(part) == of => 1,
                    _ => 100,
                });
                parts.len() > 1 && components.sum::<u32>() == count
            }
            Shape::Matrix { count, .. } | Shape::Array { count, .. } => {
                parts.len() == count as usize
                    && parts.iter().all(|part| Some(type_of(part)) == self.symbols.part(ty, 0))
            }
            Shape::Struct => {
                self.symbols.members(ty).iter().eq(parts.iter().map(type_of).collect::<Vec<_>>().iter())
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(wrong(inst, "its constituents do not make up its result")) }
    }

    /// The type that literal indices reach in a value of type `ty`.
    fn reached(&self, ty: u32, path: &[u32]) -> Option<u32> {
        path.iter().try_fold(ty, |ty, index| self.symbols.part(ty, *index))
    }

    /// Checks `OpCompositeExtract`, `OpCompositeInsert` or `OpVectorShuffle` with these operands.
    pub(super) fn check_composite(
        &self,
        inst: Inst,
        op: Op,
        ty: u32,
        operands: &[u32],
    ) -> Result<(), GuardError> {
        let type_of = |id: u32| self.symbols.module.id(id).ty;
        let good = match (op, operands) {
            (Op::CompositeExtract, [from, path @ ..]) => {
                !path.is_empty() && self.reached(type_of(*from), path) == Some(ty)
            }
            (Op::CompositeInsert, [part, into, path @ ..]) => {
                let reached = self.reached(type_of(*into), path);
                !path.is_empty() && type_of(*into) == ty && reached == Some(type_of(*part))
            }
            (Op::VectorShuffle, [a, b, picked @ ..]) => {
                let vector = |ty| match self.symbols.shape(ty) {
                    Shape::Vector { of, count } => Some((of, count)),
                    _ => None,
                };
                match (vector(type_of(*a)), vector(type_of(*b)), vector(ty)) {
                    (Some((x, m)), Some((y, n)), Some((z, count))) => {
                        let inside = |at: &u32| *at < m + n || *at == ANY_COMPONENT;
                        x == z && y == z && picked.len() == count as usize && picked.iter().all(inside)
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(wrong(inst, "its operands or indices do not fit its result")) }
    }

    /// Whether an operation on matrices has a result of type `ty` for operands of these types.
    pub(super) fn is_product(&self, op: Op, ty: u32, operands: &[u32]) -> bool {
        // Columns, rows and component type of what is a matrix; a vector of n is n rows.
        let matrix = |ty: u32| match self.symbols.shape(ty) {
            Shape::Matrix { column, count } => match self.symbols.shape(column) {
                Shape::Vector { of, count: rows } => Some((count, rows, of)),
                _ => None,
            },
            _ => None,
        };
        let vector = |ty: u32| match self.symbols.shape(ty) {
            Shape::Vector { of, count } => Some((count, of)),
            _ => None,
        };
        match (op, operands) {
            (Op::MatrixTimesScalar, [m, s]) => *m == ty && matrix(ty).is_some_and(|(.., of)| of == *s),
            (Op::Transpose, [m]) => match (matrix(*m), matrix(ty)) {
                (Some((a, b, x)), Some((c, d, y))) => a == d && b == c && x == y,
                _ => false,
            },
            (Op::MatrixTimesVector, [m, v]) => match (matrix(*m), vector(*v), vector(ty)) {
                (Some((columns, rows, x)), Some((n, y)), Some((out, z))) => {
                    columns == n && rows == out && x == y && y == z
                }
                _ => false,
            },
            (Op::VectorTimesMatrix, [v, m]) => match (vector(*v), matrix(*m), vector(ty)) {
                (Some((n, y)), Some((columns, rows, x)), Some((out, z))) => {
                    rows == n && columns == out && x == y && y == z
                }
                _ => false,
            },
            (Op::MatrixTimesMatrix, [a, b]) => match (matrix(*a), matrix(*b), matrix(ty)) {
                (Some((ac, ar, x)), Some((bc, br, y)), Some((c, r, z))) => {
                    ac == br && c == bc && r == ar && x == y && y == z
                }
                _ => false,
            },
            (Op::OuterProduct, [a, b]) => match (vector(*a), vector(*b), matrix(ty)) {
                (Some((rows, x)), Some((columns, y)), Some((c, r, z))) => {
                    rows == r && columns == c && x == y && y == z
                }
                _ => false,
            },
            _ => false,
        }
    }

    fn comes_out(&self, wanted: Out, ty: u32) -> bool {
        let pair = |unsigned: bool| match *self.symbols.members(ty) {
            [a, b] => {
                a == b
                    && self
                        .symbols
                        .numeric(a)
                        .is_some_and(|n| n.scalar == Scalar::Int && !(unsigned && n.signed))
            }
            _ => false,
        };
        match wanted {
            Out::Value => return self.symbols.is_value(ty),
            Out::IntPair => return pair(false),
            Out::UnsignedPair => return pair(true),
            _ => {}
        }
        let Some(n) = self.symbols.numeric(ty) else { return false };
        let (float, int, bool) =
            (n.scalar == Scalar::Float, n.scalar == Scalar::Int, n.scalar == Scalar::Bool);
        match wanted {
            Out::Float => float,
            Out::Float32 => float && n.bits <= 32,
            Out::Int => int,
            Out::Int32 => int && n.bits == 32,
            Out::Int32One => int && n.bits == 32 && n.count == 1 && !n.signed,
            Out::Unsigned => int && !n.signed,
            Out::Bool => bool,
            Out::OneBool => bool && n.count == 1,
            Out::OneFloat => float && n.count == 1,
            Out::Floats(count, bits) => float && n.count == count && n.bits == bits,
            Out::Words(count, bits) => int && !n.signed && n.count == count && n.bits == bits,
            Out::Float3 => float && n.count == 3,
            Out::Any => true,
            Out::Number => !bool,
            Out::Value | Out::IntPair | Out::UnsignedPair => false,
        }
    }

    fn goes_in(&self, wanted: In, id: u32, given: u32, ty: u32, first: u32) -> bool {
        match wanted {
            In::Same => return given == ty,
            In::First => return given == first,
            In::Member => return self.symbols.members(ty).first() == Some(&given),
            In::Subgroup => return self.symbols.integer(id) == Some(SUBGROUP),
            In::Logical => return given != ty && self.is_alike(given, ty, &mut { ALIKE_STEPS }),
            In::Bits => {
                let (a, b) = (self.symbols.numeric(given), self.symbols.numeric(ty));
                let bits = |n: Numeric| (n.scalar != Scalar::Bool).then_some(n.bits * n.count);
                return a.and_then(bits).is_some() && a.and_then(bits) == b.and_then(bits);
            }
            _ => {}
        }
        let Some(g) = self.symbols.numeric(given) else { return false };
        let (int, float) = (g.scalar == Scalar::Int, g.scalar == Scalar::Float);
        let none = Numeric { scalar: Scalar::Bool, bits: 0, signed: false, count: 0 };
        let r = self.symbols.numeric(ty).unwrap_or(none);
        let f = self.symbols.numeric(first).unwrap_or(none);
        match wanted {
            In::Int => int && g.count == r.count && g.bits == r.bits,
            In::IntOf => int && g.count == r.count,
            In::Int32Of => int && g.count == r.count && g.bits == 32,
            In::IntFirst => int && g.count == f.count && g.bits == f.bits,
            In::FloatOf => float && g.count == r.count,
            In::OtherInt => int && g.count == r.count && g.bits != r.bits,
            In::OtherFloat => float && g.count == r.count && g.bits != r.bits,
            In::Bools => g.scalar == Scalar::Bool && g.count > 1,
            In::Condition => {
                g.scalar == Scalar::Bool
                    && (g.count == r.count || g.count == 1 && self.allows_one_condition())
            }
            In::Component => self.symbols.part(ty, 0) == Some(given),
            In::OneOfResult => g.count == 1 && (given == ty || self.symbols.part(ty, 0) == Some(given)),
            In::FloatsOfResult => self.symbols.part(given, 0) == Some(ty),
            In::FloatOfResult => given == ty || self.symbols.part(given, 0) == Some(ty),
            In::AnyInt => int && g.count == 1,
            In::OneInt => int && g.count == 1 && g.bits == 32,
            In::Index => int && g.count == 1 && g.bits == 32 && !g.signed,
            In::Floats(count, bits) => float && g.count == count && g.bits == bits,
            In::Words(count, bits) => int && !g.signed && g.count == count && g.bits == bits,
            In::OneBool => g.scalar == Scalar::Bool && g.count == 1,
            In::Same | In::First | In::Member | In::Subgroup | In::Logical | In::Bits => false,
        }
    }

    fn allows_one_condition(&self) -> bool {
        self.symbols.module.version >= crate::shader::module::V1_4
    }

    /// Whether two types are the same but for decorations, member by member.
    fn is_alike(&self, a: u32, b: u32, steps: &mut u32) -> bool {
        // Depth is bounded in `types.rs`, and breadth here.
        *steps = steps.saturating_sub(1);
        if a == b {
            return true;
        }
        match (self.symbols.shape(a), self.symbols.shape(b)) {
            (Shape::Array { of: x, count: m }, Shape::Array { of: y, count: n }) => {
                m == n && self.is_alike(x, y, steps)
            }
            (Shape::Struct, Shape::Struct) => {
                let (x, y) = (self.symbols.members(a), self.symbols.members(b));
                *steps > 0 && x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.is_alike(*x, *y, steps))
            }
            _ => false,
        }
    }
}

/// A component of a shuffle that may be anything.
const ANY_COMPONENT: u32 = u32::MAX;
/// `Scope` of subgroups.
pub(super) const SUBGROUP: u64 = 3;
/// How many parts of two types are compared: more than any kernel needs, and no time.
const ALIKE_STEPS: u32 = 4096;
