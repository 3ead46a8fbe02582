//! What a kernel needs from a dispatch, read off a module that passed.

use spirv::BuiltIn;
use spirv::Decoration as Name;
use spirv::StorageClass;

use crate::shader::decorations::WHOLE;
use crate::shader::error::GuardError;
use crate::shader::guard::Entry;
use crate::shader::guard::Guard;
use crate::shader::module::wrong;
use crate::shader::profile::Profile;
use crate::shader::types::Shape;

/// What a variable of a kernel is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferKind {
    /// A storage buffer.
    Storage,
    /// A uniform buffer.
    Uniform,
}

/// One binding, of all variables that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShaderBinding {
    /// The descriptor set.
    pub set: u32,
    /// The number within the set.
    pub binding: u32,
    /// Kind of buffer.
    pub kind: BufferKind,
    /// How many buffers the binding has, where it is an array of them.
    pub count: Option<u32>,
    /// Whether the kernel has an instruction that writes it.
    pub is_written: bool,
    /// The fewest bytes that may be bound: the fixed part and one element of an array without a length.
    pub min_size: u64,
    /// What the guest calls the variable, or its id.
    pub name: String,
}

/// A module that passed, with one entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shader {
    /// Valid SPIR-V for the device that the profile is of.
    pub words: Vec<u32>,
    /// Invocations of a workgroup.
    pub workgroup: [u32; 3],
    /// Ascending by set and binding.
    pub bindings: Vec<ShaderBinding>,
    /// Bytes of push constants.
    pub constants: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u64,
    /// Whether the number of workgroups is read where [`Place`] says.
    pub uses_num_workgroups: bool,
}

/// Where a kernel finds the number of workgroups of the whole grid: a storage buffer of three words.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The descriptor set.
    pub set: u32,
    /// The number within the set.
    pub binding: u32,
}

/// What to do with a module.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// What the device offers.
    pub profile: &'a Profile,
    /// The entry point; `None` where there is one only.
    pub entry: Option<&'a str>,
    /// What the entry point is called in the result.
    pub rename: &'a str,
    /// Where the number of workgroups is found.
    pub grid: Place,
}

/// Why there is no [`Shader`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The module breaks a rule.
    #[error(transparent)]
    Broken(#[from] GuardError),
    /// The entry point asked for does not exist, or none was asked for and there are several.
    #[error("no single compute entry point {asked:?}, there are: {}", .choices.join(", "))]
    Entry {
        /// What was asked for.
        asked: Option<String>,
        /// What there is.
        choices: Vec<String>,
    },
}

/// Checks `words`, keeps one entry point and what it uses, bounds its indices and reads off what it needs.
///
/// Time and memory grow linearly with the words, but for the nesting of loops. Nothing is trusted, and nothing panics.
pub fn guard(words: &[u32], wish: &Wish<'_>) -> Result<Shader, Refusal> {
    let mut guard = Guard::new(words, wish.profile)?;
    guard.declare()?;
    guard.declare_functions()?;
    guard.check_functions()?;
    let mut fitting = guard.entries.iter().filter(|entry| wish.entry.is_none_or(|asked| asked == entry.name));
    let entry = match (fitting.next(), fitting.next()) {
        (Some(entry), None) => entry.clone(),
        _ => {
            let choices = guard.entries.iter().map(|entry| entry.name.clone()).collect();
            return Err(Refusal::Entry { asked: wish.entry.map(str::to_owned), choices });
        }
    };
    let used = guard.uses(&entry)?;
    Ok(guard.reflect(&entry, &used, wish)?)
}

/// What an entry point uses.
pub(super) struct Used {
    /// Indices of functions.
    pub(super) functions: Vec<u32>,
    /// Ids of global variables.
    pub(super) globals: Vec<u32>,
    writes: Vec<u32>,
}

