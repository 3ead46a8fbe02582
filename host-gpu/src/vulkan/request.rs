//! A dispatch as asked for, and every reason to refuse it before Vulkan sees it.

use std::sync::Arc;

use campanile_protocol::texels;
use campanile_protocol::texels::Format;

use crate::kernel::program::Binding;
use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferAccess;
use crate::kernel::program::BufferKind;
use crate::kernel::program::points;
use crate::memory::mapping::Access;
use crate::shader::profile::Profile as Features;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::Import;
use crate::vulkan::info::Limits;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::device::Gpu;

/// Dispatches in flight. A third gains nothing and doubles what a preemption has to wait for.
pub const IN_FLIGHT: usize = 2;

/// A range of imported memory at a binding of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Bound<'a> {
    /// The kernel's name for it.
    pub binding: BindingPoint,
    /// The memory.
    pub memory: &'a Import,
    /// First byte in `memory`, a multiple of `Limits::binding_alignment`.
    pub offset: u64,
    /// Bytes, a multiple of 4; of a texel where it has a format.
    pub length: u64,
    /// The `VkFormat` of a texel buffer; 0 for any other.
    pub format: u16,
}

/// Workgroups of a grid: a box of them, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The whole grid, which is what the kernel is told.
    pub grid: [u32; 3],
    /// First workgroup in x, y, z.
    pub base: [u32; 3],
    /// Workgroups from there in x, y, z.
    pub groups: [u32; 3],
}

impl Slice {
    /// All of a grid.
    pub const fn whole(grid: [u32; 3]) -> Self {
        Self { grid, base: [0; 3], groups: grid }
    }

    /// How many workgroups of the grid come before it, counted in x, then y, then z.
    pub fn first(&self) -> u64 {
        let ([x, y, z], [width, height, _]) = (self.base.map(u64::from), self.grid.map(u64::from));
        (z * height + y) * width + x
    }

    /// How many workgroups it has.
    pub fn count(&self) -> u64 {
        self.groups.iter().fold(1, |count, side| count.saturating_mul(u64::from(*side)))
    }
}

