//! Copies between buffers, one submission at a time.
#![allow(unsafe_code)]

use std::sync::Arc;

use ash::vk;

use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::device::Timeline;
use crate::vulkan::raw::memory::Buffer;

const COPY: (vk::PipelineStageFlags, vk::AccessFlags) = (
    vk::PipelineStageFlags::TRANSFER,
    vk::AccessFlags::from_raw(
        vk::AccessFlags::TRANSFER_READ.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
    ),
);
/// Kernels, and the host.
const OTHERS: (vk::PipelineStageFlags, vk::AccessFlags) = (
    vk::PipelineStageFlags::from_raw(
        vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::HOST.as_raw(),
    ),
    vk::AccessFlags::from_raw(
        vk::AccessFlags::SHADER_READ.as_raw()
            | vk::AccessFlags::SHADER_WRITE.as_raw()
            | vk::AccessFlags::HOST_READ.as_raw()
            | vk::AccessFlags::HOST_WRITE.as_raw(),
    ),
);

/// What is copied: buffers, and where in them it starts.
pub(in crate::vulkan) struct Region {
    pub(in crate::vulkan) from: (Arc<Buffer>, u64),
    pub(in crate::vulkan) to: (Arc<Buffer>, u64),
    /// Bytes.
    pub(in crate::vulkan) size: u64,
}

/// What is filled: a buffer, where in it that starts, and bytes, both multiples of 4.
pub(in crate::vulkan) struct Filled {
    pub(in crate::vulkan) buffer: Arc<Buffer>,
    pub(in crate::vulkan) offset: u64,
    /// Bytes.
    pub(in crate::vulkan) size: u64,
}

/// A command buffer for copies.
pub(in crate::vulkan) struct Transfer {
    gpu: Arc<Gpu>,
    timeline: Arc<Timeline>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    submitted: u64,
    /// The last submission is not known to have ended.
    pending: bool,
    /// What the last submission uses, until it is known to have ended.
    held: Vec<Arc<Buffer>>,
}

impl Transfer {
    /// One on the queue of `gpu`.
    pub(in crate::vulkan) fn new(gpu: &Arc<Gpu>) -> Result<Self, VulkanError> {
        let (pool, commands) = (vk::CommandPool::null(), vk::CommandBuffer::null());
        let (timeline, held) = (Arc::new(Timeline::new(gpu)?), Vec::new());
        // From here on, `Drop` destroys what was made; destroying a null handle is a no-op.
        let mut made =
            Self { gpu: Arc::clone(gpu), timeline, pool, commands, submitted: 0, pending: false, held };
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(gpu.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { gpu.device.create_command_pool(&info, None) };
        made.pool = pool.map_err(failed("vkCreateCommandPool"))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(made.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool was just created and is used by this only.
        let buffers = unsafe { gpu.device.allocate_command_buffers(&info) };
        let buffers = buffers.map_err(failed("vkAllocateCommandBuffers"))?;
        made.commands = buffers.first().copied().unwrap_or_default();
        Ok(made)
    }

    /// The device.
    pub(in crate::vulkan) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Copies regions that lie in their buffers, no target overlapping another region, and sleeps until that is done.
    pub(in crate::vulkan) fn run(&mut self, regions: &[Region]) -> Result<(), VulkanError> {
        self.begin()?;
        for Region { from, to, size } in regions {
            let regions = [vk::BufferCopy::default().src_offset(from.1).dst_offset(to.1).size(*size)];
            let (device, commands) = (&self.gpu.device, self.commands);
            // SAFETY: recording; the buffers may be copied and the regions lie in them, by this function's contract.
            unsafe { device.cmd_copy_buffer(commands, from.0.raw, to.0.raw, &regions) };
        }
        let used = regions.iter().flat_map(|region| [&region.from.0, &region.to.0]);
        self.held.extend(used.cloned());
        self.finish()
    }

    /// Fills ranges that lie in their buffers, and sleeps until that is done.
    pub(in crate::vulkan) fn fill(&mut self, ranges: &[Filled], word: u32) -> Result<(), VulkanError> {
        self.begin()?;
        for Filled { buffer, offset, size } in ranges {
            let (device, commands) = (&self.gpu.device, self.commands);
            // SAFETY: recording; the buffer may be copied to, and the range lies in it and is of whole words, by this
            // function's contract.
            unsafe { device.cmd_fill_buffer(commands, buffer.raw, *offset, *size, word) };
        }
        self.held.extend(ranges.iter().map(|range| Arc::clone(&range.buffer)));
        self.finish()
    }

    fn begin(&mut self) -> Result<(), VulkanError> {
        self.settle()?;
        let (device, commands) = (&self.gpu.device, self.commands);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the command buffer is not pending, `settle` saw to that, and its pool allows the implicit reset.
        unsafe { device.begin_command_buffer(commands, &begin) }.map_err(failed("vkBeginCommandBuffer"))?;
        self.barrier(OTHERS, COPY);
        Ok(())
    }

    /// Submits what was recorded, all of whose buffers are held, and sleeps until it is done.
    fn finish(&mut self) -> Result<(), VulkanError> {
        self.barrier(COPY, OTHERS);
        let (device, commands) = (&self.gpu.device, self.commands);
        // SAFETY: recording, outside any render pass.
        unsafe { device.end_command_buffer(commands) }.map_err(failed("vkEndCommandBuffer"))?;
        let value = self.submitted + 1;
        // SAFETY: recorded just now and not pending; what it uses is held until `value`.
        unsafe { self.gpu.submit(commands, &self.timeline, value) }?;
        (self.submitted, self.pending) = (value, true);
        self.settle()
    }

    /// Sleeps until nothing is pending.
    fn settle(&mut self) -> Result<(), VulkanError> {
        if self.pending {
            self.timeline.wait(self.submitted, None)?;
            self.pending = false;
        }
        self.held.clear();
        Ok(())
    }

    fn barrier(
        &self,
        from: (vk::PipelineStageFlags, vk::AccessFlags),
        to: (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barriers = [vk::MemoryBarrier::default().src_access_mask(from.1).dst_access_mask(to.1)];
        let (device, flags) = (&self.gpu.device, vk::DependencyFlags::empty());
        // SAFETY: called while recording; the access masks belong to the stages.
        unsafe { device.cmd_pipeline_barrier(self.commands, from.0, to.0, flags, &barriers, &[], &[]) };
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Err(error) = self.settle()
            && !error.is_device_lost()
        {
            log::error!("what a device copies is kept, since it may be under way: {error}");
            let held = std::mem::take(&mut self.held);
            std::mem::forget((Arc::clone(&self.gpu), Arc::clone(&self.timeline), held));
            return;
        }
        // SAFETY: nothing is pending, or the device is lost and nothing runs; a null handle is ignored.
        unsafe { self.gpu.device.destroy_command_pool(self.pool, None) };
    }
}
