//! Texel buffers: the types of images of one dimension over a buffer. Of other images there are none.
//!
//! What lies outside of a view is the device's to keep out, as with storage buffers: `robustBufferAccess2`.

use campanile_protocol::texels;
use campanile_protocol::texels::Number;
use spirv::Capability;
use spirv::Dim;
use spirv::StorageClass;

use crate::shader::capabilities::Capabilities;
use crate::shader::error::GuardError;
use crate::shader::interface::Texels;
use crate::shader::module::Inst;
use crate::shader::module::V1_6;
use crate::shader::module::wrong;
use crate::shader::shape::Shape;
use crate::shader::symbols::Symbols;

/// `Sampled` of an `OpTypeImage`.
const SAMPLED: u32 = 1;
const STORAGE: u32 = 2;

/// The type that an `OpTypeImage` declares.
pub(super) fn image_type(
    symbols: &Symbols<'_>,
    capabilities: &Capabilities,
    inst: Inst,
) -> Result<Shape, GuardError> {
    if symbols.module.word(inst, 3) != Dim::DimBuffer as u32 {
        return Err(wrong(inst, "images other than texel buffers are not offered to compute kernels here"));
    }
    inst.length(9, 9)?;
    let [of, _, depth, arrayed, samples, sampled, format] =
        [2, 3, 4, 5, 6, 7, 8].map(|at| symbols.module.word(inst, at));
    let number = match symbols.shape(of) {
        Shape::Int { bits: 32, signed: true } => Number::Signed,
        Shape::Int { bits: 32, signed: false } => Number::Unsigned,
        Shape::Float { bits: 32 } => Number::Float,
        _ => return Err(wrong(inst, "texels of a buffer are read as integers or floats of 32 bits")),
    };
    if depth > 2 || arrayed != 0 || samples != 0 || !matches!(sampled, SAMPLED | STORAGE) {
        return Err(wrong(inst, "a texel buffer has no layers or samples, and says whether it is storage"));
    }
    let is_storage = sampled == STORAGE;
    let needed = if is_storage { Capability::ImageBuffer } else { Capability::SampledBuffer };
    if !capabilities.has(needed) {
        return Err(wrong(inst, format!("the capability {needed:?} is not declared")));
    }
    let known = if format == 0 {
        None
    } else {
        let found = texels::of_image(format).filter(|format| format.number == number);
        let name = || {
            spirv::ImageFormat::from_u32(format)
                .map_or_else(|| format.to_string(), |name| format!("{name:?}"))
        };
        let found = found.ok_or_else(|| {
            wrong(
                inst,
                format!(
                    "texel buffers of format {} are not offered, or it is not that of what is read",
                    name()
                ),
            )
        })?;
        Some(found.code)
    };
    Ok(Shape::Image { of, is_storage, texels: Texels { number, format: known } })
}

/// The type that an `OpTypeSampledImage` declares: what compilers took for a texel buffer that is not storage.
pub(super) fn sampled_type(symbols: &Symbols<'_>, inst: Inst) -> Result<Shape, GuardError> {
    inst.length(3, 3)?;
    let image = symbols.module.word(inst, 2);
    if !matches!(symbols.shape(image), Shape::Image { is_storage: false, .. }) {
        return Err(wrong(inst, "it is of no uniform texel buffer"));
    }
    if symbols.module.version >= V1_6 {
        return Err(wrong(inst, "from SPIR-V 1.6 on no texel buffer is a sampled image"));
    }
    Ok(Shape::SampledImage { image })
}

/// Whether pointers of `class` may point to `to`: of these two classes to what no other has, and only to that.
pub(super) fn may_point(symbols: &Symbols<'_>, class: StorageClass, to: u32) -> bool {
    match class {
        StorageClass::UniformConstant => symbols.is_opaque(to),
        StorageClass::Image => matches!(symbols.shape(to), Shape::Int { bits: 32, .. }),
        _ => !symbols.is_opaque(to),
    }
}

/// What variable `id` of class `UniformConstant` is, and whether it is storage.
pub(super) fn of_variable(symbols: &Symbols<'_>, id: u32) -> Option<(Texels, bool)> {
    let mut ty = symbols.innermost(symbols.held(id));
    if let Shape::SampledImage { image } = symbols.shape(ty) {
        ty = image;
    }
    match symbols.shape(ty) {
        Shape::Image { is_storage, texels, .. } => Some((texels, is_storage)),
        _ => None,
    }
}
