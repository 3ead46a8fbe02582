//! The sections of a module before its functions: types and variables of images become those of texel buffers.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;

use ::spirv::Capability;
use ::spirv::Decoration;
use ::spirv::Op;
use ::spirv::StorageClass;
use campanile_protocol::texels::Number;

use super::array::Chosen;
use super::code::Code;
use super::code::Refusal;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::code::UVEC4;
use super::code::push;
use super::handle::Handle;
use super::handle::Opaque;
use super::handle::Place;
use super::records::Kind;
use super::records::Records;
use super::shape::Operands;
use super::shape::Shape;
use crate::spirv::instructions;

/// Numbers of a set that packets carry.
const CARRIED: u32 = 64;

/// What a program's module has of the library.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) ids: HashMap<u32, u32>,
    /// The instructions that GLSL has by name; 0 before any are used.
    pub(super) extended: u32,
    /// Whether the program imports them itself.
    pub(super) imports: bool,
}

/// What is known of a module while it is written anew.
pub(super) struct Module {
    pub(super) code: Code,
    /// The variable of the records.
    pub(super) table: u32,
    pub(super) taken: Taken,
    pub(super) chosen: Chosen,
    /// Type of an image or sampler, by the id that the program gave it.
    pub(super) opaque: HashMap<u32, Opaque>,
    /// Type → the one that stands for it.
    types: HashMap<u32, u32>,
    /// Types of numbers.
    pub(super) numbers: HashMap<u32, Type>,
    /// Array → element and id of the length.
    arrays: HashMap<u32, (u32, u32)>,
    /// Pointer → what it points to.
    pub(super) pointers: HashMap<u32, u32>,
    pub(super) constants: HashMap<u32, u32>,
    /// Value → its type, of numbers.
    pub(super) values: HashMap<u32, Type>,
    pub(super) handles: HashMap<u32, Handle>,
    /// Value that is declared no more → the image that stands for it.
    pub(super) aliases: HashMap<u32, u32>,
    /// Ids that are declared no more.
    pub(super) removed: HashSet<u32>,
    /// Images that the function was given: type, id, and where they are.
    pub(super) loads: Vec<[u32; 3]>,
    sets: HashMap<u32, u32>,
    bindings: HashMap<u32, u32>,
    pub(super) records: Vec<Records>,
    /// Vectors of all records.
    pub(super) vectors: u32,
    loses_format: bool,
}

impl Module {
    pub(super) fn new(bound: u32) -> Self {
        let mut code = Code::new(bound);
        let table = code.id();
        Self {
            code,
            table,
            taken: Taken::default(),
            chosen: Chosen::default(),
            opaque: HashMap::new(),
            types: HashMap::new(),
            numbers: HashMap::new(),
            arrays: HashMap::new(),
            pointers: HashMap::new(),
            constants: HashMap::new(),
            values: HashMap::new(),
            handles: HashMap::new(),
            aliases: HashMap::new(),
            removed: HashSet::new(),
            loads: Vec::new(),
            sets: HashMap::new(),
            bindings: HashMap::new(),
            records: Vec::new(),
            vectors: 0,
            loses_format: false,
        }
    }

    /// The type that stands for one of the program's.
    pub(super) fn mapped(&self, ty: u32) -> u32 {
        self.types.get(&ty).copied().unwrap_or(ty)
    }

    /// Takes note of a decoration.
    pub(super) fn decorate(&mut self, instruction: &[u32]) {
        const BINDING: u32 = Decoration::Binding as u32;
        const SET: u32 = Decoration::DescriptorSet as u32;
        match instruction {
            [_, id, SET, set] => {
                self.sets.insert(*id, *set);
            }
            [_, id, BINDING, number] => {
                self.bindings.insert(*id, *number);
            }
            _ => {}
        }
    }

    /// The largest number of set 0 that no variable has.
    pub(super) fn free_number(&self) -> Option<u32> {
        let set = |id: &u32| self.sets.get(id).copied().unwrap_or(0);
        let taken: BTreeSet<u32> =
            self.bindings.iter().filter(|(id, _)| set(id) == 0).map(|(_, number)| *number).collect();
        (0..CARRIED).rev().find(|number| !taken.contains(number))
    }

