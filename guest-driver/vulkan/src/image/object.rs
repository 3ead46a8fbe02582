//! Images: memory, and how texels lie in it.

use std::sync::OnceLock;

use ash::vk;
use campanile_protocol::packet::BINDING_ALIGNMENT;

use super::support;
use super::surface::Part;
use super::surface::Surface;
use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::buffer::fill;
use crate::device::Device;
use crate::memory::Memory;
use crate::physical::ALL_TYPES;
use crate::report::report;

/// Bytes of a texel of a format that is not known, at the most.
const TEXEL: u64 = 32;
/// Bytes of the largest image.
const MOST: u64 = 1 << 40;

/// An image. Bound once; its memory outlives its use.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: u64,
    /// None of a format or number of samples that there is not: it has no contents.
    surface: Option<Surface>,
    va: OnceLock<u64>,
}

handle!(Image, vk::Image);

/// Bytes of an image without contents.
fn bytes_of(info: &vk::ImageCreateInfo<'_>) -> Option<u64> {
    let vk::Extent3D { width, height, depth } = info.extent;
    let factors = [width, height, depth, info.array_layers, info.mip_levels.min(2)];
    let bytes = factors.iter().try_fold(TEXEL, |bytes, factor| bytes.checked_mul(u64::from(*factor)))?;
    (bytes <= MOST).then_some(bytes)
}

impl Image {
    /// None where it would be too large: for memory, or for kernels to be bound to.
    fn of(info: &vk::ImageCreateInfo<'_>, longest: impl Fn(u64) -> u64) -> Option<Self> {
        let surface = Surface::of(info);
        let bytes = match &surface {
            Some(surface) => surface.bytes(),
            None => bytes_of(info)?,
        };
        let is_seen = info.usage.intersects(vk::ImageUsageFlags::STORAGE | vk::ImageUsageFlags::SAMPLED);
        let is_large = |surface: &Surface| surface.bytes() > longest(surface.texel());
        if is_seen && surface.as_ref().is_some_and(is_large) {
            return None;
        }
        Some(Self { bytes, surface, va: OnceLock::new() })
    }

    fn create(device: vk::Device, info: &vk::ImageCreateInfo<'_>) -> Outcome<Self> {
        Self::of(info, |texel| support::longest(&Device::of(device).profile, texel)).ok_or_else(|| {
            report!("vkCreateImage: the image is larger than memory, or than kernels may be bound to");
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
        })
    }

    /// How its texels lie, and where; none of an image without contents, or without memory.
    pub(crate) fn contents(&self) -> Option<(&Surface, u64)> {
        self.surface.as_ref().zip(self.va.get().copied())
    }

    fn bind(&self, memory: vk::DeviceMemory, offset: u64) {
        // Bound twice is invalid usage; the first stays.
        let _first = self.va.set(abi::get::<Memory>(memory).va() + offset);
    }

    fn requirements(&self) -> vk::MemoryRequirements {
        let size = self.bytes.max(1).next_multiple_of(BINDING_ALIGNMENT);
        vk::MemoryRequirements { size, alignment: BINDING_ALIGNMENT, memory_type_bits: ALL_TYPES }
    }
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::ImageCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Image,
) -> vk::Result {
    abi::command("vkCreateImage", || {
        abi::give(Image::create(device, abi::read(info))?, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    image: vk::Image,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyImage", || drop(abi::take::<Image>(image)));
}

pub(crate) extern "system" fn memory_requirements(
    _device: vk::Device,
    image: vk::Image,
    out: *mut vk::MemoryRequirements,
) {
    abi::quiet("vkGetImageMemoryRequirements", || {
        abi::write(out, abi::get::<Image>(image).requirements());
    });
}

pub(crate) extern "system" fn memory_requirements2(
    _device: vk::Device,
    info: *const vk::ImageMemoryRequirementsInfo2<'_>,
    out: *mut vk::MemoryRequirements2<'_>,
) {
    abi::quiet("vkGetImageMemoryRequirements2", || {
        fill(abi::filled(out), abi::get::<Image>(abi::read(info).image).requirements());
    });
}

pub(crate) extern "system" fn memory_requirements_of(
    _device: vk::Device,
    info: *const vk::DeviceImageMemoryRequirements<'_>,
    out: *mut vk::MemoryRequirements2<'_>,
) {
    abi::quiet("vkGetDeviceImageMemoryRequirements", || {
        // One that could not be made needs more than there is.
        let image = Image::of(abi::read(abi::read(info).p_create_info), |_| MOST);
        let image = image.unwrap_or(Image { bytes: MOST, surface: None, va: OnceLock::new() });
        fill(abi::filled(out), image.requirements());
    });
}

pub(crate) extern "system" fn sparse_requirements(
    _device: vk::Device,
    _image: vk::Image,
    count: *mut u32,
    _out: *mut vk::SparseImageMemoryRequirements,
) {
    abi::quiet("vkGetImageSparseMemoryRequirements", || {
        abi::write(count, 0);
    });
}

pub(crate) extern "system" fn sparse_requirements2(
    _device: vk::Device,
    _info: *const vk::ImageSparseMemoryRequirementsInfo2<'_>,
    count: *mut u32,
    _out: *mut vk::SparseImageMemoryRequirements2<'_>,
) {
    abi::quiet("vkGetImageSparseMemoryRequirements2", || {
        abi::write(count, 0);
    });
}

pub(crate) extern "system" fn sparse_requirements_of(
    _device: vk::Device,
    _info: *const vk::DeviceImageMemoryRequirements<'_>,
    count: *mut u32,
    _out: *mut vk::SparseImageMemoryRequirements2<'_>,
) {
    abi::quiet("vkGetDeviceImageSparseMemoryRequirements", || {
        abi::write(count, 0);
    });
}

pub(crate) extern "system" fn subresource_layout(
    _device: vk::Device,
    image: vk::Image,
    part: *const vk::ImageSubresource,
    out: *mut vk::SubresourceLayout,
) {
    abi::quiet("vkGetImageSubresourceLayout", || {
        let (image, part) = (abi::get::<Image>(image), abi::read(part));
        let (level, layer) = (part.mip_level, part.array_layer);
        let found = image
            .surface
            .as_ref()
            .filter(|surface| Part { level, levels: 1, layer, layers: 1 }.is_in(surface));
        let layout = match found {
            Some(surface) => vk::SubresourceLayout {
                offset: surface.offset(level, layer),
                size: if surface.is_volume() { surface.level(level) } else { surface.slice(level) },
                row_pitch: surface.row(level),
                array_pitch: surface.slice(level),
                depth_pitch: surface.slice(level),
            },
            None => vk::SubresourceLayout { size: image.bytes, row_pitch: image.bytes, ..Default::default() },
        };
        abi::write(out, layout);
    });
}

pub(crate) extern "system" fn bind(
    _device: vk::Device,
    image: vk::Image,
    memory: vk::DeviceMemory,
    offset: vk::DeviceSize,
) -> vk::Result {
    abi::command("vkBindImageMemory", || {
        abi::get::<Image>(image).bind(memory, offset);
        Ok(())
    })
}

pub(crate) extern "system" fn bind2(
    _device: vk::Device,
    count: u32,
    infos: *const vk::BindImageMemoryInfo<'_>,
) -> vk::Result {
    abi::command("vkBindImageMemory2", || {
        for info in abi::items(infos, count) {
            abi::get::<Image>(info.image).bind(info.memory, info.memory_offset);
        }
        Ok(())
    })
}
