//! What there is of graphics: refusals, and what a device says where it claims more (`claims`).

use ash::vk;
use ash::vk::Handle;

use crate::abi;
use crate::report::report;

/// The version of the conformance tests that a device with graphics passes for.
pub(crate) const CONFORMANCE: vk::ConformanceVersion =
    vk::ConformanceVersion { major: 1, minor: 2, subminor: 0, patch: 0 };

/// What the queue family says beyond compute and copies.
pub(crate) fn queue_flags(is_claimed: bool) -> vk::QueueFlags {
    if is_claimed { vk::QueueFlags::GRAPHICS } else { vk::QueueFlags::empty() }
}

/// Adds the features of graphics without which these programs open no device.
pub(crate) fn claim_features(features: &mut vk::PhysicalDeviceFeatures) {
    for feature in [
        &mut features.depth_bias_clamp,
        &mut features.fragment_stores_and_atomics,
        &mut features.full_draw_index_uint32,
        &mut features.image_cube_array,
        &mut features.independent_blend,
        &mut features.sample_rate_shading,
        &mut features.shader_sampled_image_array_dynamic_indexing,
        &mut features.shader_storage_image_array_dynamic_indexing,
        // By which older versions of ncnn decide about 16-bit floats in buffers.
        &mut features.shader_storage_image_extended_formats,
        &mut features.texture_compression_bc,
    ] {
        *feature = vk::TRUE;
    }
}

/// Raises the limits of what there is not to those that WebGPU takes for granted.
pub(crate) fn claim_limits(limits: &mut vk::PhysicalDeviceLimits) {
    let samples = vk::SampleCountFlags::TYPE_1 | vk::SampleCountFlags::TYPE_4;
    *limits = vk::PhysicalDeviceLimits {
        max_image_dimension1_d: 16384,
        max_image_dimension2_d: 16384,
        max_image_dimension3_d: 2048,
        max_image_dimension_cube: 16384,
        max_image_array_layers: 2048,
        max_per_stage_descriptor_storage_images: limits.max_per_stage_descriptor_storage_images.max(8),
        max_per_stage_resources: limits.max_per_stage_resources + 64,
        max_vertex_input_attributes: 32,
        max_vertex_input_bindings: 32,
        max_vertex_output_components: 128,
        max_fragment_input_components: 128,
        max_fragment_output_attachments: 8,
        max_fragment_combined_output_resources: limits.max_per_stage_resources + 64,
        max_draw_indexed_index_value: u32::MAX,
        max_sampler_anisotropy: 16.0,
        max_viewports: 16,
        max_viewport_dimensions: [16384; 2],
        viewport_bounds_range: [-32768.0, 32767.0],
        max_framebuffer_width: 16384,
        max_framebuffer_height: 16384,
        max_framebuffer_layers: 2048,
        framebuffer_color_sample_counts: samples,
        framebuffer_depth_sample_counts: samples,
        max_color_attachments: 8,
        sampled_image_color_sample_counts: samples,
        sampled_image_depth_sample_counts: samples,
        ..*limits
    };
}

/// Gives null handles, and the result of a feature that there is not.
fn refuse<T: Handle + Copy>(name: &'static str, out: *mut T, count: u32) -> vk::Result {
    abi::command(name, || {
        abi::room(out, count).fill(T::from_raw(0));
        report!("{name}: there are no graphics");
        Err(vk::Result::ERROR_UNKNOWN)
    })
}

pub(crate) extern "system" fn create_pipelines(
    _device: vk::Device,
    _cache: vk::PipelineCache,
    count: u32,
    _infos: *const vk::GraphicsPipelineCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Pipeline,
) -> vk::Result {
    refuse("vkCreateGraphicsPipelines", out, count)
}

pub(crate) extern "system" fn create_render_pass(
    _device: vk::Device,
    _info: *const vk::RenderPassCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::RenderPass,
) -> vk::Result {
    refuse("vkCreateRenderPass", out, 1)
}

pub(crate) extern "system" fn create_render_pass2(
    _device: vk::Device,
    _info: *const vk::RenderPassCreateInfo2<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::RenderPass,
) -> vk::Result {
    refuse("vkCreateRenderPass2", out, 1)
}

pub(crate) extern "system" fn create_framebuffer(
    _device: vk::Device,
    _info: *const vk::FramebufferCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Framebuffer,
) -> vk::Result {
    refuse("vkCreateFramebuffer", out, 1)
}

pub(crate) extern "system" fn create_swapchain(
    _device: vk::Device,
    _info: *const vk::SwapchainCreateInfoKHR<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::SwapchainKHR,
) -> vk::Result {
    refuse("vkCreateSwapchainKHR", out, 1)
}

pub(crate) extern "system" fn create_conversion(
    _device: vk::Device,
    _info: *const vk::SamplerYcbcrConversionCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::SamplerYcbcrConversion,
) -> vk::Result {
    refuse("vkCreateSamplerYcbcrConversion", out, 1)
}

/// None was made: what is destroyed is VK_NULL_HANDLE.
pub(crate) extern "system" fn destroy<T: Handle>(
    _device: vk::Device,
    _object: T,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
}

pub(crate) extern "system" fn granularity(
    _device: vk::Device,
    _pass: vk::RenderPass,
    out: *mut vk::Extent2D,
) {
    abi::quiet("vkGetRenderAreaGranularity", || {
        abi::write(out, vk::Extent2D { width: 1, height: 1 });
    });
}
