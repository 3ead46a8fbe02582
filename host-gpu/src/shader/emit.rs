//! The words of the result: one entry point, what it uses, known constants, bounded indices, and no debug information.

use spirv::BuiltIn;
use spirv::Capability;
use spirv::Decoration as Name;
use spirv::ExecutionMode;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::access::kept_access;
use crate::shader::access::kept_of_copy;
use crate::shader::clamp::Clamp;
use crate::shader::constants::mask;
use crate::shader::decorations::Decorations;
use crate::shader::entries::Entry;
use crate::shader::error::GuardError;
use crate::shader::flow::UNROLLS;
use crate::shader::guard::Guard;
use crate::shader::interface::Wish;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::V1_3;
use crate::shader::module::V1_4;
use crate::shader::module::is_debug;
use crate::shader::module::wrong;
use crate::shader::profile;
use crate::shader::reflect::Used;
use crate::shader::shape::Shape;
use crate::shader::symbols::Value;
use crate::shader::writer::Grid;
use crate::shader::writer::Writer;

/// Writes a module that passed again.
pub(super) struct Emission<'g, 'a> {
    pub(super) guard: &'g Guard<'a>,
}

impl Emission<'_, '_> {
    /// Writes the module again.
    pub(super) fn emit(
        &self,
        entry: &Entry,
        used: &Used,
        workgroup: [u32; 3],
        wish: &Wish<'_>,
    ) -> Result<Vec<u32>, GuardError> {
        let module = &self.guard.symbols.module;
        let next = u32::try_from(module.ids.len()).unwrap_or(u32::MAX);
        let mut out = Writer::new(module.words.len() + module.words.len() / 8, next);
        let version = module.version.max(V1_3);
        out.words.extend([spirv::MAGIC_NUMBER, version, 0, 0, 0]);
        for id in used.globals.iter().copied() {
            if self.guard.symbols.is_input(id)
                && self.guard.decorations.builtin(id) == Some(BuiltIn::NumWorkgroups)
            {
                let [block, vector, component, zero] = [0; 4].map(|_| out.id());
                out.grid.push(Grid { variable: id, block, vector, component, zero });
            }
        }
        self.emit_head(&mut out, entry, used, workgroup, wish);
        self.emit_decorations(&mut out, used, wish);
        for index in 0..self.guard.code {
            self.emit_declaration(&mut out, module.inst(index), used);
        }
        self.emit_constants(&mut out);
        for function in &self.guard.functions.list {
            let index = module.id(function.id).data;
            if !used.functions.contains(&index) {
                continue;
            }
            out.put(Op::Function, &[function.returns, function.id, 0, function.ty]);
            for index in function.from + 1..self.guard.flow.block(function.first).first {
                let inst = module.inst(index);
                if inst.op() == Op::FunctionParameter {
                    out.put(Op::FunctionParameter, module.rest(inst, 1));
                }
            }
            for block in function.first..function.end {
                let block = self.guard.flow.block(block);
                if block.is_kept {
                    for index in block.first..block.end {
                        self.emit_instruction(&mut out, index)?;
                    }
                }
            }
            out.put(Op::FunctionEnd, &[]);
        }
        if let Some(bound) = out.words.get_mut(3) {
            *bound = out.next;
        }
        Ok(out.words)
    }

