//! Atomics, and the constants that say how memory is ordered.

use spirv::Capability;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::body::Body;
use crate::shader::body::Here;
use crate::shader::clamp::Semantics;
use crate::shader::error::GuardError;
use crate::shader::module::wrong;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;

/// Orders of memory semantics.
const ORDERS: u32 = 0x1e;
const SEQUENTIALLY_CONSISTENT: u32 = 0x10;
pub(super) const UNIFORM_MEMORY: u32 = 0x40;
const SUBGROUP_MEMORY: u32 = 0x80;
const WORKGROUP_MEMORY: u32 = 0x100;
const CROSS_WORKGROUP_MEMORY: u32 = 0x200;
const COUNTER_MEMORY: u32 = 0x400;
const IMAGE_MEMORY: u32 = 0x800;
const OUTPUT_MEMORY: u32 = 0x1000;
const MAKE_AVAILABLE: u32 = 0x2000;
const MAKE_VISIBLE: u32 = 0x4000;
const VOLATILE: u32 = 0x8000;

impl Body<'_, '_> {
    /// One of [`is_atomic`].
    pub(super) fn atomic(&mut self, here: Here) -> Result<(), GuardError> {
        let (inst, op) = (here.inst, here.inst.op());
        let is_store = op == Op::AtomicStore;
        let at = if is_store { 1 } else { 3 };
        let (orders, values): (&[u32], u32) = match op {
            Op::AtomicLoad => (&[0, 2], 0),
            Op::AtomicStore => (&[0, 4], 1),
            Op::AtomicIIncrement | Op::AtomicIDecrement => (&[0, 2, 4, 8], 0),
            Op::AtomicCompareExchange => (&[0, 2, 4, 8], 2),
            _ => (&[0, 2, 4, 8], 1),
        };
        let compares = u32::from(op == Op::AtomicCompareExchange);
        inst.length(at + 3 + compares + values, at + 3 + compares + values)?;
        let pointer = self.any_pointer(here, at)?;
        let number = self.symbols.numeric(pointer.to).filter(|n| n.count == 1);
        let wide = self.capabilities.has(Capability::Int64Atomics);
        let floats = match op {
            Op::AtomicFAddEXT => self.capabilities.has(Capability::AtomicFloat32AddEXT),
            Op::AtomicLoad | Op::AtomicStore | Op::AtomicExchange => self.capabilities.profile.atomic_float,
            _ => false,
        };
        let is_good = number.is_some_and(|n| match n.scalar {
            Scalar::Int => op != Op::AtomicFAddEXT && (n.bits == 32 || n.bits == 64 && wide),
            Scalar::Float => floats && n.bits == 32,
            _ => false,
        });
        let memory = matches!(
            pointer.class,
            StorageClass::StorageBuffer
                | StorageClass::Workgroup
                | StorageClass::Uniform
                | StorageClass::Image
        );
        if !memory || !is_good {
            return Err(wrong(
                inst,
                "it is not on an integer of 32 bits, or 64 with its capability, or where the device has them a float of 32, in \
                 shared memory",
            ));
        }
        self.scope(here, at + 1, &[1, 2, 3, 5])?;
        let class = match pointer.class {
            StorageClass::Workgroup => WORKGROUP_MEMORY,
            StorageClass::Image => IMAGE_MEMORY,
            _ => UNIFORM_MEMORY,
        };
        self.semantics(here, at + 2, orders, class)?;
        if compares > 0 {
            self.semantics(here, at + 3, &[0, 2], class)?;
            if (self.word_constant(here, at + 2)? ^ self.word_constant(here, at + 3)?) & u64::from(VOLATILE)
                != 0
            {
                return Err(wrong(
                    inst,
                    "it is volatile where it compares equal, and not where it does not, or the other way round",
                ));
            }
        }
        for value in at + 3 + compares..inst.len {
            if self.used(here, value)?.ty != pointer.to {
                return Err(wrong(inst, "its value is not what the pointer points to"));
            }
        }
        if !is_store && self.result_of(here, false)? != pointer.to {
            return Err(wrong(inst, "its result is not what the pointer points to"));
        }
        self.writes(here, pointer)
    }

