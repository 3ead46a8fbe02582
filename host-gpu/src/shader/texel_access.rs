//! What instructions do with texel buffers: load them, fetch, read, write, and ask how many texels they have.

use campanile_protocol::texels;
use campanile_protocol::texels::Number;
use spirv::Capability;
use spirv::ImageOperands;
use spirv::Op;
use spirv::StorageClass;

use crate::shader::access::Pointer;
use crate::shader::body::Body;
use crate::shader::body::Here;
use crate::shader::capabilities::Capabilities;
use crate::shader::error::GuardError;
use crate::shader::interface::Texels;
use crate::shader::module::Id;
use crate::shader::module::Kind;
use crate::shader::module::V1_4;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;

/// An image that an instruction uses.
struct Image {
    /// The type of its components.
    of: u32,
    is_storage: bool,
    texels: Texels,
    /// The variable that it was loaded from; 0 where a function was given it.
    root: u32,
}

impl Body<'_, '_> {
    /// Checks the instruction if it is of texel buffers, and says whether it is.
    pub(super) fn check_texels(&mut self, here: Here) -> Result<bool, GuardError> {
        let inst = here.inst;
        match inst.op() {
            Op::Image => {
                inst.length(4, 4)?;
                let loaded = self.seen(here, self.symbols.module.word(inst, 3))?;
                let Shape::SampledImage { image } = self.symbols.shape(loaded.ty) else {
                    return Err(wrong(inst, "it is of no sampled image"));
                };
                self.opaque_result(here, image, loaded.data)?;
            }
            Op::ImageFetch => {
                inst.length(5, 7)?;
                let image = self.image(here, 3)?;
                self.coordinate(here, 4)?;
                if image.is_storage {
                    return Err(wrong(inst, "it fetches from a storage texel buffer"));
                }
                self.image_operands(here, 5, &image, ImageOperands::empty())?;
                self.texel_result(here, &image)?;
            }
            Op::ImageRead => {
                inst.length(5, 8)?;
                let image = self.image(here, 3)?;
                self.coordinate(here, 4)?;
                stored(self.capabilities, here, &image, Capability::StorageImageReadWithoutFormat)?;
                self.image_operands(here, 5, &image, ImageOperands::MAKE_TEXEL_VISIBLE)?;
                self.texel_result(here, &image)?;
            }
            Op::ImageWrite => {
                inst.length(4, 7)?;
                let image = self.image(here, 1)?;
                self.coordinate(here, 2)?;
                stored(self.capabilities, here, &image, Capability::StorageImageWriteWithoutFormat)?;
                self.image_operands(here, 4, &image, ImageOperands::MAKE_TEXEL_AVAILABLE)?;
                self.check_written(here, &image)?;
            }
            Op::ImageQuerySize => {
                inst.length(4, 4)?;
                if !self.capabilities.has(Capability::ImageQuery) {
                    return Err(wrong(inst, "the capability ImageQuery is not declared"));
                }
                self.image(here, 3)?;
                let ty = self.result_of(here, false)?;
                if !matches!(self.symbols.shape(ty), Shape::Int { bits: 32, .. }) {
                    return Err(wrong(inst, "its result is not one integer of 32 bits"));
                }
            }
            Op::ImageTexelPointer => self.texel_pointer(here)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// An `OpLoad` of a texel buffer.
    pub(super) fn load_texels(&mut self, here: Here, pointer: Pointer) -> Result<(), GuardError> {
        // Tint writes `None`.
        if here.inst.len > 5 || self.symbols.module.word(here.inst, 4) != 0 {
            return Err(wrong(here.inst, "how memory is accessed says nothing of a texel buffer"));
        }
        if !matches!(self.symbols.shape(pointer.to), Shape::Image { .. } | Shape::SampledImage { .. }) {
            return Err(wrong(here.inst, "it loads no single texel buffer"));
        }
        self.opaque_result(here, pointer.to, pointer.root)
    }

    /// The image that operand `at` names, which was loaded.
    fn image(&mut self, here: Here, at: u32) -> Result<Image, GuardError> {
        let loaded = self.seen(here, self.symbols.module.word(here.inst, at))?;
        let Shape::Image { of, is_storage, texels } = self.symbols.shape(loaded.ty) else {
            return Err(wrong(here.inst, "it is of no texel buffer"));
        };
        self.note(here, |function| function.accesses += 1);
        Ok(Image { of, is_storage, texels, root: loaded.data })
    }

    fn coordinate(&self, here: Here, at: u32) -> Result<(), GuardError> {
        let coordinate = self.used(here, at)?;
        match self.symbols.shape(coordinate.ty) {
            Shape::Int { bits: 32, .. } => Ok(()),
            _ => Err(wrong(here.inst, "its coordinate is not one integer of 32 bits")),
        }
    }

    /// Image operands from operand `at` on: how memory is ordered, and how integers are extended.
    fn image_operands(
        &self,
        here: Here,
        at: u32,
        image: &Image,
        moves: ImageOperands,
    ) -> Result<(), GuardError> {
        let inst = here.inst;
        if inst.len <= at {
            return Ok(());
        }
        let signs = ImageOperands::SIGN_EXTEND | ImageOperands::ZERO_EXTEND;
        let (private, volatile) = (ImageOperands::NON_PRIVATE_TEXEL, ImageOperands::VOLATILE_TEXEL);
        let mask = self.symbols.module.word(inst, at);
        let allowed = signs | private | volatile | moves;
        let Some(mask) = ImageOperands::from_bits(mask).filter(|mask| allowed.contains(*mask)) else {
            return Err(wrong(inst, format!("image operands {mask:#x} are not offered here")));
        };
        let mut end = at + 1;
        let moved = mask.intersects(moves);
        if moved {
            self.scope(here, end, &[1, 2, 3, 5])?;
            end += 1;
        }
        let extends = mask.intersects(signs);
        let good = end == inst.len
            && (!moved || mask.contains(private))
            && (!mask.intersects(private | volatile | moves) || self.capabilities.vulkan_memory)
            && !mask.contains(signs)
            && (!extends || self.symbols.module.version >= V1_4 && image.texels.number != Number::Float);
        if good {
            Ok(())
        } else {
            Err(wrong(inst, "its image operands do not fit each other, the memory model or the image"))
        }
    }

    /// Checks what an `OpImageWrite` stores.
    fn check_written(&mut self, here: Here, image: &Image) -> Result<(), GuardError> {
        let given = self.used(here, 3)?.ty;
        let count = match self.symbols.shape(given) {
            Shape::Vector { of, count } if of == image.of => count,
            _ if given == image.of => 1,
            _ => return Err(wrong(here.inst, "its texel is not of the type of the image")),
        };
        // As many as the format has; where it is not said, as any has.
        let format = image.texels.format.and_then(texels::find);
        if count < format.map_or(4, texels::Format::components) {
            return Err(wrong(here.inst, "its texel has fewer components than the format"));
        }
        self.note(here, |function| function.writes.push(image.root));
        Ok(())
    }

    /// A texel that atomics work on.
    fn texel_pointer(&mut self, here: Here) -> Result<(), GuardError> {
        let inst = here.inst;
        inst.length(6, 6)?;
        let pointer = self.pointer(here, 3)?;
        let Shape::Image { of, texels: Texels { format, .. }, is_storage: true } =
            self.symbols.shape(pointer.to)
        else {
            return Err(wrong(inst, "it is of no storage texel buffer"));
        };
        if !format.and_then(texels::find).is_some_and(texels::Format::has_atomics) {
            return Err(wrong(inst, "atomics are offered on texels of the formats R32i and R32ui alone"));
        }
        self.coordinate(here, 4)?;
        if self.word_constant(here, 5)? != 0 {
            return Err(wrong(inst, "a texel buffer has no sample but 0"));
        }
        let ty = self.result_of(here, true)?;
        if self.symbols.shape(ty) != (Shape::Pointer { class: StorageClass::Image, to: of }) {
            return Err(wrong(inst, "its result is no pointer to a texel of the image"));
        }
        self.set_root(here, pointer);
        self.note(here, |function| function.accesses += 1);
        Ok(())
    }

    /// Four components of the type of the image.
    fn texel_result(&mut self, here: Here, image: &Image) -> Result<(), GuardError> {
        let ty = self.result_of(here, false)?;
        match self.symbols.shape(ty) {
            Shape::Vector { of, count: 4 } if of == image.of => Ok(()),
            _ => Err(wrong(here.inst, "its result is not four components of the type of the image")),
        }
    }

    /// Defines the result, an image that no instruction but those here takes.
    fn opaque_result(&mut self, here: Here, wanted: u32, root: u32) -> Result<(), GuardError> {
        let (ty, id) = (self.symbols.module.word(here.inst, 1), self.symbols.module.word(here.inst, 2));
        if ty != wanted {
            return Err(wrong(here.inst, "its result is not of the type of the texel buffer"));
        }
        let meaning = Id { kind: Kind::Value, ty, inst: here.index, block: here.block, data: root };
        self.symbols.module.define(here.inst, id, meaning)
    }
}

/// Refuses what is no storage texel buffer, or one without a format and `without_format`.
fn stored(
    capabilities: &Capabilities,
    here: Here,
    image: &Image,
    without_format: Capability,
) -> Result<(), GuardError> {
    if !image.is_storage {
        return Err(wrong(here.inst, "it is of no storage texel buffer"));
    }
    if image.texels.format.is_none() && !capabilities.has(without_format) {
        let reason = format!("the texel buffer has no format, and {without_format:?} is not declared");
        return Err(wrong(here.inst, reason));
    }
    Ok(())
}
