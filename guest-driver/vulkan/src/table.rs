//! The commands by name.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::c_char;

use ash::vk;
use ash::vk::Handle;

use crate::abi;
use crate::buffer;
use crate::command::buffer as command_buffer;
use crate::command::compute;
use crate::command::drawing;
use crate::command::images;
use crate::command::pool as command_pool;
use crate::command::transfer;
use crate::command::waits;
use crate::commands::Command;
use crate::commands::commands;
use crate::creation;
use crate::descriptor::layout;
use crate::descriptor::pool as descriptor_pool;
use crate::descriptor::template;
use crate::descriptor::update;
use crate::device::Device;
use crate::event;
use crate::external;
use crate::features;
use crate::fence;
use crate::formats;
use crate::graphics;
use crate::image::object as image;
use crate::image::sampler;
use crate::image::view;
use crate::instance;
use crate::memory;
use crate::physical;
use crate::pipeline;
use crate::private;
use crate::properties;
use crate::query;
use crate::queue;
use crate::semaphore;
use crate::shader;
use crate::texels;

commands! { of_no_instance:
    c"vkCreateInstance" PFN_vkCreateInstance = instance::create;
    c"vkEnumerateInstanceExtensionProperties" PFN_vkEnumerateInstanceExtensionProperties = instance::enumerate_extensions;
    c"vkEnumerateInstanceLayerProperties" PFN_vkEnumerateInstanceLayerProperties = instance::enumerate_layers;
    c"vkEnumerateInstanceVersion" PFN_vkEnumerateInstanceVersion = instance::enumerate_version;
    c"vkGetInstanceProcAddr" PFN_vkGetInstanceProcAddr = instance_command;
}

commands! { of_instances:
    c"vkDestroyInstance" PFN_vkDestroyInstance = instance::destroy;
    c"vkEnumeratePhysicalDevices" PFN_vkEnumeratePhysicalDevices = instance::enumerate_physical_devices;
    c"vkEnumeratePhysicalDeviceGroups" | c"vkEnumeratePhysicalDeviceGroupsKHR" PFN_vkEnumeratePhysicalDeviceGroups = instance::enumerate_groups;
    c"vkGetDeviceProcAddr" PFN_vkGetDeviceProcAddr = device_command;
}

