//! What a driver says that may be had of a device's memory now (VK_EXT_memory_budget).
#![allow(unsafe_code)]

use ash::ext;
use ash::vk;

use super::device::Gpu;
use super::instance::Instance;
use crate::vulkan::info::Budget;

impl Instance {
    /// The budget of a heap of `device`, which has these extensions; none where the driver says none.
    pub(super) fn budget(
        &self,
        device: vk::PhysicalDevice,
        extensions: &[vk::ExtensionProperties],
        heap: u32,
    ) -> Option<Budget> {
        let name = ext::memory_budget::NAME;
        if !extensions.iter().any(|known| known.extension_name_as_c_str() == Ok(name)) {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the physical device is the instance's and has the extension, and both structures outlive the call.
        unsafe { self.raw.get_physical_device_memory_properties2(device, &mut properties) };
        let at = usize::try_from(heap).ok()?;
        let (may_have, has) = (*budget.heap_budget.get(at)?, *budget.heap_usage.get(at)?);
        // A driver that says nothing of a heap says 0.
        (may_have > 0).then_some(Budget { may_have, has })
    }
}

impl Gpu {
    /// The budget of a heap; none where the driver says none.
    pub(in crate::vulkan) fn budget(&self, heap: u32) -> Option<Budget> {
        let extensions = self.instance.extensions(self.physical);
        let extensions = extensions.inspect_err(|error| log::warn!("a budget of memory is unknown: {error}"));
        self.instance.budget(self.physical, &extensions.ok()?, heap)
    }
}
