//! The pass over the part before the functions: section by section, in the order that SPIR-V demands.

use std::collections::HashMap;
use std::collections::HashSet;

use spirv::Capability;
use spirv::ExecutionMode;
use spirv::ExecutionModel;
use spirv::Op;

use crate::shader::constants::Value;
use crate::shader::decorations::Decoration;
use crate::shader::error::GuardError;
use crate::shader::flow::Block;
use crate::shader::function::Function;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;
use crate::shader::profile;
use crate::shader::profile::Profile;
use crate::shader::types::Type;

/// The largest value that a kernel may hold in a variable, a constant or an expression, bytes.
const VALUE_LIMIT: u64 = 16 * 1024;

/// A module on its way through the guard.
pub(super) struct Guard<'a> {
    pub(super) module: Module<'a>,
    pub(super) profile: Profile,
    pub(super) capabilities: Vec<u32>,
    /// Whether it declares the memory model of Vulkan.
    pub(super) vulkan_memory: bool,
    pub(super) entries: Vec<Entry>,
    pub(super) decorations: Vec<Decoration>,
    pub(super) types: Vec<Type>,
    pub(super) distinct: HashSet<Vec<u32>>,
    pub(super) members: u32,
    pub(super) constants: Vec<Value>,
    /// Ids of global variables, in order.
    pub(super) globals: Vec<u32>,
    pub(super) functions: Vec<Function>,
    pub(super) blocks: Vec<Block>,
    /// Index of the first `OpFunction`.
    pub(super) code: u32,
    pub(super) clamps: Vec<crate::shader::access::Clamp>,
    pub(super) layouts: crate::shader::layout::Layouts,
    /// What the guest calls its ids.
    pub(super) names: HashMap<u32, Inst>,
}

