//! Reads off a module that passed what a kernel needs from a dispatch: bindings, sizes, constants.

use spirv::BuiltIn;
use spirv::Decoration as Name;
use spirv::StorageClass;

use crate::shader::decorations::WHOLE;
use crate::shader::entries::Entry;
use crate::shader::error::GuardError;
use crate::shader::guard::Guard;
use crate::shader::interface::BufferKind;
use crate::shader::interface::Shader;
use crate::shader::interface::ShaderBinding;
use crate::shader::layout::Rules;
use crate::shader::module::Inst;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::texels;

/// The version from which on interfaces name every variable.
const ALL_NAMED: u32 = V1_4;

/// What an entry point uses.
pub(super) struct Used {
    /// Indices of functions.
    pub(super) functions: Vec<u32>,
    /// Ids of global variables.
    pub(super) globals: Vec<u32>,
    /// Ids of global variables through which it writes.
    pub(super) writes: Vec<u32>,
}

impl Used {
    /// Finds what `entry` uses, and checks that its interface names it.
    pub(super) fn of(guard: &Guard<'_>, entry: &Entry) -> Result<Self, GuardError> {
        let functions =
            guard.functions.reach(&guard.symbols.module, guard.symbols.module.id(entry.function).data)?;
        let (mut globals, mut writes) = (Vec::new(), Vec::new());
        for function in functions.iter().filter_map(|index| guard.functions.list.get(*index as usize)) {
            globals.extend(&function.names);
            writes.extend(&function.writes);
        }
        globals.sort_unstable();
        globals.dedup();
        writes.sort_unstable();
        writes.dedup();
        if guard.symbols.module.version >= ALL_NAMED {
            let named = guard.symbols.module.rest(entry.inst, entry.interface);
            if let Some(missing) = globals.iter().find(|id| !named.contains(id)) {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name variable {missing}, which it uses"),
                ));
            }
        } else {
            let named = guard.symbols.module.rest(entry.inst, entry.interface);
            if let Some(missing) =
                globals.iter().find(|id| guard.symbols.is_input(**id) && !named.contains(id))
            {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name input {missing}, which it uses"),
                ));
            }
        }
        Ok(Self { functions, globals, writes })
    }
}

/// Reads a module that passed.
pub(super) struct Reflection<'g, 'a> {
    pub(super) guard: &'g mut Guard<'a>,
}

/// Adds what a variable is bound to; one binding of all variables that share it.
fn add(bindings: &mut Vec<ShaderBinding>, inst: Inst, found: ShaderBinding) -> Result<(), GuardError> {
    match bindings.iter_mut().find(|b| (b.set, b.binding) == (found.set, found.binding)) {
        Some(same) if (same.kind, same.texels, same.count) == (found.kind, found.texels, found.count) => {
            same.is_written |= found.is_written;
            same.min_size = same.min_size.min(found.min_size);
        }
        Some(_) => return Err(wrong(inst, "it shares its binding with a variable of another kind")),
        None => bindings.push(found),
    }
    Ok(())
}

impl Reflection<'_, '_> {
    /// Reads it off; its words are not written yet.
    pub(super) fn reflect(&mut self, entry: &Entry, used: &Used) -> Result<Shader, GuardError> {
        let (mut bindings, mut constants, mut workgroup_memory) = (Vec::<ShaderBinding>::new(), None, 0_u64);
        for id in used.globals.iter().copied() {
            let (held, inst) = (self.guard.symbols.held(id), self.guard.symbols.module.definition(id));
            match self.guard.symbols.class_of(id) {
                Some(StorageClass::Workgroup) => {
                    let start = workgroup_memory.next_multiple_of(16);
                    workgroup_memory = start.saturating_add(self.guard.symbols.ty(held).bytes);
                }
                Some(StorageClass::Private) => self.guard.symbols.check_size(inst, held)?,
                Some(StorageClass::PushConstant) => {
                    let rules = Rules::of(&self.guard.capabilities.profile, false);
                    let layout = self.guard.layout_finder().layout(held, rules);
                    let bytes = layout.map_or(u64::MAX, |layout| layout.bytes);
                    if constants.replace(bytes).is_some() {
                        return Err(wrong(inst, "it is the second block of push constants"));
                    }
                }
                Some(class @ (StorageClass::StorageBuffer | StorageClass::Uniform)) => {
                    add(&mut bindings, inst, self.binding(id, held, class, used))?;
                }
                Some(StorageClass::UniformConstant) => {
                    add(&mut bindings, inst, self.texel_binding(id, held, inst, used)?)?;
                }
                _ => {}
            }
        }
        bindings.sort_by_key(|b| (b.set, b.binding));
        let workgroup = self.workgroup_size(entry)?;
        let constants = constants.unwrap_or(0).next_multiple_of(4);
        let constants = u32::try_from(constants)
            .map_err(|_| wrong(entry.inst, format!("it takes {constants} bytes of push constants")))?;
        let uses_num_workgroups = used.globals.iter().any(|id| {
            self.guard.decorations.builtin(*id) == Some(BuiltIn::NumWorkgroups)
                && self.guard.symbols.is_input(*id)
        });
        let words = Vec::new();
        Ok(Shader { words, workgroup, bindings, constants, workgroup_memory, uses_num_workgroups })
    }

