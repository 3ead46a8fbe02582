//! A module on its way through the guard: the parts of it, each with its own checks, and the pass over what stands before the
//! functions, section by section, in the order that SPIR-V demands.

use std::collections::HashMap;

use spirv::Capability;
use spirv::Op;

use crate::shader::body::Body;
use crate::shader::capabilities::Capabilities;
use crate::shader::clamp::Clamp;
use crate::shader::clamp::Semantics;
use crate::shader::constants::Constants;
use crate::shader::decorations::Decorations;
use crate::shader::entries::Entries;
use crate::shader::error::GuardError;
use crate::shader::flow::Flow;
use crate::shader::function::Functions;
use crate::shader::interface::Wish;
use crate::shader::layout::LayoutFinder;
use crate::shader::layout::Layouts;
use crate::shader::module::Id;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::NOWHERE;
use crate::shader::module::debug;
use crate::shader::module::define_debug;
use crate::shader::module::is_type;
use crate::shader::module::is_value;
use crate::shader::module::wrong;
use crate::shader::rounding;
use crate::shader::symbols::Symbols;
use crate::shader::types::Types;
use crate::shader::variables::VariableCheck;
use crate::shader::variables::Variables;

/// The parts of a module. Each owns what it was told and checks the next instruction of its kind; the later ones read the
/// earlier ones.
pub(super) struct Guard<'a> {
    pub(super) symbols: Symbols<'a>,
    pub(super) capabilities: Capabilities,
    pub(super) entries: Entries,
    pub(super) decorations: Decorations,
    types: Types,
    variables: Variables,
    layouts: Layouts,
    pub(super) functions: Functions,
    pub(super) flow: Flow,
    /// Index of the first `OpFunction`.
    pub(super) code: u32,
    pub(super) clamps: Vec<Clamp>,
    pub(super) semantics: Vec<Semantics>,
    /// What the guest calls its ids.
    pub(super) names: HashMap<u32, Inst>,
    /// As in [`Wish`].
    wished: &'a [(u32, u64)],
}

impl<'a> Guard<'a> {
    /// Nothing of the module is checked yet.
    pub(super) fn new(module: Module<'a>, wish: &Wish<'a>) -> Self {
        Self {
            symbols: Symbols::new(module),
            capabilities: Capabilities::new(wish.profile),
            entries: Entries::default(),
            decorations: Decorations::default(),
            types: Types::default(),
            variables: Variables::default(),
            layouts: Layouts::default(),
            functions: Functions::default(),
            flow: Flow::default(),
            code: 0,
            clamps: Vec::new(),
            semantics: Vec::new(),
            names: HashMap::new(),
            wished: wish.constants,
        }
    }

