//! A place for one submission in flight, of one dispatch or a chain of them: command buffer and descriptor sets, made once and used
//! again and again.
#![allow(unsafe_code)]

use std::sync::Arc;

use ash::ext;
use ash::vk;

use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferKind;
use crate::kernel::program::DESCRIPTOR_LIMIT;
use crate::kernel::program::SET_LIMIT;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::device::Timeline;
use crate::vulkan::raw::memory::Buffer;
use crate::vulkan::raw::program::Layout;
use crate::vulkan::raw::program::Program;
use crate::vulkan::raw::program::descriptor_type;
use crate::vulkan::raw::stamps::Row;
use crate::vulkan::raw::view::View;

/// Most buffers of a submission, of either kind: those of one dispatch and its grid fit, and those of many that bind few.
pub(in crate::vulkan) const BUFFERS: u32 = 8 * (DESCRIPTOR_LIMIT + 1);
/// Most descriptor sets of a submission.
pub(in crate::vulkan) const SETS: u32 = 16 * SET_LIMIT;
/// Bytes of a word of [`Conditions`].
pub(in crate::vulkan) const WORD: u64 = 8;

/// A buffer range at a binding.
#[derive(Clone)]
pub(in crate::vulkan) struct Place {
    pub(in crate::vulkan) point: BindingPoint,
    pub(in crate::vulkan) kind: BufferKind,
    pub(in crate::vulkan) buffer: Arc<Buffer>,
    pub(in crate::vulkan) offset: u64,
    pub(in crate::vulkan) length: u64,
    /// Of a texel buffer: the same range.
    pub(in crate::vulkan) view: Option<Arc<View>>,
}

/// Workgroups: the first, and how many, in x, y, z.
#[derive(Debug, Clone, Copy)]
pub(in crate::vulkan) struct Groups {
    pub(in crate::vulkan) base: [u32; 3],
    pub(in crate::vulkan) groups: [u32; 3],
}

/// Words of a buffer, 8 bytes each, by which the parts of a work are called off: before a part begins, its word from
/// `from` is copied to its word from `to`, and it is skipped where the lower half of that is zero.
pub(in crate::vulkan) struct Conditions {
    pub(in crate::vulkan) buffer: Arc<Buffer>,
    pub(in crate::vulkan) from: u64,
    pub(in crate::vulkan) to: u64,
}

/// One dispatch, checked: every buffer of the program is in `places`, ranges inside their buffers
/// and within the device's limits, constants as many as the program takes, parts too, and what holds their conditions.
pub(in crate::vulkan) struct Work<'a> {
    pub(in crate::vulkan) program: &'a Arc<Program>,
    pub(in crate::vulkan) places: &'a [Place],
    pub(in crate::vulkan) constants: &'a [u8],
    pub(in crate::vulkan) parts: &'a [Groups],
    pub(in crate::vulkan) conditions: Option<&'a Conditions>,
}

/// A reusable place for one submission at a time.
pub(in crate::vulkan) struct Slot {
    gpu: Arc<Gpu>,
    timeline: Arc<Timeline>,
    command_pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    descriptor_pool: vk::DescriptorPool,
    /// The layouts of the works that were submitted last, and their descriptor sets, all of the pool's.
    layouts: Vec<Arc<Layout>>,
    sets: Vec<vk::DescriptorSet>,
    /// The value that what is pending raises the timeline to.
    pending: Option<u64>,
    /// What is pending runs and binds; kept apart so that its storage is used again.
    programs: Vec<Arc<Program>>,
    bound: Vec<Arc<Buffer>>,
    views: Vec<Arc<View>>,
}

