//! Images: memory, and how texels lie in it.

use std::fmt;
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

/// Why an image cannot be made.
#[derive(Debug, PartialEq, Eq)]
struct TooLarge {
    /// Bytes that it would have; none where they cannot be counted.
    bytes: Option<u64>,
    /// Bytes that it may have.
    most: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.most;
        match self.bytes {
            Some(bytes) => {
                write!(to, "the image has {bytes} bytes, and {most} are the most of one that kernels see")
            }
            None => write!(to, "the image has more bytes than {most}, the most of any"),
        }
    }
}

/// Bytes of an image without contents.
fn bytes_of(info: &vk::ImageCreateInfo<'_>) -> Option<u64> {
    let vk::Extent3D { width, height, depth } = info.extent;
    let factors = [width, height, depth, info.array_layers, info.mip_levels.min(2)];
    let bytes = factors.iter().try_fold(TEXEL, |bytes, factor| bytes.checked_mul(u64::from(*factor)))?;
    (bytes <= MOST).then_some(bytes)
}

impl Image {
    /// An image that is not too large: for memory, or, if kernels see it, for a texel buffer, of which `longest` says the bytes.
    fn of(info: &vk::ImageCreateInfo<'_>, longest: impl Fn(u64) -> u64) -> Result<Self, TooLarge> {
        let surface = Surface::of(info);
        let bytes = match &surface {
            Some(surface) => surface.bytes(),
            None => bytes_of(info).ok_or(TooLarge { bytes: None, most: MOST })?,
        };
        let is_seen = info.usage.intersects(support::SEEN);
        let most = surface.as_ref().filter(|_| is_seen).map_or(MOST, |surface| longest(surface.texel()));
        if bytes > most {
            return Err(TooLarge { bytes: Some(bytes), most });
        }
        Ok(Self { bytes, surface, va: OnceLock::new() })
    }

    fn create(device: vk::Device, info: &vk::ImageCreateInfo<'_>) -> Outcome<Self> {
        Self::of(info, |texel| support::longest(&Device::of(device).profile, texel)).map_err(|error| {
            report!("vkCreateImage: {error}");
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
        let image = image.unwrap_or_else(|_| Image { bytes: MOST, surface: None, va: OnceLock::new() });
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

#[cfg(test)]
mod tests {
    use ash::vk;

    use super::Image;
    use super::MOST;
    use super::TooLarge;

    fn info(side: u32, usage: vk::ImageUsageFlags) -> vk::ImageCreateInfo<'static> {
        vk::ImageCreateInfo {
            image_type: vk::ImageType::TYPE_2D,
            format: vk::Format::R32G32B32A32_SFLOAT,
            extent: vk::Extent3D { width: side, height: side, depth: 1 },
            mip_levels: 1,
            array_layers: 1,
            samples: vk::SampleCountFlags::TYPE_1,
            usage,
            ..Default::default()
        }
    }

    #[test]
    fn an_image_that_kernels_see_is_no_longer_than_a_texel_buffer() {
        let most = 64 << 20;
        let made =
            |side, usage| Image::of(&info(side, usage), |texel| texel * (4 << 20)).map(|image| image.bytes);
        for usage in [vk::ImageUsageFlags::STORAGE, vk::ImageUsageFlags::SAMPLED] {
            assert_eq!(made(2048, usage), Ok(most));
            let error = made(2049, usage).unwrap_err();
            assert_eq!(error, TooLarge { bytes: Some((2049 * 2049 * 16_u64).next_multiple_of(256)), most });
            assert_eq!(
                error.to_string(),
                "the image has 67174656 bytes, and 67108864 are the most of one that kernels see"
            );
        }
        // What is only copied is as long as it is.
        assert_eq!(made(4096, vk::ImageUsageFlags::TRANSFER_DST), Ok(256 << 20));
        let endless = Image::of(&info(u32::MAX, vk::ImageUsageFlags::TRANSFER_DST), |_| MOST);
        assert_eq!(endless.map(|_| ()), Err(TooLarge { bytes: None, most: MOST }));
    }
}