    fn texel_binding(
        &self,
        id: u32,
        held: u32,
        inst: Inst,
        used: &Used,
    ) -> Result<ShaderBinding, GuardError> {
        let symbols = &self.guard.symbols;
        let (texels, is_storage) =
            texels::of_variable(symbols, id).ok_or_else(|| wrong(inst, "it holds no texel buffers"))?;
        let count = match symbols.shape(held) {
            Shape::Array { of, .. } if matches!(symbols.shape(of), Shape::Array { .. }) => {
                return Err(wrong(inst, "arrays of arrays of texel buffers are not offered"));
            }
            Shape::Array { count, .. } => Some(count),
            _ => None,
        };
        let place = |name| self.guard.decorations.decoration(id, WHOLE, name).unwrap_or(0);
        Ok(ShaderBinding {
            set: place(Name::DescriptorSet),
            binding: place(Name::Binding),
            kind: if is_storage { BufferKind::StorageTexels } else { BufferKind::UniformTexels },
            texels: Some(texels),
            count,
            is_written: used.writes.binary_search(&id).is_ok(),
            min_size: 1,
            name: self.name_of(id, held),
        })
    }

    fn binding(&mut self, id: u32, held: u32, class: StorageClass, used: &Used) -> ShaderBinding {
        let (block, count) = match self.guard.symbols.shape(held) {
            Shape::Array { of, count } => (of, Some(count)),
            _ => (held, None),
        };
        let storage = class == StorageClass::StorageBuffer
            || self.guard.decorations.is_decorated(block, WHOLE, Name::BufferBlock);
        let rules = Rules::of(&self.guard.capabilities.profile, !storage);
        let bytes = self.guard.layout_finder().layout(block, rules).map_or(0, |layout| layout.bytes);
        ShaderBinding {
            set: self.guard.decorations.decoration(id, WHOLE, Name::DescriptorSet).unwrap_or(0),
            binding: self.guard.decorations.decoration(id, WHOLE, Name::Binding).unwrap_or(0),
            kind: if storage { BufferKind::Storage } else { BufferKind::Uniform },
            texels: None,
            count,
            is_written: used.writes.binary_search(&id).is_ok(),
            min_size: bytes.next_multiple_of(4),
            name: self.name_of(id, block),
        }
    }

    /// What the guest calls variable `id`, or the type of it.
    fn name_of(&self, id: u32, block: u32) -> String {
        for named in [id, block] {
            let text =
                self.guard.names.get(&named).and_then(|inst| self.guard.symbols.module.text(*inst, 2).ok());
            if let Some((text, _)) = text.filter(|(text, _)| !text.is_empty()) {
                return text.chars().take(64).collect();
            }
        }
        format!("%{id}")
    }

    fn workgroup_size(&self, entry: &Entry) -> Result<[u32; 3], GuardError> {
        let builtin = self.guard.decorations.list.iter().find(|d| {
            d.name == Name::BuiltIn && d.value == BuiltIn::WorkgroupSize as u32 && d.member == WHOLE
        });
        let size = if let Some(d) = builtin {
            self.guard.symbols.triple(d.target)
        } else if let Some(inst) = entry.size {
            let words = [3, 4, 5].map(|at| self.guard.symbols.module.word(inst, at));
            match inst.op() {
                spirv::Op::ExecutionModeId => {
                    let known = words
                        .map(|id| self.guard.symbols.integer(id).and_then(|size| u32::try_from(size).ok()));
                    match known {
                        [Some(x), Some(y), Some(z)] => Some([x, y, z]),
                        _ => None,
                    }
                }
                _ => Some(words),
            }
        } else {
            None
        };
        size.filter(|size| !size.contains(&0))
            .ok_or_else(|| wrong(entry.inst, "its local size is not said, 0, or not known before it runs"))
    }
}
