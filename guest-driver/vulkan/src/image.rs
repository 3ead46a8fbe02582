//! Images, views of them, and samplers: objects without contents. Compute programs make some when they start, and bind none of them;
//! kernels that use them are refused, and no format is said to be there for them.

use ash::vk;
use campanile_protocol::PAGE_SIZE;

use crate::abi;
use crate::abi::handle;
use crate::buffer::fill;
use crate::physical::ALL_TYPES;

/// Bytes of the largest texel.
const TEXEL: u64 = 32;
/// Bytes of the largest image.
const MOST: u64 = 1 << 40;

/// An image.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: u64,
}

/// A view of one.
#[derive(Debug)]
pub(crate) struct View;

/// A sampler.
#[derive(Debug)]
pub(crate) struct Sampler;

handle!(Image, vk::Image);
handle!(View, vk::ImageView);
handle!(Sampler, vk::Sampler);

impl Image {
    fn of(info: &vk::ImageCreateInfo<'_>) -> Option<Self> {
        let vk::Extent3D { width, height, depth } = info.extent;
        let factors = [width, height, depth, info.array_layers, info.mip_levels.min(2)];
        let texels = factors.iter().try_fold(TEXEL, |bytes, factor| bytes.checked_mul(u64::from(*factor)))?;
        (texels <= MOST).then(|| Self { bytes: texels.next_multiple_of(PAGE_SIZE) })
    }

    fn requirements(&self) -> vk::MemoryRequirements {
        vk::MemoryRequirements { size: self.bytes, alignment: PAGE_SIZE, memory_type_bits: ALL_TYPES }
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::ImageCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Image,
) -> vk::Result {
    abi::command("vkCreateImage", || {
        let image = Image::of(abi::read(info)).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
        abi::give(image, out);
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
        let image = Image::of(abi::read(abi::read(info).p_create_info)).unwrap_or(Image { bytes: MOST });
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
    _part: *const vk::ImageSubresource,
    out: *mut vk::SubresourceLayout,
) {
    abi::quiet("vkGetImageSubresourceLayout", || {
        let size = abi::get::<Image>(image).bytes;
        abi::write(out, vk::SubresourceLayout { size, row_pitch: size, ..Default::default() });
    });
}

pub(crate) extern "system" fn bind(
    _device: vk::Device,
    _image: vk::Image,
    _memory: vk::DeviceMemory,
    _offset: vk::DeviceSize,
) -> vk::Result {
    vk::Result::SUCCESS
}

pub(crate) extern "system" fn bind2(
    _device: vk::Device,
    _count: u32,
    _infos: *const vk::BindImageMemoryInfo<'_>,
) -> vk::Result {
    vk::Result::SUCCESS
}

pub(crate) extern "system" fn create_view(
    _device: vk::Device,
    _info: *const vk::ImageViewCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::ImageView,
) -> vk::Result {
    abi::command("vkCreateImageView", || {
        abi::give(View, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy_view(
    _device: vk::Device,
    view: vk::ImageView,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyImageView", || drop(abi::take::<View>(view)));
}

pub(crate) extern "system" fn create_sampler(
    _device: vk::Device,
    _info: *const vk::SamplerCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Sampler,
) -> vk::Result {
    abi::command("vkCreateSampler", || {
        abi::give(Sampler, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy_sampler(
    _device: vk::Device,
    sampler: vk::Sampler,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroySampler", || drop(abi::take::<Sampler>(sampler)));
}
