//! Instructions that sample: calls of the library, which filters.

use ::spirv::Op;

use super::body::Body;
use super::body::Used;
use super::code::FLOAT;
use super::code::INT;
use super::code::Refusal;
use super::code::Scalar;
use super::code::Type;
use super::code::UINT;
use super::handle::Place;
use super::operands::Operands;
use super::records::SAMPLED;
use super::shape::Dim;
use super::shape::Shape;

/// What the library calls the dimensions of a cube.
const CUBE: u32 = 4;

impl Shape {
    /// Components of a coordinate between texels, without a layer.
    fn continuous(self) -> u32 {
        if self.dim == Dim::Cube { 3 } else { self.dimensions() }
    }
}

impl Body<'_> {
    /// Writes an instruction that samples as it becomes.
    pub(super) fn sample(&mut self, op: Op, instruction: &[u32], used: &Used) -> Result<(), Refusal> {
        match (op, instruction) {
            (
                Op::ImageSampleExplicitLod | Op::ImageSampleProjExplicitLod,
                [_, ty, id, _, coordinate, operands @ ..],
            ) => {
                let is_projected = op == Op::ImageSampleProjExplicitLod;
                self.filter([*ty, *id], used, (*coordinate, is_projected), &Operands::read(operands)?)
            }
            (Op::ImageGather, [_, ty, id, _, coordinate, part, operands @ ..]) => {
                self.gather([*ty, *id], used, [*coordinate, *part], &Operands::read(operands)?)
            }
            (Op::ImageQueryLod, _) => Err("the level that is sampled is asked for"),
            _ => Err("an image is sampled as kernels of compute cannot, or is compared, or is sparse"),
        }
    }

    fn filter(
        &mut self,
        [ty, id]: [u32; 2],
        used: &Used,
        (coordinate, is_projected): (u32, bool),
        operands: &Operands,
    ) -> Result<(), Refusal> {
        if operands.least.is_some() || operands.offsets.is_some() {
            return Err("a level has a least, or taps have offsets of their own");
        }
        let name = if used.shape.of == Scalar::Float { "sample" } else { "only" };
        let function = self.typed_for(used, name)?;
        let at = self.continuous(used.shape, coordinate, is_projected)?;
        let lod = match (operands.lod, operands.grad) {
            (Some(lod), _) => lod,
            (None, Some(grad)) => self.level_of(used, at, grad)?,
            (None, None) => return Err("a level is missing"),
        };
        let [pointer, image, sampler, dimensions] = self.sources(used)?;
        let offset = self.offset(used.shape, operands.offset())?;
        let all = [ty, id, function, pointer, image, sampler, dimensions, at, lod, offset];
        self.write(Op::FunctionCall, &all);
        Ok(())
    }

    fn gather(
        &mut self,
        [ty, id]: [u32; 2],
        used: &Used,
        [coordinate, part]: [u32; 2],
        operands: &Operands,
    ) -> Result<(), Refusal> {
        if operands.offsets.is_some() || operands.lod.is_some() {
            return Err("taps are gathered of a level, or have offsets of their own");
        }
        let function = self.typed_for(used, "gather")?;
        let at = self.continuous(used.shape, coordinate, false)?;
        let part = self.as_word(part)?;
        let [pointer, image, sampler, dimensions] = self.sources(used)?;
        let offset = self.offset(used.shape, operands.offset())?;
        let all = [ty, id, function, pointer, image, sampler, dimensions, at, part, offset];
        self.write(Op::FunctionCall, &all);
        Ok(())
    }

    /// The texel buffer, or which one of an array it is, the records of image and sampler, and the dimensions, as functions of the library take them.
    fn sources(&mut self, used: &Used) -> Result<[u32; 4], Refusal> {
        let pointer = match used.handle.element {
            Some(element) => element.index,
            None => used.handle.pointer.ok_or("an image that is sampled is no variable")?,
        };
        let image = self.record(used.handle.image)?;
        let sampler = match (used.handle.sampler, used.handle.image) {
            (Some(place), _) => self.record(Some(place))?,
            (None, Some(Place::At(first))) => self.module.code.uint(first.saturating_add(SAMPLED)),
            (None, _) => self.inline(|emit| {
                let behind = emit.code.uint(SAMPLED);
                emit.op(Op::IAdd, UINT, &[image, behind])
            }),
        };
        let dimensions = if used.shape.dim == Dim::Cube { CUBE } else { used.shape.dimensions() };
        Ok([pointer, image, sampler, self.module.code.uint(dimensions)])
    }

    /// A coordinate between texels as four floats, of which the last is the layer.
    fn continuous(&mut self, shape: Shape, coordinate: u32, is_projected: bool) -> Result<u32, Refusal> {
        let sides = shape.continuous();
        let behind = u32::from(shape.is_arrayed || is_projected);
        let count = match self.module.values.get(&coordinate) {
            Some(Type(Scalar::Float, count)) if *count >= sides + behind => *count,
            _ => return Err("a coordinate is not of floats of 32 bits"),
        };
        Ok(self.inline(|emit| {
            let part = |emit: &mut super::emit::Emit<'_>, at| {
                if count == 1 { coordinate } else { emit.part(Scalar::Float, coordinate, at) }
            };
            let zero = emit.code.float(0.0);
            let mut parts = [zero; 4];
            for (at, place) in (0..sides).zip(parts.iter_mut()) {
                *place = part(emit, at);
                if is_projected {
                    let by = part(emit, sides);
                    *place = emit.op(Op::FDiv, FLOAT, &[*place, by]);
                }
            }
            if shape.is_arrayed {
                parts[3] = part(emit, sides);
            }
            emit.vector(Scalar::Float, &parts)
        }))
    }

    /// An offset in texels as three integers.
    fn offset(&mut self, shape: Shape, offset: Option<u32>) -> Result<u32, Refusal> {
        let of = match offset.map(|offset| self.module.values.get(&offset).copied()) {
            None => None,
            Some(Some(ty @ Type(Scalar::Int | Scalar::Uint, _))) => Some(ty),
            Some(_) => return Err("an offset is not of words"),
        };
        Ok(self.inline(|emit| {
            let mut parts = [emit.code.constant(INT, 0); 3];
            if let (Some(ty), Some(offset)) = (of, offset) {
                for (at, place) in (0..shape.dimensions()).zip(parts.iter_mut()) {
                    let word = emit.word(ty, offset, at);
                    *place = emit.op(Op::Bitcast, INT, &[word]);
                }
            }
            emit.vector(Scalar::Int, &parts)
        }))
    }

    /// The level that gradients ask for, of a cube where it is sampled at `at`.
    fn level_of(&mut self, used: &Used, at: u32, grad: [u32; 2]) -> Result<u32, Refusal> {
        let is_cube = used.shape.dim == Dim::Cube;
        let function = self.module.library(if is_cube { "level_of_cube" } else { "level_of" })?;
        let record = self.record(used.handle.image)?;
        let sides = used.shape.continuous();
        let mut vectors = [0; 2];
        for (place, gradient) in vectors.iter_mut().zip(grad) {
            let count = match self.module.values.get(&gradient) {
                Some(Type(Scalar::Float, count)) if *count >= sides => *count,
                _ => return Err("a gradient is not of floats of 32 bits"),
            };
            *place = self.inline(|emit| {
                let mut parts = [emit.code.float(0.0); 3];
                for (at, place) in (0..sides).zip(parts.iter_mut()) {
                    *place = if count == 1 { gradient } else { emit.part(Scalar::Float, gradient, at) };
                }
                emit.vector(Scalar::Float, &parts)
            });
        }
        let by = if is_cube { at } else { self.module.code.uint(sides) };
        let operands = [function, record, by, vectors[0], vectors[1]];
        Ok(self.inline(|emit| emit.op(Op::FunctionCall, FLOAT, &operands)))
    }
}
