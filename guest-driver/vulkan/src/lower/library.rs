//! Functions of a compiled module (`library/library.comp`), taken into a module of a program one by one, with the types, constants and
//! functions that they need.

use std::collections::HashMap;
use std::sync::LazyLock;

use ::spirv::Op;

use super::array::Array;
use super::code::Refusal;
use super::code::UINT;
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

impl Library {
    /// Whether a type is one of images, or of pointers to them.
    fn is_image(&self, ty: u32) -> bool {
        const IMAGE: u32 = Op::TypeImage as u32;
        const POINTER: u32 = Op::TypePointer as u32;
        let Some(declaration) = self.declarations.get(&ty) else { return false };
        match (declaration.first().map(|first| first & 0xffff), declaration.as_slice()) {
            (Some(IMAGE), _) => true,
            (Some(POINTER), [_, _, _, to]) => self.is_image(*to),
            _ => false,
        }
    }

    /// Whether a function is given an image.
    fn takes_image(&self, function: &[Vec<u32>]) -> bool {
        const PARAMETER: u32 = Op::FunctionParameter as u32;
        function.iter().any(|instruction| match instruction.as_slice() {
            [first, ty, _] => first & 0xffff == PARAMETER && self.is_image(*ty),
            _ => false,
        })
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
        self.library_over(name, None)
    }

    /// The same, over an array of images: where it takes an image, this one takes the index of an element.
    pub(super) fn library_over(&mut self, name: &str, array: Option<Array>) -> Result<u32, Refusal> {
        let id = LIBRARY.names.get(name).copied().ok_or("the library has no such function")?;
        Ok(self.take_over(id, array))
    }

    /// What an id of the library is in this module.
    fn take(&mut self, id: u32) -> u32 {
        self.take_over(id, None)
    }

    /// What an id of the library is in functions over an array.
    fn take_over(&mut self, id: u32, array: Option<Array>) -> u32 {
        let (declaration, function) = (LIBRARY.declarations.get(&id), LIBRARY.functions.get(&id));
        // What is declared is one for all, and so is a function that is given no image.
        let is_own = declaration.is_none() && function.is_none_or(|function| LIBRARY.takes_image(function));
        let array = array.filter(|_| is_own);
        let known = match array {
            Some(array) => self.chosen.taken.get(&(array.variable, id)),
            None => self.taken.ids.get(&id),
        };
        if let Some(known) = known {
            return *known;
        }
        let own = match (declaration, function) {
            (Some(declaration), _) => self.take_declaration(declaration),
            _ => self.code.id(),
        };
        self.note_taken(id, array, own);
        if let (None, Some(function)) = (declaration, function) {
            self.take_function(function, array);
        }
        own
    }

    fn note_taken(&mut self, id: u32, array: Option<Array>, own: u32) {
        match array {
            Some(array) => self.chosen.taken.insert((array.variable, id), own),
            None => self.taken.ids.insert(id, own),
        };
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

    fn take_function(&mut self, function: &[Vec<u32>], array: Option<Array>) {
        let mut words = Vec::new();
        for instruction in function {
            let Some((first, rest)) = instruction.split_first() else { continue };
            let Some(op) = Op::from_u32(first & 0xffff) else { continue };
            if array.is_some_and(|array| self.take_choosing(op, instruction, array, &mut words)) {
                continue;
            }
            let word =
                |(at, word): (usize, &u32)| if is_id(op, at) { self.take_over(*word, array) } else { *word };
            let operands: Vec<u32> = (1..).zip(rest).map(word).collect();
            push(&mut words, op, &operands);
        }
        self.code.added.extend(words);
    }

    /// An instruction that is another one over an array: whether it is.
    fn take_choosing(&mut self, op: Op, instruction: &[u32], array: Array, words: &mut Vec<u32>) -> bool {
        let word = self.code.ty(UINT);
        let own = |module: &mut Self, id: u32| module.take_over(id, Some(array));
        match (op, instruction) {
            (Op::Function, [_, result, id, control, ty]) => {
                let Some([_, _, _, parameters @ ..]) = LIBRARY.declarations.get(ty).map(Vec::as_slice) else {
                    return false;
                };
                let result = own(self, *result);
                let of = |ty: &u32| if LIBRARY.is_image(*ty) { word } else { own(self, *ty) };
                let all: Vec<u32> = std::iter::once(result).chain(parameters.iter().map(of)).collect();
                let ty = self.code.type_of(Op::TypeFunction, &all);
                let id = own(self, *id);
                push(words, op, &[result, id, *control, ty]);
            }
            (Op::FunctionParameter, [_, ty, id]) if LIBRARY.is_image(*ty) => {
                let id = own(self, *id);
                push(words, op, &[word, id]);
            }
            // Which one it is stands for the image itself.
            (Op::Load, [_, ty, id, from]) if LIBRARY.is_image(*ty) => {
                let from = own(self, *from);
                self.note_taken(*id, Some(array), from);
            }
            (Op::ImageFetch, [_, ty, id, image, at]) => {
                let [ty, id, image, at] = [*ty, *id, *image, *at].map(|id| own(self, id));
                let (function, index) = (self.fetching(array, ty), self.code.id());
                push(words, Op::Bitcast, &[word, index, at]);
                push(words, Op::FunctionCall, &[ty, id, function, image, index]);
            }
            _ => return false,
        }
        true
    }
}