impl Guard<'_> {
    fn uses(&self, entry: &Entry) -> Result<Used, GuardError> {
        let functions = self.reach(self.module.id(entry.function).data)?;
        let (mut globals, mut writes) = (Vec::new(), Vec::new());
        for function in functions.iter().filter_map(|index| self.functions.get(*index as usize)) {
            globals.extend(&function.names);
            writes.extend(&function.writes);
        }
        globals.sort_unstable();
        globals.dedup();
        writes.sort_unstable();
        writes.dedup();
        if self.module.version >= crate::shader::composed::ALL_NAMED {
            let named = self.module.rest(entry.inst, entry.interface);
            if let Some(missing) = globals.iter().find(|id| !named.contains(id)) {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name variable {missing}, which it uses"),
                ));
            }
        } else {
            let named = self.module.rest(entry.inst, entry.interface);
            if let Some(missing) = globals.iter().find(|id| self.is_input(**id) && !named.contains(id)) {
                return Err(wrong(
                    entry.inst,
                    format!("its interface does not name input {missing}, which it uses"),
                ));
            }
        }
        Ok(Used { functions, globals, writes })
    }

    fn reflect(&mut self, entry: &Entry, used: &Used, wish: &Wish<'_>) -> Result<Shader, GuardError> {
        let (mut bindings, mut constants, mut workgroup_memory) = (Vec::<ShaderBinding>::new(), None, 0_u64);
        for id in used.globals.iter().copied() {
            let (held, inst) = (self.held(id), self.module.definition(id));
            match self.class_of(id) {
                Some(StorageClass::Workgroup) => {
                    let start = workgroup_memory.next_multiple_of(16);
                    workgroup_memory = start.saturating_add(self.ty(held).bytes);
                }
                Some(StorageClass::Private) => self.check_size(inst, held)?,
                Some(StorageClass::PushConstant) => {
                    let bytes = self.layout(held, false).map_or(u64::MAX, |layout| layout.bytes);
                    if constants.replace(bytes).is_some() {
                        return Err(wrong(inst, "it is the second block of push constants"));
                    }
                }
                Some(class @ (StorageClass::StorageBuffer | StorageClass::Uniform)) => {
                    let found = self.binding(id, held, class, used);
                    let at = |b: &ShaderBinding| (b.set, b.binding) == (found.set, found.binding);
                    match bindings.iter_mut().find(|b| at(b)) {
                        Some(same) if same.kind == found.kind && same.count == found.count => {
                            same.is_written |= found.is_written;
                            same.min_size = same.min_size.min(found.min_size);
                        }
                        Some(_) => {
                            return Err(wrong(inst, "it shares its binding with a variable of another kind"));
                        }
                        None => bindings.push(found),
                    }
                }
                _ => {}
            }
        }
        bindings.sort_by_key(|b| (b.set, b.binding));
        let workgroup = self.workgroup_size(entry)?;
        let constants = constants.unwrap_or(0).next_multiple_of(4);
        let constants = u32::try_from(constants)
            .map_err(|_| wrong(entry.inst, format!("it takes {constants} bytes of push constants")))?;
        let uses_num_workgroups = used
            .globals
            .iter()
            .any(|id| self.builtin(*id) == Some(BuiltIn::NumWorkgroups) && self.is_input(*id));
        let words = self.emit(entry, used, workgroup, wish)?;
        Ok(Shader { words, workgroup, bindings, constants, workgroup_memory, uses_num_workgroups })
    }

    fn binding(&mut self, id: u32, held: u32, class: StorageClass, used: &Used) -> ShaderBinding {
        let (block, count) = match self.shape(held) {
            Shape::Array { of, count } => (of, Some(count)),
            _ => (held, None),
        };
        let storage =
            class == StorageClass::StorageBuffer || self.is_decorated(block, WHOLE, Name::BufferBlock);
        let bytes = self.layout(block, !storage).map_or(0, |layout| layout.bytes);
        ShaderBinding {
            set: self.decoration(id, WHOLE, Name::DescriptorSet).unwrap_or(0),
            binding: self.decoration(id, WHOLE, Name::Binding).unwrap_or(0),
            kind: if storage { BufferKind::Storage } else { BufferKind::Uniform },
            count,
            is_written: used.writes.binary_search(&id).is_ok(),
            min_size: bytes.next_multiple_of(4),
            name: self.name_of(id, block),
        }
    }

    /// What the guest calls variable `id`, or the type of it.
    fn name_of(&self, id: u32, block: u32) -> String {
        for named in [id, block] {
            let text = self.names.get(&named).and_then(|inst| self.module.text(*inst, 2).ok());
            if let Some((text, _)) = text.filter(|(text, _)| !text.is_empty()) {
                return text.chars().take(64).collect();
            }
        }
        format!("%{id}")
    }

    fn workgroup_size(&self, entry: &Entry) -> Result<[u32; 3], GuardError> {
        let builtin = self.decorations.iter().find(|d| {
            d.name == Name::BuiltIn && d.value == BuiltIn::WorkgroupSize as u32 && d.member == WHOLE
        });
        let size = if let Some(d) = builtin {
            self.triple(d.target)
        } else if let Some(inst) = entry.size {
            let words = [3, 4, 5].map(|at| self.module.word(inst, at));
            match inst.op() {
                spirv::Op::ExecutionModeId => {
                    let known = words.map(|id| self.integer(id).and_then(|size| u32::try_from(size).ok()));
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
