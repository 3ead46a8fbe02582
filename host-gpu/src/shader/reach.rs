//! What of a module its kernels reach: programs carry shaders of other stages in one module, and declare what their kernels do not use. Whatever no
//! entry point of a kernel reaches is left out before anything is judged.
//!
//! ```text
//!   entry point ─▶ its interface, its function ─▶ each id that an instruction there names ─▶ types, constants, variables, functions ─▶ …
//! ```
//!
//! Which words of an instruction are ids is known for common ones; of all others, each word is taken for one. So more may be kept than is reached, and
//! never less.

use std::ops::Range;

use spirv::BuiltIn;
use spirv::Decoration;
use spirv::ExecutionModel;
use spirv::Op;

use crate::shader::module::Inst;
use crate::shader::module::Module;
use crate::shader::module::is_type;
use crate::shader::module::is_value;

/// Leaves out what the entry point of a kernel that is called `entry` does not reach; or all kernels of the module, where none is called so, or none is
/// asked for. A module without kernels stays as it is.
pub(super) fn keep(module: &mut Module<'_>, entry: Option<&str>) {
    let entries = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<Inst> {
        let is_kernel = |inst: &&Inst| {
            inst.op() == Op::EntryPoint && module.word(**inst, 1) == ExecutionModel::GLCompute as u32
        };
        // A name that cannot be read is refused where it is declared.
        let is_named = |inst: &&Inst| module.text(**inst, 3).map_or(true, |(name, _)| is_wanted(&name));
        module.insts.iter().filter(is_kernel).filter(is_named).copied().collect()
    };
    let asked = entries(&|name| entry.is_none_or(|asked| asked == name));
    let roots = if asked.is_empty() { entries(&|_| true) } else { asked };
    if roots.is_empty() {
        return;
    }
    let mut reach = Reach::of(module);
    reach.begin(&roots);
    reach.follow();
    let kept: Vec<bool> =
        (0..).zip(&module.insts).map(|(at, inst)| reach.is_kept(at, *inst, &roots)).collect();
    let mut kept = kept.into_iter();
    module.insts.retain(|_| kept.next().unwrap_or(true));
}

/// What is reached so far.
struct Reach<'m, 'a> {
    module: &'m Module<'a>,
    /// Of each id that the whole module sees: the instructions that define it, all of those of a function.
    definitions: Vec<Range<usize>>,
    /// The function of each instruction, 0 of those that stand in none.
    functions: Vec<u32>,
    /// Functions of entry points.
    of_entries: Vec<u32>,
    named: Vec<bool>,
    /// Named, and not followed.
    open: Vec<u32>,
}

impl<'m, 'a> Reach<'m, 'a> {
    fn of(module: &'m Module<'a>) -> Self {
        let mut definitions = vec![0..0; module.ids.len()];
        let mut functions = Vec::with_capacity(module.insts.len());
        let (mut function, mut of_entries) = (0, Vec::new());
        for (index, inst) in module.insts.iter().enumerate() {
            match inst.op() {
                Op::Function => function = module.word(*inst, 2),
                Op::EntryPoint => of_entries.push(module.word(*inst, 2)),
                _ => {}
            }
            functions.push(function);
            let id = if function != 0 { Some(function) } else { result_of(module, *inst) };
            if let Some(range) = id.and_then(|id| definitions.get_mut(id as usize)) {
                // What is defined twice is refused, if it is reached.
                if range.end == 0 {
                    *range = index..index + 1;
                } else if range.end == index {
                    range.end += 1;
                }
            }
            if inst.op() == Op::FunctionEnd {
                function = 0;
            }
        }
        of_entries.sort_unstable();
        let named = vec![false; module.ids.len()];
        Self { module, definitions, functions, of_entries, named, open: Vec::new() }
    }

    fn name(&mut self, inst: Inst, words: Range<u32>) {
        for at in words {
            let id = self.module.word(inst, at);
            if let Some(named) = self.named.get_mut(id as usize)
                && !std::mem::replace(named, true)
            {
                self.open.push(id);
            }
        }
    }

