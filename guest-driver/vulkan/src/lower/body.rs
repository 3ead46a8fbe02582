//! The functions of a module: instructions on images become those on texel buffers.

use ::spirv::ImageOperands;
use ::spirv::Op;

use super::code::INT;
use super::code::Refusal;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::code::UVEC3;
use super::code::push;
use super::emit::Emit;
use super::handle::Handle;
use super::handle::Opaque;
use super::handle::Place;
use super::module::Module;
use super::operands::Operands;
use super::shape::Dim;
use super::shape::Shape;

/// Functions that are being written.
pub(super) struct Body<'m> {
    pub(super) module: &'m mut Module,
}

/// An image that an instruction uses.
#[derive(Clone, Copy)]
pub(super) struct Used {
    /// The texel buffer, or a pointer to it.
    pub(super) id: u32,
    pub(super) shape: Shape,
    pub(super) handle: Handle,
}

impl Body<'_> {
    pub(super) fn write(&mut self, op: Op, operands: &[u32]) {
        push(&mut self.module.code.functions, op, operands);
    }

    /// Writes an instruction of a function as it becomes.
    pub(super) fn rewrite(&mut self, op: u32, instruction: &[u32]) -> Result<(), Refusal> {
        let known = Op::from_u32(op);
        self.module.value(instruction);
        self.load_given(known);
        match (known, instruction) {
            (Some(Op::Function), [_, result, id, control, ty]) => {
                self.write(
                    Op::Function,
                    &[self.module.mapped(*result), *id, *control, self.module.mapped(*ty)],
                );
            }
            (Some(Op::Undef), [_, ty, id]) if self.module.opaque_at(*ty).is_some() => {
                self.module.removed.insert(*id);
            }
            (Some(Op::FunctionParameter), [_, ty, id]) => self.given(*ty, *id),
            (Some(Op::FunctionCall), [_, result, id, callee, arguments @ ..]) => {
                self.call([*result, *id, *callee], arguments)?;
            }
            (Some(Op::AccessChain | Op::InBoundsAccessChain), [_, ty, id, base, index])
                if self.module.handles.get(base).is_some_and(|base| base.is_array) =>
            {
                self.element(*ty, *id, *base, *index)?;
            }
            (Some(op @ (Op::Load | Op::CopyObject)), [_, ty, id, from, rest @ ..])
                if self.module.handles.contains_key(from) =>
            {
                let handle = self.module.handles[from];
                self.module.handles.insert(*id, handle);
                if handle.what == Opaque::Sampler || handle.element.is_some() {
                    self.module.removed.insert(*id);
                } else {
                    let operands = [&[self.module.mapped(*ty), *id, self.alias_of(*from)], rest].concat();
                    self.write(op, &operands);
                }
            }
            (Some(Op::SampledImage), [_, _, id, image, sampler])
                if self.module.handles.contains_key(image) =>
            {
                let (mut handle, with) = (self.module.handles[image], self.module.handles.get(sampler));
                let sampler = with.and_then(|with| with.sampler).ok_or("a sampler comes from nowhere")?;
                let Opaque::Image(shape) = handle.what else { return Err("it is sampled twice") };
                (handle.what, handle.sampler) = (Opaque::Combined(shape), Some(sampler));
                self.stands_for(*id, *image, handle);
            }
            (Some(Op::Image), [_, _, id, image]) if self.module.handles.contains_key(image) => {
                let mut handle = self.module.handles[image];
                let Opaque::Combined(shape) = handle.what else { return Err("it is no sampled image") };
                handle.what = Opaque::Image(shape);
                self.stands_for(*id, *image, handle);
            }
            (Some(op), _) => return self.access(op, instruction),
            (None, _) => self.module.code.functions.extend(instruction),
        }
        Ok(())
    }

    /// Instructions that reach into images, where they are lowered; any others as they are.
    fn access(&mut self, op: Op, instruction: &[u32]) -> Result<(), Refusal> {
        if self.atomic(op, instruction)? {
            return Ok(());
        }
        // Where the image stands: behind the result, if there is one.
        let at = if op == Op::ImageWrite { 1 } else { 3 };
        let found = instruction.get(at).copied().filter(|_| is_of_images(op)).and_then(|id| self.used(id));
        let Some(used) = found else {
            self.with_mapped_type(op, instruction);
            return Ok(());
        };
        match (op, instruction) {
            (Op::ImageRead, [_, ty, id, _, coordinate, operands @ ..]) => {
                let kept = Operands::read(operands)?.kept(ImageOperands::MAKE_TEXEL_VISIBLE)?;
                let index = self.index_of(&used, *coordinate)?;
                self.reach(op, Some([*ty, *id]), &used, &[index], &kept)?;
            }
            (Op::ImageWrite, [_, _, coordinate, texel, operands @ ..]) => {
                let kept = Operands::read(operands)?.kept(ImageOperands::MAKE_TEXEL_AVAILABLE)?;
                let index = self.index_of(&used, *coordinate)?;
                self.reach(op, None, &used, &[index, *texel], &kept)?;
            }
            (Op::ImageTexelPointer, [_, ty, id, _, coordinate, sample]) => {
                let (index, ty) = (self.index_of(&used, *coordinate)?, self.module.mapped(*ty));
                match used.handle.element {
                    // What it points to is named where it is changed.
                    Some(element) => {
                        self.module.removed.insert(*id);
                        self.module.chosen.texels.insert(*id, (element, index, ty));
                    }
                    None => self.write(op, &[ty, *id, used.id, index, *sample]),
                }
            }
            (Op::ImageFetch, [_, ty, id, _, coordinate, operands @ ..]) => {
                self.fetch([*ty, *id], &used, *coordinate, &Operands::read(operands)?)?;
            }
            (Op::ImageQuerySizeLod, [_, ty, id, _, lod]) => self.size([*ty, *id], &used, Some(*lod))?,
            (Op::ImageQuerySize, [_, ty, id, _]) => self.size([*ty, *id], &used, None)?,
            (Op::ImageQueryLevels, [_, ty, id, _]) => {
                let (function, record) = (self.module.library("levels")?, self.record(used.handle.image)?);
                let levels = self.inline(|emit| emit.op(Op::FunctionCall, UINT, &[function, record]));
                self.bits([*ty, *id], levels);
            }
            _ => return self.sample(op, instruction, &used),
        }
        Ok(())
    }

    /// An instruction as it is, but for a type that another stands for.
    fn with_mapped_type(&mut self, op: Op, instruction: &[u32]) {
        let is_of_pointers = matches!(op, Op::Load | Op::AccessChain | Op::InBoundsAccessChain);
        let start = self.module.code.functions.len();
        self.module.code.functions.extend(instruction);
        if (is_of_pointers || is_of_images(op))
            && let Some(ty) = instruction.get(1).map(|ty| self.module.mapped(*ty))
            && let Some(place) = self.module.code.functions.get_mut(start + 1)
        {
            *place = ty;
        }
    }

    /// What an instruction uses as an image, if it is one that is lowered.
    fn used(&self, id: u32) -> Option<Used> {
        let handle = *self.module.handles.get(&id).filter(|handle| !handle.is_array)?;
        match handle.what {
            Opaque::Image(shape) | Opaque::Combined(shape) => {
                Some(Used { id: self.alias_of(id), shape, handle })
            }
            Opaque::Sampler => None,
        }
    }

    /// The value that stands for one that is declared no more.
    pub(super) fn alias_of(&self, id: u32) -> u32 {
        self.module.aliases.get(&id).copied().unwrap_or(id)
    }

    fn stands_for(&mut self, id: u32, image: u32, handle: Handle) {
        self.module.aliases.insert(id, self.alias_of(image));
        self.module.handles.insert(id, handle);
        self.module.removed.insert(id);
    }

    /// A parameter of a function, and the record of what it is. An image is given by where it was loaded from.
    fn given(&mut self, ty: u32, id: u32) {
        let opaque = self.module.parameter(ty);
        let is_pointer = self.module.pointers.contains_key(&ty);
        let mut pointer = id;
        match opaque {
            Some(Opaque::Sampler) => {
                self.module.removed.insert(id);
            }
            Some(_) if !is_pointer => {
                pointer = self.module.code.id();
                let (to, ty) = (self.module.pointer_to(ty), self.module.mapped(ty));
                self.write(Op::FunctionParameter, &[to, pointer]);
                self.module.loads.push([ty, id, pointer]);
            }
            _ => self.write(Op::FunctionParameter, &[self.module.mapped(ty), id]),
        }
        if let Some(what) = opaque {
            let (word, record) = (self.module.code.ty(UINT), self.module.code.id());
            self.write(Op::FunctionParameter, &[word, record]);
            self.module.handles.insert(id, Handle::to(what, Place::Id(record), Some(pointer), false));
        }
    }

    /// Loads the images that the function was given, behind its variables.
    fn load_given(&mut self, op: Option<Op>) {
        let is_before =
            matches!(op, Some(Op::FunctionParameter | Op::Label | Op::Variable | Op::Line | Op::NoLine));
        if !is_before {
            for load in std::mem::take(&mut self.module.loads) {
                self.write(Op::Load, &load);
            }
        }
    }

    fn call(&mut self, [result, id, callee]: [u32; 3], arguments: &[u32]) -> Result<(), Refusal> {
        let mut operands = vec![self.module.mapped(result), id, callee];
        for argument in arguments {
            let Some(handle) = self.module.handles.get(argument).copied() else {
                operands.push(*argument);
                continue;
            };
            if handle.is_array || matches!(handle.what, Opaque::Combined(_)) && handle.sampler.is_some() {
                return Err("an array of images, or one with a sampler beside it, is given to a function");
            }
            if handle.element.is_some() {
                return Err("an image that an index chooses is given to a function");
            }
            if handle.what != Opaque::Sampler {
                operands.push(handle.pointer.ok_or("an image comes from nowhere")?);
            }
            let place = if handle.what == Opaque::Sampler { handle.sampler } else { handle.image };
            operands.push(self.record(place)?);
        }
        self.write(Op::FunctionCall, &operands);
        Ok(())
    }

    /// The vector that a record begins at, as a value.
    pub(super) fn record(&mut self, place: Option<Place>) -> Result<u32, Refusal> {
        match place.ok_or("an image comes from nowhere")? {
            Place::At(first) => Ok(self.module.code.uint(first)),
            Place::Id(id) => Ok(id),
        }
    }

    /// Writes instructions between those of the program.
    pub(super) fn inline<T>(&mut self, write: impl FnOnce(&mut Emit<'_>) -> T) -> T {
        let mut emit = Emit::new(&mut self.module.code);
        let written = write(&mut emit);
        let words = emit.words;
        self.module.code.functions.extend(words);
        written
    }

    /// Gives a result of the program's the bits of words.
    pub(super) fn bits(&mut self, [ty, id]: [u32; 2], words: u32) {
        // A bit cast between equal types is none.
        let is_same = self.module.numbers.get(&ty).is_some_and(|Type(of, _)| *of == Scalar::Uint);
        let op = if is_same { Op::CopyObject } else { Op::Bitcast };
        self.write(op, &[ty, id, words]);
    }

    /// The three words of a coordinate: what there is not is 0, and the last is a layer, a face or the depth.
    pub(super) fn coordinate(
        &mut self,
        shape: Shape,
        coordinate: u32,
        offset: Option<u32>,
    ) -> Result<u32, Refusal> {
        let words =
            |ty: Option<&Type>| ty.copied().filter(|Type(of, _)| matches!(of, Scalar::Int | Scalar::Uint));
        let from = words(self.module.values.get(&coordinate)).ok_or("a coordinate is not of words")?;
        let by = match offset {
            Some(offset) => {
                Some((offset, words(self.module.values.get(&offset)).ok_or("an offset is not of words")?))
            }
            None => None,
        };
        Ok(self.inline(|emit| {
            let zero = emit.code.uint(0);
            let mut parts = [zero; 3];
            for at in 0..shape.coordinates() {
                let mut part = emit.word(from, coordinate, at);
                if let Some((offset, ty)) = by.filter(|_| at < shape.dimensions()) {
                    let more = emit.word(ty, offset, at);
                    part = emit.op(Op::IAdd, UINT, &[part, more]);
                }
                // The layer of a 1D image is where that of any other is.
                let is_layer = at >= shape.dimensions();
                if let Some(place) = parts.get_mut(if is_layer { 2 } else { at as usize }) {
                    *place = part;
                }
            }
            emit.vector(Scalar::Uint, &parts)
        }))
    }

    /// The index of a texel, which is beyond all of them where the coordinate is outside of the image.
    fn index_of(&mut self, used: &Used, coordinate: u32) -> Result<u32, Refusal> {
        let at = self.coordinate(used.shape, coordinate, None)?;
        let (function, record) = (self.module.library("index")?, self.record(used.handle.image)?);
        Ok(self.inline(|emit| emit.op(Op::FunctionCall, UINT, &[function, record, at])))
    }

    fn fetch(
        &mut self,
        [ty, id]: [u32; 2],
        used: &Used,
        coordinate: u32,
        operands: &Operands,
    ) -> Result<(), Refusal> {
        let at = self.coordinate(used.shape, coordinate, operands.offset())?;
        let lod = operands.lod.unwrap_or_else(|| self.module.code.uint(0));
        let lod = self.as_word(lod)?;
        let record = self.record(used.handle.image)?;
        let (index, shown) = (self.module.library("index_of_level")?, self.typed(used.shape, "shown")?);
        let index = self.inline(|emit| emit.op(Op::FunctionCall, UINT, &[index, record, at, lod]));
        let found = self.module.code.id();
        self.reach(Op::ImageFetch, Some([ty, found]), used, &[index], &[])?;
        self.write(Op::FunctionCall, &[ty, id, shown, record, found]);
        Ok(())
    }

    /// The function of the library for texels of an image's type.
    fn typed(&mut self, shape: Shape, name: &str) -> Result<u32, Refusal> {
        self.module.library(&Self::of_type(shape, name))
    }

    /// The same of one that is given the image.
    pub(super) fn typed_for(&mut self, used: &Used, name: &str) -> Result<u32, Refusal> {
        let array = used.handle.element.map(|element| element.array);
        self.module.library_over(&Self::of_type(used.shape, name), array)
    }

    fn of_type(shape: Shape, name: &str) -> String {
        let prefix = match shape.of {
            Scalar::Int => "i",
            Scalar::Uint => "u",
            Scalar::Float | Scalar::Bool => "f",
        };
        format!("{prefix}_{name}")
    }

    /// A scalar as a word without a sign.
    pub(super) fn as_word(&mut self, id: u32) -> Result<u32, Refusal> {
        match self.module.values.get(&id) {
            Some(&INT) => Ok(self.inline(|emit| emit.op(Op::Bitcast, UINT, &[id]))),
            Some(&UINT) | None => Ok(id),
            Some(_) => Err("a level is no word"),
        }
    }

    fn size(&mut self, [ty, id]: [u32; 2], used: &Used, lod: Option<u32>) -> Result<(), Refusal> {
        let lod = match lod {
            Some(lod) => self.as_word(lod)?,
            None => self.module.code.uint(0),
        };
        let (function, record, shape) =
            (self.module.library("extent")?, self.record(used.handle.image)?, used.shape);
        let Some(Type(_, count)) = self.module.numbers.get(&ty).copied() else {
            return Err("a size is of no words");
        };
        let words = self.inline(|emit| {
            let size = emit.op(Op::FunctionCall, UVEC3, &[function, record, lod]);
            let mut parts = Vec::new();
            for at in 0..count {
                let is_layers = at >= shape.dimensions();
                let part = emit.part(Scalar::Uint, size, if is_layers { 2 } else { at });
                let is_cubes = is_layers && shape.dim == Dim::Cube;
                let six = emit.code.uint(6);
                parts.push(if is_cubes { emit.op(Op::UDiv, UINT, &[part, six]) } else { part });
            }
            if let [single] = parts.as_slice() { *single } else { emit.vector(Scalar::Uint, &parts) }
        });
        self.bits([ty, id], words);
        Ok(())
    }
}

/// Whether instructions of this kind are of images.
fn is_of_images(op: Op) -> bool {
    matches!(op as u32, 60 | 86..=107 | 305..=320)
}
