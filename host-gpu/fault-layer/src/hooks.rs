//! The functions that stand in place of the driver's.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ffi::c_int;
use std::ffi::c_void;
use std::mem;
use std::ptr;

use ash::vk;

use crate::entries::ENTRIES;
use crate::hidden;
use crate::next;
use crate::priorities;

/// The index of an entry point, at compile time.
pub(crate) const fn of(name: &str) -> usize {
    let mut entry = 0;
    while entry < ENTRIES.len() {
        if is_same(ENTRIES[entry].name.as_bytes(), name.as_bytes()) {
            return entry;
        }
        entry += 1;
    }
    // Of no entry point: its use as an index does not compile.
    usize::MAX
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Hooks that count a call, and fail it or pass it on; and the list of them.
macro_rules! hooks {
    ($($hook:ident $name:literal $pfn:ident ($($argument:ident: $type:ty),*) $({ $failed:expr })?;)*) => {
        $(
            unsafe extern "system" fn $hook($($argument: $type),*) -> vk::Result {
                const ENTRY: usize = of($name);
                if let Some(failure) = next::fault(ENTRY) {
                    $($failed;)?
                    return failure;
                }
                let Some(next) = next::get(ENTRY) else { return vk::Result::ERROR_INITIALIZATION_FAILED };
                // SAFETY: `next` is what the loader gave for this name, which has this type.
                let next = unsafe { mem::transmute::<unsafe extern "system" fn(), vk::$pfn>(next) };
                // SAFETY: the caller's arguments, as they came.
                unsafe { next($($argument),*) }
            }
        )*

        /// The hook of an entry point whose name is among those of devices.
        pub(crate) fn of_device(entry: usize) -> vk::PFN_vkVoidFunction {
            $(
                if entry == const { of($name) } {
                    // SAFETY: all functions have the same size, and the loader casts it back to this one's type.
                    return Some(unsafe { mem::transmute::<vk::$pfn, unsafe extern "system" fn()>($hook) });
                }
            )*
            None
        }
    };
}

type Allocator<'a> = *const vk::AllocationCallbacks<'a>;

hooks! {
    queue_submit "vkQueueSubmit" PFN_vkQueueSubmit
        (queue: vk::Queue, count: u32, submits: *const vk::SubmitInfo<'_>, fence: vk::Fence);
    create_semaphore "vkCreateSemaphore" PFN_vkCreateSemaphore
        (device: vk::Device, info: *const vk::SemaphoreCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::Semaphore);
    get_semaphore_counter_value "vkGetSemaphoreCounterValue" PFN_vkGetSemaphoreCounterValue
        (device: vk::Device, semaphore: vk::Semaphore, value: *mut u64);
    wait_semaphores "vkWaitSemaphores" PFN_vkWaitSemaphores
        (device: vk::Device, info: *const vk::SemaphoreWaitInfo<'_>, timeout: u64);
    map_memory "vkMapMemory" PFN_vkMapMemory
        (device: vk::Device, memory: vk::DeviceMemory, offset: vk::DeviceSize, size: vk::DeviceSize,
         flags: vk::MemoryMapFlags, data: *mut *mut c_void);
    get_memory_host_pointer_properties "vkGetMemoryHostPointerPropertiesEXT" PFN_vkGetMemoryHostPointerPropertiesEXT
        (device: vk::Device, handle: vk::ExternalMemoryHandleTypeFlags, pointer: *const c_void,
         properties: *mut vk::MemoryHostPointerPropertiesEXT<'_>);
    get_memory_fd "vkGetMemoryFdKHR" PFN_vkGetMemoryFdKHR
        (device: vk::Device, info: *const vk::MemoryGetFdInfoKHR<'_>, fd: *mut c_int);
    get_memory_fd_properties "vkGetMemoryFdPropertiesKHR" PFN_vkGetMemoryFdPropertiesKHR
        (device: vk::Device, handle: vk::ExternalMemoryHandleTypeFlags, fd: c_int,
         properties: *mut vk::MemoryFdPropertiesKHR<'_>);
    create_buffer "vkCreateBuffer" PFN_vkCreateBuffer
        (device: vk::Device, info: *const vk::BufferCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::Buffer);
    bind_buffer_memory "vkBindBufferMemory" PFN_vkBindBufferMemory
        (device: vk::Device, buffer: vk::Buffer, memory: vk::DeviceMemory, offset: vk::DeviceSize);
    create_buffer_view "vkCreateBufferView" PFN_vkCreateBufferView
        (device: vk::Device, info: *const vk::BufferViewCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::BufferView);
    create_command_pool "vkCreateCommandPool" PFN_vkCreateCommandPool
        (device: vk::Device, info: *const vk::CommandPoolCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::CommandPool);
    allocate_command_buffers "vkAllocateCommandBuffers" PFN_vkAllocateCommandBuffers
        (device: vk::Device, info: *const vk::CommandBufferAllocateInfo<'_>, made: *mut vk::CommandBuffer);
    begin_command_buffer "vkBeginCommandBuffer" PFN_vkBeginCommandBuffer
        (commands: vk::CommandBuffer, info: *const vk::CommandBufferBeginInfo<'_>);
    end_command_buffer "vkEndCommandBuffer" PFN_vkEndCommandBuffer (commands: vk::CommandBuffer);
    create_descriptor_pool "vkCreateDescriptorPool" PFN_vkCreateDescriptorPool
        (device: vk::Device, info: *const vk::DescriptorPoolCreateInfo<'_>, allocator: Allocator<'_>,
         made: *mut vk::DescriptorPool);
    reset_descriptor_pool "vkResetDescriptorPool" PFN_vkResetDescriptorPool
        (device: vk::Device, pool: vk::DescriptorPool, flags: vk::DescriptorPoolResetFlags);
    allocate_descriptor_sets "vkAllocateDescriptorSets" PFN_vkAllocateDescriptorSets
        (device: vk::Device, info: *const vk::DescriptorSetAllocateInfo<'_>, made: *mut vk::DescriptorSet);
    create_descriptor_set_layout "vkCreateDescriptorSetLayout" PFN_vkCreateDescriptorSetLayout
        (device: vk::Device, info: *const vk::DescriptorSetLayoutCreateInfo<'_>, allocator: Allocator<'_>,
         made: *mut vk::DescriptorSetLayout);
    create_pipeline_layout "vkCreatePipelineLayout" PFN_vkCreatePipelineLayout
        (device: vk::Device, info: *const vk::PipelineLayoutCreateInfo<'_>, allocator: Allocator<'_>,
         made: *mut vk::PipelineLayout);
    create_shader_module "vkCreateShaderModule" PFN_vkCreateShaderModule
        (device: vk::Device, info: *const vk::ShaderModuleCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::ShaderModule);
    create_compute_pipelines "vkCreateComputePipelines" PFN_vkCreateComputePipelines
        (device: vk::Device, cache: vk::PipelineCache, count: u32, infos: *const vk::ComputePipelineCreateInfo<'_>,
         allocator: Allocator<'_>, made: *mut vk::Pipeline) { none_made(made, count) };
    create_query_pool "vkCreateQueryPool" PFN_vkCreateQueryPool
        (device: vk::Device, info: *const vk::QueryPoolCreateInfo<'_>, allocator: Allocator<'_>, made: *mut vk::QueryPool);
    get_query_pool_results "vkGetQueryPoolResults" PFN_vkGetQueryPoolResults
        (device: vk::Device, pool: vk::QueryPool, first: u32, count: u32, size: usize, data: *mut c_void,
         stride: vk::DeviceSize, flags: vk::QueryResultFlags);
    enumerate_physical_devices "vkEnumeratePhysicalDevices" PFN_vkEnumeratePhysicalDevices
        (instance: vk::Instance, count: *mut u32, devices: *mut vk::PhysicalDevice);
}

/// Pipelines that are not made are null.
fn none_made(made: *mut vk::Pipeline, count: u32) {
    for index in 0..count as usize {
        // SAFETY: the caller has room for as many.
        let place = unsafe { made.add(index) };
        // SAFETY: as above.
        unsafe { place.write(vk::Pipeline::null()) };
    }
}

/// Extensions of a device, without those that are hidden, and with the one that is claimed.
pub(crate) unsafe extern "system" fn enumerate_device_extensions(
    device: vk::PhysicalDevice,
    layer: *const c_char,
    count: *mut u32,
    properties: *mut vk::ExtensionProperties,
) -> vk::Result {
    const ENTRY: usize = of("vkEnumerateDeviceExtensionProperties");
    if let Some(failure) = next::fault(ENTRY) {
        return failure;
    }
    let Some(next) = next::get(ENTRY) else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: `next` is what the loader gave for this name, which has this type.
    let next = unsafe {
        mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkEnumerateDeviceExtensionProperties>(next)
    };
    let mut there = 0;
    // SAFETY: asks how many there are.
    let result = unsafe { next(device, layer, &raw mut there, ptr::null_mut()) };
    if result != vk::Result::SUCCESS {
        return result;
    }
    let mut all = vec![vk::ExtensionProperties::default(); there as usize];
    // SAFETY: `all` has room for as many.
    let result = unsafe { next(device, layer, &raw mut there, all.as_mut_ptr()) };
    if result != vk::Result::SUCCESS {
        return result;
    }
    let mut left = hidden::left(all);
    priorities::claim(&mut left);
    let number = u32::try_from(left.len()).unwrap_or(u32::MAX);
    if properties.is_null() {
        // SAFETY: the caller's, there to be written.
        unsafe { count.write(number) };
        return vk::Result::SUCCESS;
    }
    // SAFETY: the caller says there how many it has room for.
    let given = number.min(unsafe { count.read() });
    // SAFETY: as many as the caller has room for, and as there are.
    unsafe { ptr::copy_nonoverlapping(left.as_ptr(), properties, given as usize) };
    // SAFETY: the caller's, there to be written.
    unsafe { count.write(given) };
    if given < number { vk::Result::INCOMPLETE } else { vk::Result::SUCCESS }
}