    /// Capabilities that no module has any more, and those that this one has from now on.
    pub(super) fn capabilities(&self) -> (Vec<u32>, Vec<u32>) {
        let dropped = [
            Capability::Image1D,
            Capability::Sampled1D,
            Capability::ImageCubeArray,
            Capability::SampledCubeArray,
            Capability::ImageGatherExtended,
            Capability::StorageImageExtendedFormats,
            Capability::SampledBuffer,
            Capability::ImageBuffer,
            Capability::SampledImageArrayDynamicIndexing,
            Capability::StorageImageArrayDynamicIndexing,
        ];
        let mut added = vec![Capability::SampledBuffer as u32, Capability::ImageBuffer as u32];
        if self.loses_format {
            added.push(Capability::StorageImageReadWithoutFormat as u32);
            added.push(Capability::StorageImageWriteWithoutFormat as u32);
        }
        (dropped.map(|capability| capability as u32).to_vec(), added)
    }

    fn write_declaration(&mut self, op: Op, operands: &[u32]) {
        push(&mut self.code.declarations, op, operands);
    }

    /// Writes a declaration as it becomes.
    pub(super) fn declare(&mut self, op: u32, instruction: &[u32]) -> Result<(), Refusal> {
        match (Op::from_u32(op), instruction) {
            (Some(Op::TypeImage), [_, id, operands @ ..]) => self.image(*id, operands),
            (Some(Op::TypeSampledImage), [_, id, image]) => self.combined(*id, *image),
            (Some(Op::TypeSampler), [_, id]) => {
                self.opaque.insert(*id, Opaque::Sampler);
                self.removed.insert(*id);
            }
            (Some(Op::TypeArray), [_, _, element, _])
                if self.arrays.contains_key(element) && self.opaque_at(*element).is_some() =>
            {
                return Err("an array of arrays of images");
            }
            (Some(Op::TypeArray), [_, id, element, length]) => {
                self.arrays.insert(*id, (*element, *length));
                if self.opaque.get(element) == Some(&Opaque::Sampler) {
                    self.removed.insert(*id);
                } else {
                    self.write_declaration(Op::TypeArray, &[*id, self.mapped(*element), *length]);
                }
            }
            (Some(Op::TypeRuntimeArray), [_, _, element]) if self.opaque.contains_key(element) => {
                return Err("an array of images has no length");
            }
            (Some(Op::TypeStruct), [_, _, members @ ..])
                if members.iter().any(|member| self.opaque.contains_key(member)) =>
            {
                return Err("an image is the member of a structure");
            }
            (Some(Op::TypePointer), [_, id, class, to]) => self.pointer(*id, *class, *to),
            (Some(Op::TypeFunction), [_, id, result, parameters @ ..]) => {
                self.function_type(*id, *result, parameters);
            }
            (Some(Op::Variable), [_, ty, id, rest @ ..]) => return self.variable(*ty, *id, rest),
            // Nothing that is defined comes of one.
            (Some(Op::Undef), [_, ty, id]) if self.opaque_at(*ty).is_some() => {
                self.removed.insert(*id);
            }
            (op, _) => self.other(op, instruction),
        }
        Ok(())
    }

    /// Declares words without a sign, which types of functions need, before all else: under the program's id, if it has one.
    pub(super) fn hoist(&mut self, words: &[u32]) {
        let is_word = |(op, instruction): &(u32, &[u32])| {
            *op == Op::TypeInt as u32 && matches!(instruction, [_, _, 32, 0])
        };
        let id = instructions(words).find(is_word).and_then(|(_, instruction)| instruction.get(1).copied());
        let id = id.unwrap_or_else(|| self.code.id());
        self.code.declare_type(id, Op::TypeInt, &[32, 0]);
        self.numbers.insert(id, UINT);
    }

