//! What reaches into memory: variables, pointers, loads, stores and atomics; and which indices need a clamp.

use spirv::Decoration as Name;
use spirv::GlslStd450Op;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::atomics;
use crate::shader::body::Body;
use crate::shader::body::Here;
use crate::shader::clamp::Clamp;
use crate::shader::decorations::WHOLE;
use crate::shader::error::GuardError;
use crate::shader::function::Function;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::wrong;
use crate::shader::shape::Scalar;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;
use crate::shader::variables::check_memory;

/// A pointer that an instruction uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    pub(super) class: StorageClass,
    pub(super) to: u32,
    /// The global variable that it points into; 0 where it is of none.
    pub(super) root: u32,
    /// Compilers keep what it points to in a register.
    pub(super) is_register: bool,
}

impl Body<'_, '_> {
    /// An `OpVariable` in a function.
    pub(super) fn local_variable(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(4, 5)?;
        let ty = self.symbols.module.word(inst, 1);
        let Shape::Pointer { class: StorageClass::Function, to } = self.symbols.shape(ty) else {
            return Err(wrong(inst, "its storage class is not Function"));
        };
        if self.symbols.module.word(inst, 3) != StorageClass::Function as u32 {
            return Err(wrong(inst, "its storage class is not that of its type"));
        }
        if inst.len == 5 {
            let initial = self.symbols.module.id(self.symbols.module.word(inst, 4));
            if initial.kind != Kind::Constant || initial.ty != to {
                return Err(wrong(inst, "its initial value is no constant of its type"));
            }
        }
        check_memory(self.symbols, self.capabilities, inst, to)?;
        self.symbols.check_size(inst, to)?;
        let bytes = self.symbols.ty(to).bytes;
        self.note(here, |function| function.stack = function.stack.saturating_add(bytes));
        self.result_of(here, true).map(|_| ())
    }

    pub(super) fn note(&mut self, here: Here, change: impl FnOnce(&mut Function)) {
        if let Some(function) = self.functions.list.get_mut(here.function as usize) {
            change(function);
        }
    }

    /// The pointer that operand `at` names; none to a texel, which only atomics take.
    pub(super) fn pointer(&mut self, here: Here, at: u32) -> Result<Pointer, GuardError> {
        match self.any_pointer(here, at)? {
            Pointer { class: StorageClass::Image, .. } => {
                Err(wrong(here.inst, "pointers to texels are for atomics alone"))
            }
            pointer => Ok(pointer),
        }
    }

    pub(super) fn any_pointer(&mut self, here: Here, at: u32) -> Result<Pointer, GuardError> {
        let id = self.symbols.module.word(here.inst, at);
        let Id { kind, ty, data, .. } = self.seen(here, id)?;
        let Shape::Pointer { class, to } = self.symbols.shape(ty) else {
            return Err(wrong(here.inst, format!("{id} is not a pointer")));
        };
        if kind == Kind::Global {
            self.note(here, |function| function.names.push(id));
        }
        Ok(Pointer { class, to, root: data, is_register: is_register(self.symbols, id, class) })
    }

