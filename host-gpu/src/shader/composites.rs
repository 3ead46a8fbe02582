//! Which operands make up, take apart or multiply composites.

use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// A component of a shuffle that may be anything.
const ANY_COMPONENT: u32 = u32::MAX;

/// Checks operands by the composites that they are, or are parts of.
pub(super) struct Composites<'s, 'a> {
    symbols: &'s Symbols<'a>,
}

impl<'s, 'a> Composites<'s, 'a> {
    /// By these types and constants.
    pub(super) fn of(symbols: &'s Symbols<'a>) -> Self {
        Self { symbols }
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
    pub(super) fn check(&self, inst: Inst, op: Op, ty: u32, operands: &[u32]) -> Result<(), GuardError> {
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
}