    fn emit_head(&self, out: &mut Writer, entry: &Entry, used: &Used, workgroup: [u32; 3], wish: &Wish<'_>) {
        let module = &self.guard.symbols.module;
        let mut seen: Vec<u32> = Vec::new();
        for index in 0..self.guard.code {
            let inst = module.inst(index);
            let capability = module.word(inst, 1);
            let is_new = !seen.contains(&capability) && !profile::is_dropped(capability);
            if inst.op() == Op::Capability && is_new {
                seen.push(capability);
                out.put(Op::Capability, &[capability]);
            }
        }
        // With the one for vectors of four bytes the guard takes those of two and three, for which validators ask for the other.
        let [four, all] =
            [Capability::DotProductInput4x8Bit, Capability::DotProductInputAll].map(|it| it as u32);
        if seen.contains(&four) && !seen.contains(&all) {
            seen.push(all);
            out.put(Op::Capability, &[all]);
        }
        let mut extensions: Vec<&str> = seen.iter().filter_map(|code| profile::extension(*code)).collect();
        extensions.sort_unstable();
        extensions.dedup();
        for extension in extensions {
            out.put(Op::Extension, &text(extension));
        }
        for index in 0..self.guard.code {
            let inst = module.inst(index);
            match inst.op() {
                Op::ExtInstImport if module.id(module.word(inst, 1)).kind == Kind::Glsl => {
                    out.put(Op::ExtInstImport, module.rest(inst, 1));
                }
                Op::MemoryModel => out.put(Op::MemoryModel, module.rest(inst, 1)),
                _ => {}
            }
        }
        let mut words = vec![spirv::ExecutionModel::GLCompute as u32, entry.function];
        words.extend(text(wish.rename));
        let named = module.rest(entry.inst, entry.interface).iter().copied();
        let every = module.version >= V1_4;
        words
            .extend(named.filter(|id| {
                used.globals.binary_search(id).is_ok() && (every || out.grid_of(*id).is_none())
            }));
        out.put(Op::EntryPoint, &words);
        let [x, y, z] = workgroup;
        out.put(Op::ExecutionMode, &[entry.function, ExecutionMode::LocalSize as u32, x, y, z]);
    }

    fn emit_decorations(&self, out: &mut Writer, used: &Used, wish: &Wish<'_>) {
        let mut live = vec![false; self.guard.flow.blocks.len()];
        for function in
            used.functions.iter().filter_map(|index| self.guard.functions.list.get(*index as usize))
        {
            live.iter_mut()
                .take(function.end as usize)
                .skip(function.first as usize)
                .for_each(|block| *block = true);
        }
        for d in &self.guard.decorations.list {
            let target = self.guard.symbols.module.id(d.target);
            let gone = match target.kind {
                Kind::Global => {
                    used.globals.binary_search(&d.target).is_err() || out.grid_of(d.target).is_some()
                }
                Kind::Value => !live.get(target.block as usize).copied().unwrap_or(false),
                _ => false,
            };
            if Decorations::is_kept(&self.guard.symbols, d) && !gone {
                out.raw(d.inst.code, self.guard.symbols.module.rest(d.inst, 1));
            }
        }
        for grid in out.grid.clone() {
            out.put(Op::MemberDecorate, &[grid.block, 0, Name::Offset as u32, 0]);
            out.put(Op::MemberDecorate, &[grid.block, 0, Name::NonWritable as u32]);
            out.put(Op::Decorate, &[grid.block, Name::Block as u32]);
            out.put(Op::Decorate, &[grid.variable, Name::DescriptorSet as u32, wish.grid.set]);
            out.put(Op::Decorate, &[grid.variable, Name::Binding as u32, wish.grid.binding]);
        }
    }

    fn emit_declaration(&self, out: &mut Writer, inst: Inst, used: &Used) {
        let module = &self.guard.symbols.module;
        let (ty, id) = (module.word(inst, 1), module.word(inst, 2));
        match inst.op() {
            Op::Capability
            | Op::Extension
            | Op::ExtInstImport
            | Op::MemoryModel
            | Op::EntryPoint
            | Op::ExecutionMode
            | Op::ExecutionModeId
            | Op::Decorate
            | Op::DecorateId
            | Op::MemberDecorate
            | Op::ExtInst => {}
            op if is_debug(op) => {}
            Op::TypeBool => {
                out.bool = ty;
                out.put(Op::TypeBool, &[ty]);
            }
            Op::ConstantComposite | Op::SpecConstantComposite => {
                out.put(Op::ConstantComposite, module.rest(inst, 1))
            }
            Op::ConstantTrue
            | Op::ConstantFalse
            | Op::Constant
            | Op::SpecConstantTrue
            | Op::SpecConstantFalse
            | Op::SpecConstant
            | Op::SpecConstantOp => match self.guard.symbols.value(id) {
                Some(Value::Bits(bits)) => self.emit_scalar(out, ty, id, bits),
                Some(Value::Null) => out.put(Op::ConstantNull, &[ty, id]),
                _ => out.raw(inst.code, module.rest(inst, 1)),
            },
            // Only memory of workgroups may begin so, and gets a null of its own.
            Op::ConstantNull if self.guard.symbols.is_large(ty) => {}
            Op::Variable => {
                if used.globals.binary_search(&id).is_ok() {
                    self.emit_variable(out, inst, ty, id);
                }
            }
            _ => out.raw(inst.code, module.rest(inst, 1)),
        }
    }