    /// Checks the instruction if it is one of those in this file, and says whether it was.
    pub(super) fn check_memory_instruction(&mut self, here: Here) -> Result<bool, GuardError> {
        let inst = here.inst;
        match inst.op() {
            Op::Load => {
                inst.length(4, 7)?;
                let pointer = self.pointer(here, 3)?;
                if pointer.class == StorageClass::UniformConstant {
                    self.load_texels(here, pointer)?;
                    return Ok(true);
                }
                let ty = self.result_of(here, false)?;
                if pointer.to != ty {
                    return Err(wrong(inst, "its result is not what the pointer points to"));
                }
                self.note(here, |function| function.accesses += u64::from(!pointer.is_register));
                self.check_access(here, 4, false)?;
            }
            Op::Store => {
                inst.length(3, 6)?;
                let pointer = self.pointer(here, 1)?;
                let value = self.seen(here, self.symbols.module.word(inst, 2))?;
                if pointer.to != value.ty || !self.symbols.is_value(value.ty) {
                    return Err(wrong(inst, "its value is not what the pointer points to"));
                }
                self.writes(here, pointer)?;
                self.check_access(here, 3, true)?;
            }
            Op::CopyMemory => {
                inst.length(3, 7)?;
                check_copy(&self.symbols.module, inst)?;
                let (to, from) = (self.pointer(here, 1)?, self.pointer(here, 2)?);
                if to.to != from.to || !self.symbols.is_value(to.to) {
                    return Err(wrong(inst, "its pointers do not point to the same type"));
                }
                self.symbols.check_size(inst, to.to)?;
                self.writes(here, to)?;
                self.note(here, |function| function.accesses += u64::from(!from.is_register));
            }
            Op::AccessChain | Op::InBoundsAccessChain => self.chain(here)?,
            Op::CopyObject
                if matches!(self.symbols.shape(self.symbols.module.word(inst, 1)), Shape::Pointer { .. }) =>
            {
                inst.length(4, 4)?;
                let copied = self.pointer(here, 3)?;
                let result = self.result_of(here, true)?;
                if self.symbols.shape(result) != (Shape::Pointer { class: copied.class, to: copied.to }) {
                    return Err(wrong(inst, "its result is not of the type of what it copies"));
                }
                self.set_root(here, copied);
            }
            Op::ArrayLength => {
                inst.length(5, 5)?;
                let pointer = self.pointer(here, 3)?;
                let ty = self.result_of(here, false)?;
                let members = self.symbols.members(pointer.to);
                let last = members.last().copied().unwrap_or(0);
                let at = self.symbols.module.word(inst, 4) as usize;
                let good =
                    matches!(self.symbols.shape(last), Shape::Runtime { .. }) && at + 1 == members.len();
                if !good || self.symbols.shape(ty) != (Shape::Int { bits: 32, signed: false }) {
                    return Err(wrong(
                        inst,
                        "it is not of the last member of a buffer, an array without a length",
                    ));
                }
            }
            op if atomics::is_atomic(op) => self.atomic(here)?,
            Op::ControlBarrier => {
                inst.length(4, 4)?;
                self.scope(here, 1, &[2, 3])?;
                self.scope(here, 2, &[1, 2, 3, 4, 5])?;
                // It orders nothing where it names no memory.
                self.semantics(here, 3, &[0, 2, 4, 8], 0)?;
            }
            Op::MemoryBarrier => {
                inst.length(3, 3)?;
                self.scope(here, 1, &[1, 2, 3, 4, 5])?;
                self.semantics(here, 2, &[2, 4, 8], atomics::UNIFORM_MEMORY)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Notes that a pointer is written through, and refuses where that is not allowed.
    pub(super) fn writes(&mut self, here: Here, pointer: Pointer) -> Result<(), GuardError> {
        let held = self.symbols.innermost(self.symbols.held(pointer.root));
        let writable = match pointer.class {
            StorageClass::Function
            | StorageClass::Private
            | StorageClass::Workgroup
            | StorageClass::Image
            | StorageClass::StorageBuffer => true,
            StorageClass::Uniform => self.decorations.is_decorated(held, WHOLE, Name::BufferBlock),
            _ => false,
        };
        if !writable {
            return Err(wrong(here.inst, "it writes what kernels can only read"));
        }
        self.note(here, |function| {
            function.writes.push(pointer.root);
            function.accesses += u64::from(!pointer.is_register);
        });
        Ok(())
    }

    /// Memory operands from operand `at` on.
    fn check_access(&mut self, here: Here, at: u32, is_store: bool) -> Result<(), GuardError> {
        let inst = here.inst;
        if inst.len <= at {
            return Ok(());
        }
        let mask = self.symbols.module.word(inst, at);
        let moves = if is_store { AVAILABLE } else { VISIBLE };
        if mask & !(VOLATILE | ALIGNED | NONTEMPORAL | NON_PRIVATE | moves) != 0 {
            return Err(wrong(inst, "these memory operands are not offered"));
        }
        let mut next = at + 1;
        if mask & ALIGNED != 0 {
            if !self.symbols.module.word(inst, next).is_power_of_two() {
                return Err(wrong(inst, "its alignment is no power of two"));
            }
            next += 1;
        }
        if mask & moves != 0 {
            self.scope(here, next, &[1, 2, 3, 5])?;
            next += 1;
        }
        let private = mask & moves != 0 && mask & NON_PRIVATE == 0;
        if next != inst.len
            || private
            || mask & (moves | NON_PRIVATE) != 0 && !self.capabilities.vulkan_memory
        {
            return Err(wrong(inst, "its memory operands do not fit each other or the memory model"));
        }
        Ok(())
    }

    /// `Modf` and `Frexp`, which write a part of their result through a pointer.
    pub(super) fn split_to_memory(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(7, 7)?;
        let given = self.used(here, 5)?.ty;
        let pointer = self.pointer(here, 6)?;
        let ty = self.result_of(here, false)?;
        let float = self.symbols.numeric(ty).filter(|n| n.scalar == Scalar::Float);
        let second = self.symbols.numeric(pointer.to);
        let whole = self.symbols.module.word(inst, 4) == GlslStd450Op::Modf as u32;
        let good = match (float, second) {
            (Some(_), _) if whole => pointer.to == ty,
            (Some(x), Some(y)) => y.scalar == Scalar::Int && y.bits == 32 && y.count == x.count,
            _ => false,
        };
        if !good || given != ty {
            return Err(wrong(inst, "its operands do not fit each other or its result"));
        }
        self.writes(here, pointer)
    }

    fn chain(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(4, 64)?;
        let base = self.pointer(here, 3)?;
        let mut ty = base.to;
        for operand in 4..inst.len {
            let id = self.symbols.module.word(inst, operand);
            let index = self.used(here, operand)?;
            let number = self.symbols.numeric(index.ty).filter(|n| n.scalar == Scalar::Int && n.count == 1);
            let number = number.ok_or_else(|| wrong(inst, format!("index {id} is not one integer")))?;
            let known = self.symbols.integer(id);
            // The array of a variable that holds several buffers, by the variable or a copy of its pointer: no robustness
            // covers it. One that is no array has a struct here, whose members are constants.
            let of_buffers = operand == 4 && base.to == self.symbols.held(base.root);
            ty = match self.symbols.shape(ty) {
                Shape::Struct => {
                    let constant = self.symbols.module.definition(id).op() == Op::Constant;
                    let member = known.filter(|_| constant).and_then(|at| u32::try_from(at).ok());
                    member.and_then(|at| self.symbols.part(ty, at)).ok_or_else(|| {
                        wrong(inst, format!("index {id} into a struct is no constant of one of its members"))
                    })?
                }
                Shape::Runtime { of } => of,
                Shape::Vector { of, count }
                | Shape::Matrix { column: of, count }
                | Shape::Array { of, count } => {
                    let unchecked = of_buffers
                        || !matches!(base.class, StorageClass::StorageBuffer | StorageClass::Uniform);
                    let outside = known.is_none_or(|at| at >= u64::from(count));
                    if outside && base.class == StorageClass::UniformConstant {
                        let reason = "arrays of texel buffers are indexed by constants below their length";
                        return Err(wrong(inst, reason));
                    }
                    if unchecked && outside {
                        // Indices have a sign, whatever their type says.
                        let last = u64::from(count - 1).min((1 << (number.bits - 1)) - 1);
                        self.clamps.push(Clamp { index: here.index, operand, ty: index.ty, last });
                    }
                    of
                }
                _ => return Err(wrong(inst, format!("index {id} reaches into a scalar"))),
            };
        }
        let result = self.result_of(here, true)?;
        if self.symbols.shape(result) != (Shape::Pointer { class: base.class, to: ty }) {
            return Err(wrong(inst, "its result is no pointer to what its indices reach"));
        }
        self.set_root(here, base);
        Ok(())
    }

    /// Notes which variable the resulting pointer points into.
    pub(super) fn set_root(&mut self, here: Here, base: Pointer) {
        let id = self.symbols.module.word(here.inst, 2);
        if let Some(slot) = self.symbols.module.ids.get_mut(id as usize) {
            slot.data = base.root;
        }
    }

    /// Notes a clamp of operand `operand`, an index into `count` components.
    pub(super) fn clamp_component(&mut self, here: Here, operand: u32, count: u32) -> Result<(), GuardError> {
        let index = self.used(here, operand)?;
        let number = self.symbols.numeric(index.ty).filter(|n| n.scalar == Scalar::Int && n.count == 1);
        if number.is_none() {
            return Err(wrong(here.inst, "its index is not one integer"));
        }
        if self
            .symbols
            .integer(self.symbols.module.word(here.inst, operand))
            .is_none_or(|at| at >= u64::from(count))
        {
            self.clamps.push(Clamp { index: here.index, operand, ty: index.ty, last: u64::from(count - 1) });
        }
        Ok(())
    }
}

/// Memory operands of `OpCopyMemory`: of what is written and of what is read, or of both. Each mask, and the alignment that it brings.
fn of_copy(module: &Module<'_>, inst: Inst) -> impl Iterator<Item = (u32, Option<u32>)> {
    let mut next = 3;
    std::iter::from_fn(move || {
        let mask = (next < inst.len).then(|| module.word(inst, next))?;
        let alignment = (mask & ALIGNED != 0).then(|| module.word(inst, next + 1));
        next += 1 + u32::from(alignment.is_some());
        Some((mask, alignment))
    })
}

/// Refuses what is neither a hint nor volatile.
fn check_copy(module: &Module<'_>, inst: Inst) -> Result<(), GuardError> {
    let is_good = |(mask, alignment): (u32, Option<u32>)| {
        mask & !(VOLATILE | ALIGNED | NONTEMPORAL) == 0 && alignment.is_none_or(u32::is_power_of_two)
    };
    match of_copy(module, inst).all(is_good) {
        true => Ok(()),
        false => Err(wrong(inst, "these memory operands are not offered")),
    }
}

/// The memory operand of a copy that the result has, if it has one.
pub(super) fn kept_of_copy(module: &Module<'_>, inst: Inst) -> Option<u32> {
    of_copy(module, inst).any(|(mask, _)| mask & VOLATILE != 0).then_some(VOLATILE)
}

/// Whether what pointer `id` points to is an invocation's own, at a place that is known, which compilers keep in registers: it costs what other values do.
fn is_register(symbols: &Symbols<'_>, id: u32, class: StorageClass) -> bool {
    if !matches!(class, StorageClass::Function | StorageClass::Private) {
        return false;
    }
    let mut inst = symbols.module.definition(id);
    while matches!(inst.op(), Op::AccessChain | Op::InBoundsAccessChain) {
        // Each link with an index leads into a type, and types nest to a limit; one without is taken for a place that is not known.
        if inst.len == 4 {
            return false;
        }
        let mut indices = symbols.module.rest(inst, 4).iter();
        if indices.any(|index| symbols.value(*index).is_none()) {
            return false;
        }
        inst = symbols.module.definition(symbols.module.word(inst, 3));
    }
    true
}

/// The memory operands of a load or store that go into the result: the mask without hints, and its scope.
pub(super) fn kept_access(module: &Module<'_>, inst: Inst, at: u32) -> Vec<u32> {
    let mask = module.word(inst, at);
    let kept = mask & !(ALIGNED | NONTEMPORAL);
    let mut words = Vec::new();
    if kept != 0 {
        words.push(kept);
        if kept & (AVAILABLE | VISIBLE) != 0 {
            words.push(module.word(inst, inst.len - 1));
        }
    }
    words
}

const VOLATILE: u32 = 1;
const ALIGNED: u32 = 2;
const NONTEMPORAL: u32 = 4;
const AVAILABLE: u32 = 8;
const VISIBLE: u32 = 16;
const NON_PRIVATE: u32 = 32;