impl Slot {
    /// Makes a slot whose work raises `timeline`.
    pub(in crate::vulkan) fn new(gpu: &Arc<Gpu>, timeline: &Arc<Timeline>) -> Result<Self, VulkanError> {
        let device = &gpu.device;
        let mut slot = Self {
            gpu: Arc::clone(gpu),
            timeline: Arc::clone(timeline),
            command_pool: vk::CommandPool::null(),
            commands: vk::CommandBuffer::null(),
            descriptor_pool: vk::DescriptorPool::null(),
            layouts: Vec::new(),
            sets: Vec::new(),
            pending: None,
            programs: Vec::new(),
            bound: Vec::new(),
            views: Vec::new(),
        };
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(gpu.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { device.create_command_pool(&info, None) };
        slot.command_pool = pool.map_err(failed("vkCreateCommandPool"))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(slot.command_pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool was just created and is used by this slot only.
        let buffers = unsafe { device.allocate_command_buffers(&info) };
        let buffers = buffers.map_err(failed("vkAllocateCommandBuffers"))?;
        slot.commands = buffers.first().copied().unwrap_or_default();

        let sizes = BufferKind::ALL
            .map(|kind| vk::DescriptorPoolSize { ty: descriptor_type(kind), descriptor_count: BUFFERS });
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS).pool_sizes(&sizes);
        // SAFETY: `info` outlives the call.
        let pool = unsafe { device.create_descriptor_pool(&info, None) };
        slot.descriptor_pool = pool.map_err(failed("vkCreateDescriptorPool"))?;
        Ok(slot)
    }

    /// Whether the slot's last submission is done, and if so lets go of what it used.
    pub(in crate::vulkan) fn retire(&mut self, reached: u64) -> bool {
        if self.pending.is_some_and(|value| value > reached) {
            return false;
        }
        self.pending = None;
        self.programs.clear();
        self.bound.clear();
        self.views.clear();
        true
    }

    /// Records and submits works, each of which sees what those before it wrote, and raises the timeline to `value` behind them.
    /// They have at most [`SETS`] sets and [`BUFFERS`] buffers. The slot must be free; where it is not, this waits. Times are noted
    /// in `row`.
    pub(in crate::vulkan) fn run(
        &mut self,
        works: &[Work<'_>],
        value: u64,
        row: Option<Row<'_>>,
    ) -> Result<(), VulkanError> {
        self.settle()?;
        self.allocate(works)?;
        self.record(works, row)?;
        for work in works {
            self.programs.push(Arc::clone(work.program));
            self.bound.extend(work.places.iter().map(|place| Arc::clone(&place.buffer)));
            self.views.extend(work.places.iter().filter_map(|place| place.view.clone()));
            self.bound.extend(work.conditions.map(|conditions| Arc::clone(&conditions.buffer)));
        }
        self.pending = Some(value);
        // SAFETY: recorded just now and not pending, `settle` saw to that; what it uses is held until `value`.
        let submitted = unsafe { self.gpu.submit(self.commands, &self.timeline, value) };
        if submitted.is_err() {
            // It never became pending, and nothing will raise the timeline for it.
            self.retire(value);
        }
        submitted
    }

    /// Sleeps until nothing is pending.
    fn settle(&mut self) -> Result<(), VulkanError> {
        if let Some(value) = self.pending {
            self.timeline.wait(value, None)?;
            self.retire(u64::MAX);
        }
        Ok(())
    }

    /// Has descriptor sets for works: those of the last ones where they had the same layouts, else new ones. Nothing is pending.
    fn allocate(&mut self, works: &[Work<'_>]) -> Result<(), VulkanError> {
        let layouts = works.iter().map(|work| &work.program.layout);
        let is_same = self.layouts.len() == works.len();
        if is_same && layouts.clone().zip(&self.layouts).all(|(new, old)| Arc::ptr_eq(new, old)) {
            return Ok(());
        }
        self.layouts.clear();
        self.sets.clear();
        let (device, flags) = (&self.gpu.device, vk::DescriptorPoolResetFlags::empty());
        // SAFETY: no pending work uses a set of the pool.
        unsafe { device.reset_descriptor_pool(self.descriptor_pool, flags) }
            .map_err(failed("vkResetDescriptorPool"))?;
        let all: Vec<_> = layouts.clone().flat_map(|layout| &layout.sets).copied().collect();
        let info =
            vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.descriptor_pool).set_layouts(&all);
        if !all.is_empty() {
            // SAFETY: the pool is empty, and has room for the most sets and buffers that a submission may have.
            self.sets = unsafe { device.allocate_descriptor_sets(&info) }
                .map_err(failed("vkAllocateDescriptorSets"))?;
        }
        self.layouts.extend(layouts.cloned());
        Ok(())
    }

    fn record(&mut self, works: &[Work<'_>], row: Option<Row<'_>>) -> Result<(), VulkanError> {
        let (device, commands) = (&self.gpu.device, self.commands);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the command buffer is not pending, and its pool allows the implicit reset.
        unsafe { device.begin_command_buffer(commands, &begin) }.map_err(failed("vkBeginCommandBuffer"))?;
        let note = |index| row.iter().for_each(|row| row.note(commands, index));
        note(0);
        let mut rest = &self.sets[..];
        for (work, number) in works.iter().zip(1..) {
            let (sets, after) = rest.split_at(work.program.layout.sets.len().min(rest.len()));
            rest = after;
            self.bind(work.places, sets);
            self.record_one(work, sets);
            note(number);
        }
        // What the kernels wrote is seen by the host.
        self.barrier(
            (vk::PipelineStageFlags::COMPUTE_SHADER, vk::AccessFlags::SHADER_WRITE),
            (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE),
        );
        // SAFETY: recording, outside any render pass.
        unsafe { device.end_command_buffer(commands) }.map_err(failed("vkEndCommandBuffer"))
    }

    fn bind(&self, places: &[Place], sets: &[vk::DescriptorSet]) {
        let range = |place: &Place| {
            let Place { offset, length, .. } = *place;
            [vk::DescriptorBufferInfo { buffer: place.buffer.raw, offset, range: length }]
        };
        let ranges: Vec<_> = places.iter().map(range).collect();
        let view = |place: &Place| place.view.as_ref().map(|view| [view.raw]);
        let views: Vec<_> = places.iter().map(view).collect();
        let mut writes = Vec::with_capacity(places.len());
        for (place, (range, view)) in places.iter().zip(ranges.iter().zip(&views)) {
            let set = sets.get(place.point.set as usize).copied().unwrap_or_default();
            let write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(place.point.binding)
                .dst_array_element(place.point.element)
                .descriptor_type(descriptor_type(place.kind));
            writes.push(match view {
                Some(view) => write.texel_buffer_view(view),
                None => write.buffer_info(range),
            });
        }
        // SAFETY: no pending work uses the sets; they have all places, buffers and views are alive and ranges inside them, by
        // `Work`'s contract.
        unsafe { self.gpu.device.update_descriptor_sets(&writes, &[]) };
    }

    fn record_one(&self, work: &Work<'_>, sets: &[vk::DescriptorSet]) {
        let (device, commands) = (&self.gpu.device, self.commands);
        // What the host and earlier kernels wrote is seen by this one.
        self.barrier(
            (
                vk::PipelineStageFlags::HOST | vk::PipelineStageFlags::COMPUTE_SHADER,
                vk::AccessFlags::HOST_WRITE | vk::AccessFlags::SHADER_WRITE,
            ),
            (
                vk::PipelineStageFlags::COMPUTE_SHADER,
                vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE,
            ),
        );
        let (point, layout) = (vk::PipelineBindPoint::COMPUTE, work.program.layout.pipeline);
        // SAFETY: recording; the program is alive and a compute pipeline.
        unsafe { device.cmd_bind_pipeline(commands, point, work.program.raw) };
        if !sets.is_empty() {
            // SAFETY: recording; the sets are those of the layout, in order.
            unsafe { device.cmd_bind_descriptor_sets(commands, point, layout, 0, sets, &[]) };
        }
        if !work.constants.is_empty() {
            // SAFETY: recording; as many bytes as the layout has, by `Work`'s contract.
            unsafe {
                device.cmd_push_constants(commands, layout, vk::ShaderStageFlags::COMPUTE, 0, work.constants)
            };
        }
        for (index, part) in (0..).zip(work.parts) {
            let skipping = self.gpu.conditions.as_ref().zip(work.conditions);
            if let Some((skipping, conditions)) = skipping {
                self.begin_condition(skipping, conditions, index);
            }
            let ([x, y, z], [width, height, depth]) = (part.base, part.groups);
            // SAFETY: recording; within the device's limits by `Work`'s contract; the pipeline has DISPATCH_BASE.
            unsafe { device.cmd_dispatch_base(commands, x, y, z, width, height, depth) };
            if let Some((skipping, _)) = skipping {
                let end = skipping.fp().cmd_end_conditional_rendering_ext;
                // SAFETY: recording; it was begun just now.
                unsafe { end(commands) };
            }
        }
    }

    /// Has what is recorded next skipped where the word of part `index` is zero by then, and that noted.
    fn begin_condition(
        &self,
        skipping: &ext::conditional_rendering::Device,
        conditions: &Conditions,
        index: u64,
    ) {
        let Conditions { buffer, from, to } = conditions;
        let (from, to) = (from + index * WORD, to + index * WORD);
        let copies = [vk::BufferCopy::default().src_offset(from).dst_offset(to).size(WORD)];
        // SAFETY: recording; both words are in the buffer by `Work`'s contract, which says that it may be copied.
        unsafe { self.gpu.device.cmd_copy_buffer(self.commands, buffer.raw, buffer.raw, &copies) };
        self.barrier(
            (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_WRITE),
            (
                vk::PipelineStageFlags::CONDITIONAL_RENDERING_EXT | vk::PipelineStageFlags::HOST,
                vk::AccessFlags::CONDITIONAL_RENDERING_READ_EXT | vk::AccessFlags::HOST_READ,
            ),
        );
        let begin = vk::ConditionalRenderingBeginInfoEXT::default().buffer(buffer.raw).offset(to);
        // SAFETY: recording, outside any other condition; the word is in the buffer, which may hold conditions.
        unsafe { (skipping.fp().cmd_begin_conditional_rendering_ext)(self.commands, &raw const begin) };
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

impl Drop for Slot {
    fn drop(&mut self) {
        if let Err(error) = self.settle()
            && !error.is_device_lost()
        {
            log::error!("what a device runs is kept, since it may be under way: {error}");
            let (programs, bound) = (std::mem::take(&mut self.programs), std::mem::take(&mut self.bound));
            let (layouts, views) = (std::mem::take(&mut self.layouts), std::mem::take(&mut self.views));
            let (gpu, timeline) = (Arc::clone(&self.gpu), Arc::clone(&self.timeline));
            std::mem::forget((gpu, timeline, programs, bound, views, layouts));
            return;
        }
        // SAFETY: nothing is pending, or the device is lost and nothing runs; null handles are ignored.
        unsafe { self.gpu.device.destroy_descriptor_pool(self.descriptor_pool, None) };
        // SAFETY: as above.
        unsafe { self.gpu.device.destroy_command_pool(self.command_pool, None) };
    }
}
