//! Types: what may be declared, how large a value is, and what it has in it.

use spirv::Capability;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;

/// How deep types may nest: arrays of structs of arrays.
const DEPTH_LIMIT: u32 = 32;
/// How many types a module may declare.
const TYPES_LIMIT: usize = 4096;
/// How many members all structs together may have.
const MEMBERS_LIMIT: u32 = 16 * 1024;

/// What a type is made of. Types are named by their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// No type at all.
    None,
    Void,
    Bool,
    Int {
        bits: u32,
        signed: bool,
    },
    Float {
        bits: u32,
    },
    Vector {
        of: u32,
        count: u32,
    },
    Matrix {
        column: u32,
        count: u32,
    },
    Array {
        of: u32,
        count: u32,
    },
    Runtime {
        of: u32,
    },
    Struct,
    Pointer {
        class: StorageClass,
        to: u32,
    },
    Function,
}

/// A scalar, or the components of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Bool,
    Int,
    Float,
}

/// A number or a vector of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numeric {
    pub(super) scalar: Scalar,
    pub(super) bits: u32,
    pub(super) signed: bool,
    pub(super) count: u32,
}

/// What is inside a type, however deep.
pub(super) mod has {
    pub(in super::super) const INT_8: u32 = 1;
    pub(in super::super) const INT_16: u32 = 2;
    pub(in super::super) const FLOAT_16: u32 = 4;
    pub(in super::super) const BOOL: u32 = 8;
    pub(in super::super) const RUNTIME: u32 = 16;
}

/// A declared type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Type {
    pub(super) shape: Shape,
    /// Bytes of a value, a runtime-sized array counted as empty.
    pub(super) bytes: u64,
    /// Of `has`.
    pub(super) has: u32,
    depth: u32,
}

const NONE: Type = Type { shape: Shape::None, bytes: 0, has: 0, depth: 0 };