    fn other(&mut self, op: Option<Op>, instruction: &[u32]) {
        match (op, instruction) {
            (Some(Op::TypeInt), [_, _, 32, 0]) => return,
            (
                Some(op @ (Op::TypeVoid | Op::TypeInt | Op::TypeFloat | Op::TypeBool | Op::TypeVector)),
                [_, id, operands @ ..],
            ) => self.number(*id, op, operands),
            (Some(Op::Constant), [_, ty, id, value @ ..]) => {
                self.code.note_constant(*id, *ty, value);
                if let [value] = value {
                    self.constants.insert(*id, *value);
                }
            }
            _ => {}
        }
        self.value(instruction);
        self.code.declarations.extend(instruction);
    }

    fn number(&mut self, id: u32, op: Op, operands: &[u32]) {
        self.code.note_type(id, op, operands);
        let known = match (op, operands) {
            (Op::TypeInt, [32, 0]) => Some(Type(Scalar::Uint, 1)),
            (Op::TypeInt, [32, _]) => Some(Type(Scalar::Int, 1)),
            (Op::TypeFloat, [32]) => Some(Type(Scalar::Float, 1)),
            (Op::TypeBool, []) => Some(Type(Scalar::Bool, 1)),
            (Op::TypeVector, [of, count @ 2..=4]) => {
                self.numbers.get(of).map(|Type(of, _)| Type(*of, *count))
            }
            _ => None,
        };
        if let Some(known) = known {
            self.numbers.insert(id, known);
        }
    }

    /// Takes note of the type of what an instruction defines, if it is a number.
    pub(super) fn value(&mut self, instruction: &[u32]) {
        if let [_, ty, id, ..] = instruction
            && let Some(ty) = self.numbers.get(ty)
        {
            self.values.insert(*id, *ty);
        }
    }

    fn image(&mut self, id: u32, operands: &[u32]) {
        let read = Operands::read(operands).filter(Operands::changes);
        let Some(read) = read else {
            let same = self.code.declare_type(id, Op::TypeImage, operands);
            self.alias(id, same);
            return;
        };
        let of = self.numbers.get(&read.sampled_type).map_or(Scalar::Float, |Type(of, _)| *of);
        let ty = self.code.declare_type(id, Op::TypeImage, &read.lowered(of));
        self.alias(id, ty);
        self.loses_format |= read.loses_format(of);
        let Operands { dim, is_arrayed, is_storage, .. } = read;
        if let Some(dim) = dim {
            self.opaque
                .insert(id, Opaque::Image(Shape { dim, is_arrayed, is_storage, of, format: read.named(of) }));
        }
    }

    fn alias(&mut self, id: u32, known: u32) {
        if known != id {
            self.types.insert(id, known);
            self.removed.insert(id);
        }
    }

    fn combined(&mut self, id: u32, image: u32) {
        if let Some(Opaque::Image(shape)) = self.opaque.get(&image) {
            let shape = *shape;
            self.opaque.insert(id, Opaque::Combined(shape));
            self.alias(id, self.mapped(image));
        } else {
            let same = self.code.declare_type(id, Op::TypeSampledImage, &[self.mapped(image)]);
            self.alias(id, same);
        }
    }

    fn pointer(&mut self, id: u32, class: u32, to: u32) {
        self.pointers.insert(id, to);
        if self.opaque_at(to) == Some(Opaque::Sampler) {
            self.removed.insert(id);
            return;
        }
        let operands = [class, self.mapped(to)];
        if class == StorageClass::UniformConstant as u32 {
            let same = self.code.declare_type(id, Op::TypePointer, &operands);
            self.alias(id, same);
        } else {
            self.write_declaration(Op::TypePointer, &[id, operands[0], operands[1]]);
        }
    }

    /// What a type, or an array of it, holds.
    pub(super) fn opaque_at(&self, ty: u32) -> Option<Opaque> {
        let element = self.arrays.get(&ty).map_or(ty, |(element, _)| *element);
        self.opaque.get(&element).copied()
    }

    /// What a parameter of a function is, if it is an image or a sampler or a pointer to one.
    pub(super) fn parameter(&self, ty: u32) -> Option<Opaque> {
        let held = self.pointers.get(&ty).copied().unwrap_or(ty);
        self.opaque.get(&held).copied()
    }

