//! A module that is being written: its sections, and the types and constants that are there already.

use std::collections::HashMap;

use ::spirv::Op;

/// Why a module stays as it is.
pub(crate) type Refusal = &'static str;

/// What a component of a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scalar {
    Bool,
    Int,
    Uint,
    Float,
}

/// The type of a value: a scalar of 32 bits, or a vector of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Type(pub(super) Scalar, pub(super) u32);

pub(super) const INT: Type = Type(Scalar::Int, 1);
pub(super) const UINT: Type = Type(Scalar::Uint, 1);
pub(super) const FLOAT: Type = Type(Scalar::Float, 1);
pub(super) const UVEC3: Type = Type(Scalar::Uint, 3);
pub(super) const UVEC4: Type = Type(Scalar::Uint, 4);

/// The sections of a module, in which new types and constants follow those of the program.
#[derive(Debug)]
pub(super) struct Code {
    bound: u32,
    /// Opcode and operands of a type or constant → its id.
    known: HashMap<Vec<u32>, u32>,
    /// Decorations of what is new.
    pub(super) decorations: Vec<u32>,
    pub(super) declarations: Vec<u32>,
    pub(super) functions: Vec<u32>,
    /// Functions that were added, which stand behind those of the program.
    pub(super) added: Vec<u32>,
}

/// Appends an instruction.
pub(super) fn push(out: &mut Vec<u32>, op: Op, operands: &[u32]) {
    let length = u32::try_from(operands.len() + 1).unwrap_or(0);
    out.push(length << 16 | op as u32);
    out.extend(operands);
}

impl Code {
    pub(super) fn new(bound: u32) -> Self {
        let (decorations, declarations) = (Vec::new(), Vec::new());
        Self {
            bound,
            known: HashMap::new(),
            decorations,
            declarations,
            functions: Vec::new(),
            added: Vec::new(),
        }
    }

    /// One more than the largest id.
    pub(super) fn bound(&self) -> u32 {
        self.bound
    }

    /// An id that nothing has.
    pub(super) fn id(&mut self) -> u32 {
        self.bound += 1;
        self.bound - 1
    }

    fn key(op: Op, operands: &[u32]) -> Vec<u32> {
        [&[op as u32], operands].concat()
    }

    /// Declares a type under `id`, if there is none with these operands, and says which there is.
    pub(super) fn declare_type(&mut self, id: u32, op: Op, operands: &[u32]) -> u32 {
        let key = Self::key(op, operands);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        push(&mut self.declarations, op, &[&[id], operands].concat());
        self.known.insert(key, id);
        id
    }

    /// Notes a type that the program has declared.
    pub(super) fn note_type(&mut self, id: u32, op: Op, operands: &[u32]) {
        self.known.entry(Self::key(op, operands)).or_insert(id);
    }

    /// Notes a constant that the program has declared.
    pub(super) fn note_constant(&mut self, id: u32, ty: u32, value: &[u32]) {
        self.known.entry(Self::key(Op::Constant, &[&[ty], value].concat())).or_insert(id);
    }

    /// The type with these operands.
    pub(super) fn type_of(&mut self, op: Op, operands: &[u32]) -> u32 {
        if let Some(known) = self.known.get(&Self::key(op, operands)) {
            return *known;
        }
        let id = self.id();
        self.declare_type(id, op, operands)
    }

    /// The id of a type.
    pub(super) fn ty(&mut self, ty: Type) -> u32 {
        let Type(scalar, count) = ty;
        let scalar = match scalar {
            Scalar::Bool => self.type_of(Op::TypeBool, &[]),
            Scalar::Int => self.type_of(Op::TypeInt, &[32, 1]),
            Scalar::Uint => self.type_of(Op::TypeInt, &[32, 0]),
            Scalar::Float => self.type_of(Op::TypeFloat, &[32]),
        };
        if count == 1 { scalar } else { self.type_of(Op::TypeVector, &[scalar, count]) }
    }

    /// A constant of 32 bits.
    pub(super) fn constant(&mut self, ty: Type, bits: u32) -> u32 {
        let ty = self.ty(ty);
        self.constant_of(Op::Constant, ty, &[bits])
    }

    /// A constant by its opcode: one of any type, a composite of others, or a boolean.
    pub(super) fn constant_of(&mut self, op: Op, ty: u32, operands: &[u32]) -> u32 {
        let key = Self::key(op, &[&[ty], operands].concat());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let id = self.id();
        push(&mut self.declarations, op, &[&[ty, id], operands].concat());
        self.known.insert(key, id);
        id
    }

    pub(super) fn uint(&mut self, value: u32) -> u32 {
        self.constant(UINT, value)
    }

    pub(super) fn float(&mut self, value: f32) -> u32 {
        self.constant(FLOAT, value.to_bits())
    }
}
