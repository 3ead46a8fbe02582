//! Formats and what else is asked of a physical device that has no images: none of it is there. Where graphics are claimed, formats of
//! depth and stencil may be attachments, which Dawn needs one of; nothing draws to them.

use ash::vk;

use crate::abi;
use crate::physical::PhysicalDevice;

fn properties(physical: vk::PhysicalDevice, format: vk::Format) -> vk::FormatProperties {
    let is_depth = vk::Format::D16_UNORM.as_raw() <= format.as_raw()
        && format.as_raw() <= vk::Format::D32_SFLOAT_S8_UINT.as_raw();
    if is_depth && PhysicalDevice::of(physical).claims.graphics {
        let optimal_tiling_features = vk::FormatFeatureFlags::DEPTH_STENCIL_ATTACHMENT;
        return vk::FormatProperties { optimal_tiling_features, ..Default::default() };
    }
    vk::FormatProperties::default()
}

pub(crate) extern "system" fn get(
    physical: vk::PhysicalDevice,
    format: vk::Format,
    out: *mut vk::FormatProperties,
) {
    abi::write(out, properties(physical, format));
}

pub(crate) extern "system" fn get2(
    physical: vk::PhysicalDevice,
    format: vk::Format,
    out: *mut vk::FormatProperties2<'_>,
) {
    abi::filled(out).format_properties = properties(physical, format);
}

pub(crate) extern "system" fn of_images(
    _physical: vk::PhysicalDevice,
    _format: vk::Format,
    _kind: vk::ImageType,
    _tiling: vk::ImageTiling,
    _usage: vk::ImageUsageFlags,
    _flags: vk::ImageCreateFlags,
    out: *mut vk::ImageFormatProperties,
) -> vk::Result {
    abi::write(out, vk::ImageFormatProperties::default());
    vk::Result::ERROR_FORMAT_NOT_SUPPORTED
}

pub(crate) extern "system" fn of_images2(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceImageFormatInfo2<'_>,
    out: *mut vk::ImageFormatProperties2<'_>,
) -> vk::Result {
    abi::filled(out).image_format_properties = vk::ImageFormatProperties::default();
    vk::Result::ERROR_FORMAT_NOT_SUPPORTED
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
    abi::write(count, 0);
}

pub(crate) extern "system" fn of_sparse_images2(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceSparseImageFormatInfo2<'_>,
    count: *mut u32,
    _out: *mut vk::SparseImageFormatProperties2<'_>,
) {
    abi::write(count, 0);
}

pub(crate) extern "system" fn external_buffers(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalBufferInfo<'_>,
    out: *mut vk::ExternalBufferProperties<'_>,
) {
    abi::filled(out).external_memory_properties = vk::ExternalMemoryProperties::default();
}

pub(crate) extern "system" fn external_fences(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalFenceInfo<'_>,
    out: *mut vk::ExternalFenceProperties<'_>,
) {
    let out = abi::filled(out);
    *out = vk::ExternalFenceProperties { p_next: out.p_next, ..Default::default() };
}

pub(crate) extern "system" fn external_semaphores(
    _physical: vk::PhysicalDevice,
    _info: *const vk::PhysicalDeviceExternalSemaphoreInfo<'_>,
    out: *mut vk::ExternalSemaphoreProperties<'_>,
) {
    let out = abi::filled(out);
    *out = vk::ExternalSemaphoreProperties { p_next: out.p_next, ..Default::default() };
}
