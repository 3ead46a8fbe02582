//! What a driver says that may be had of a device's memory now (VK_EXT_memory_budget).
#![allow(unsafe_code)]

use ash::ext;
use ash::vk;

use super::device::Gpu;

/// Bytes of a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::vulkan) struct Budget {
    /// This process may have, with what it has, as others have theirs now.
    pub(in crate::vulkan) may_have: u64,
    /// It has.
    pub(in crate::vulkan) has: u64,
}

impl Budget {
    /// More that it may have.
    pub(in crate::vulkan) const fn left(&self) -> u64 {
        self.may_have.saturating_sub(self.has)
    }
}

impl Gpu {
    /// The budget of a heap; none where the driver says none.
    pub(in crate::vulkan) fn budget(&self, heap: u32) -> Option<Budget> {
        let (instance, device) = (&self.instance.raw, self.physical);
        // SAFETY: the physical device is the instance's.
        let extensions = unsafe { instance.enumerate_device_extension_properties(device) };
        let untold = |result| {
            log::warn!("a budget of memory is unknown: vkEnumerateDeviceExtensionProperties says {result}")
        };
        let extensions = extensions.map_err(untold).ok()?;
        let name = ext::memory_budget::NAME;
        if !extensions.iter().any(|known| known.extension_name_as_c_str() == Ok(name)) {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the physical device is the instance's and has the extension, and both structures outlive the call.
        unsafe { instance.get_physical_device_memory_properties2(device, &mut properties) };
        let at = usize::try_from(heap).ok()?;
        let (may_have, has) = (*budget.heap_budget.get(at)?, *budget.heap_usage.get(at)?);
        // A driver that says nothing of a heap says 0.
        (may_have > 0).then_some(Budget { may_have, has })
    }
}
