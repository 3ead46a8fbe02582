//! Declarations of types: what may be declared, how large a value is, and what it has in it.

use std::collections::HashSet;

use spirv::Capability;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::capabilities::Capabilities;
use crate::shader::error::GuardError;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::NOWHERE;
use crate::shader::module::wrong;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::shape::Type;
use crate::shader::shape::has;
use crate::shader::symbols::Symbols;
use crate::shader::texels;

/// How deep types may nest: arrays of structs of arrays.
const DEPTH_LIMIT: u32 = 32;
/// How many types a module may declare.
const TYPES_LIMIT: usize = 4096;
/// How many members all structs together may have.
const MEMBERS_LIMIT: u32 = 16 * 1024;

/// What the types declared so far limit in those to come.
#[derive(Default)]
pub(super) struct Types {
    /// Types that may be declared once only, by their instructions.
    distinct: HashSet<Vec<u32>>,
    /// Members of all structs.
    members: u32,
}

impl Types {
    /// Takes in one of the instructions `OpType…`.
    pub(super) fn declare(
        &mut self,
        symbols: &mut Symbols<'_>,
        capabilities: &Capabilities,
        index: u32,
        inst: Inst,
    ) -> Result<(), GuardError> {
        let ty = self.read(symbols, capabilities, inst)?;
        if ty.depth > DEPTH_LIMIT {
            return Err(wrong(inst, format!("types nest deeper than {DEPTH_LIMIT}")));
        }
        if symbols.types.len() >= TYPES_LIMIT {
            return Err(wrong(inst, format!("more than {TYPES_LIMIT} types")));
        }
        // Arrays and structs may be declared alike with different decorations; all else is declared once.
        let aggregate = matches!(
            ty.shape,
            Shape::Array { .. } | Shape::Runtime { .. } | Shape::Struct | Shape::Pointer { .. }
        );
        let id = symbols.module.word(inst, 1);
        if !aggregate {
            let mut key = vec![inst.code];
            key.extend_from_slice(symbols.module.rest(inst, 2));
            if !self.distinct.insert(key) {
                return Err(wrong(inst, "the same type is declared twice"));
            }
        }
        let data = u32::try_from(symbols.types.len()).unwrap_or(NOWHERE);
        symbols.types.push(ty);
        symbols.module.define(inst, id, Id { kind: Kind::Type, inst: index, block: NOWHERE, data, ty: 0 })
    }

