//! Formats and what else is asked of a physical device: formats of texel buffers, and of images that kernels read and write. Where graphics
//! are claimed, formats of depth and stencil may be attachments, which Dawn needs one of; nothing draws to them.

use ash::vk;

use crate::abi;
use crate::image::support;
use crate::physical::PhysicalDevice;
use crate::texels;

/// The first bit of a format's features that the flags of Vulkan 1.0 do not have.
const FIRST_LATER: u32 = 31;

fn properties(physical: vk::PhysicalDevice, format: vk::Format) -> vk::FormatProperties3<'static> {
    let physical = PhysicalDevice::of(physical);
    let is_depth = vk::Format::D16_UNORM.as_raw() <= format.as_raw()
        && format.as_raw() <= vk::Format::D32_SFLOAT_S8_UINT.as_raw();
    if is_depth && physical.claims.graphics {
        let optimal_tiling_features = vk::FormatFeatureFlags2::DEPTH_STENCIL_ATTACHMENT;
        return vk::FormatProperties3 { optimal_tiling_features, ..Default::default() };
    }
    let (images, buffers) = (support::features(physical, format), texels::features(physical, format));
    vk::FormatProperties3 {
        linear_tiling_features: images,
        optimal_tiling_features: images,
        buffer_features: buffers,
        ..Default::default()
    }
}

/// The same without what came later: the first bits are those of the flags of Vulkan 1.0.
fn plain(all: &vk::FormatProperties3<'_>) -> vk::FormatProperties {
    let first = |flags: vk::FormatFeatureFlags2| {
        let bits = u32::try_from(flags.as_raw() & u64::from(u32::MAX)).unwrap_or(0);
        vk::FormatFeatureFlags::from_raw(bits & ((1 << FIRST_LATER) - 1))
    };
    vk::FormatProperties {
        linear_tiling_features: first(all.linear_tiling_features),
        optimal_tiling_features: first(all.optimal_tiling_features),
        buffer_features: first(all.buffer_features),
    }
}

pub(crate) extern "system" fn get(
    physical: vk::PhysicalDevice,
    format: vk::Format,
    out: *mut vk::FormatProperties,
) {
    abi::quiet("vkGetPhysicalDeviceFormatProperties", || {
        abi::write(out, plain(&properties(physical, format)));
    });
}

pub(crate) extern "system" fn get2(
    physical: vk::PhysicalDevice,
    format: vk::Format,
    out: *mut vk::FormatProperties2<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceFormatProperties2", || {
        let (all, out) = (properties(physical, format), abi::filled(out));
        out.format_properties = plain(&all);
        for structure in abi::chain(out.p_next) {
            if let Some(later) = abi::as_type::<vk::FormatProperties3<'_>>(structure) {
                *later = vk::FormatProperties3 { p_next: later.p_next, ..all };
            }
        }
    });
}

pub(crate) extern "system" fn of_images(
    physical: vk::PhysicalDevice,
    format: vk::Format,
    kind: vk::ImageType,
    tiling: vk::ImageTiling,
    usage: vk::ImageUsageFlags,
    flags: vk::ImageCreateFlags,
    out: *mut vk::ImageFormatProperties,
) -> vk::Result {
    abi::command("vkGetPhysicalDeviceImageFormatProperties", || {
        let info = vk::PhysicalDeviceImageFormatInfo2 {
            format,
            ty: kind,
            tiling,
            usage,
            flags,
            ..Default::default()
        };
        let found = support::properties(PhysicalDevice::of(physical), &info);
        abi::write(out, found.unwrap_or_default());
        found.map(|_| ()).ok_or(vk::Result::ERROR_FORMAT_NOT_SUPPORTED)
    })
}

pub(crate) extern "system" fn of_images2(
    physical: vk::PhysicalDevice,
    info: *const vk::PhysicalDeviceImageFormatInfo2<'_>,
    out: *mut vk::ImageFormatProperties2<'_>,
) -> vk::Result {
    abi::command("vkGetPhysicalDeviceImageFormatProperties2", || {
        let (info, out) = (abi::read(info), abi::filled(out));
        // No memory of another driver's is imported, and none is exported.
        let is_foreign = abi::chained::<vk::PhysicalDeviceExternalImageFormatInfo<'_>>(info.p_next)
            .is_some_and(|external| !external.handle_type.is_empty());
        let found = support::properties(PhysicalDevice::of(physical), info).filter(|_| !is_foreign);
        out.image_format_properties = found.unwrap_or_default();
        for structure in abi::chain(out.p_next) {
            if let Some(external) = abi::as_type::<vk::ExternalImageFormatProperties<'_>>(structure) {
                external.external_memory_properties = vk::ExternalMemoryProperties::default();
            }
        }
        found.map(|_| ()).ok_or(vk::Result::ERROR_FORMAT_NOT_SUPPORTED)
    })
}

pub(crate) extern "system" fn of_sparse_images(
    _physical: vk::PhysicalDevice,
    _format: vk::Format,
    _kind: vk::ImageType,
    _samples: vk::SampleCountFlags,
    _usage: vk::ImageUsageFlags,
    _tiling: vk::ImageTiling,
    count: *mut u32,
    _out: *mut vk::SparseImageFormatProperties,
) {
    abi::quiet("vkGetPhysicalDeviceSparseImageFormatProperties", || {
        abi::write(count, 0);
    });
}

pub(crate) extern "system" fn of_sparse_images2(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceSparseImageFormatInfo2<'_>,
    count: *mut u32,
    _out: *mut vk::SparseImageFormatProperties2<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceSparseImageFormatProperties2", || {
        abi::write(count, 0);
    });
}

pub(crate) extern "system" fn external_buffers(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalBufferInfo<'_>,
    out: *mut vk::ExternalBufferProperties<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceExternalBufferProperties", || {
        abi::filled(out).external_memory_properties = vk::ExternalMemoryProperties::default();
    });
}

pub(crate) extern "system" fn external_fences(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalFenceInfo<'_>,
    out: *mut vk::ExternalFenceProperties<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceExternalFenceProperties", || {
        let out = abi::filled(out);
        *out = vk::ExternalFenceProperties { p_next: out.p_next, ..Default::default() };
    });
}

pub(crate) extern "system" fn external_semaphores(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalSemaphoreInfo<'_>,
    out: *mut vk::ExternalSemaphoreProperties<'_>,
) {
    abi::quiet("vkGetPhysicalDeviceExternalSemaphoreProperties", || {
        let out = abi::filled(out);
        *out = vk::ExternalSemaphoreProperties { p_next: out.p_next, ..Default::default() };
    });
}
