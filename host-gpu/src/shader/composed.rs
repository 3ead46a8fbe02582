//! Instructions that make or take apart composites, and calls.

use spirv::Op;
use spirv::StorageClass;

use crate::shader::body::Body;
use crate::shader::body::Here;
use crate::shader::error::GuardError;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::texels;
use crate::shader::typing::Typing;

impl Body<'_, '_> {
    /// Checks the instruction if it makes or takes apart composites, or calls; and says whether it does.
    pub(super) fn check_composed(&mut self, here: Here) -> Result<bool, GuardError> {
        let inst = here.inst;
        match inst.op() {
            Op::CompositeConstruct => {
                inst.length(4, u32::MAX)?;
                let parts = self.operands(here, 3)?;
                let ty = self.result_of(here, false)?;
                Typing::of(self.symbols).check_construct(inst, ty, &parts)?;
            }
            op @ (Op::CompositeExtract | Op::CompositeInsert | Op::VectorShuffle) => {
                inst.length(5, 260)?;
                self.used(here, 3)?;
                if op != Op::CompositeExtract {
                    self.used(here, 4)?;
                }
                let ty = self.result_of(here, false)?;
                Typing::of(self.symbols).check_composite(inst, op, ty, self.symbols.module.rest(inst, 3))?;
            }
            Op::VectorExtractDynamic => {
                inst.length(5, 5)?;
                let vector = self.used(here, 3)?;
                let Shape::Vector { of, count } = self.symbols.shape(vector.ty) else {
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
                let Shape::Vector { of, count } = self.symbols.shape(vector.ty) else {
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
                let types: Vec<u32> = operands.iter().map(|id| self.symbols.module.id(*id).ty).collect();
                if !Typing::of(self.symbols).is_product(inst.op(), ty, &types) {
                    return Err(wrong(inst, "its operands do not fit its result"));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check_call(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(4, u32::MAX)?;
        let (ty, id, callee) = (
            self.symbols.module.word(inst, 1),
            self.symbols.module.word(inst, 2),
            self.symbols.module.word(inst, 3),
        );
        let called = self.symbols.module.id(callee);
        let Some(function) = self.functions.function(self.symbols, callee).cloned() else {
            return Err(wrong(inst, format!("{callee} is no function")));
        };
        if self.entries.list.iter().any(|entry| entry.function == callee) {
            return Err(wrong(inst, "it calls an entry point"));
        }
        let takes = self.symbols.module.rest(self.symbols.module.definition(function.ty), 3).to_vec();
        let given = self.operands(here, 4)?;
        let types: Vec<u32> = given.iter().map(|id| self.symbols.module.id(*id).ty).collect();
        if function.returns != ty || takes != types {
            return Err(wrong(inst, "its arguments or its result are not those of the function"));
        }
        // Storage texel buffers: what a function does with one that it is given is not traced back to the variable.
        let mut stored = Vec::new();
        for (id, ty) in given.iter().zip(&types) {
            // Into which classes is checked where the function takes them.
            let Shape::Pointer { class, to } = self.symbols.shape(*ty) else { continue };
            let made = self.symbols.module.definition(*id).op();
            let is_texels = class == StorageClass::UniformConstant;
            let is_element = is_texels
                && matches!(self.symbols.shape(to), Shape::Image { .. } | Shape::SampledImage { .. })
                && matches!(made, Op::AccessChain | Op::InBoundsAccessChain);
            if !is_element && !matches!(made, Op::Variable | Op::FunctionParameter) {
                return Err(wrong(inst, "only whole variables can be handed to functions by pointer"));
            }
            let root = self.symbols.module.id(*id).data;
            if is_texels && texels::of_variable(self.symbols, root).is_some_and(|(_, stored)| stored) {
                stored.push(root);
            }
        }
        let globals: Vec<u32> =
            given.into_iter().filter(|id| self.symbols.module.id(*id).kind == Kind::Global).collect();
        if let Some(caller) = self.functions.list.get_mut(here.function as usize) {
            caller.calls.push(called.data);
            caller.writes.extend(stored);
            caller.names.extend(globals);
        }
        if self.symbols.shape(ty) == Shape::Void {
            let meaning = crate::shader::module::Id {
                kind: Kind::Debug,
                inst: here.index,
                block: NOWHERE,
                ty: 0,
                data: 0,
            };
            return self.symbols.module.define(inst, id, meaning);
        }
        self.result_of(here, false).map(|_| ())
    }
}
