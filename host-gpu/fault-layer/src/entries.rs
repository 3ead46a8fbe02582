//! The entry points that can be made to fail: those that Campanile's engines call and that return a `VkResult`.

use ash::vk::Result as VkResult;

const HOST: VkResult = VkResult::ERROR_OUT_OF_HOST_MEMORY;
const DEVICE: VkResult = VkResult::ERROR_OUT_OF_DEVICE_MEMORY;
const LOST: VkResult = VkResult::ERROR_DEVICE_LOST;
const UNINITIALISED: VkResult = VkResult::ERROR_INITIALIZATION_FAILED;
const FOREIGN: VkResult = VkResult::ERROR_INVALID_EXTERNAL_HANDLE;
const TOO_MANY: VkResult = VkResult::ERROR_TOO_MANY_OBJECTS;

/// An entry point.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What Vulkan lets it fail with.
    pub failures: &'static [VkResult],
}

impl Entry {
    /// Whether it may say that the device is lost.
    pub fn may_be_lost(&self) -> bool {
        self.failures.contains(&LOST)
    }
}

const fn entry(name: &'static str, failures: &'static [VkResult]) -> Entry {
    Entry { name, failures }
}

/// All of them.
pub const ENTRIES: [Entry; 29] = [
    entry("vkCreateInstance", &[HOST, DEVICE, UNINITIALISED]),
    entry("vkEnumeratePhysicalDevices", &[HOST, DEVICE, UNINITIALISED]),
    entry("vkEnumerateDeviceExtensionProperties", &[HOST, DEVICE]),
    entry("vkCreateDevice", &[HOST, DEVICE, UNINITIALISED, TOO_MANY, LOST]),
    entry("vkQueueSubmit", &[HOST, DEVICE, LOST]),
    entry("vkCreateSemaphore", &[HOST, DEVICE]),
    entry("vkGetSemaphoreCounterValue", &[HOST, DEVICE, LOST]),
    entry("vkWaitSemaphores", &[HOST, DEVICE, LOST]),
    entry("vkAllocateMemory", &[HOST, DEVICE, TOO_MANY, FOREIGN]),
    entry("vkMapMemory", &[HOST, DEVICE, VkResult::ERROR_MEMORY_MAP_FAILED]),
    entry("vkGetMemoryHostPointerPropertiesEXT", &[HOST, FOREIGN]),
    entry("vkGetMemoryFdKHR", &[HOST, TOO_MANY]),
    entry("vkGetMemoryFdPropertiesKHR", &[HOST, FOREIGN]),
    entry("vkCreateBuffer", &[HOST, DEVICE]),
    entry("vkBindBufferMemory", &[HOST, DEVICE]),
    entry("vkCreateBufferView", &[HOST, DEVICE]),
    entry("vkCreateCommandPool", &[HOST, DEVICE]),
    entry("vkAllocateCommandBuffers", &[HOST, DEVICE]),
    entry("vkBeginCommandBuffer", &[HOST, DEVICE]),
    entry("vkEndCommandBuffer", &[HOST, DEVICE]),
    entry("vkCreateDescriptorPool", &[HOST, DEVICE, VkResult::ERROR_FRAGMENTATION]),
    // Vulkan 1.0 let it fail so, and drivers of today may still.
    entry("vkResetDescriptorPool", &[DEVICE]),
    entry("vkAllocateDescriptorSets", &[HOST, DEVICE, VkResult::ERROR_OUT_OF_POOL_MEMORY]),
    entry("vkCreateDescriptorSetLayout", &[HOST, DEVICE]),
    entry("vkCreatePipelineLayout", &[HOST, DEVICE]),
    entry("vkCreateShaderModule", &[HOST, DEVICE]),
    entry("vkCreateComputePipelines", &[HOST, DEVICE]),
    entry("vkCreateQueryPool", &[HOST, DEVICE]),
    entry("vkGetQueryPoolResults", &[HOST, DEVICE, LOST]),
];

/// The index of an entry point in [`ENTRIES`].
pub fn index(name: &str) -> Option<usize> {
    ENTRIES.iter().position(|entry| entry.name == name)
}
