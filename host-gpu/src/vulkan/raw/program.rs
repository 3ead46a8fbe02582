//! Layouts of kernels, and a compiled kernel.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::Arc;

use ash::vk;

use crate::kernel::program::BufferKind;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;

/// What a dispatch of a kernel binds, as far as the driver must know: kernels of the same interface share a layout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::vulkan) struct Interface {
    /// Set, number, count and kind of each binding, the grid included; ascending.
    bindings: Vec<(u32, u32, u32, BufferKind)>,
    constants: u32,
}

impl Interface {
    /// That of `kernel`.
    pub(in crate::vulkan) fn of(kernel: &Kernel) -> Self {
        let grid = kernel.uses_num_workgroups.then_some((0, GRID_BINDING, 1, BufferKind::Storage));
        let own = kernel.bindings.iter().map(|b| (b.set, b.binding, b.count, b.kind));
        Self { bindings: own.chain(grid).collect(), constants: kernel.constants }
    }
}

/// Vulkan's name for a kind of buffer.
pub(super) fn descriptor_type(kind: BufferKind) -> vk::DescriptorType {
    match kind {
        BufferKind::Storage => vk::DescriptorType::STORAGE_BUFFER,
        BufferKind::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
        BufferKind::UniformTexels => vk::DescriptorType::UNIFORM_TEXEL_BUFFER,
        BufferKind::StorageTexels => vk::DescriptorType::STORAGE_TEXEL_BUFFER,
    }
}

/// The layout of kernels of one interface: their descriptor sets, from 0 to the last that they use, and their push constants.
pub(in crate::vulkan) struct Layout {
    pub(super) gpu: Arc<Gpu>,
    pub(super) sets: Vec<vk::DescriptorSetLayout>,
    pub(super) pipeline: vk::PipelineLayout,
}

impl Layout {
    /// Makes the layout.
    pub(in crate::vulkan) fn new(gpu: &Arc<Gpu>, interface: &Interface) -> Result<Arc<Self>, VulkanError> {
        // From here on, `Drop` destroys what was made; destroying a null handle is a no-op.
        let mut layout =
            Self { gpu: Arc::clone(gpu), sets: Vec::new(), pipeline: vk::PipelineLayout::null() };
        let sets = interface.bindings.iter().map(|(set, ..)| set + 1).max().unwrap_or(0);
        for set in 0..sets {
            let of_set = interface.bindings.iter().filter(|(of, ..)| *of == set);
            let bindings: Vec<_> = of_set
                .map(|&(_, binding, count, kind)| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(binding)
                        .descriptor_type(descriptor_type(kind))
                        .descriptor_count(count)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                })
                .collect();
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            // SAFETY: `info` outlives the call.
            let made = unsafe { gpu.device.create_descriptor_set_layout(&info, None) };
            layout.sets.push(made.map_err(failed("vkCreateDescriptorSetLayout"))?);
        }
        let constants = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: interface.constants,
        }];
        let constants = if interface.constants == 0 { &[] } else { constants.as_slice() };
        let info =
            vk::PipelineLayoutCreateInfo::default().set_layouts(&layout.sets).push_constant_ranges(constants);
        // SAFETY: the set layouts are alive and `info` outlives the call.
        let pipeline = unsafe { gpu.device.create_pipeline_layout(&info, None) };
        layout.pipeline = pipeline.map_err(failed("vkCreatePipelineLayout"))?;
        Ok(Arc::new(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: programs and slots that use it hold an `Arc` of this, so none is left.
        unsafe { self.gpu.device.destroy_pipeline_layout(self.pipeline, None) };
        for set in &self.sets {
            // SAFETY: as above.
            unsafe { self.gpu.device.destroy_descriptor_set_layout(*set, None) };
        }
    }
}

/// A kernel's pipeline. The driver compiles it at its first dispatch.
pub(in crate::vulkan) struct Program {
    pub(super) layout: Arc<Layout>,
    pub(super) raw: vk::Pipeline,
}

impl Program {
    /// Makes a pipeline of `kernel`, which the sanitizer made, whose interface `layout` is of, and which suits the device's limits.
    pub(in crate::vulkan) fn new(layout: &Arc<Layout>, kernel: &Kernel) -> Result<Arc<Self>, VulkanError> {
        let device = &layout.gpu.device;
        let info = vk::ShaderModuleCreateInfo::default().code(&kernel.spirv);
        // SAFETY: the sanitizer's words are valid SPIR-V; `info` outlives the call.
        let module =
            unsafe { device.create_shader_module(&info, None) }.map_err(failed("vkCreateShaderModule"))?;
        let made = Self::with_module(layout, module, kernel);
        // SAFETY: a module may go as soon as its pipeline is made.
        unsafe { device.destroy_shader_module(module, None) };
        made
    }

    fn with_module(
        layout: &Arc<Layout>,
        module: vk::ShaderModule,
        kernel: &Kernel,
    ) -> Result<Arc<Self>, VulkanError> {
        let entry = CString::new(kernel.entry.as_str()).unwrap_or_default();
        let mut subgroup = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(kernel.subgroup_size);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(&entry);
        if kernel.subgroup_size != 0 {
            // Full wherever Vulkan lets them be asked to be: a kernel that fixes their size counts on it.
            if kernel.workgroup[0].is_multiple_of(kernel.subgroup_size) {
                stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
            }
            stage = stage.push_next(&mut subgroup);
        }
        let infos = [vk::ComputePipelineCreateInfo::default()
            .flags(vk::PipelineCreateFlags::DISPATCH_BASE)
            .stage(stage)
            .layout(layout.pipeline)];
        let device = &layout.gpu.device;
        // SAFETY: module and layout are alive, and the layout has what the kernel binds.
        let made = unsafe { device.create_compute_pipelines(vk::PipelineCache::null(), &infos, None) };
        match made {
            Ok(pipelines) => {
                let raw = pipelines.first().copied().unwrap_or_default();
                Ok(Arc::new(Self { layout: Arc::clone(layout), raw }))
            }
            // One was asked for, so none was made.
            Err((_, result)) => Err(failed("vkCreateComputePipelines")(result)),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: a slot holds an `Arc` of the program that its pending work runs.
        unsafe { self.layout.gpu.device.destroy_pipeline(self.raw, None) };
    }
}