    fn read(
        &mut self,
        symbols: &Symbols<'_>,
        capabilities: &Capabilities,
        inst: Inst,
    ) -> Result<Type, GuardError> {
        let first = symbols.module.word(inst, 2);
        let second = symbols.module.word(inst, 3);
        let plain = |shape, bytes: u32, has| Type { shape, bytes: u64::from(bytes), has, depth: 0 };
        let inside = symbols.ty(first);
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
                    8 => (capabilities.has_any(&EIGHT), has::INT_8),
                    16 => {
                        (capabilities.has_any(&SIXTEEN) || capabilities.has(Capability::Int16), has::INT_16)
                    }
                    32 => (true, 0),
                    64 => (capabilities.has(Capability::Int64), 0),
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
                    16 => (
                        capabilities.has_any(&SIXTEEN) || capabilities.has(Capability::Float16),
                        has::FLOAT_16,
                    ),
                    32 => (true, 0),
                    64 => (capabilities.has(Capability::Float64), 0),
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
                let column = symbols.numeric(first);
                let good = column.is_some_and(|c| c.scalar == Scalar::Float && c.count > 1);
                if !good || !(2..=4).contains(&second) {
                    return refuse("a matrix has 2 to 4 columns of a float vector type");
                }
                times(Shape::Matrix { column: first, count: second }, second)
            }
            Op::TypeArray => {
                inst.length(4, 4)?;
                let Some(count) = length_of(symbols, second) else {
                    return refuse("its length is not a known integer constant of at least 1, below 2^31");
                };
                // Also of structs that end in an array without a length: several buffers at one binding.
                let several = matches!(inside.shape, Shape::Image { .. } | Shape::SampledImage { .. });
                if inside.shape != Shape::Struct && !several && !symbols.is_value(first) {
                    return refuse("its elements have no type that can be stored");
                }
                times(Shape::Array { of: first, count }, count)
            }
            Op::TypeRuntimeArray => {
                inst.length(3, 3)?;
                if !symbols.is_value(first) {
                    return refuse("its elements have no type that can be stored");
                }
                Type { has: inside.has | has::RUNTIME, ..times(Shape::Runtime { of: first }, 0) }
            }
            Op::TypeStruct => self.read_struct(symbols, inst)?,
            Op::TypePointer => {
                inst.length(4, 4)?;
                let Some(class) = StorageClass::from_u32(first).filter(|class| CLASSES.contains(class))
                else {
                    return refuse("pointers into this storage class are not offered to compute kernels");
                };
                let to = symbols.ty(second);
                if matches!(to.shape, Shape::None | Shape::Void | Shape::Function | Shape::Pointer { .. }) {
                    return refuse("it does not point to a type that can be stored");
                }
                if !texels::may_point(symbols, class, second) {
                    return refuse(
                        "texel buffers are what UniformConstant has, all of it, and words what Image has",
                    );
                }
                Type { bytes: 0, has: 0, depth: to.depth + 1, shape: Shape::Pointer { class, to: second } }
            }
            Op::TypeFunction => {
                inst.length(3, u32::MAX)?;
                let returns = inside.shape == Shape::Void || symbols.is_value(first);
                let takes =
                    |id: &u32| symbols.is_value(*id) || matches!(symbols.shape(*id), Shape::Pointer { .. });
                if !returns || !symbols.module.rest(inst, 3).iter().all(takes) || inst.len > 256 {
                    return refuse("it returns or takes what no value can be");
                }
                plain(Shape::Function, 0, 0)
            }
            Op::TypeImage => plain(texels::image_type(symbols, capabilities, inst)?, 0, has::OPAQUE),
            Op::TypeSampledImage => plain(texels::sampled_type(symbols, inst)?, 0, has::OPAQUE),
            _ => return refuse("types of this kind are not offered to compute kernels here"),
        })
    }

    fn read_struct(&mut self, symbols: &Symbols<'_>, inst: Inst) -> Result<Type, GuardError> {
        inst.length(2, 1024)?;
        let mut ty = Type { shape: Shape::Struct, bytes: 0, has: 0, depth: 0 };
        self.members += inst.len;
        if self.members > MEMBERS_LIMIT {
            return Err(wrong(inst, format!("structs have more than {MEMBERS_LIMIT} members in all")));
        }
        let members = symbols.module.rest(inst, 2);
        for (at, member) in members.iter().enumerate() {
            let inside = symbols.ty(*member);
            let last = at + 1 == members.len() && matches!(inside.shape, Shape::Runtime { .. });
            if !last && !symbols.is_value(*member) {
                return Err(wrong(inst, format!("member {at} has no type that can be stored there")));
            }
            ty.bytes = ty.bytes.saturating_add(inside.bytes);
            ty.has |= inside.has;
            ty.depth = ty.depth.max(inside.depth + 1);
        }
        Ok(ty)
    }
}

/// The constant `id` as a length.
fn length_of(symbols: &Symbols<'_>, id: u32) -> Option<u32> {
    let value = symbols.integer(id)?;
    u32::try_from(value).ok().filter(|count| (1..1 << 31).contains(count))
}

const EIGHT: [Capability; 4] = [
    Capability::Int8,
    Capability::StorageBuffer8BitAccess,
    Capability::UniformAndStorageBuffer8BitAccess,
    Capability::StoragePushConstant8,
];
/// Capabilities with which numbers of 16 bits lie in buffers.
pub(super) const SIXTEEN: [Capability; 3] = [
    Capability::StorageBuffer16BitAccess,
    Capability::UniformAndStorageBuffer16BitAccess,
    Capability::StoragePushConstant16,
];
const CLASSES: [StorageClass; 9] = [
    StorageClass::UniformConstant,
    StorageClass::Image,
    StorageClass::Input,
    StorageClass::Uniform,
    StorageClass::StorageBuffer,
    StorageClass::PushConstant,
    StorageClass::Workgroup,
    StorageClass::Private,
    StorageClass::Function,
];