impl Guard<'_> {
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
    pub(super) fn members(&self, id: u32) -> &[u32] {
        match self.shape(id) {
            Shape::Struct => self.module.rest(self.module.definition(id), 2),
            _ => &[],
        }
    }

    /// A type that a value can have: what can be stored, passed and returned.
    pub(super) fn is_value(&self, id: u32) -> bool {
        let plain =
            !matches!(self.shape(id), Shape::None | Shape::Void | Shape::Pointer { .. } | Shape::Function);
        plain && self.ty(id).has & has::RUNTIME == 0
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

    /// Takes in one of the instructions `OpType…`.
    pub(super) fn declare_type(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        let ty = self.read_type(inst)?;
        if ty.depth > DEPTH_LIMIT {
            return Err(wrong(inst, format!("types nest deeper than {DEPTH_LIMIT}")));
        }
        if self.types.len() >= TYPES_LIMIT {
            return Err(wrong(inst, format!("more than {TYPES_LIMIT} types")));
        }
        // Arrays and structs may be declared alike with different decorations; all else is declared once.
        let aggregate = matches!(
            ty.shape,
            Shape::Array { .. } | Shape::Runtime { .. } | Shape::Struct | Shape::Pointer { .. }
        );
        let id = self.module.word(inst, 1);
        if !aggregate {
            let mut key = vec![inst.code];
            key.extend_from_slice(self.module.rest(inst, 2));
            if !self.distinct.insert(key) {
                return Err(wrong(inst, "the same type is declared twice"));
            }
        }
        let data = u32::try_from(self.types.len()).unwrap_or(NOWHERE);
        self.types.push(ty);
        self.module.define(inst, id, Id { kind: Kind::Type, inst: index, block: NOWHERE, data, ty: 0 })
    }

    fn read_type(&mut self, inst: Inst) -> Result<Type, GuardError> {
        let first = self.module.word(inst, 2);
        let second = self.module.word(inst, 3);
        let plain = |shape, bytes: u32, has| Type { shape, bytes: u64::from(bytes), has, depth: 0 };
        let inside = self.ty(first);
        let times = |shape, count: u32| Type {
            shape,
            bytes: inside.bytes.saturating_mul(u64::from(count)),
            has: inside.has,
            depth: inside.depth + 1,
        };
        let refuse = |reason: &'static str| Err(wrong(inst, reason));
        Ok(match inst.op() {
            Op::TypeVoid => {
                inst.length(2, 2)?;
                plain(Shape::Void, 0, 0)
            }
            Op::TypeBool => {
                inst.length(2, 2)?;
                plain(Shape::Bool, 4, has::BOOL)
            }
            Op::TypeInt => {
                inst.length(4, 4)?;
                let (allowed, has) = match first {
                    8 => (self.has_any(&EIGHT), has::INT_8),
                    16 => (self.has_any(&SIXTEEN) || self.has(Capability::Int16), has::INT_16),
                    32 => (true, 0),
                    64 => (self.has(Capability::Int64), 0),
                    _ => (false, 0),
                };
                if !allowed || second > 1 {
                    return refuse(
                        "integers of this width need a capability that is not declared, or it is no width",
                    );
                }
                plain(Shape::Int { bits: first, signed: second == 1 }, first / 8, has)
            }
            Op::TypeFloat => {
                inst.length(3, 3)?;
                let (allowed, has) = match first {
                    16 => (self.has_any(&SIXTEEN) || self.has(Capability::Float16), has::FLOAT_16),
                    32 => (true, 0),
                    64 => (self.has(Capability::Float64), 0),
                    _ => (false, 0),
                };
                if !allowed {
                    return refuse(
                        "floats of this width need a capability that is not declared, or it is no width",
                    );
                }
                plain(Shape::Float { bits: first }, first / 8, has)
            }
            Op::TypeVector => {
                inst.length(4, 4)?;
                let scalar = matches!(inside.shape, Shape::Bool | Shape::Int { .. } | Shape::Float { .. });
                if !scalar || !(2..=4).contains(&second) {
                    return refuse("a vector has 2 to 4 components of a scalar type");
                }
                times(Shape::Vector { of: first, count: second }, second)
            }
            Op::TypeMatrix => {
                inst.length(4, 4)?;
                let column = self.numeric(first);
                let good = column.is_some_and(|c| c.scalar == Scalar::Float && c.count > 1);
                if !good || !(2..=4).contains(&second) {
                    return refuse("a matrix has 2 to 4 columns of a float vector type");
                }
                times(Shape::Matrix { column: first, count: second }, second)
            }
            Op::TypeArray => {
                inst.length(4, 4)?;
                let Some(count) = self.length_of(second) else {
                    return refuse("its length is not a known integer constant of at least 1, below 2^31");
                };
                // Also of structs that end in an array without a length: several buffers at one binding.
                if inside.shape != Shape::Struct && !self.is_value(first) {
                    return refuse("its elements have no type that can be stored");
                }
                times(Shape::Array { of: first, count }, count)
            }
            Op::TypeRuntimeArray => {
                inst.length(3, 3)?;
                if !self.is_value(first) {
                    return refuse("its elements have no type that can be stored");
                }
                Type { has: inside.has | has::RUNTIME, ..times(Shape::Runtime { of: first }, 0) }
            }
            Op::TypeStruct => self.read_struct(inst)?,
            Op::TypePointer => {
                inst.length(4, 4)?;
                let Some(class) = StorageClass::from_u32(first).filter(|class| CLASSES.contains(class))
                else {
                    return refuse("pointers into this storage class are not offered to compute kernels");
                };
                let to = self.ty(second);
                if matches!(to.shape, Shape::None | Shape::Void | Shape::Function | Shape::Pointer { .. }) {
                    return refuse("it does not point to a type that can be stored");
                }
                Type { bytes: 0, has: 0, depth: to.depth + 1, shape: Shape::Pointer { class, to: second } }
            }
            Op::TypeFunction => {
                inst.length(3, u32::MAX)?;
                let returns = inside.shape == Shape::Void || self.is_value(first);
                let takes = |id: &u32| self.is_value(*id) || matches!(self.shape(*id), Shape::Pointer { .. });
                if !returns || !self.module.rest(inst, 3).iter().all(takes) || inst.len > 256 {
                    return refuse("it returns or takes what no value can be");
                }
                plain(Shape::Function, 0, 0)
            }
            _ => return refuse("types of this kind are not offered to compute kernels here"),
        })
    }

    fn read_struct(&mut self, inst: Inst) -> Result<Type, GuardError> {
        inst.length(2, 1024)?;
        let mut ty = Type { shape: Shape::Struct, bytes: 0, has: 0, depth: 0 };
        self.members += inst.len;
        if self.members > MEMBERS_LIMIT {
            return Err(wrong(inst, format!("structs have more than {MEMBERS_LIMIT} members in all")));
        }
        let members = self.module.rest(inst, 2);
        for (at, member) in members.iter().enumerate() {
            let inside = self.ty(*member);
            let last = at + 1 == members.len() && matches!(inside.shape, Shape::Runtime { .. });
            if !last && !self.is_value(*member) {
                return Err(wrong(inst, format!("member {at} has no type that can be stored there")));
            }
            ty.bytes = ty.bytes.saturating_add(inside.bytes);
            ty.has |= inside.has;
            ty.depth = ty.depth.max(inside.depth + 1);
        }
        Ok(ty)
    }

    /// The constant `id` as a length.
    fn length_of(&self, id: u32) -> Option<u32> {
        let value = self.integer(id)?;
        u32::try_from(value).ok().filter(|count| (1..1 << 31).contains(count))
    }
}

const EIGHT: [Capability; 4] = [
    Capability::Int8,
    Capability::StorageBuffer8BitAccess,
    Capability::UniformAndStorageBuffer8BitAccess,
    Capability::StoragePushConstant8,
];
const SIXTEEN: [Capability; 3] = [
    Capability::StorageBuffer16BitAccess,
    Capability::UniformAndStorageBuffer16BitAccess,
    Capability::StoragePushConstant16,
];
const CLASSES: [StorageClass; 7] = [
    StorageClass::Input,
    StorageClass::Uniform,
    StorageClass::StorageBuffer,
    StorageClass::PushConstant,
    StorageClass::Workgroup,
    StorageClass::Private,
    StorageClass::Function,
];
