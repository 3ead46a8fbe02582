//! Buffers read as texels.
#![allow(unsafe_code)]

use std::sync::Arc;

use ash::vk;
use campanile_protocol::texels::Format;

use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::memory::Buffer;

/// A range of a buffer, as texels.
pub(in crate::vulkan) struct View {
    buffer: Arc<Buffer>,
    pub(super) raw: vk::BufferView,
}

impl View {
    /// The bytes `offset .. offset + length` of `buffer`, which has them: as many texels of `format` as the device takes, at an offset
    /// that it takes.
    pub(in crate::vulkan) fn new(
        buffer: &Arc<Buffer>,
        offset: u64,
        length: u64,
        format: &Format,
    ) -> Result<Self, VulkanError> {
        let info = vk::BufferViewCreateInfo::default()
            .buffer(buffer.raw)
            .format(vk::Format::from_raw(i32::from(format.code)))
            .offset(offset)
            .range(length);
        // SAFETY: the buffer is alive and of a usage for texels, which the device has in every format there is; `info` outlives the
        // call, and the range is what this function's contract says.
        let raw = unsafe { buffer.gpu().device.create_buffer_view(&info, None) };
        Ok(Self { buffer: Arc::clone(buffer), raw: raw.map_err(failed("vkCreateBufferView"))? })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: a slot holds an `Arc` of every view that its pending work uses.
        unsafe { self.buffer.gpu().device.destroy_buffer_view(self.raw, None) };
    }
}