/// One entry point.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) inst: Inst,
    pub(super) function: u32,
    pub(super) name: String,
    /// Operand index of the first id of its interface.
    pub(super) interface: u32,
    /// Where its local size is said.
    pub(super) size: Option<Inst>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(words: &'a [u32], profile: &Profile) -> Result<Self, GuardError> {
        let module = Module::split(words)?;
        Ok(Self {
            module,
            profile: *profile,
            capabilities: Vec::new(),
            vulkan_memory: false,
            entries: Vec::new(),
            decorations: Vec::new(),
            types: Vec::new(),
            distinct: HashSet::new(),
            members: 0,
            constants: Vec::new(),
            globals: Vec::new(),
            functions: Vec::new(),
            blocks: Vec::new(),
            code: 0,
            clamps: Vec::new(),
            layouts: crate::shader::layout::Layouts::default(),
            names: HashMap::new(),
        })
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&(capability as u32))
    }

    pub(super) fn has_any(&self, capabilities: &[Capability]) -> bool {
        capabilities.iter().any(|capability| self.has(*capability))
    }

    /// Takes in all that comes before the functions.
    pub(super) fn declare(&mut self) -> Result<(), GuardError> {
        let mut reached = Section::Capabilities;
        let mut has_model = false;
        let count = u32::try_from(self.module.insts.len()).unwrap_or(NOWHERE);
        for index in 0..count {
            let inst = self.module.inst(index);
            if inst.code == Op::Function as u32 {
                self.code = index;
                if !has_model {
                    return Err(GuardError::module("it has no memory model"));
                }
                return self.finish_declarations();
            }
            let section =
                section(inst).ok_or_else(|| wrong(inst, "it may not stand before the functions"))?;
            if let Some(section) = section {
                if section < reached {
                    return Err(wrong(inst, format!("it comes after {reached:?}")));
                }
                reached = section;
            }
            match inst.op() {
                Op::Capability => self.capability(inst)?,
                Op::Extension => self.extension(inst)?,
                Op::ExtInstImport => self.import(index, inst)?,
                Op::MemoryModel => {
                    self.memory_model(inst, has_model)?;
                    has_model = true;
                }
                Op::EntryPoint => self.entry_point(inst)?,
                Op::ExecutionMode | Op::ExecutionModeId => self.execution_mode(inst)?,
                Op::Name => drop(self.names.insert(self.module.word(inst, 1), inst)),
                Op::String => self.module.define(inst, self.module.word(inst, 1), debug(index))?,
                // Debug information of non-semantic instruction sets.
                Op::ExtInst => self.debug_instruction(index, inst)?,
                Op::Decorate | Op::DecorateId | Op::MemberDecorate => self.decorate(inst)?,
                Op::Variable => self.declare_variable(index, inst)?,
                _ if section == Some(Section::Declarations) => match is_type(inst.op()) {
                    true => self.declare_type(index, inst)?,
                    false => self.declare_constant(index, inst)?,
                },
                _ => {}
            }
        }
        Err(GuardError::module("it has no function"))
    }

    fn capability(&mut self, inst: Inst) -> Result<(), GuardError> {
        inst.length(2, 2)?;
        let code = self.module.word(inst, 1);
        let name =
            || Capability::from_u32(code).map_or_else(|| code.to_string(), |known| format!("{known:?}"));
        match self.profile.offers(code) {
            Some(true) => {}
            Some(false) => {
                return Err(wrong(inst, format!("this device does not offer the capability {}", name())));
            }
            None => return Err(wrong(inst, format!("the capability {} is not offered to kernels", name()))),
        }
        self.capabilities.push(code);
        self.capabilities.extend(profile::implied(code).iter().map(|implied| *implied as u32));
        if self.capabilities.len() > 128 {
            return Err(wrong(inst, "capabilities are declared over and over"));
        }
        Ok(())
    }

    fn extension(&self, inst: Inst) -> Result<(), GuardError> {
        let (name, words) = self.module.text(inst, 1)?;
        inst.length(1 + words, 1 + words)?;
        let known = |list: &[&str]| list.contains(&name.as_str());
        if known(profile::EXTENSIONS) || known(profile::DEBUG_EXTENSIONS) {
            return Ok(());
        }
        Err(wrong(inst, format!("the extension `{}` is not offered to kernels", name.escape_default())))
    }

    fn import(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        let (name, words) = self.module.text(inst, 2)?;
        inst.length(2 + words, 2 + words)?;
        let kind = match name.as_str() {
            "GLSL.std.450" => Kind::Glsl,
            name if name.starts_with("NonSemantic.") => Kind::Debug,
            name => {
                let reason =
                    format!("the instruction set `{}` is not offered to kernels", name.escape_default());
                return Err(wrong(inst, reason));
            }
        };
        self.module.define(inst, self.module.word(inst, 1), Id { kind, ..debug(index) })
    }

    fn memory_model(&mut self, inst: Inst, again: bool) -> Result<(), GuardError> {
        inst.length(3, 3)?;
        let (addressing, model) = (self.module.word(inst, 1), self.module.word(inst, 2));
        let vulkan = model == spirv::MemoryModel::Vulkan as u32;
        self.vulkan_memory = vulkan;
        if again {
            return Err(wrong(inst, "there is one already"));
        }
        if addressing != 0 {
            return Err(wrong(inst, "kernels have logical addressing only"));
        }
        if !self.has(Capability::Shader) {
            return Err(wrong(inst, "the capability Shader is not declared"));
        }
        if vulkan != self.has(Capability::VulkanMemoryModel) || !vulkan && model != 1 {
            return Err(wrong(inst, "the memory model is neither GLSL450 nor Vulkan with its capability"));
        }
        Ok(())
    }

    fn entry_point(&mut self, inst: Inst) -> Result<(), GuardError> {
        inst.length(4, u32::MAX)?;
        let (name, words) = self.module.text(inst, 3)?;
        if self.module.word(inst, 1) != ExecutionModel::GLCompute as u32 {
            return Err(wrong(
                inst,
                format!("entry point `{}` is none of a compute kernel", name.escape_default()),
            ));
        }
        if self.entries.iter().any(|entry| entry.name == name) || self.entries.len() >= 256 {
            return Err(wrong(inst, "two entry points have the same name, or there are more than 256"));
        }
        let (function, interface) = (self.module.word(inst, 2), 3 + words);
        self.entries.push(Entry { inst, function, name, interface, size: None });
        Ok(())
    }

    fn execution_mode(&mut self, inst: Inst) -> Result<(), GuardError> {
        inst.length(6, 6)?;
        let (function, mode) = (self.module.word(inst, 1), self.module.word(inst, 2));
        let wanted = match inst.op() {
            Op::ExecutionModeId => ExecutionMode::LocalSizeId,
            _ => ExecutionMode::LocalSize,
        };
        if mode != wanted as u32 {
            return Err(wrong(inst, "execution modes other than the local size are not offered"));
        }
        let mut found = false;
        for entry in self.entries.iter_mut().filter(|entry| entry.function == function) {
            if entry.size.replace(inst).is_some() {
                return Err(wrong(inst, "the local size is said twice"));
            }
            found = true;
        }
        if found { Ok(()) } else { Err(wrong(inst, "it is of no entry point")) }
    }

    /// An instruction of a non-semantic set: dropped, so only its result matters.
    pub(super) fn debug_instruction(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        if self.module.id(self.module.word(inst, 3)).kind != Kind::Debug {
            return Err(wrong(inst, "it is of no instruction set that may be used here"));
        }
        self.module.define(inst, self.module.word(inst, 2), debug(index))
    }

    /// What can only be checked once everything before the functions is known.
    fn finish_declarations(&mut self) -> Result<(), GuardError> {
        self.sort_decorations();
        if self.entries.is_empty() {
            return Err(GuardError::module("it has no entry point"));
        }
        self.check_decorations()?;
        self.check_variables()?;
        for entry in &self.entries {
            let mut seen = HashSet::new();
            for id in self.module.rest(entry.inst, entry.interface) {
                let old = self.module.version < V1_4;
                let wanted = self.module.id(*id).kind == Kind::Global;
                if !wanted || !seen.insert(*id) || old && !self.is_input(*id) {
                    return Err(wrong(
                        entry.inst,
                        format!("{id} in its interface is no variable of it, or is named twice"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Refuses values that would keep a driver's compiler busy: it takes them apart.
    pub(super) fn check_size(&self, inst: Inst, ty: u32) -> Result<(), GuardError> {
        let bytes = self.ty(ty).bytes;
        if bytes <= VALUE_LIMIT {
            return Ok(());
        }
        Err(wrong(inst, format!("{bytes} bytes in one value, more than {VALUE_LIMIT}")))
    }
}

pub(super) fn debug(index: u32) -> Id {
    Id { kind: Kind::Debug, inst: index, block: NOWHERE, ..Id::default() }
}

/// The parts of a module, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Capabilities,
    Extensions,
    Imports,
    MemoryModel,
    EntryPoints,
    ExecutionModes,
    Sources,
    Names,
    Processes,
    Annotations,
    Declarations,
}

/// Where an instruction belongs; `Some(None)` for what may stand anywhere.
fn section(inst: Inst) -> Option<Option<Section>> {
    Some(Some(match Op::from_u32(inst.code)? {
        Op::Capability => Section::Capabilities,
        Op::Extension => Section::Extensions,
        Op::ExtInstImport => Section::Imports,
        Op::MemoryModel => Section::MemoryModel,
        Op::EntryPoint => Section::EntryPoints,
        Op::ExecutionMode | Op::ExecutionModeId => Section::ExecutionModes,
        Op::String | Op::Source | Op::SourceExtension | Op::SourceContinued => Section::Sources,
        Op::Name | Op::MemberName => Section::Names,
        Op::ModuleProcessed => Section::Processes,
        Op::Decorate
        | Op::DecorateId
        | Op::MemberDecorate
        | Op::DecorateString
        | Op::MemberDecorateString => Section::Annotations,
        Op::Line | Op::NoLine => return Some(None),
        op if is_type(op) => Section::Declarations,
        Op::ExtInst
        | Op::Variable
        | Op::Undef
        | Op::ConstantTrue
        | Op::ConstantFalse
        | Op::Constant
        | Op::ConstantComposite
        | Op::ConstantNull
        | Op::SpecConstantTrue
        | Op::SpecConstantFalse
        | Op::SpecConstant
        | Op::SpecConstantComposite
        | Op::SpecConstantOp => Section::Declarations,
        _ => return None,
    }))
}

fn is_type(op: Op) -> bool {
    matches!(
        op,
        Op::TypeVoid
            | Op::TypeBool
            | Op::TypeInt
            | Op::TypeFloat
            | Op::TypeVector
            | Op::TypeMatrix
            | Op::TypeArray
            | Op::TypeRuntimeArray
            | Op::TypeStruct
            | Op::TypePointer
            | Op::TypeFunction
            | Op::TypeImage
            | Op::TypeSampler
            | Op::TypeSampledImage
            | Op::TypeAccelerationStructureKHR
            | Op::TypeCooperativeMatrixKHR
            | Op::TypeForwardPointer
    )
}

/// What carries only debug information and is left out of the result.
pub(super) fn is_debug(op: Op) -> bool {
    matches!(
        op,
        Op::String
            | Op::Source
            | Op::SourceExtension
            | Op::SourceContinued
            | Op::Name
            | Op::MemberName
            | Op::ModuleProcessed
            | Op::Line
            | Op::NoLine
            | Op::DecorateString
            | Op::MemberDecorateString
    )
}
