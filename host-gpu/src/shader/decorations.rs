//! Decorations: which may stand where, and what they say of an id.

use spirv::BuiltIn;
use spirv::Decoration as Name;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::wrong;
use crate::shader::types::Scalar;
use crate::shader::types::Shape;

/// Not of a member.
pub(super) const WHOLE: u32 = u32::MAX;
/// How many decorations a module may have.
const LIMIT: usize = 64 * 1024;

/// One decoration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoration {
    pub(super) target: u32,
    /// The member of a struct; `WHOLE` otherwise.
    pub(super) member: u32,
    pub(super) name: Name,
    /// Its literal, 0 where it has none.
    pub(super) value: u32,
    pub(super) inst: Inst,
}

impl Guard<'_> {
    /// Takes in `OpDecorate` or `OpMemberDecorate`.
    pub(super) fn decorate(&mut self, inst: Inst) -> Result<(), GuardError> {
        let of_member = inst.op() == Op::MemberDecorate;
        let at = if of_member { 3 } else { 2 };
        inst.length(at + 1, u32::MAX)?;
        let code = self.module.word(inst, at);
        let name =
            Name::from_u32(code).ok_or_else(|| wrong(inst, format!("there is no decoration {code}")))?;
        let refuse = || wrong(inst, format!("the decoration {name:?} is not offered to compute kernels"));
        let literals = match name {
            Name::RelaxedPrecision
            | Name::Block
            | Name::BufferBlock
            | Name::RowMajor
            | Name::ColMajor
            | Name::NonWritable
            | Name::NonReadable
            | Name::Coherent
            | Name::Volatile
            | Name::Restrict
            | Name::Aliased
            | Name::NoContraction
            | Name::Uniform => 0,
            Name::ArrayStride
            | Name::MatrixStride
            | Name::BuiltIn
            | Name::Binding
            | Name::DescriptorSet
            | Name::Offset
            | Name::SpecId
            | Name::UniformId => 1,
            _ => return Err(refuse()),
        };
        if (inst.op() == Op::DecorateId) != (name == Name::UniformId) {
            return Err(refuse());
        }
        inst.length(at + 1 + literals, at + 1 + literals)?;
        if self.decorations.len() >= LIMIT {
            return Err(wrong(inst, format!("more than {LIMIT} decorations")));
        }
        let member = if of_member { self.module.word(inst, 2) } else { WHOLE };
        let (target, value) = (self.module.word(inst, 1), self.module.word(inst, at + 1));
        self.decorations.push(Decoration { target, member, name, value, inst });
        Ok(())
    }

    pub(super) fn sort_decorations(&mut self) {
        self.decorations.sort_by_key(|d| (d.target, d.member, d.name as u32));
    }

    /// Every decoration of `target`, members included.
    pub(super) fn decorations_of(&self, target: u32) -> &[Decoration] {
        let from = self.decorations.partition_point(|d| d.target < target);
        let rest = self.decorations.get(from..).unwrap_or(&[]);
        let count = rest.partition_point(|d| d.target == target);
        rest.get(..count).unwrap_or(&[])
    }

    /// The literal of decoration `name` of `target`, or of its member; 0 for one without a literal.
    pub(super) fn decoration(&self, target: u32, member: u32, name: Name) -> Option<u32> {
        let all = self.decorations_of(target);
        let index = all.binary_search_by_key(&(member, name as u32), |d| (d.member, d.name as u32)).ok()?;
        all.get(index).map(|d| d.value)
    }

    pub(super) fn is_decorated(&self, target: u32, member: u32, name: Name) -> bool {
        self.decoration(target, member, name).is_some()
    }

    /// Whether `d` goes into the result. The others only help compilers, or say what the guard has made true.
    pub(super) fn is_kept(&self, d: &Decoration) -> bool {
        let kind = self.module.id(d.target).kind;
        match d.name {
            Name::RelaxedPrecision | Name::SpecId | Name::Uniform | Name::UniformId | Name::NonReadable => {
                false
            }
            // Of lookup tables in functions they are only hints.
            Name::NonWritable | Name::Coherent | Name::Volatile => kind == Kind::Global || d.member != WHOLE,
            Name::Restrict | Name::Aliased => kind == Kind::Global,
            // Only what values of functions can have may stand before its target is known.
            Name::NoContraction => kind != Kind::None,
            _ => true,
        }
    }

    /// Checks every decoration against its target. What stands on values of functions is checked with those.
    pub(super) fn check_decorations(&self) -> Result<(), GuardError> {
        let mut before: Option<&Decoration> = None;
        for d in &self.decorations {
            let same = |b: &Decoration| (b.target, b.member, b.name) == (d.target, d.member, d.name);
            if before.is_some_and(same) && self.is_kept(d) {
                return Err(wrong(d.inst, format!("{:?} stands twice on the same thing", d.name)));
            }
            before = Some(d);
            if !self.fits(d) {
                return Err(wrong(d.inst, format!("{:?} does not belong on {}", d.name, d.target)));
            }
        }
        Ok(())
    }

    fn fits(&self, d: &Decoration) -> bool {
        if !self.is_kept(d) {
            return true;
        }
        let (kind, shape) = (self.module.id(d.target).kind, self.shape(d.target));
        let of_struct = shape == Shape::Struct && d.member == WHOLE;
        let class = self.class_of(d.target);
        let buffer = matches!(class, Some(StorageClass::StorageBuffer | StorageClass::Uniform));
        if d.member != WHOLE {
            let Some(member) = self.members(d.target).get(d.member as usize) else { return false };
            return match d.name {
                Name::Offset | Name::NonWritable => true,
                Name::Coherent | Name::Volatile => !self.vulkan_memory,
                Name::RowMajor | Name::ColMajor | Name::MatrixStride => {
                    matches!(self.shape(self.innermost(*member)), Shape::Matrix { .. })
                }
                _ => false,
            };
        }
        match d.name {
            Name::Block => of_struct && !self.is_decorated(d.target, WHOLE, Name::BufferBlock),
            Name::BufferBlock => of_struct && self.module.version < crate::shader::module::V1_4,
            Name::ArrayStride => matches!(shape, Shape::Array { .. } | Shape::Runtime { .. }) && d.value > 0,
            Name::Binding | Name::DescriptorSet => buffer,
            Name::NonWritable | Name::Aliased => buffer,
            Name::Restrict => buffer && !self.is_decorated(d.target, WHOLE, Name::Aliased),
            Name::Coherent | Name::Volatile => buffer && !self.vulkan_memory,
            Name::BuiltIn => match class {
                Some(class) => class == StorageClass::Input && self.fits_builtin(d.target, d.value),
                None => {
                    kind == Kind::Constant
                        && d.value == BuiltIn::WorkgroupSize as u32
                        && self.is_triple(d.target)
                }
            },
            // Also `NoContraction`: what it may stand on is declared later, and checked in `body.rs`.
            _ => false,
        }
    }

    fn is_triple(&self, id: u32) -> bool {
        let number = self.numeric(self.module.id(id).ty);
        number.is_some_and(|n| n.scalar == Scalar::Int && n.bits == 32 && n.count == 3)
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
}