commands! { of_physical_devices:
    c"vkCreateDevice" PFN_vkCreateDevice = creation::create;
    c"vkEnumerateDeviceExtensionProperties" PFN_vkEnumerateDeviceExtensionProperties = physical::enumerate_extensions;
    c"vkEnumerateDeviceLayerProperties" PFN_vkEnumerateDeviceLayerProperties = physical::enumerate_layers;
    c"vkGetPhysicalDeviceExternalBufferProperties" | c"vkGetPhysicalDeviceExternalBufferPropertiesKHR" PFN_vkGetPhysicalDeviceExternalBufferProperties = formats::external_buffers;
    c"vkGetPhysicalDeviceExternalFenceProperties" | c"vkGetPhysicalDeviceExternalFencePropertiesKHR" PFN_vkGetPhysicalDeviceExternalFenceProperties = formats::external_fences;
    c"vkGetPhysicalDeviceExternalSemaphoreProperties" | c"vkGetPhysicalDeviceExternalSemaphorePropertiesKHR" PFN_vkGetPhysicalDeviceExternalSemaphoreProperties = formats::external_semaphores;
    c"vkGetPhysicalDeviceFeatures" PFN_vkGetPhysicalDeviceFeatures = features::get;
    c"vkGetPhysicalDeviceFeatures2" | c"vkGetPhysicalDeviceFeatures2KHR" PFN_vkGetPhysicalDeviceFeatures2 = features::get2;
    c"vkGetPhysicalDeviceFormatProperties" PFN_vkGetPhysicalDeviceFormatProperties = formats::get;
    c"vkGetPhysicalDeviceFormatProperties2" | c"vkGetPhysicalDeviceFormatProperties2KHR" PFN_vkGetPhysicalDeviceFormatProperties2 = formats::get2;
    c"vkGetPhysicalDeviceImageFormatProperties" PFN_vkGetPhysicalDeviceImageFormatProperties = formats::of_images;
    c"vkGetPhysicalDeviceImageFormatProperties2" | c"vkGetPhysicalDeviceImageFormatProperties2KHR" PFN_vkGetPhysicalDeviceImageFormatProperties2 = formats::of_images2;
    c"vkGetPhysicalDeviceMemoryProperties" PFN_vkGetPhysicalDeviceMemoryProperties = physical::memory_properties;
    c"vkGetPhysicalDeviceMemoryProperties2" | c"vkGetPhysicalDeviceMemoryProperties2KHR" PFN_vkGetPhysicalDeviceMemoryProperties2 = physical::memory_properties2;
    c"vkGetPhysicalDeviceProperties" PFN_vkGetPhysicalDeviceProperties = properties::get;
    c"vkGetPhysicalDeviceProperties2" | c"vkGetPhysicalDeviceProperties2KHR" PFN_vkGetPhysicalDeviceProperties2 = properties::get2;
    c"vkGetPhysicalDeviceQueueFamilyProperties" PFN_vkGetPhysicalDeviceQueueFamilyProperties = physical::queue_families;
    c"vkGetPhysicalDeviceQueueFamilyProperties2" | c"vkGetPhysicalDeviceQueueFamilyProperties2KHR" PFN_vkGetPhysicalDeviceQueueFamilyProperties2 = physical::queue_families2;
    c"vkGetPhysicalDeviceSparseImageFormatProperties" PFN_vkGetPhysicalDeviceSparseImageFormatProperties = formats::of_sparse_images;
    c"vkGetPhysicalDeviceToolProperties" | c"vkGetPhysicalDeviceToolPropertiesEXT" PFN_vkGetPhysicalDeviceToolProperties = physical::tools;
    c"vkGetPhysicalDeviceSparseImageFormatProperties2" | c"vkGetPhysicalDeviceSparseImageFormatProperties2KHR" PFN_vkGetPhysicalDeviceSparseImageFormatProperties2 = formats::of_sparse_images2;
}

