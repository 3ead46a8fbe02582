//! Entry points.

use std::collections::HashSet;

use spirv::ExecutionMode;
use spirv::ExecutionModel;
use spirv::Op;

use crate::shader::error::GuardError;
use crate::shader::module::Inst;
use crate::shader::module::Kind;
use crate::shader::module::Module;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;
use crate::shader::symbols::Symbols;

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

/// The entry points of a module.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) list: Vec<Entry>,
}

impl Entries {
    /// Takes in `OpEntryPoint`.
    pub(super) fn declare(&mut self, module: &Module<'_>, inst: Inst) -> Result<(), GuardError> {
        inst.length(4, u32::MAX)?;
        let (name, words) = module.text(inst, 3)?;
        if module.word(inst, 1) != ExecutionModel::GLCompute as u32 {
            return Err(wrong(
                inst,
                format!("entry point `{}` is none of a compute kernel", name.escape_default()),
            ));
        }
        if self.list.iter().any(|entry| entry.name == name) || self.list.len() >= 256 {
            return Err(wrong(inst, "two entry points have the same name, or there are more than 256"));
        }
        let (function, interface) = (module.word(inst, 2), 3 + words);
        self.list.push(Entry { inst, function, name, interface, size: None });
        Ok(())
    }

    /// Takes in `OpExecutionMode` or `OpExecutionModeId`.
    pub(super) fn execution_mode(&mut self, module: &Module<'_>, inst: Inst) -> Result<(), GuardError> {
        inst.length(6, 6)?;
        let (function, mode) = (module.word(inst, 1), module.word(inst, 2));
        let wanted = match inst.op() {
            Op::ExecutionModeId => ExecutionMode::LocalSizeId,
            _ => ExecutionMode::LocalSize,
        };
        if mode != wanted as u32 {
            return Err(wrong(inst, "execution modes other than the local size are not offered"));
        }
        let mut found = false;
        for entry in self.list.iter_mut().filter(|entry| entry.function == function) {
            if entry.size.replace(inst).is_some() {
                return Err(wrong(inst, "the local size is said twice"));
            }
            found = true;
        }
        if found { Ok(()) } else { Err(wrong(inst, "it is of no entry point")) }
    }

    /// Checks their interfaces, once all variables are declared.
    pub(super) fn check_interfaces(&self, symbols: &Symbols<'_>) -> Result<(), GuardError> {
        for entry in &self.list {
            let mut seen = HashSet::new();
            for id in symbols.module.rest(entry.inst, entry.interface) {
                let old = symbols.module.version < V1_4;
                let wanted = symbols.module.id(*id).kind == Kind::Global;
                if !wanted || !seen.insert(*id) || old && !symbols.is_input(*id) {
                    return Err(wrong(
                        entry.inst,
                        format!("{id} in its interface is no variable of it, or is named twice"),
                    ));
                }
            }
        }
        Ok(())
    }
}