    fn emit_scalar(&self, out: &mut Writer, ty: u32, id: u32, bits: u64) {
        match self.guard.symbols.shape(ty) {
            Shape::Bool => out.put(if bits == 0 { Op::ConstantFalse } else { Op::ConstantTrue }, &[ty, id]),
            Shape::Int { bits: width, .. } | Shape::Float { bits: width } if width > 32 => {
                let (low, high) = (bits & mask(32), bits >> 32);
                out.put(Op::Constant, &[ty, id, word(low), word(high)]);
            }
            Shape::Int { bits: width, signed: true } if width < 32 && bits >> (width - 1) != 0 => {
                out.put(Op::Constant, &[ty, id, word((bits | !mask(width)) & mask(32))]);
            }
            _ => out.put(Op::Constant, &[ty, id, word(bits & mask(32))]),
        }
    }

    fn emit_variable(&self, out: &mut Writer, inst: Inst, ty: u32, id: u32) {
        let held = self.guard.symbols.held(id);
        if let Some(grid) = out.grid_of(id) {
            let storage = StorageClass::StorageBuffer as u32;
            let component = self.guard.symbols.part(held, 0).unwrap_or(0);
            let pointer = out.id();
            out.put(Op::TypeStruct, &[grid.block, held]);
            out.put(Op::TypePointer, &[pointer, storage, grid.block]);
            out.put(Op::TypePointer, &[grid.vector, storage, held]);
            out.put(Op::TypePointer, &[grid.component, storage, component]);
            out.put(Op::Constant, &[component, grid.zero, 0]);
            out.put(Op::Variable, &[pointer, id, storage]);
            return;
        }
        if self.guard.symbols.class_of(id) == Some(StorageClass::Workgroup) {
            // So that no kernel reads what the last one left.
            let null = out.id();
            out.put(Op::ConstantNull, &[held, null]);
            out.put(Op::Variable, &[ty, id, StorageClass::Workgroup as u32, null]);
            return;
        }
        out.put(Op::Variable, self.guard.symbols.module.rest(inst, 1));
    }

    /// Constants that clamps compare with.
    fn emit_constants(&self, out: &mut Writer) {
        if !self.guard.clamps.is_empty() && out.bool == 0 {
            out.bool = out.id();
            let id = out.bool;
            out.put(Op::TypeBool, &[id]);
        }
        let clamps = self.guard.clamps.iter().map(|Clamp { ty, last, .. }| (*ty, *last));
        let semantics = self.guard.semantics.iter().map(|said| (said.ty, u64::from(said.value)));
        for (ty, value) in clamps.chain(semantics) {
            if !out.constants.contains_key(&(ty, value)) {
                let id = out.id();
                self.emit_scalar(out, ty, id, value);
                out.constants.insert((ty, value), id);
            }
        }
    }

