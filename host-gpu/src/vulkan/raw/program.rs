//! The one layout of all kernels, and a compiled kernel.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::sync::Arc;

use ash::vk;

use crate::kernel::program::CONSTANTS_LIMIT;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;

/// Set 0 with a storage buffer at each of the bindings 0 to 15, one more for the grid, and 128 bytes of push constants. Any kernel fits
/// it, because what a kernel does not use need not be bound; so one descriptor set serves all kernels.
pub(in crate::vulkan) struct Layout {
    pub(super) gpu: Arc<Gpu>,
    pub(super) set: vk::DescriptorSetLayout,
    pub(super) pipeline: vk::PipelineLayout,
}

impl Layout {
    /// Makes the layout.
    pub(in crate::vulkan) fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>, VulkanError> {
        let bindings: Vec<_> = (0..=GRID_BINDING)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: `info` outlives the call.
        let set = unsafe { gpu.device.create_descriptor_set_layout(&info, None) };
        let set = set.map_err(failed("vkCreateDescriptorSetLayout"))?;
        // From here on, `Drop` destroys both; destroying a null handle is a no-op.
        let mut layout = Self { gpu: Arc::clone(gpu), set, pipeline: vk::PipelineLayout::null() };

        let sets = [set];
        let constants = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: CONSTANTS_LIMIT,
        }];
        let info =
            vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&constants);
        // SAFETY: the set layout is alive and `info` outlives the call.
        let pipeline = unsafe { gpu.device.create_pipeline_layout(&info, None) };
        layout.pipeline = pipeline.map_err(failed("vkCreatePipelineLayout"))?;
        Ok(Arc::new(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: programs and slots made with it hold an `Arc` of this, so none is left.
        unsafe { self.gpu.device.destroy_pipeline_layout(self.pipeline, None) };
        // SAFETY: as above.
        unsafe { self.gpu.device.destroy_descriptor_set_layout(self.set, None) };
    }
}

/// A kernel's pipeline. The driver compiles it at its first dispatch.
pub(in crate::vulkan) struct Program {
    pub(super) layout: Arc<Layout>,
    pub(super) raw: vk::Pipeline,
}

impl Program {
    /// Makes a pipeline of `kernel`, which the sanitizer made.
    pub(in crate::vulkan) fn new(layout: &Arc<Layout>, kernel: &Kernel) -> Result<Arc<Self>, VulkanError> {
        let device = &layout.gpu.device;
        let info = vk::ShaderModuleCreateInfo::default().code(&kernel.spirv);
        // SAFETY: the sanitizer's words are valid SPIR-V; `info` outlives the call.
        let module =
            unsafe { device.create_shader_module(&info, None) }.map_err(failed("vkCreateShaderModule"))?;
        let made = Self::with_module(layout, module, &kernel.entry);
        // SAFETY: a module may go as soon as its pipeline is made.
        unsafe { device.destroy_shader_module(module, None) };
        made
    }

    fn with_module(
        layout: &Arc<Layout>,
        module: vk::ShaderModule,
        entry: &str,
    ) -> Result<Arc<Self>, VulkanError> {
        let entry = CString::new(entry).unwrap_or_default();
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(&entry);
        let infos = [vk::ComputePipelineCreateInfo::default()
            .flags(vk::PipelineCreateFlags::DISPATCH_BASE)
            .stage(stage)
            .layout(layout.pipeline)];
        let device = &layout.gpu.device;
        // SAFETY: module and layout are alive and the sanitizer allows only what the layout has.
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
