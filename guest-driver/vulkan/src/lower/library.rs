//! Functions of a compiled module (`library/library.comp`), taken into a module of a program one by one, with the types, constants and
//! functions that they need.

use std::collections::HashMap;
use std::sync::LazyLock;

use ::spirv::Op;

use super::code::Refusal;
use super::code::push;
use super::module::Module;
use crate::spirv;
use crate::spirv::instructions;

static LIBRARY: LazyLock<Library> =
    LazyLock::new(|| Library::read(&spirv::words(include_bytes!("library/library.spv"))));

/// `GLSL.std.450` as words.
pub(super) const EXTENDED: [u32; 4] =
    [u32::from_le_bytes(*b"GLSL"), u32::from_le_bytes(*b".std"), u32::from_le_bytes(*b".450"), 0];

/// The compiled module.
#[derive(Default)]
struct Library {
    /// Name of a function, as far as its parameters → its id.
    names: HashMap<String, u32>,
    /// What declares an id outside of functions.
    declarations: HashMap<u32, Vec<u32>>,
    /// Function → its instructions.
    functions: HashMap<u32, Vec<Vec<u32>>>,
}

impl Library {
    fn read(words: &[u32]) -> Self {
        let (mut library, mut function) = (Self::default(), 0);
        for (op, instruction) in instructions(words) {
            match (Op::from_u32(op), instruction) {
                (Some(Op::Name), [_, id, name @ ..]) => {
                    let bytes: Vec<u8> = spirv::bytes(name).take_while(|byte| *byte != b'(').collect();
                    library.names.insert(String::from_utf8_lossy(&bytes).into_owned(), *id);
                }
                (Some(Op::Function), [_, _, id, ..]) => function = *id,
                (Some(Op::ExtInstImport), [_, id, ..]) => {
                    library.declarations.insert(*id, instruction.to_vec());
                }
                _ => {}
            }
            if function != 0 {
                library.functions.entry(function).or_default().push(instruction.to_vec());
            } else if let Some(id) = declared(op, instruction) {
                library.declarations.insert(id, instruction.to_vec());
            }
            if op == Op::FunctionEnd as u32 {
                function = 0;
            }
        }
        library
    }
}

/// The id that a type, constant or variable declares.
fn declared(op: u32, instruction: &[u32]) -> Option<u32> {
    match op {
        19..=33 => instruction.get(1).copied(),
        41..=44 | 59 => instruction.get(2).copied(),
        _ => None,
    }
}

/// Whether a word of an instruction of the library is an id, by where it stands; all others are literals.
fn is_id(op: Op, at: usize) -> bool {
    match op {
        Op::Function => at != 3,
        Op::Variable => at < 3,
        Op::CompositeExtract => at < 4,
        Op::VectorShuffle => at < 5,
        Op::ExtInst => at != 4,
        Op::SelectionMerge => at < 2,
        Op::LoopMerge => at < 3,
        Op::BranchConditional => at < 4,
        // A selector, the default, and literals each before a label.
        Op::Switch => at < 3 || at.is_multiple_of(2),
        _ => true,
    }
}

impl Module {
    /// Takes note of what the program imports.
    pub(super) fn import(&mut self, instruction: &[u32]) {
        if let [first, id, name @ ..] = instruction
            && first & 0xffff == Op::ExtInstImport as u32
            && name == EXTENDED
        {
            (self.taken.extended, self.taken.imports) = (*id, true);
        }
    }

    /// The function of the library that is called so.
    pub(super) fn library(&mut self, name: &str) -> Result<u32, Refusal> {
        let id = LIBRARY.names.get(name).copied().ok_or("the library has no such function")?;
        Ok(self.take(id))
    }

    /// What an id of the library is in this module.
    fn take(&mut self, id: u32) -> u32 {
        if let Some(known) = self.taken.ids.get(&id) {
            return *known;
        }
        let own = match (LIBRARY.declarations.get(&id), LIBRARY.functions.get(&id)) {
            (Some(declaration), _) => self.take_declaration(declaration),
            (None, Some(function)) => return self.take_function(id, function),
            (None, None) => self.code.id(),
        };
        self.taken.ids.insert(id, own);
        own
    }

    fn take_declaration(&mut self, declaration: &[u32]) -> u32 {
        let op = declaration.first().and_then(|first| Op::from_u32(first & 0xffff));
        let mut map = |from: &[u32], ids: usize| -> Vec<u32> {
            let word = |(at, word): (usize, &u32)| if at < ids { self.take(*word) } else { *word };
            from.iter().enumerate().map(word).collect()
        };
        match (op, declaration) {
            (Some(Op::ExtInstImport), _) => {
                if self.taken.extended == 0 {
                    self.taken.extended = self.code.id();
                }
                self.taken.extended
            }
            // There is one variable, that of the records, and its type is this module's.
            (Some(Op::Variable), _) => self.table,
            (Some(op @ Op::TypePointer), [_, _, class, to]) => {
                let to = self.take(*to);
                self.code.type_of(op, &[*class, to])
            }
            (Some(op @ (Op::TypeVector | Op::TypeImage)), [_, _, rest @ ..]) => {
                let operands = map(rest, 1);
                self.code.type_of(op, &operands)
            }
            (Some(op @ Op::TypeFunction), [_, _, rest @ ..]) => {
                let operands = map(rest, rest.len());
                self.code.type_of(op, &operands)
            }
            (Some(op @ (Op::TypeVoid | Op::TypeBool | Op::TypeInt | Op::TypeFloat)), [_, _, rest @ ..]) => {
                self.code.type_of(op, rest)
            }
            (Some(op), [_, ty, _, rest @ ..]) => {
                let is_composite = op == Op::ConstantComposite;
                let operands = map(rest, if is_composite { rest.len() } else { 0 });
                let ty = self.take(*ty);
                self.code.constant_of(op, ty, &operands)
            }
            _ => self.code.id(),
        }
    }

    fn take_function(&mut self, id: u32, function: &[Vec<u32>]) -> u32 {
        let own = self.code.id();
        self.taken.ids.insert(id, own);
        let mut words = Vec::new();
        for instruction in function {
            let Some((first, rest)) = instruction.split_first() else { continue };
            let Some(op) = Op::from_u32(first & 0xffff) else { continue };
            let word = |(at, word): (usize, &u32)| if is_id(op, at) { self.take(*word) } else { *word };
            let operands: Vec<u32> = (1..).zip(rest).map(word).collect();
            push(&mut words, op, &operands);
        }
        self.code.added.extend(words);
        own
    }
}