    fn emit_instruction(&self, out: &mut Writer, index: u32) -> Result<(), GuardError> {
        let module = &self.guard.symbols.module;
        let inst = module.inst(index);
        let op = inst.op();
        if is_debug(op) {
            return Ok(());
        }
        let mut words = module.rest(inst, 1).to_vec();
        let from = self.guard.clamps.partition_point(|clamp| clamp.index < index);
        for clamp in self.guard.clamps.iter().skip(from).take_while(|clamp| clamp.index == index) {
            let Some(slot) = words.get_mut(clamp.operand as usize - 1) else { continue };
            let last = out.constants.get(&(clamp.ty, clamp.last)).copied().unwrap_or(0);
            let (inside, bounded) = (out.id(), out.id());
            let bool = out.bool;
            out.put(Op::ULessThan, &[bool, inside, *slot, last]);
            out.put(Op::Select, &[clamp.ty, bounded, inside, *slot, last]);
            *slot = bounded;
        }
        let from = self.guard.semantics.partition_point(|said| said.index < index);
        for said in self.guard.semantics.iter().skip(from).take_while(|said| said.index == index) {
            if let Some(slot) = words.get_mut(said.operand as usize - 1) {
                *slot = out.constants.get(&(said.ty, u64::from(said.value))).copied().unwrap_or(0);
            }
        }
        match op {
            Op::ExtInst if module.id(module.word(inst, 3)).kind == Kind::Debug => {}
            // What has no name is called so, too.
            Op::Nop if inst.code == Op::Nop as u32 => {}
            Op::AssumeTrueKHR => {}
            Op::Undef if module.id(module.word(inst, 2)).kind == Kind::Dropped => {}
            Op::ExpectKHR => out.put(Op::CopyObject, words.get(..3).unwrap_or(&words)),
            Op::LoopMerge => {
                words.truncate(3);
                words.iter_mut().skip(2).for_each(|control| *control &= UNROLLS);
                out.put(op, &words);
            }
            Op::Phi => {
                let kept = |pair: &&[u32]| {
                    let label = pair.get(1).copied().unwrap_or(0);
                    self.guard.flow.block(module.id(label).data).is_kept
                };
                let pairs = module.rest(inst, 3).chunks(2).filter(kept).flatten().copied();
                let words: Vec<u32> = module.rest(inst, 1).iter().take(2).copied().chain(pairs).collect();
                out.put(Op::Phi, &words);
            }
            Op::BranchConditional => out.put(op, words.get(..3).unwrap_or(&words)),
            Op::Load => {
                words.truncate(3);
                words.extend(kept_access(module, inst, 4));
                if let Some(grid) = words.get(2).and_then(|id| out.grid_of(*id)) {
                    let pointer = out.id();
                    out.put(Op::AccessChain, &[grid.vector, pointer, grid.variable, grid.zero]);
                    words = vec![module.word(inst, 1), module.word(inst, 2), pointer];
                }
                out.put(op, &words);
            }
            Op::Store => {
                words.truncate(2);
                words.extend(kept_access(module, inst, 3));
                out.put(op, &words);
            }
            Op::AccessChain | Op::InBoundsAccessChain if words.len() == 3 && is_grid(out, &words) => {
                self.emit_copy(out, &words);
            }
            Op::AccessChain | Op::InBoundsAccessChain => {
                if let Some(grid) = words.get(2).and_then(|id| out.grid_of(*id)) {
                    if let Some(ty) = words.get_mut(0) {
                        *ty = grid.component;
                    }
                    words.insert(3, grid.zero);
                } else if let Some(grid) = words.get(2).and_then(|id| out.copy_of_grid(*id))
                    && let Some(ty) = words.get_mut(0)
                {
                    *ty = grid.component;
                }
                out.put(op, &words);
            }
            Op::CopyObject => self.emit_copy(out, &words),
            Op::CopyMemory if words.iter().any(|id| out.grid_of(*id).is_some()) => {
                return Err(wrong(inst, "the number of workgroups can only be loaded"));
            }
            Op::CopyMemory => {
                words.truncate(2);
                words.extend(kept_of_copy(module, inst));
                out.put(op, &words);
            }
            _ => out.raw(inst.code, &words),
        }
        Ok(())
    }

    /// `OpCopyObject`, whose operand may be a pointer to the number of workgroups.
    fn emit_copy(&self, out: &mut Writer, words: &[u32]) {
        let [_, id, of] = *words else { return out.put(Op::CopyObject, words) };
        if let Some(grid) = out.grid_of(of) {
            out.copies.insert(id, grid);
            out.put(Op::AccessChain, &[grid.vector, id, of, grid.zero]);
        } else if let Some(grid) = out.copy_of_grid(of) {
            out.copies.insert(id, grid);
            out.put(Op::CopyObject, &[grid.vector, id, of]);
        } else {
            out.put(Op::CopyObject, words);
        }
    }
}

/// Whether the first operand is a pointer to the number of workgroups.
fn is_grid(out: &Writer, words: &[u32]) -> bool {
    words.get(2).is_some_and(|id| out.grid_of(*id).is_some() || out.copy_of_grid(*id).is_some())
}

fn word(bits: u64) -> u32 {
    u32::try_from(bits).unwrap_or(u32::MAX)
}

/// Text as words, ended by at least one zero byte.
fn text(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes.chunks_exact(4).map(|b| b.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))).collect()
}
