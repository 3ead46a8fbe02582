//! Variables of the module: buffers, constants pushed, inputs, and memory of workgroups and invocations.

use spirv::BuiltIn;
use spirv::Capability;
use spirv::Decoration as Name;
use spirv::StorageClass;

use crate::shader::constants::Value;
use crate::shader::decorations::WHOLE;
use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::types::Numeric;
use crate::shader::types::Scalar;
use crate::shader::types::Shape;
use crate::shader::types::has;

/// How many variables a module may have.
const LIMIT: usize = 1024;

impl Guard<'_> {
    /// Takes in an `OpVariable` before the functions.
    pub(super) fn declare_variable(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        inst.length(4, 5)?;
        let (ty, id, named) =
            (self.module.word(inst, 1), self.module.word(inst, 2), self.module.word(inst, 3));
        let Shape::Pointer { class, to } = self.shape(ty) else {
            return Err(wrong(inst, "its type is not a pointer"));
        };
        if named != class as u32 || class == StorageClass::Function {
            return Err(wrong(inst, "its storage class is not that of its type, or belongs in a function"));
        }
        if inst.len == 5 {
            let initial = self.module.word(inst, 4);
            let meaning = self.module.id(initial);
            let null = self.value(initial) == Some(Value::Null);
            let allowed = class == StorageClass::Private || class == StorageClass::Workgroup && null;
            if !allowed || meaning.kind != Kind::Constant || meaning.ty != to {
                return Err(wrong(inst, "it has an initial value that variables of its class cannot have"));
            }
        }
        if self.globals.len() >= LIMIT {
            return Err(wrong(inst, format!("more than {LIMIT} variables")));
        }
        self.globals.push(id);
        self.module.define(inst, id, Id { kind: Kind::Global, ty, inst: index, block: NOWHERE, data: id })
    }

    /// The type that variable `id` holds.
    pub(super) fn held(&self, id: u32) -> u32 {
        match self.shape(self.module.id(id).ty) {
            Shape::Pointer { to, .. } => to,
            _ => 0,
        }
    }

    pub(super) fn is_input(&self, id: u32) -> bool {
        self.class_of(id) == Some(StorageClass::Input)
    }

    /// The built-in that variable `id` is.
    pub(super) fn builtin(&self, id: u32) -> Option<BuiltIn> {
        self.decoration(id, WHOLE, Name::BuiltIn).and_then(BuiltIn::from_u32)
    }

    /// Whether input `id` has the type of built-in `value`, and kernels have that.
    pub(super) fn fits_builtin(&self, id: u32, value: u32) -> bool {
        let Some(builtin) = BuiltIn::from_u32(value) else { return false };
        let basic = self.has(Capability::GroupNonUniform);
        let ballot = self.has(Capability::GroupNonUniformBallot);
        let (count, allowed) = match builtin {
            BuiltIn::NumWorkgroups
            | BuiltIn::WorkgroupId
            | BuiltIn::LocalInvocationId
            | BuiltIn::GlobalInvocationId => (3, true),
            BuiltIn::LocalInvocationIndex => (1, true),
            BuiltIn::SubgroupSize
            | BuiltIn::NumSubgroups
            | BuiltIn::SubgroupId
            | BuiltIn::SubgroupLocalInvocationId => (1, basic),
            BuiltIn::SubgroupEqMask
            | BuiltIn::SubgroupGeMask
            | BuiltIn::SubgroupGtMask
            | BuiltIn::SubgroupLeMask
            | BuiltIn::SubgroupLtMask => (4, ballot),
            _ => return false,
        };
        let wanted = Numeric { scalar: Scalar::Int, bits: 32, signed: false, count };
        allowed && self.numeric(self.held(id)).is_some_and(|n| Numeric { signed: false, ..n } == wanted)
    }

    /// Checks every variable with its decorations, which are all known now.
    pub(super) fn check_variables(&mut self) -> Result<(), GuardError> {
        for at in 0..self.globals.len() {
            let id = self.globals.get(at).copied().unwrap_or(0);
            let inst = self.module.definition(id);
            let held = self.held(id);
            match self.class_of(id) {
                Some(StorageClass::Input) => {
                    if self.builtin(id).is_none() {
                        return Err(wrong(inst, "it is an input that compute kernels do not have"));
                    }
                }
                Some(StorageClass::Workgroup | StorageClass::Private) => self.check_memory(inst, held)?,
                Some(class) => self.check_buffer(inst, id, held, class)?,
                None => return Err(wrong(inst, "it has no storage class")),
            }
        }
        Ok(())
    }

    /// Memory that no buffer is: sized, and of numbers that may be computed with.
    pub(super) fn check_memory(&self, inst: Inst, held: u32) -> Result<(), GuardError> {
        let inside = self.ty(held).has;
        let small = inside & has::INT_8 != 0 && !self.has(Capability::Int8)
            || inside & has::INT_16 != 0 && !self.has(Capability::Int16)
            || inside & has::FLOAT_16 != 0 && !self.has(Capability::Float16);
        if inside & has::RUNTIME != 0 {
            return Err(wrong(inst, "an array without a length needs a buffer"));
        }
        if small {
            return Err(wrong(inst, "8 or 16 bits outside of buffers need Int8, Int16 or Float16"));
        }
        Ok(())
    }

    fn check_buffer(
        &mut self,
        inst: Inst,
        id: u32,
        held: u32,
        class: StorageClass,
    ) -> Result<(), GuardError> {
        let push = class == StorageClass::PushConstant;
        let block = match self.shape(held) {
            Shape::Array { of, .. } if !push => of,
            _ => held,
        };
        let (plain, old) = (
            self.is_decorated(block, WHOLE, Name::Block),
            self.is_decorated(block, WHOLE, Name::BufferBlock),
        );
        let fits = plain || old && class == StorageClass::Uniform;
        if !fits {
            return Err(wrong(inst, "it is no struct decorated as a block for its storage class"));
        }
        let placed =
            self.is_decorated(id, WHOLE, Name::Binding) && self.is_decorated(id, WHOLE, Name::DescriptorSet);
        if !push && !placed {
            return Err(wrong(inst, "it is a buffer without a set or a binding"));
        }
        let inside = self.ty(block).has;
        let storage = class == StorageClass::StorageBuffer || old;
        if inside & has::BOOL != 0 {
            return Err(wrong(inst, "there are no booleans in buffers"));
        }
        if inside & has::RUNTIME != 0 && !storage {
            return Err(wrong(inst, "an array without a length needs a storage buffer"));
        }
        let (eight, sixteen) = match class {
            StorageClass::PushConstant => {
                (Capability::StoragePushConstant8, Capability::StoragePushConstant16)
            }
            _ if storage => (Capability::StorageBuffer8BitAccess, Capability::StorageBuffer16BitAccess),
            _ => (
                Capability::UniformAndStorageBuffer8BitAccess,
                Capability::UniformAndStorageBuffer16BitAccess,
            ),
        };
        let small = inside & has::INT_8 != 0 && !self.has(eight)
            || inside & (has::INT_16 | has::FLOAT_16) != 0 && !self.has(sixteen);
        if small {
            return Err(wrong(
                inst,
                "8 or 16 bits in this kind of buffer need a capability that is not declared",
            ));
        }
        if self.layout(block, class == StorageClass::Uniform && !old).is_none() {
            return Err(wrong(
                inst,
                "its members have no offsets and strides, or they overlap or are misaligned",
            ));
        }
        Ok(())
    }
}