    /// A constant scope.
    pub(super) fn scope(&self, here: Here, at: u32, allowed: &[u64]) -> Result<(), GuardError> {
        let scope = self.word_constant(here, at)?;
        let vulkan = self.capabilities.vulkan_memory;
        let device = scope != 1 || !vulkan || self.capabilities.has(Capability::VulkanMemoryModelDeviceScope);
        if allowed.contains(&scope) && device && (scope != 5 || vulkan) {
            return Ok(());
        }
        Err(wrong(here.inst, format!("scope {scope} is not offered here")))
    }

    /// Constant memory semantics with one of these orders, the last of them the strongest. Other languages than Vulkan's say more: the result has no
    /// sequential consistency, no classes of memory that kernels have not or that nothing is ordered in, and `class` where something is ordered in none.
    pub(super) fn semantics(
        &mut self,
        here: Here,
        at: u32,
        orders: &[u32],
        class: u32,
    ) -> Result<(), GuardError> {
        let value = self.word_constant(here, at)?;
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        let order = match value & ORDERS {
            SEQUENTIALLY_CONSISTENT => orders.last().copied().unwrap_or(0),
            order => order,
        };
        let classes = value & (UNIFORM_MEMORY | WORKGROUP_MEMORY | COUNTER_MEMORY | IMAGE_MEMORY);
        let dropped = SUBGROUP_MEMORY | CROSS_WORKGROUP_MEMORY | OUTPUT_MEMORY;
        let moves = value & (MAKE_AVAILABLE | MAKE_VISIBLE);
        let volatile = if is_atomic(here.inst.op()) { value & VOLATILE } else { 0 };
        let good = orders.contains(&order)
            && value & !(ORDERS | dropped) == classes | moves | volatile
            && (moves | volatile == 0 || self.capabilities.vulkan_memory)
            && (moves & MAKE_AVAILABLE == 0 || order & 0xc != 0)
            && (moves & MAKE_VISIBLE == 0 || order & 0xa != 0);
        if !good {
            return Err(wrong(here.inst, format!("memory semantics {value:#x} are not offered here")));
        }
        let ordered = if classes & !COUNTER_MEMORY == 0 { classes | class } else { classes };
        let said = if order == 0 || ordered & !COUNTER_MEMORY == 0 { 0 } else { order | ordered | moves };
        let said = said | volatile;
        if said != value {
            let ty = self.symbols.module.id(self.symbols.module.word(here.inst, at)).ty;
            self.semantics.push(Semantics { index: here.index, operand: at, ty, value: said });
        }
        Ok(())
    }

    /// A constant of 32 bits, as scopes and semantics are.
    pub(super) fn word_constant(&self, here: Here, at: u32) -> Result<u64, GuardError> {
        let id = self.symbols.module.word(here.inst, at);
        let bits = matches!(self.symbols.shape(self.symbols.module.id(id).ty), Shape::Int { bits: 32, .. });
        let constant = matches!(
            self.symbols.module.definition(id).op(),
            Op::Constant | Op::ConstantNull | Op::SpecConstant | Op::SpecConstantOp
        );
        let value = self.symbols.integer(id).filter(|_| bits && constant);
        value.ok_or_else(|| wrong(here.inst, format!("{id} is no constant of 32 bits")))
    }
}

/// Whether `op` is an atomic that kernels here may use.
pub(super) fn is_atomic(op: Op) -> bool {
    matches!(
        op,
        Op::AtomicLoad
            | Op::AtomicStore
            | Op::AtomicExchange
            | Op::AtomicCompareExchange
            | Op::AtomicIIncrement
            | Op::AtomicIDecrement
            | Op::AtomicIAdd
            | Op::AtomicISub
            | Op::AtomicSMin
            | Op::AtomicUMin
            | Op::AtomicSMax
            | Op::AtomicUMax
            | Op::AtomicAnd
            | Op::AtomicOr
            | Op::AtomicXor
            | Op::AtomicFAddEXT
    )
}