    /// The type of pointers to an image.
    pub(super) fn pointer_to(&mut self, ty: u32) -> u32 {
        let to = self.mapped(ty);
        self.code.type_of(Op::TypePointer, &[StorageClass::UniformConstant as u32, to])
    }

    /// Functions are given the record of each image beside it, and of each sampler in its place.
    fn function_type(&mut self, id: u32, result: u32, parameters: &[u32]) {
        let mut operands = vec![self.mapped(result)];
        for ty in parameters {
            let opaque = self.parameter(*ty);
            match opaque {
                Some(Opaque::Sampler) => {}
                Some(_) if !self.pointers.contains_key(ty) => operands.push(self.pointer_to(*ty)),
                _ => operands.push(self.mapped(*ty)),
            }
            if opaque.is_some() {
                operands.push(self.code.ty(UINT));
            }
        }
        let same = self.code.declare_type(id, Op::TypeFunction, &operands);
        self.alias(id, same);
    }

    fn variable(&mut self, ty: u32, id: u32, rest: &[u32]) -> Result<(), Refusal> {
        let held = self.pointers.get(&ty).copied().unwrap_or(0);
        let opaque = self.opaque_at(held);
        if opaque == Some(Opaque::Sampler) {
            self.removed.insert(id);
        } else {
            self.write_declaration(Op::Variable, &[&[self.mapped(ty), id], rest].concat());
        }
        let Some(what) = opaque else { return Ok(()) };
        let length = self.arrays.get(&held).map(|(_, length)| *length);
        let count = match length {
            None => 1,
            Some(length) => self
                .constants
                .get(&length)
                .copied()
                .ok_or("an array of images has a length by a specialisation constant")?,
        };
        let kind = match what {
            Opaque::Sampler => Kind::Sampler,
            Opaque::Combined(_) => Kind::Combined,
            Opaque::Image(shape) if shape.is_storage => Kind::Storage,
            Opaque::Image(_) => Kind::Sampled,
        };
        let at = |map: &HashMap<u32, u32>| map.get(&id).copied().unwrap_or(0);
        let first = self.vectors;
        let (number, format) = match what {
            Opaque::Image(shape) | Opaque::Combined(shape) => (shape.number(), shape.format),
            Opaque::Sampler => (Number::Float, 0),
        };
        let (set, slot) = (at(&self.sets), at(&self.bindings));
        let is_other = |other: &Records| (other.number, other.format) != (number, format);
        if self.records.iter().any(|other| (other.set, other.slot) == (set, slot) && is_other(other)) {
            return Err("images of different types share a binding");
        }
        self.records.push(Records { set, slot, count, kind, number, format, first });
        let all = count.checked_mul(kind.vectors()).and_then(|all| all.checked_add(first));
        self.vectors = all.filter(|all| *all <= 1024).ok_or("there are too many images")?;
        self.handles.insert(id, Handle::to(what, Place::At(first), Some(id), length.is_some()));
        Ok(())
    }

    /// Declares the buffer of records.
    pub(super) fn declare_table(&mut self, number: u32) {
        let (row, length) = (self.code.ty(UVEC4), self.code.uint(self.vectors.max(1)));
        let (rows, block, pointer) = (self.code.id(), self.code.id(), self.code.id());
        let (variable, uniform) = (self.table, StorageClass::Uniform as u32);
        let out = &mut self.code.declarations;
        push(out, Op::TypeArray, &[rows, row, length]);
        push(out, Op::TypeStruct, &[block, rows]);
        push(out, Op::TypePointer, &[pointer, uniform, block]);
        push(out, Op::Variable, &[pointer, variable, uniform]);
        let out = &mut self.code.decorations;
        push(out, Op::Decorate, &[rows, Decoration::ArrayStride as u32, 16]);
        push(out, Op::Decorate, &[block, Decoration::Block as u32]);
        push(out, Op::MemberDecorate, &[block, 0, Decoration::Offset as u32, 0]);
        push(out, Op::Decorate, &[variable, Decoration::DescriptorSet as u32, 0]);
        push(out, Op::Decorate, &[variable, Decoration::Binding as u32, number]);
    }
}