/// Why a dispatch was refused, or failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum DispatchError {
    /// More slices were given at once than can be.
    #[error("{given} slices at once, the device takes {most}")]
    Batch {
        given: usize,
        /// How many there may be.
        most: usize,
    },
    /// Base and groups leave the grid, or what the device can count.
    #[error("{base} + {groups} workgroups in dimension {dimension}, there are {limit}")]
    TooManyGroups {
        /// 0, 1 or 2.
        dimension: usize,
        base: u32,
        /// Workgroups after it.
        groups: u32,
        /// What the sum may be.
        limit: u32,
    },
    /// The kernel uses a binding that was not given.
    #[error("{binding} of the kernel is not bound")]
    Missing { binding: BindingPoint },
    /// A binding was given that the kernel does not have.
    #[error("the kernel has no {binding}")]
    Unknown { binding: BindingPoint },
    /// A binding was given twice.
    #[error("{binding} is bound twice")]
    Twice { binding: BindingPoint },
    /// A range is shorter than the kernel's fixed part, or longer than the device binds.
    #[error("{binding} has {length} bytes, it may have {least} to {most}")]
    Length { binding: BindingPoint, length: u64, least: u64, most: u64 },
    /// A range starts or ends at a place that the device cannot bind.
    #[error(
        "{binding} is at offset {offset} for {length} bytes: multiples of {alignment} and {unit} are needed"
    )]
    Misaligned {
        binding: BindingPoint,
        offset: u64,
        length: u64,
        /// What the offset must be a multiple of.
        alignment: u64,
        /// What the length must be a multiple of.
        unit: u64,
    },
    /// A range leaves its memory.
    #[error("{binding} is at offset {offset} for {length} bytes of memory of {size}")]
    Outside {
        binding: BindingPoint,
        offset: u64,
        length: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// A range has a format that the kernel does not take, or none where it takes one.
    #[error("{binding} has format {format} ({}): {reason}", .name.unwrap_or("none"))]
    Format {
        binding: BindingPoint,
        /// `VkFormat`.
        format: u16,
        /// Vulkan's name for it, where it is known.
        name: Option<&'static str>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel may write a range that is mapped for reading.
    #[error("{binding} is written by the kernel and its memory is read-only")]
    ReadOnly { binding: BindingPoint },
    /// The constants are not as many bytes as the kernel takes.
    #[error("{given} bytes of constants, the kernel takes {wanted}")]
    Constants { given: usize, wanted: u32 },
    /// The pipeline or memory was made by another driver object.
    #[error("the pipeline or memory belongs to another driver")]
    Foreign,
    /// Two dispatches are in flight: wait for the older one.
    #[error("two dispatches are in flight already: wait for the older one")]
    Busy,
    /// The device failed.
    #[error(transparent)]
    Vulkan(#[from] VulkanError),
}

/// Checks a grid, numbered from `origin`, against what the device counts to, and a slice against its grid.
pub(super) fn check_slice(limits: &Limits, origin: [u32; 3], slice: &Slice) -> Result<(), DispatchError> {
    for dimension in 0..3 {
        let (grid, limit, origin) = (slice.grid[dimension], limits.groups[dimension], origin[dimension]);
        if origin >= limit || grid > limit - origin {
            return Err(DispatchError::TooManyGroups { dimension, base: origin, groups: grid, limit });
        }
        let (base, groups) = (slice.base[dimension], slice.groups[dimension]);
        // A base at the limit is refused even with nothing after it, as Vulkan demands.
        if base >= limit - origin || groups > grid.saturating_sub(base) {
            return Err(DispatchError::TooManyGroups { dimension, base, groups, limit: grid });
        }
    }
    Ok(())
}

/// Checks `bounds` against what `pipeline` needs and finds a buffer for each, in `places`.
pub(super) fn place(
    gpu: &Arc<Gpu>,
    pipeline: &Pipeline,
    bounds: &[Bound<'_>],
    places: &mut Vec<Place>,
) -> Result<(), DispatchError> {
    places.clear();
    for bound in bounds {
        let binding = bound.binding;
        let wanted = binding.find(pipeline.bindings()).ok_or(DispatchError::Unknown { binding })?;
        if places.iter().any(|place| place.point == binding) {
            return Err(DispatchError::Twice { binding });
        }
        if !bound.memory.is_of(gpu) {
            return Err(DispatchError::Foreign);
        }
        places.push(place_one(gpu, wanted, bound)?);
    }
    // None is there twice, and none that the kernel does not have.
    if let Some((binding, _)) =
        points(pipeline.bindings()).find(|(point, _)| !places.iter().any(|place| place.point == *point))
    {
        return Err(DispatchError::Missing { binding });
    }
    Ok(())
}

fn place_one(gpu: &Gpu, wanted: &Binding, bound: &Bound<'_>) -> Result<Place, DispatchError> {
    let limits = &gpu.limits;
    let Bound { binding, memory, offset, length, format } = *bound;
    let format = format_of(&gpu.profile, wanted, bound).map_err(|reason| {
        let name = texels::find(format).map(|format| format.name);
        DispatchError::Format { binding, format, name, reason }
    })?;
    let unit = format.map_or(4, |format| u64::from(format.bytes));
    let most = longest(limits, wanted.kind, unit);
    let least = wanted.min_size;
    if length < least || length > most {
        return Err(DispatchError::Length { binding, length, least, most });
    }
    let alignment = limits.binding_alignment;
    if !offset.is_multiple_of(alignment) || !length.is_multiple_of(unit) {
        return Err(DispatchError::Misaligned { binding, offset, length, alignment, unit });
    }
    if wanted.access == BufferAccess::ReadWrite && memory.access() == Access::ReadOnly {
        return Err(DispatchError::ReadOnly { binding });
    }
    let outside = DispatchError::Outside { binding, offset, length, size: memory.len() };
    let (buffer, offset) = memory.window(offset, length).ok_or(outside)?;
    let view = format.map(|format| memory.views().view(buffer, offset, length, format)).transpose()?;
    Ok(Place { point: binding, kind: wanted.kind, buffer: Arc::clone(buffer), offset, length, view })
}

/// The longest range of a kind, of which each texel has `unit` bytes.
fn longest(limits: &Limits, kind: BufferKind, unit: u64) -> u64 {
    match kind {
        BufferKind::Storage => limits.binding_length,
        BufferKind::Uniform => limits.uniform_length,
        BufferKind::UniformTexels | BufferKind::StorageTexels => {
            limits.binding_length.min(unit * u64::from(limits.texel_elements))
        }
    }
}

/// The format of a texel buffer; none of another buffer. Or why it is not that.
fn format_of(
    features: &Features,
    wanted: &Binding,
    bound: &Bound<'_>,
) -> Result<Option<&'static Format>, &'static str> {
    let Some(texels) = wanted.texels else {
        return if bound.format == 0 { Ok(None) } else { Err("the kernel has no texel buffer there") };
    };
    if bound.format == 0 {
        return Err("the kernel has a texel buffer there");
    }
    let format = texels::find(bound.format).ok_or("no texel buffer has it")?;
    match texels.misfit(format, wanted.kind == BufferKind::StorageTexels, features.texel_formats) {
        None => Ok(Some(format)),
        Some(reason) => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::longest;
    use crate::kernel::program::BufferKind;
    use crate::vulkan::info::Limits;

    #[test]
    fn a_texel_buffer_has_no_more_texels_than_the_device_takes() {
        let limits =
            Limits { binding_length: 4096, uniform_length: 256, texel_elements: 100, ..Limits::default() };
        assert_eq!(BufferKind::ALL.map(|kind| longest(&limits, kind, 4)), [4096, 256, 400, 400]);
        assert_eq!(BufferKind::ALL.map(|kind| longest(&limits, kind, 16)), [4096, 256, 1600, 1600]);
        let many = Limits { texel_elements: u32::MAX, ..limits };
        assert_eq!(longest(&many, BufferKind::StorageTexels, 16), 4096);
    }
}
