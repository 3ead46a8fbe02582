//! Values made of values, and calls.

use spirv::GlslStd450Op;
use spirv::Op;

use crate::shader::body::Here;
use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;
use crate::shader::rules;
use crate::shader::types::Scalar;
use crate::shader::types::Shape;

/// A component of a shuffle that may be anything.
const ANY_COMPONENT: u32 = u32::MAX;

impl Guard<'_> {
    /// Checks the instruction if it makes or takes apart composites, or calls; and says whether it does.
    pub(super) fn check_composed(&mut self, here: Here) -> Result<bool, GuardError> {
        let inst = here.inst;
        match inst.op() {
            Op::CompositeConstruct => {
                inst.length(4, u32::MAX)?;
                let parts = self.operands(here, 3)?;
                let ty = self.result_of(here, false)?;
                self.check_construct(inst, ty, &parts)?;
            }
            op @ (Op::CompositeExtract | Op::CompositeInsert | Op::VectorShuffle) => {
                inst.length(5, 260)?;
                self.used(here, 3)?;
                if op != Op::CompositeExtract {
                    self.used(here, 4)?;
                }
                let ty = self.result_of(here, false)?;
                self.check_composite(inst, op, ty, self.module.rest(inst, 3))?;
            }
            Op::VectorExtractDynamic => {
                inst.length(5, 5)?;
                let vector = self.used(here, 3)?;
                let Shape::Vector { of, count } = self.shape(vector.ty) else {
                    return Err(wrong(inst, "it is of no vector"));
                };
                self.clamp_component(here, 4, count)?;
                if self.result_of(here, false)? != of {
                    return Err(wrong(inst, "its result is no component of the vector"));
                }
            }
            Op::VectorInsertDynamic => {
                inst.length(6, 6)?;
                let (vector, part) = (self.used(here, 3)?, self.used(here, 4)?);
                let Shape::Vector { of, count } = self.shape(vector.ty) else {
                    return Err(wrong(inst, "it is of no vector"));
                };
                self.clamp_component(here, 5, count)?;
                if self.result_of(here, false)? != vector.ty || part.ty != of {
                    return Err(wrong(inst, "its result or component does not fit the vector"));
                }
            }
            Op::FunctionCall => self.check_call(here)?,
            Op::MatrixTimesScalar
            | Op::VectorTimesMatrix
            | Op::MatrixTimesVector
            | Op::MatrixTimesMatrix
            | Op::OuterProduct
            | Op::Transpose => {
                inst.length(4, 5)?;
                let operands = self.operands(here, 3)?;
                let ty = self.result_of(here, false)?;
                let types: Vec<u32> = operands.iter().map(|id| self.module.id(*id).ty).collect();
                if !self.is_product(inst.op(), ty, &types) {
                    return Err(wrong(inst, "its operands do not fit its result"));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check_construct(&self, inst: Inst, ty: u32, parts: &[u32]) -> Result<(), GuardError> {
        let type_of = |id: &u32| self.module.id(*id).ty;
        let good = match self.shape(ty) {
            Shape::Vector { of, count } => {
                let components = parts.iter().map(|part| match self.shape(type_of(part)) {
                    Shape::Vector { of: inner, count } if inner == of => count,
                    _ if type_of(part) == of => 1,
                    _ => 100,
                });
                parts.len() > 1 && components.sum::<u32>() == count
            }
            Shape::Matrix { count, .. } | Shape::Array { count, .. } => {
                parts.len() == count as usize
                    && parts.iter().all(|part| Some(type_of(part)) == self.part(ty, 0))
            }
            Shape::Struct => self.members(ty).iter().eq(parts.iter().map(type_of).collect::<Vec<_>>().iter()),
            _ => false,
        };
        if good { Ok(()) } else { Err(wrong(inst, "its constituents do not make up its result")) }
    }

    /// The type that literal indices reach in a value of type `ty`.
    fn reached(&self, ty: u32, path: &[u32]) -> Option<u32> {
        path.iter().try_fold(ty, |ty, index| self.part(ty, *index))
    }

    /// Checks `OpCompositeExtract`, `OpCompositeInsert` or `OpVectorShuffle` with these operands.
    pub(super) fn check_composite(
        &self,
        inst: Inst,
        op: Op,
        ty: u32,
        operands: &[u32],
    ) -> Result<(), GuardError> {
        let type_of = |id: u32| self.module.id(id).ty;
        let good = match (op, operands) {
            (Op::CompositeExtract, [from, path @ ..]) => {
                !path.is_empty() && self.reached(type_of(*from), path) == Some(ty)
            }
            (Op::CompositeInsert, [part, into, path @ ..]) => {
                let reached = self.reached(type_of(*into), path);
                !path.is_empty() && type_of(*into) == ty && reached == Some(type_of(*part))
            }
            (Op::VectorShuffle, [a, b, picked @ ..]) => {
                let vector = |ty| match self.shape(ty) {
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

    fn check_call(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(4, u32::MAX)?;
        let (ty, id, callee) =
            (self.module.word(inst, 1), self.module.word(inst, 2), self.module.word(inst, 3));
        let called = self.module.id(callee);
        let Some(function) = self.function(callee).cloned() else {
            return Err(wrong(inst, format!("{callee} is no function")));
        };
        if self.entries.iter().any(|entry| entry.function == callee) {
            return Err(wrong(inst, "it calls an entry point"));
        }
        let takes = self.module.rest(self.module.definition(function.ty), 3).to_vec();
        let given = self.operands(here, 4)?;
        let types: Vec<u32> = given.iter().map(|id| self.module.id(*id).ty).collect();
        if function.returns != ty || takes != types {
            return Err(wrong(inst, "its arguments or its result are not those of the function"));
        }
        for (id, ty) in given.iter().zip(&types) {
            // Into which classes is checked where the function takes them.
            let is_pointer = matches!(self.shape(*ty), Shape::Pointer { .. });
            let made = self.module.definition(*id).op();
            if is_pointer && !matches!(made, Op::Variable | Op::FunctionParameter) {
                return Err(wrong(inst, "only whole variables can be handed to functions by pointer"));
            }
        }
        let globals: Vec<u32> =
            given.into_iter().filter(|id| self.module.id(*id).kind == Kind::Global).collect();
        if let Some(caller) = self.functions.get_mut(here.function as usize) {
            caller.calls.push(called.data);
            caller.names.extend(globals);
        }
        if self.shape(ty) == Shape::Void {
            let meaning = crate::shader::module::Id {
                kind: Kind::Debug,
                inst: here.index,
                block: NOWHERE,
                ty: 0,
                data: 0,
            };
            return self.module.define(inst, id, meaning);
        }
        self.result_of(here, false).map(|_| ())
    }

    fn is_product(&self, op: Op, ty: u32, operands: &[u32]) -> bool {
        // Columns, rows and component type of what is a matrix; a vector of n is n rows.
        let matrix = |ty: u32| match self.shape(ty) {
            Shape::Matrix { column, count } => match self.shape(column) {
                Shape::Vector { of, count: rows } => Some((count, rows, of)),
                _ => None,
            },
            _ => None,
        };
        let vector = |ty: u32| match self.shape(ty) {
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

    /// Checks an instruction of `GLSL.std.450` whose result of type `ty` is defined.
    pub(super) fn check_glsl(
        &mut self,
        here: Here,
        number: u32,
        ty: u32,
        operands: &[u32],
    ) -> Result<(), GuardError> {
        let inst = here.inst;
        if let Some(rule) = rules::of_glsl(number) {
            return self.keep(inst, rule, ty, operands);
        }
        let square = |ty: u32| match self.shape(ty) {
            Shape::Matrix { column, count } => match self.shape(column) {
                Shape::Vector { of, count: rows } if rows == count => Some(of),
                _ => None,
            },
            _ => None,
        };
        if let [matrix] = *operands {
            let given = self.module.id(matrix).ty;
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
        let given = operands.first().map_or(0, |id| self.module.id(*id).ty);
        if let (Some(second), [_], [a, b]) = (split, operands, self.members(ty)) {
            let (x, y) = (self.numeric(*a), self.numeric(*b));
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
}

/// Versions from which interfaces name every variable.
pub(super) const ALL_NAMED: u32 = V1_4;