commands! { of_devices:
    c"vkAllocateCommandBuffers" PFN_vkAllocateCommandBuffers = command_pool::allocate;
    c"vkAllocateDescriptorSets" PFN_vkAllocateDescriptorSets = descriptor_pool::allocate;
    c"vkAllocateMemory" PFN_vkAllocateMemory = memory::allocate;
    c"vkBindBufferMemory" PFN_vkBindBufferMemory = buffer::bind;
    c"vkBindBufferMemory2" | c"vkBindBufferMemory2KHR" PFN_vkBindBufferMemory2 = buffer::bind2;
    c"vkBindImageMemory" PFN_vkBindImageMemory = image::bind;
    c"vkBindImageMemory2" | c"vkBindImageMemory2KHR" PFN_vkBindImageMemory2 = image::bind2;
    c"vkCreateBuffer" PFN_vkCreateBuffer = buffer::create;
    c"vkCreateBufferView" PFN_vkCreateBufferView = texels::create;
    c"vkCreateCommandPool" PFN_vkCreateCommandPool = command_pool::create;
    c"vkCreateComputePipelines" PFN_vkCreateComputePipelines = pipeline::create;
    c"vkCreateDescriptorPool" PFN_vkCreateDescriptorPool = descriptor_pool::create;
    c"vkCreateDescriptorSetLayout" PFN_vkCreateDescriptorSetLayout = layout::create;
    c"vkCreateDescriptorUpdateTemplate" | c"vkCreateDescriptorUpdateTemplateKHR" PFN_vkCreateDescriptorUpdateTemplate = template::create;
    c"vkCreateEvent" PFN_vkCreateEvent = event::create;
    c"vkCreateFence" PFN_vkCreateFence = fence::create;
    c"vkCreateFramebuffer" PFN_vkCreateFramebuffer = graphics::create_framebuffer;
    c"vkCreateGraphicsPipelines" PFN_vkCreateGraphicsPipelines = graphics::create_pipelines;
    c"vkCreateImage" PFN_vkCreateImage = image::create;
    c"vkCreateImageView" PFN_vkCreateImageView = view::create;
    c"vkCreatePipelineCache" PFN_vkCreatePipelineCache = pipeline::create_cache;
    c"vkCreatePipelineLayout" PFN_vkCreatePipelineLayout = layout::create_of_pipeline;
    c"vkCreatePrivateDataSlot" | c"vkCreatePrivateDataSlotEXT" PFN_vkCreatePrivateDataSlot = private::create;
    c"vkCreateQueryPool" PFN_vkCreateQueryPool = query::create;
    c"vkCreateRenderPass" PFN_vkCreateRenderPass = graphics::create_render_pass;
    c"vkCreateRenderPass2" | c"vkCreateRenderPass2KHR" PFN_vkCreateRenderPass2 = graphics::create_render_pass2;
    c"vkCreateSampler" PFN_vkCreateSampler = sampler::create;
    c"vkCreateSamplerYcbcrConversion" | c"vkCreateSamplerYcbcrConversionKHR" PFN_vkCreateSamplerYcbcrConversion = graphics::create_conversion;
    c"vkCreateSemaphore" PFN_vkCreateSemaphore = semaphore::create;
    c"vkCreateShaderModule" PFN_vkCreateShaderModule = shader::create;
    c"vkCreateSwapchainKHR" PFN_vkCreateSwapchainKHR = graphics::create_swapchain;
    c"vkDestroyBuffer" PFN_vkDestroyBuffer = buffer::destroy;
    c"vkDestroyBufferView" PFN_vkDestroyBufferView = texels::destroy;
    c"vkDestroyCommandPool" PFN_vkDestroyCommandPool = command_pool::destroy;
    c"vkDestroyDescriptorPool" PFN_vkDestroyDescriptorPool = descriptor_pool::destroy;
    c"vkDestroyDescriptorSetLayout" PFN_vkDestroyDescriptorSetLayout = layout::destroy;
    c"vkDestroyDescriptorUpdateTemplate" | c"vkDestroyDescriptorUpdateTemplateKHR" PFN_vkDestroyDescriptorUpdateTemplate = template::destroy;
    c"vkDestroyDevice" PFN_vkDestroyDevice = creation::destroy;
    c"vkDestroyEvent" PFN_vkDestroyEvent = event::destroy;
    c"vkDestroyFence" PFN_vkDestroyFence = fence::destroy;
    c"vkDestroyFramebuffer" PFN_vkDestroyFramebuffer = graphics::destroy;
    c"vkDestroyImage" PFN_vkDestroyImage = image::destroy;
    c"vkDestroyImageView" PFN_vkDestroyImageView = view::destroy;
    c"vkDestroyPipeline" PFN_vkDestroyPipeline = pipeline::destroy;
    c"vkDestroyPipelineCache" PFN_vkDestroyPipelineCache = pipeline::destroy_cache;
    c"vkDestroyPipelineLayout" PFN_vkDestroyPipelineLayout = layout::destroy_of_pipeline;
    c"vkDestroyPrivateDataSlot" | c"vkDestroyPrivateDataSlotEXT" PFN_vkDestroyPrivateDataSlot = private::destroy;
    c"vkDestroyQueryPool" PFN_vkDestroyQueryPool = query::destroy;
    c"vkDestroyRenderPass" PFN_vkDestroyRenderPass = graphics::destroy;
    c"vkDestroySampler" PFN_vkDestroySampler = sampler::destroy;
    c"vkDestroySamplerYcbcrConversion" | c"vkDestroySamplerYcbcrConversionKHR" PFN_vkDestroySamplerYcbcrConversion = graphics::destroy;
    c"vkDestroySemaphore" PFN_vkDestroySemaphore = semaphore::destroy;
    c"vkDestroyShaderModule" PFN_vkDestroyShaderModule = shader::destroy;
    c"vkDeviceWaitIdle" PFN_vkDeviceWaitIdle = creation::wait_idle;
    c"vkFlushMappedMemoryRanges" PFN_vkFlushMappedMemoryRanges = memory::synchronise;
    c"vkFreeCommandBuffers" PFN_vkFreeCommandBuffers = command_pool::free;
    c"vkFreeDescriptorSets" PFN_vkFreeDescriptorSets = descriptor_pool::free;
    c"vkFreeMemory" PFN_vkFreeMemory = memory::free;
    c"vkGetBufferDeviceAddress" | c"vkGetBufferDeviceAddressKHR" PFN_vkGetBufferDeviceAddress = buffer::address;
    c"vkGetBufferMemoryRequirements" PFN_vkGetBufferMemoryRequirements = buffer::memory_requirements;
    c"vkGetBufferMemoryRequirements2" | c"vkGetBufferMemoryRequirements2KHR" PFN_vkGetBufferMemoryRequirements2 = buffer::memory_requirements2;
    c"vkGetBufferOpaqueCaptureAddress" | c"vkGetBufferOpaqueCaptureAddressKHR" PFN_vkGetBufferOpaqueCaptureAddress = buffer::capture_address;
    c"vkGetDescriptorSetLayoutSupport" | c"vkGetDescriptorSetLayoutSupportKHR" PFN_vkGetDescriptorSetLayoutSupport = layout::support;
    c"vkGetDeviceBufferMemoryRequirements" | c"vkGetDeviceBufferMemoryRequirementsKHR" PFN_vkGetDeviceBufferMemoryRequirements = buffer::memory_requirements_of;
    c"vkGetDeviceGroupPeerMemoryFeatures" | c"vkGetDeviceGroupPeerMemoryFeaturesKHR" PFN_vkGetDeviceGroupPeerMemoryFeatures = creation::peer_memory;
    c"vkGetDeviceImageMemoryRequirements" | c"vkGetDeviceImageMemoryRequirementsKHR" PFN_vkGetDeviceImageMemoryRequirements = image::memory_requirements_of;
    c"vkGetDeviceImageSparseMemoryRequirements" | c"vkGetDeviceImageSparseMemoryRequirementsKHR" PFN_vkGetDeviceImageSparseMemoryRequirements = image::sparse_requirements_of;
    c"vkGetDeviceMemoryCommitment" PFN_vkGetDeviceMemoryCommitment = memory::commitment;
    c"vkGetDeviceMemoryOpaqueCaptureAddress" | c"vkGetDeviceMemoryOpaqueCaptureAddressKHR" PFN_vkGetDeviceMemoryOpaqueCaptureAddress = memory::address;
    c"vkGetDeviceProcAddr" PFN_vkGetDeviceProcAddr = device_command;
    c"vkGetDeviceQueue" PFN_vkGetDeviceQueue = creation::queue;
    c"vkGetDeviceQueue2" PFN_vkGetDeviceQueue2 = creation::queue2;
    c"vkGetEventStatus" PFN_vkGetEventStatus = event::status;
    c"vkGetFenceStatus" PFN_vkGetFenceStatus = fence::status;
    c"vkGetImageMemoryRequirements" PFN_vkGetImageMemoryRequirements = image::memory_requirements;
    c"vkGetImageMemoryRequirements2" | c"vkGetImageMemoryRequirements2KHR" PFN_vkGetImageMemoryRequirements2 = image::memory_requirements2;
    c"vkGetImageSparseMemoryRequirements" PFN_vkGetImageSparseMemoryRequirements = image::sparse_requirements;
    c"vkGetImageSparseMemoryRequirements2" | c"vkGetImageSparseMemoryRequirements2KHR" PFN_vkGetImageSparseMemoryRequirements2 = image::sparse_requirements2;
    c"vkGetImageSubresourceLayout" PFN_vkGetImageSubresourceLayout = image::subresource_layout;
    c"vkGetMemoryFdKHR" PFN_vkGetMemoryFdKHR = external::memory_fd;
    c"vkGetMemoryFdPropertiesKHR" PFN_vkGetMemoryFdPropertiesKHR = external::fd_properties;
    c"vkGetPipelineCacheData" PFN_vkGetPipelineCacheData = pipeline::cache_data;
    c"vkGetPrivateData" | c"vkGetPrivateDataEXT" PFN_vkGetPrivateData = private::get;
    c"vkGetQueryPoolResults" PFN_vkGetQueryPoolResults = query::results;
    c"vkGetRenderAreaGranularity" PFN_vkGetRenderAreaGranularity = graphics::granularity;
    c"vkGetSemaphoreCounterValue" | c"vkGetSemaphoreCounterValueKHR" PFN_vkGetSemaphoreCounterValue = semaphore::counter;
    c"vkInvalidateMappedMemoryRanges" PFN_vkInvalidateMappedMemoryRanges = memory::synchronise;
    c"vkMapMemory" PFN_vkMapMemory = memory::map;
    c"vkMapMemory2KHR" PFN_vkMapMemory2KHR = memory::map2;
    c"vkMergePipelineCaches" PFN_vkMergePipelineCaches = pipeline::merge_caches;
    c"vkQueueBindSparse" PFN_vkQueueBindSparse = queue::bind_sparse;
    c"vkQueueSubmit" PFN_vkQueueSubmit = queue::submit;
    c"vkQueueSubmit2" | c"vkQueueSubmit2KHR" PFN_vkQueueSubmit2 = queue::submit2;
    c"vkQueueWaitIdle" PFN_vkQueueWaitIdle = queue::wait_idle;
    c"vkResetCommandPool" PFN_vkResetCommandPool = command_pool::reset;
    c"vkResetDescriptorPool" PFN_vkResetDescriptorPool = descriptor_pool::reset;
    c"vkResetEvent" PFN_vkResetEvent = event::reset;
    c"vkResetFences" PFN_vkResetFences = fence::reset;
    c"vkResetQueryPool" | c"vkResetQueryPoolEXT" PFN_vkResetQueryPool = query::reset;
    c"vkSetEvent" PFN_vkSetEvent = event::set;
    c"vkSetPrivateData" | c"vkSetPrivateDataEXT" PFN_vkSetPrivateData = private::set;
    c"vkSignalSemaphore" | c"vkSignalSemaphoreKHR" PFN_vkSignalSemaphore = semaphore::signal;
    c"vkTrimCommandPool" | c"vkTrimCommandPoolKHR" PFN_vkTrimCommandPool = command_pool::trim;
    c"vkUnmapMemory" PFN_vkUnmapMemory = memory::unmap;
    c"vkUnmapMemory2KHR" PFN_vkUnmapMemory2KHR = memory::unmap2;
    c"vkUpdateDescriptorSetWithTemplate" | c"vkUpdateDescriptorSetWithTemplateKHR" PFN_vkUpdateDescriptorSetWithTemplate = template::update;
    c"vkUpdateDescriptorSets" PFN_vkUpdateDescriptorSets = update::update;
    c"vkWaitForFences" PFN_vkWaitForFences = fence::wait;
    c"vkWaitSemaphores" | c"vkWaitSemaphoresKHR" PFN_vkWaitSemaphores = semaphore::wait;
}