    /// Takes in all that comes before the functions.
    pub(super) fn declare(&mut self) -> Result<(), GuardError> {
        let mut reached = Section::Capabilities;
        let mut has_model = false;
        let count = u32::try_from(self.symbols.module.insts.len()).unwrap_or(NOWHERE);
        for index in 0..count {
            let inst = self.symbols.module.inst(index);
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
                Op::Capability => self.capabilities.declare(&self.symbols.module, inst)?,
                Op::Extension => self.extension(inst)?,
                Op::ExtInstImport => self.import(index, inst)?,
                Op::MemoryModel => {
                    self.memory_model(inst, has_model)?;
                    has_model = true;
                }
                Op::EntryPoint => self.entries.declare(&self.symbols.module, inst)?,
                Op::ExecutionMode | Op::ExecutionModeId => {
                    self.entries.execution_mode(&self.symbols.module, inst)?
                }
                Op::Name => drop(self.names.insert(self.symbols.module.word(inst, 1), inst)),
                Op::String => {
                    self.symbols.module.define(inst, self.symbols.module.word(inst, 1), debug(index))?
                }
                // Debug information of non-semantic instruction sets.
                Op::ExtInst => define_debug(&mut self.symbols.module, index, inst)?,
                Op::Decorate | Op::DecorateId | Op::MemberDecorate => {
                    self.decorations.decorate(&self.symbols.module, inst)?
                }
                Op::Variable => self.variables.declare(&mut self.symbols, index, inst)?,
                _ if section == Some(Section::Declarations) => match is_type(inst.op()) {
                    true => self.types.declare(&mut self.symbols, &self.capabilities, index, inst)?,
                    false => {
                        let (symbols, capabilities) = (&mut self.symbols, &self.capabilities);
                        let (specialised, wished) = (&self.decorations.specialised, self.wished);
                        Constants { symbols, capabilities, specialised, wished }.declare(index, inst)?;
                    }
                },
                _ => {}
            }
        }
        Err(GuardError::module("it has no function"))
    }

    /// An extension adds nothing by its name alone: what comes with it needs a capability, or is an instruction or a decoration, and those are judged.
    /// The result names what its capabilities need.
    fn extension(&self, inst: Inst) -> Result<(), GuardError> {
        let (_, words) = self.symbols.module.text(inst, 1)?;
        inst.length(1 + words, 1 + words)
    }

    fn import(&mut self, index: u32, inst: Inst) -> Result<(), GuardError> {
        let (name, words) = self.symbols.module.text(inst, 2)?;
        inst.length(2 + words, 2 + words)?;
        let kind = match name.as_str() {
            "GLSL.std.450" => Kind::Glsl,
            name if name.starts_with("NonSemantic.") || name == "OpenCL.DebugInfo.100" => Kind::Debug,
            name => {
                let reason =
                    format!("the instruction set `{}` is not offered to kernels", name.escape_default());
                return Err(wrong(inst, reason));
            }
        };
        self.symbols.module.define(inst, self.symbols.module.word(inst, 1), Id { kind, ..debug(index) })
    }

    fn memory_model(&mut self, inst: Inst, again: bool) -> Result<(), GuardError> {
        inst.length(3, 3)?;
        let (addressing, model) = (self.symbols.module.word(inst, 1), self.symbols.module.word(inst, 2));
        let vulkan = model == spirv::MemoryModel::Vulkan as u32;
        self.capabilities.vulkan_memory = vulkan;
        if again {
            return Err(wrong(inst, "there is one already"));
        }
        if addressing != 0 {
            return Err(wrong(inst, "kernels have logical addressing only"));
        }
        if !self.capabilities.has(Capability::Shader) {
            return Err(wrong(inst, "the capability Shader is not declared"));
        }
        if vulkan != self.capabilities.has(Capability::VulkanMemoryModel) || !vulkan && model != 1 {
            return Err(wrong(inst, "the memory model is neither GLSL450 nor Vulkan with its capability"));
        }
        Ok(())
    }

    /// What can only be checked once everything before the functions is known.
    fn finish_declarations(&mut self) -> Result<(), GuardError> {
        self.decorations.sort();
        if self.entries.list.is_empty() {
            return Err(GuardError::module("it has no entry point"));
        }
        self.decorations.check(&self.symbols, &self.capabilities)?;
        let (symbols, capabilities) = (&self.symbols, &self.capabilities);
        let (decorations, layouts) = (&self.decorations, &mut self.layouts);
        VariableCheck { symbols, capabilities, decorations, layouts }.check(&self.variables)?;
        self.entries.check_interfaces(&self.symbols)
    }

    /// Takes in the functions, and cuts their blocks.
    pub(super) fn declare_functions(&mut self) -> Result<(), GuardError> {
        self.functions.declare_all(&mut self.symbols, &mut self.flow, self.code)?;
        self.functions.check_entries(&self.symbols, &self.entries)
    }

    /// Checks what stands in the functions.
    pub(super) fn check_functions(&mut self) -> Result<(), GuardError> {
        let Self { symbols, capabilities, entries, decorations, functions, flow, clamps, semantics, .. } =
            self;
        Body { symbols, capabilities, entries, decorations, functions, flow, clamps, semantics }
            .check_functions()?;
        rounding::check(&self.symbols, &self.capabilities, &self.decorations, self.code)
    }

    /// Finds layouts of types in buffers.
    pub(super) fn layout_finder(&mut self) -> LayoutFinder<'_, 'a> {
        let Self { symbols, decorations, layouts, .. } = self;
        LayoutFinder { symbols, decorations, layouts }
    }
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
        op if is_type(op) || is_value(op) => Section::Declarations,
        _ => return None,
    }))
}
