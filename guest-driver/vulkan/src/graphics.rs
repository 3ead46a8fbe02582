//! What there is of graphics: refusals.
//!
//! Some compute programs look for a queue family with graphics and never draw; older versions of ncnn read behind the list of families
//! where none has it, and keep 16-bit floats in buffers only where storage images could have more formats
//! (`shaderStorageImageExtendedFormats`). `CAMPANILE_GRAPHICS_FAMILY=1` has the device say both, for these. Whatever would draw is
//! refused by a result all the same, and no format is good for images.

use std::sync::LazyLock;

use ash::vk;
use ash::vk::Handle;

use crate::abi;
use crate::report::report;

static IS_CLAIMED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("CAMPANILE_GRAPHICS_FAMILY").is_some_and(|value| value != "0"));

/// Whether the device is to say that it does graphics.
pub(crate) fn is_claimed() -> bool {
    *IS_CLAIMED
}

/// What the queue family says beyond compute and copies.
pub(crate) fn claimed() -> vk::QueueFlags {
    if is_claimed() { vk::QueueFlags::GRAPHICS } else { vk::QueueFlags::empty() }
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
