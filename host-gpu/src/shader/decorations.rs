//! Decorations: which may stand where, and what they say of an id.

use std::collections::HashMap;

use spirv::BuiltIn;
use spirv::Capability;
use spirv::Decoration as Name;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::capabilities::Capabilities;
use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::wrong;
use crate::shader::shape::Numeric;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;
use crate::shader::texels;

/// Not of a member.
pub(super) const WHOLE: u32 = u32::MAX;
/// How many decorations a module may have.
const LIMIT: usize = 64 * 1024;

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

/// All decorations; after [`Self::sort`] by target, member, name and literal, and each once.
#[derive(Default)]
pub(super) struct Decorations {
    pub(super) list: Vec<Decoration>,
    /// The `SpecId` of each constant that has one.
    pub(super) specialised: HashMap<u32, u32>,
}

impl Decorations {
    /// Takes in `OpDecorate` or `OpMemberDecorate`.
    pub(super) fn decorate(&mut self, module: &Module<'_>, inst: Inst) -> Result<(), GuardError> {
        let of_member = inst.op() == Op::MemberDecorate;
        let at = if of_member { 3 } else { 2 };
        inst.length(at + 1, u32::MAX)?;
        let code = module.word(inst, at);
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
            | Name::NoSignedWrap
            | Name::NoUnsignedWrap
            | Name::Uniform => 0,
            Name::ArrayStride
            | Name::MatrixStride
            | Name::BuiltIn
            | Name::Binding
            | Name::DescriptorSet
            | Name::Offset
            | Name::SpecId
            | Name::HlslCounterBufferGOOGLE
            | Name::FPRoundingMode
            | Name::UniformId => 1,
            _ => return Err(refuse()),
        };
        let names_id = matches!(name, Name::UniformId | Name::HlslCounterBufferGOOGLE);
        if (inst.op() == Op::DecorateId) != names_id {
            return Err(refuse());
        }
        inst.length(at + 1 + literals, at + 1 + literals)?;
        if self.list.len() >= LIMIT {
            return Err(wrong(inst, format!("more than {LIMIT} decorations")));
        }
        let member = if of_member { module.word(inst, 2) } else { WHOLE };
        let (target, value) = (module.word(inst, 1), module.word(inst, at + 1));
        if name == Name::SpecId && self.specialised.insert(target, value).is_some() {
            return Err(wrong(inst, format!("{target} has a SpecId already")));
        }
        self.list.push(Decoration { target, member, name, value, inst });
        Ok(())
    }

    /// Compilers may say the same of the same thing twice, as naga did of the type of two buffers: drivers are told it once.
    pub(super) fn sort(&mut self) {
        let said = |d: &Decoration| (d.target, d.member, d.name as u32, d.value);
        self.list.sort_by_key(said);
        self.list.dedup_by_key(|d| said(d));
    }

    /// Every decoration of `target`, members included.
    pub(super) fn of(&self, target: u32) -> &[Decoration] {
        let from = self.list.partition_point(|d| d.target < target);
        let rest = self.list.get(from..).unwrap_or(&[]);
        let count = rest.partition_point(|d| d.target == target);
        rest.get(..count).unwrap_or(&[])
    }

    /// The literal of decoration `name` of `target`, or of its member; 0 for one without a literal.
    pub(super) fn decoration(&self, target: u32, member: u32, name: Name) -> Option<u32> {
        let all = self.of(target);
        let index = all.binary_search_by_key(&(member, name as u32), |d| (d.member, d.name as u32)).ok()?;
        all.get(index).map(|d| d.value)
    }

    pub(super) fn is_decorated(&self, target: u32, member: u32, name: Name) -> bool {
        self.decoration(target, member, name).is_some()
    }

    /// Whether `d` goes into the result. The others only help compilers, or say what the guard has made true.
    pub(super) fn is_kept(symbols: &Symbols<'_>, d: &Decoration) -> bool {
        let kind = symbols.module.id(d.target).kind;
        match d.name {
            Name::RelaxedPrecision
            | Name::SpecId
            | Name::Uniform
            | Name::UniformId
            | Name::NonReadable
            | Name::NoSignedWrap
            | Name::NoUnsignedWrap
            | Name::HlslCounterBufferGOOGLE => false,
            // Of lookup tables in functions they are only hints.
            Name::NonWritable | Name::Coherent | Name::Volatile => kind == Kind::Global || d.member != WHOLE,
            Name::Restrict | Name::Aliased => kind == Kind::Global && has_place(symbols, d.target),
            // Of pointers it says how they are reckoned with, which logical ones are not.
            Name::ArrayStride => !matches!(symbols.shape(d.target), Shape::Pointer { .. }),
            // Only what values of functions can have may stand before its target is known. What is computed here, drivers do not compute.
            Name::NoContraction => !matches!(kind, Kind::None | Kind::Constant),
            Name::FPRoundingMode => kind != Kind::None,
            _ => true,
        }
    }

    /// Checks every decoration against its target. What stands on values of functions is checked with those.
    pub(super) fn check(&self, symbols: &Symbols<'_>, capabilities: &Capabilities) -> Result<(), GuardError> {
        let mut before: Option<&Decoration> = None;
        for d in &self.list {
            let same = |b: &Decoration| (b.target, b.member, b.name) == (d.target, d.member, d.name);
            if before.is_some_and(same) && Self::is_kept(symbols, d) {
                return Err(wrong(d.inst, format!("{:?} stands twice on the same thing", d.name)));
            }
            before = Some(d);
            if !self.fits(symbols, capabilities, d) {
                return Err(wrong(d.inst, format!("{:?} does not belong on {}", d.name, d.target)));
            }
        }
        Ok(())
    }

    fn fits(&self, symbols: &Symbols<'_>, capabilities: &Capabilities, d: &Decoration) -> bool {
        if !Self::is_kept(symbols, d) {
            return true;
        }
        let (kind, shape) = (symbols.module.id(d.target).kind, symbols.shape(d.target));
        let of_struct = shape == Shape::Struct && d.member == WHOLE;
        let class = symbols.class_of(d.target);
        let buffer = matches!(class, Some(StorageClass::StorageBuffer | StorageClass::Uniform));
        let texels = class == Some(StorageClass::UniformConstant);
        let stored = texels::of_variable(symbols, d.target).is_some_and(|(_, is_storage)| is_storage);
        if d.member != WHOLE {
            let Some(member) = symbols.members(d.target).get(d.member as usize) else { return false };
            return match d.name {
                Name::Offset | Name::NonWritable => true,
                Name::Coherent | Name::Volatile => !capabilities.vulkan_memory,
                Name::RowMajor | Name::ColMajor | Name::MatrixStride => {
                    matches!(symbols.shape(symbols.innermost(*member)), Shape::Matrix { .. })
                }
                _ => false,
            };
        }
        match d.name {
            Name::Block => of_struct && !self.is_decorated(d.target, WHOLE, Name::BufferBlock),
            Name::BufferBlock => of_struct && symbols.module.version < crate::shader::module::V1_4,
            Name::ArrayStride => matches!(shape, Shape::Array { .. } | Shape::Runtime { .. }) && d.value > 0,
            Name::Binding | Name::DescriptorSet => buffer || texels,
            Name::NonWritable => buffer || stored,
            Name::Aliased => buffer || texels,
            Name::Restrict => (buffer || texels) && !self.is_decorated(d.target, WHOLE, Name::Aliased),
            Name::Coherent | Name::Volatile => (buffer || stored) && !capabilities.vulkan_memory,
            Name::BuiltIn => match class {
                Some(class) => {
                    class == StorageClass::Input && fits_builtin(symbols, capabilities, d.target, d.value)
                }
                None => {
                    kind == Kind::Constant
                        && d.value == BuiltIn::WorkgroupSize as u32
                        && is_triple(symbols, d.target)
                }
            },
            // Also `NoContraction` and `FPRoundingMode`: what they may stand on is declared later, and checked in `body.rs` and `rounding.rs`.
            _ => false,
        }
    }

    /// The built-in that variable `id` is.
    pub(super) fn builtin(&self, id: u32) -> Option<BuiltIn> {
        self.decoration(id, WHOLE, Name::BuiltIn).and_then(BuiltIn::from_u32)
    }
}

