//! What is known of ids: their types and constants, looked up. Each pass adds to it, and all of them read it.

use spirv::StorageClass;

use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::wrong;
use crate::shader::shape::Numeric;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::shape::Type;
use crate::shader::shape::has;

/// The largest value that a kernel may hold in a variable, a constant or an expression, bytes.
const VALUE_LIMIT: u64 = 16 * 1024;

/// What is known of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    /// A scalar, as many low bits as its type has; 0 or 1 for a bool.
    Bits(u64),
    /// Its parts are the operands of its instruction.
    Parts,
    /// Computed by the driver: never a length.
    Unknown,
}

const NONE: Type = Type { shape: Shape::None, bytes: 0, has: 0, depth: 0 };

/// The module, and what its ids of types and constants stand for.
pub(super) struct Symbols<'a> {
    pub(super) module: Module<'a>,
    /// By the `data` of their ids.
    pub(super) types: Vec<Type>,
    pub(super) constants: Vec<Value>,
}

impl<'a> Symbols<'a> {
    /// Of a module of which nothing is known yet.
    pub(super) fn new(module: Module<'a>) -> Self {
        Self { module, types: Vec::new(), constants: Vec::new() }
    }

    pub(super) fn ty(&self, id: u32) -> Type {
        let meaning = self.module.id(id);
        let found = (meaning.kind == Kind::Type).then(|| self.types.get(meaning.data as usize)).flatten();
        found.copied().unwrap_or(NONE)
    }

    pub(super) fn shape(&self, id: u32) -> Shape {
        self.ty(id).shape
    }

    /// The type as numbers, if it is a scalar or a vector.
    pub(super) fn numeric(&self, id: u32) -> Option<Numeric> {
        let (shape, count) = match self.shape(id) {
            Shape::Vector { of, count } => (self.shape(of), count),
            shape => (shape, 1),
        };
        let (scalar, bits, signed) = match shape {
            Shape::Bool => (Scalar::Bool, 1, false),
            Shape::Int { bits, signed } => (Scalar::Int, bits, signed),
            Shape::Float { bits } => (Scalar::Float, bits, true),
            _ => return None,
        };
        Some(Numeric { scalar, bits, signed, count })
    }

    /// The members of a struct type.
    pub(super) fn members(&self, id: u32) -> &'a [u32] {
        match self.shape(id) {
            Shape::Struct => self.module.rest(self.module.definition(id), 2),
            _ => &[],
        }
    }

    /// A type that a value can have: what can be stored, passed and returned.
    pub(super) fn is_value(&self, id: u32) -> bool {
        let plain =
            !matches!(self.shape(id), Shape::None | Shape::Void | Shape::Pointer { .. } | Shape::Function);
        plain && self.ty(id).has & (has::RUNTIME | has::OPAQUE) == 0
    }

    /// A texel buffer, or an array of them.
    pub(super) fn is_opaque(&self, id: u32) -> bool {
        self.ty(id).has & has::OPAQUE != 0
    }

    /// The type of the element, column, component or member `index` of `ty`; `None` where there is none.
    pub(super) fn part(&self, ty: u32, index: u32) -> Option<u32> {
        match self.shape(ty) {
            Shape::Vector { of, count } | Shape::Array { of, count } => (index < count).then_some(of),
            Shape::Matrix { column, count } => (index < count).then_some(column),
            Shape::Struct => self.members(ty).get(index as usize).copied(),
            _ => None,
        }
    }

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
    pub(super) fn bits(&self, id: u32) -> Option<u64> {
        match self.value(id)? {
            Value::Null => Some(0),
            Value::Bits(value) => Some(value),
            _ => None,
        }
    }

    /// The part of a constant that `[composite, index, …]` names.
    pub(super) fn extract(&self, operands: &[u32]) -> Value {
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

    /// What an array holds at last, through all its dimensions.
    pub(super) fn innermost(&self, ty: u32) -> u32 {
        let mut ty = ty;
        while let Shape::Array { of, .. } | Shape::Runtime { of } = self.shape(ty) {
            ty = of;
        }
        ty
    }

    /// The class of a global variable.
    pub(super) fn class_of(&self, id: u32) -> Option<StorageClass> {
        let meaning = self.module.id(id);
        match self.shape(meaning.ty) {
            Shape::Pointer { class, .. } if meaning.kind == Kind::Global => Some(class),
            _ => None,
        }
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

    /// Whether a value of this type would keep a driver's compiler busy: it takes values apart.
    pub(super) fn is_large(&self, ty: u32) -> bool {
        self.ty(ty).bytes > VALUE_LIMIT
    }

    /// Refuses values of such a type.
    pub(super) fn check_size(&self, inst: Inst, ty: u32) -> Result<(), GuardError> {
        let bytes = self.ty(ty).bytes;
        if !self.is_large(ty) {
            return Ok(());
        }
        Err(wrong(inst, format!("{bytes} bytes in one value, more than {VALUE_LIMIT}")))
    }
}
