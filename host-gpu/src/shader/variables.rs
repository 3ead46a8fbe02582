//! Variables of the module: buffers, constants pushed, inputs, and memory of workgroups and invocations.

use spirv::Capability;
use spirv::Decoration as Name;
use spirv::StorageClass;

use crate::shader::capabilities::Capabilities;
use crate::shader::decorations::Decorations;
use crate::shader::decorations::WHOLE;
use crate::shader::error::GuardError;
use crate::shader::layout::LayoutFinder;
use crate::shader::layout::Layouts;
use crate::shader::layout::Rules;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::shape::has;
use crate::shader::symbols::Symbols;
use crate::shader::symbols::Value;

/// How many variables a module may have.
const LIMIT: usize = 1024;

#[derive(Default)]
pub(super) struct Variables {
    /// Their ids, in the order of their declarations.
    ids: Vec<u32>,
}

impl Variables {
    /// Takes in an `OpVariable` before the functions.
    pub(super) fn declare(
        &mut self,
        symbols: &mut Symbols<'_>,
        index: u32,
        inst: Inst,
    ) -> Result<(), GuardError> {
        inst.length(4, 5)?;
        let (ty, id, named) =
            (symbols.module.word(inst, 1), symbols.module.word(inst, 2), symbols.module.word(inst, 3));
        let Shape::Pointer { class, to } = symbols.shape(ty) else {
            return Err(wrong(inst, "its type is not a pointer"));
        };
        if named != class as u32 || matches!(class, StorageClass::Function | StorageClass::Image) {
            return Err(wrong(inst, "its storage class is not that of its type, or belongs in a function"));
        }
        if inst.len == 5 {
            let initial = symbols.module.word(inst, 4);
            let meaning = symbols.module.id(initial);
            let null = symbols.value(initial) == Some(Value::Null);
            let allowed = class == StorageClass::Private || class == StorageClass::Workgroup && null;
            if !allowed || meaning.kind != Kind::Constant || meaning.ty != to {
                return Err(wrong(inst, "it has an initial value that variables of its class cannot have"));
            }
        }
        if self.ids.len() >= LIMIT {
            return Err(wrong(inst, format!("more than {LIMIT} variables")));
        }
        self.ids.push(id);
        symbols.module.define(inst, id, Id { kind: Kind::Global, ty, inst: index, block: NOWHERE, data: id })
    }
}

/// Checks variables with their types and decorations.
pub(super) struct VariableCheck<'s, 'a> {
    pub(super) symbols: &'s Symbols<'a>,
    pub(super) capabilities: &'s Capabilities,
    pub(super) decorations: &'s Decorations,
    pub(super) layouts: &'s mut Layouts,
}

impl VariableCheck<'_, '_> {
    /// Checks every variable with its decorations, which are all known now.
    pub(super) fn check(&mut self, variables: &Variables) -> Result<(), GuardError> {
        for id in variables.ids.iter().copied() {
            let inst = self.symbols.module.definition(id);
            let held = self.symbols.held(id);
            match self.symbols.class_of(id) {
                Some(StorageClass::Input) => {
                    if self.decorations.builtin(id).is_none() {
                        return Err(wrong(inst, "it is an input that compute kernels do not have"));
                    }
                }
                Some(StorageClass::Workgroup | StorageClass::Private) => {
                    check_memory(self.symbols, self.capabilities, inst, held)?
                }
                Some(StorageClass::UniformConstant) => self.check_placed(inst, id)?,
                Some(class) => self.check_buffer(inst, id, held, class)?,
                None => return Err(wrong(inst, "it has no storage class")),
            }
        }
        Ok(())
    }

    fn check_placed(&self, inst: Inst, id: u32) -> Result<(), GuardError> {
        let is_placed = self.decorations.is_decorated(id, WHOLE, Name::Binding)
            && self.decorations.is_decorated(id, WHOLE, Name::DescriptorSet);
        if is_placed { Ok(()) } else { Err(wrong(inst, "it is a buffer without a set or a binding")) }
    }

    fn check_buffer(
        &mut self,
        inst: Inst,
        id: u32,
        held: u32,
        class: StorageClass,
    ) -> Result<(), GuardError> {
        let push = class == StorageClass::PushConstant;
        let block = match self.symbols.shape(held) {
            Shape::Array { of, .. } if !push => of,
            _ => held,
        };
        let (plain, old) = (
            self.decorations.is_decorated(block, WHOLE, Name::Block),
            self.decorations.is_decorated(block, WHOLE, Name::BufferBlock),
        );
        let fits = plain || old && class == StorageClass::Uniform;
        if !fits {
            return Err(wrong(inst, "it is no struct decorated as a block for its storage class"));
        }
        if !push {
            self.check_placed(inst, id)?;
        }
        let inside = self.symbols.ty(block).has;
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
        // Where numbers of this width may be computed with, only the device counts.
        let may_hold = |what, storage: Capability, computes| {
            let offered = || self.capabilities.profile.offers(storage as u32) == Some(true);
            inside & what == 0
                || self.capabilities.has(storage)
                || self.capabilities.has(computes) && offered()
        };
        let small = !may_hold(has::INT_8, eight, Capability::Int8)
            || !may_hold(has::INT_16, sixteen, Capability::Int16)
            || !may_hold(has::FLOAT_16, sixteen, Capability::Float16);
        if small {
            return Err(wrong(
                inst,
                "8 or 16 bits in this kind of buffer need a capability that is not declared",
            ));
        }
        let (symbols, decorations, layouts) = (self.symbols, self.decorations, &mut *self.layouts);
        let mut finder = LayoutFinder { symbols, decorations, layouts };
        let rules = Rules::of(&self.capabilities.profile, class == StorageClass::Uniform && !old);
        if finder.layout(block, rules).is_none() {
            return Err(wrong(
                inst,
                "its members have no offsets and strides, or they overlap or are misaligned",
            ));
        }
        Ok(())
    }
}

/// Memory that no buffer is: sized, and of numbers that may be computed with.
pub(super) fn check_memory(
    symbols: &Symbols<'_>,
    capabilities: &Capabilities,
    inst: Inst,
    held: u32,
) -> Result<(), GuardError> {
    let inside = symbols.ty(held).has;
    if inside & has::RUNTIME != 0 {
        return Err(wrong(inst, "an array without a length needs a buffer"));
    }
    if capabilities.is_limited(symbols, held) {
        return Err(wrong(inst, "8 or 16 bits outside of buffers need Int8, Int16 or Float16"));
    }
    Ok(())
}