    /// Names what entry points name, and what stands on it without being named by an instruction.
    fn begin(&mut self, roots: &[Inst]) {
        let module = self.module;
        for root in roots {
            let text = module.text(*root, 3).map_or(root.len, |(_, words)| 3 + words);
            self.name(*root, 2..3);
            self.name(*root, text..root.len);
        }
        for inst in &module.insts {
            match inst.op() {
                // The size of workgroups, where a constant says it.
                Op::Decorate
                    if module.word(*inst, 2) == Decoration::BuiltIn as u32
                        && module.word(*inst, 3) == BuiltIn::WorkgroupSize as u32 =>
                {
                    self.name(*inst, 1..2);
                }
                Op::DecorateId | Op::ExecutionModeId => self.name(*inst, 3..inst.len),
                _ => {}
            }
        }
    }

    fn follow(&mut self) {
        let module = self.module;
        while let Some(id) = self.open.pop() {
            let Some(range) = self.definitions.get(id as usize).cloned() else { continue };
            for (index, inst) in range.clone().zip(module.insts.get(range).unwrap_or_default()) {
                for words in ids(module, *inst) {
                    self.name(*inst, words);
                }
                // Decorations stand on what is defined in functions, too.
                if self.functions.get(index).is_some_and(|function| *function != 0)
                    && !is_structure(inst.op())
                {
                    self.name(*inst, 2..3.min(inst.len));
                }
            }
        }
    }

    fn is_kept(&self, index: usize, inst: Inst, roots: &[Inst]) -> bool {
        let is_named = |id: u32| self.named.get(id as usize).copied().unwrap_or(true);
        let word = |at| self.module.word(inst, at);
        match self.functions.get(index).copied().unwrap_or(0) {
            0 => {}
            function => return is_named(function),
        }
        match inst.op() {
            Op::EntryPoint => roots.binary_search_by_key(&inst.at, |root| root.at).is_ok(),
            Op::ExecutionMode | Op::ExecutionModeId => {
                is_named(word(1)) || self.of_entries.binary_search(&word(1)).is_err()
            }
            Op::Decorate | Op::DecorateId | Op::MemberDecorate => is_named(word(1)),
            _ => result_of(self.module, inst).is_none_or(is_named),
        }
    }
}

/// What an instruction outside of functions defines, if that can be left out.
fn result_of(module: &Module<'_>, inst: Inst) -> Option<u32> {
    let at = match inst.op() {
        op if is_type(op) => 1,
        op if is_value(op) => 2,
        _ => return None,
    };
    Some(module.word(inst, at))
}

/// Memory operands that bring a scope: `MakePointerAvailable`, `MakePointerVisible`.
const MOVES: u32 = 8 | 16;

/// What has no ids but those of blocks.
fn is_structure(op: Op) -> bool {
    matches!(
        op,
        Op::Label | Op::Branch | Op::SelectionMerge | Op::LoopMerge | Op::Line | Op::NoLine | Op::Nop
    )
}

/// The words of an instruction that may be ids of what the whole module sees, but for its result.
fn ids(module: &Module<'_>, inst: Inst) -> [Range<u32>; 2] {
    let none = || 0..0;
    // The scope of a load or store that makes memory visible or available, behind its mask.
    let scope = |mask: u32| match module.word(inst, mask) & MOVES {
        0 => 0..0,
        _ => inst.len - 1..inst.len,
    };
    match inst.op() {
        op if is_structure(op) => [none(), none()],
        Op::TypeVoid | Op::TypeBool | Op::TypeInt | Op::TypeFloat | Op::TypeSampler => [none(), none()],
        Op::TypeVector | Op::TypeMatrix | Op::TypeImage => [2..3, none()],
        Op::TypePointer => [3..4, none()],
        Op::Constant
        | Op::SpecConstant
        | Op::ConstantTrue
        | Op::ConstantFalse
        | Op::ConstantNull
        | Op::SpecConstantTrue
        | Op::SpecConstantFalse
        | Op::Undef
        | Op::FunctionParameter
        | Op::BranchConditional
        | Op::Switch => [1..2, none()],
        Op::Load => [1..4.min(inst.len), scope(4)],
        Op::Store => [1..3.min(inst.len), scope(3)],
        Op::SpecConstantOp | Op::Variable => [1..2, 4..inst.len.max(4)],
        Op::Function => [1..2, 4..5],
        Op::ExtInst => [1..2, 5..inst.len.max(5)],
        Op::CompositeExtract => [1..2, 3..4],
        Op::CompositeInsert | Op::VectorShuffle => [1..2, 3..5],
        op if is_type(op) => [2..inst.len.max(2), none()],
        _ => [1..inst.len, none()],
    }
}