commands! { of_command_buffers:
    c"vkBeginCommandBuffer" PFN_vkBeginCommandBuffer = command_buffer::begin;
    c"vkCmdBindDescriptorSets" PFN_vkCmdBindDescriptorSets = compute::bind_sets;
    c"vkCmdBindPipeline" PFN_vkCmdBindPipeline = compute::bind_pipeline;
    c"vkCmdBlitImage2" | c"vkCmdBlitImage2KHR" PFN_vkCmdBlitImage2 = images::blit2;
    c"vkCmdClearColorImage" PFN_vkCmdClearColorImage = images::clear;
    c"vkCmdCopyBuffer" PFN_vkCmdCopyBuffer = transfer::copy;
    c"vkCmdCopyBuffer2" | c"vkCmdCopyBuffer2KHR" PFN_vkCmdCopyBuffer2 = transfer::copy2;
    c"vkCmdCopyBufferToImage" PFN_vkCmdCopyBufferToImage = images::from_buffer;
    c"vkCmdCopyBufferToImage2" | c"vkCmdCopyBufferToImage2KHR" PFN_vkCmdCopyBufferToImage2 = images::from_buffer2;
    c"vkCmdCopyImage" PFN_vkCmdCopyImage = images::copy;
    c"vkCmdCopyImage2" | c"vkCmdCopyImage2KHR" PFN_vkCmdCopyImage2 = images::copy2;
    c"vkCmdCopyImageToBuffer" PFN_vkCmdCopyImageToBuffer = images::to_buffer;
    c"vkCmdCopyImageToBuffer2" | c"vkCmdCopyImageToBuffer2KHR" PFN_vkCmdCopyImageToBuffer2 = images::to_buffer2;
    c"vkCmdCopyQueryPoolResults" PFN_vkCmdCopyQueryPoolResults = transfer::copy_queries;
    c"vkCmdDispatch" PFN_vkCmdDispatch = compute::dispatch;
    c"vkCmdDispatchBase" | c"vkCmdDispatchBaseKHR" PFN_vkCmdDispatchBase = compute::dispatch_base;
    c"vkCmdDispatchIndirect" PFN_vkCmdDispatchIndirect = compute::dispatch_indirect;
    c"vkCmdExecuteCommands" PFN_vkCmdExecuteCommands = command_buffer::execute;
    c"vkCmdFillBuffer" PFN_vkCmdFillBuffer = transfer::fill;
    c"vkCmdPipelineBarrier" PFN_vkCmdPipelineBarrier = waits::barrier;
    c"vkCmdPipelineBarrier2" | c"vkCmdPipelineBarrier2KHR" PFN_vkCmdPipelineBarrier2 = waits::barrier2;
    c"vkCmdPushConstants" PFN_vkCmdPushConstants = compute::push_constants;
    c"vkCmdPushDescriptorSetKHR" PFN_vkCmdPushDescriptorSetKHR = compute::push_descriptors;
    c"vkCmdPushDescriptorSetWithTemplateKHR" PFN_vkCmdPushDescriptorSetWithTemplateKHR = compute::push_template;
    c"vkCmdResetEvent" PFN_vkCmdResetEvent = waits::reset_event;
    c"vkCmdResetEvent2" | c"vkCmdResetEvent2KHR" PFN_vkCmdResetEvent2 = waits::reset_event2;
    c"vkCmdResetQueryPool" PFN_vkCmdResetQueryPool = transfer::reset_queries;
    c"vkCmdResolveImage2" | c"vkCmdResolveImage2KHR" PFN_vkCmdResolveImage2 = images::resolve2;
    c"vkCmdSetDeviceMask" | c"vkCmdSetDeviceMaskKHR" PFN_vkCmdSetDeviceMask = command_buffer::device_mask;
    c"vkCmdSetEvent" PFN_vkCmdSetEvent = waits::set_event;
    c"vkCmdSetEvent2" | c"vkCmdSetEvent2KHR" PFN_vkCmdSetEvent2 = waits::set_event2;
    c"vkCmdUpdateBuffer" PFN_vkCmdUpdateBuffer = transfer::update;
    c"vkCmdWaitEvents" PFN_vkCmdWaitEvents = waits::wait_events;
    c"vkCmdWaitEvents2" | c"vkCmdWaitEvents2KHR" PFN_vkCmdWaitEvents2 = waits::wait_events2;
    c"vkCmdWriteTimestamp" PFN_vkCmdWriteTimestamp = transfer::write_timestamp;
    c"vkCmdWriteTimestamp2" | c"vkCmdWriteTimestamp2KHR" PFN_vkCmdWriteTimestamp2 = transfer::write_timestamp2;
    c"vkEndCommandBuffer" PFN_vkEndCommandBuffer = command_buffer::end;
    c"vkResetCommandBuffer" PFN_vkResetCommandBuffer = command_buffer::reset;
}