/// Whether `id` is a buffer, or several, or of texels.
fn has_place(symbols: &Symbols<'_>, id: u32) -> bool {
    let classes = [StorageClass::StorageBuffer, StorageClass::Uniform, StorageClass::UniformConstant];
    symbols.class_of(id).is_some_and(|class| classes.contains(&class))
}

fn is_triple(symbols: &Symbols<'_>, id: u32) -> bool {
    let number = symbols.numeric(symbols.module.id(id).ty);
    number.is_some_and(|n| n.scalar == Scalar::Int && n.bits == 32 && n.count == 3)
}

/// Whether input `id` has the type of built-in `value`, and kernels have that.
fn fits_builtin(symbols: &Symbols<'_>, capabilities: &Capabilities, id: u32, value: u32) -> bool {
    let Some(builtin) = BuiltIn::from_u32(value) else { return false };
    let basic = capabilities.has(Capability::GroupNonUniform);
    let ballot = capabilities.has(Capability::GroupNonUniformBallot);
    let (count, allowed) = match builtin {
        BuiltIn::NumWorkgroups
        | BuiltIn::WorkgroupId
        | BuiltIn::LocalInvocationId
        | BuiltIn::GlobalInvocationId => (3, true),
        BuiltIn::LocalInvocationIndex => (1, true),
        BuiltIn::DeviceIndex => (1, capabilities.has(Capability::DeviceGroup)),
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
    allowed && symbols.numeric(symbols.held(id)).is_some_and(|n| Numeric { signed: false, ..n } == wanted)
}