/// What the loader asks of physical devices.
pub(crate) fn of_physical(name: &CStr) -> Option<Command> {
    of_physical_devices(name)
}

/// What a program asks of a device.
fn of_device(name: &CStr) -> Option<Command> {
    of_devices(name).or_else(|| of_command_buffers(name)).or_else(|| drawing::of_drawing(name))
}

/// What a program asks of an instance; without one, there are few.
fn of_instance(name: &CStr, has_instance: bool) -> Option<Command> {
    let of_one = || of_instances(name).or_else(|| of_physical_devices(name)).or_else(|| of_device(name));
    of_no_instance(name).or_else(|| if has_instance { of_one() } else { None })
}

pub(crate) extern "system" fn instance_command(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    let mut found = None;
    abi::quiet("vkGetInstanceProcAddr", || found = of_instance(abi::string(name), !instance.is_null()));
    found
}

pub(crate) extern "system" fn device_command(
    device: vk::Device,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    let mut found = None;
    abi::quiet("vkGetDeviceProcAddr", || {
        let name = abi::string(name);
        found = of_device(name).filter(|_| Device::of(device).offered.has(name));
    });
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::path::PathBuf;

    use super::of_device;
    use super::of_instance;
    use super::of_physical;
    use crate::offered;

    /// The sources of this folder and those in it.
    fn sources(folder: &Path) -> String {
        let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let is_source = |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|end| end == "rs");
        all.filter(is_source)
            .map(|path| if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() })
            .collect()
    }

    #[test]
    fn no_panic_leaves_a_command() {
        let text = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        let commands: Vec<&str> = text.split("extern \"system\" fn ").skip(1).collect();
        assert!(commands.len() > 150);
        for command in commands {
            let body = command.split("\n}").next().unwrap();
            // What passes all to a function that catches is a line of its own.
            let catches = [
                "abi::command",
                "abi::quiet",
                "record(",
                "refuse(",
                "barrier_in(",
                "store(",
                "wait(",
                "table::",
            ];
            let code = body.split_once(" {\n").map_or("", |(_, code)| code);
            let code: Vec<&str> = code.lines().map(str::trim).filter(|it| !it.starts_with("//")).collect();
            let says_nothing = matches!(code.as_slice(), [] | ["0" | "vk::Result::SUCCESS"]);
            let caught = says_nothing || catches.iter().any(|it| body.contains(it));
            assert!(caught, "{}", body.split('(').next().unwrap());
        }
    }

    #[test]
    fn each_extension_has_all_its_commands() {
        for (extension, names) in offered::EXTENSIONS {
            for name in *names {
                assert!(of_device(name).is_some(), "{extension:?} without {name:?}");
            }
        }
        assert!(of_physical(c"vkGetPhysicalDeviceToolPropertiesEXT").is_some(), "VK_EXT_tooling_info");
    }

    /// What a program may call that uses buffers alone, or looks what there is of images.
    #[test]
    fn a_program_that_asks_for_images_finds_all_of_their_commands() {
        let names = [
            c"vkCmdClearColorImage",
            c"vkCmdCopyBufferToImage",
            c"vkCmdCopyImage",
            c"vkCmdCopyImageToBuffer",
            c"vkCreateBufferView",
            c"vkDestroyBufferView",
            c"vkGetImageSparseMemoryRequirements",
            c"vkGetImageSparseMemoryRequirements2",
            c"vkGetImageSubresourceLayout",
        ];
        for name in names {
            assert!(of_device(name).is_some(), "{name:?}");
        }
    }

    #[test]
    fn commands_of_physical_devices_are_those_that_take_one() {
        assert!(of_physical(c"vkGetPhysicalDeviceProperties").is_some());
        for name in [c"vkEnumeratePhysicalDevices", c"vkEnumeratePhysicalDeviceGroups", c"vkDestroyInstance"]
        {
            assert!(of_physical(name).is_none(), "{name:?} takes an instance");
            assert!(of_instance(name, true).is_some(), "{name:?}");
        }
    }

    #[test]
    fn only_few_commands_are_there_without_an_instance() {
        assert!(of_instance(c"vkEnumerateInstanceLayerProperties", false).is_some());
        assert!(of_instance(c"vkCreateInstance", false).is_some());
        assert!(of_instance(c"vkCreateDevice", false).is_none());
        assert!(of_instance(c"vkCreateDevice", true).is_some());
    }
}
