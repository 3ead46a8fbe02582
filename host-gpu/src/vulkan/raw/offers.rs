//! What a device offers beside kernels: memory, queues, and handles of its memory.
#![allow(unsafe_code)]

use std::ffi::CStr;

use ash::ext;
use ash::khr;
use ash::vk;

use crate::vulkan::info::Family;
use crate::vulkan::info::Handle;
use crate::vulkan::info::Handles;
use crate::vulkan::info::Hardware;
use crate::vulkan::priority::GlobalPriorities;
use crate::vulkan::raw::instance::Candidate;
use crate::vulkan::raw::instance::Instance;
use crate::vulkan::raw::memory::USAGE;
use crate::vulkan::raw::memory::handle_type;
use crate::vulkan::raw::memory_types::local_type;

impl Instance {
    /// The handles by which buffers of `device`, which has these extensions, are exported and imported again.
    pub(super) fn handles(
        &self,
        device: vk::PhysicalDevice,
        extensions: &[vk::ExtensionProperties],
    ) -> Handles {
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        let has_fds = has(khr::external_memory_fd::NAME);
        Handles {
            opaque_fd: has_fds && self.shares(device, Handle::OpaqueFd),
            dma_buf: has_fds
                && has(ext::external_memory_dma_buf::NAME)
                && self.shares(device, Handle::DmaBuf),
        }
    }

    fn shares(&self, device: vk::PhysicalDevice, handle: Handle) -> bool {
        let info =
            vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(handle_type(handle));
        let mut offered = vk::ExternalBufferProperties::default();
        // SAFETY: the handle is the instance's, and both structures outlive the call.
        unsafe { self.raw.get_physical_device_external_buffer_properties(device, &info, &mut offered) };
        let features = offered.external_memory_properties.external_memory_features;
        let both = vk::ExternalMemoryFeatureFlags::EXPORTABLE | vk::ExternalMemoryFeatureFlags::IMPORTABLE;
        // Memory holds many buffers, so one that must be a single buffer's is of no use.
        features.contains(both) && !features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
    }

    /// The global priorities that queues of each family of `device`, which has these extensions, can have.
    pub(super) fn priorities(
        &self,
        device: vk::PhysicalDevice,
        extensions: &[vk::ExtensionProperties],
    ) -> Vec<GlobalPriorities> {
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        // SAFETY: the handle is the instance's.
        let count = unsafe { self.raw.get_physical_device_queue_family_properties2_len(device) };
        if !has(khr::global_priority::NAME) {
            return vec![GlobalPriorities::default(); count];
        }
        let mut offered = vec![vk::QueueFamilyGlobalPriorityPropertiesKHR::default(); count];
        let chained = |offered| vk::QueueFamilyProperties2::default().push_next(offered);
        let mut families: Vec<_> = offered.iter_mut().map(chained).collect();
        // SAFETY: the handle is the instance's, and there is a structure for each family, with one behind it that the extension names.
        unsafe { self.raw.get_physical_device_queue_family_properties2(device, &mut families) };
        offered.iter().map(|offered| GlobalPriorities::of(offered.priorities_as_slice())).collect()
    }

    /// Memory and queues of a device of this instance.
    pub(in crate::vulkan) fn hardware(&self, candidate: &Candidate) -> Hardware {
        let device = candidate.device;
        // SAFETY: the handle is the instance's.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(device) };
        // SAFETY: as above.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(device) };
        let (heaps, types) = (memory.memory_heaps_as_slice(), memory.memory_types_as_slice());
        let heap = local_type(&memory, u32::MAX, 1).and_then(|index| types.get(index as usize));
        let extensions = self.extensions(device).unwrap_or_default();
        let own = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let seen = vk::MemoryPropertyFlags::DEVICE_LOCAL | vk::MemoryPropertyFlags::HOST_VISIBLE;
        let visible = types.iter().filter(|kind| kind.property_flags.contains(seen));
        let visible = visible.filter_map(|kind| heaps.get(kind.heap_index as usize));
        let family = |(index, family): (usize, &vk::QueueFamilyProperties)| Family {
            graphics: family.queue_flags.contains(vk::QueueFlags::GRAPHICS),
            compute: family.queue_flags.contains(vk::QueueFlags::COMPUTE),
            transfer: family.queue_flags.contains(vk::QueueFlags::TRANSFER),
            queues: family.queue_count,
            timestamp_bits: family.timestamp_valid_bits,
            priorities: candidate.priorities.get(index).copied().unwrap_or_default(),
        };
        Hardware {
            local_bytes: own.map(|heap| heap.size).sum(),
            visible_bytes: visible.map(|heap| heap.size).max().unwrap_or(0),
            heaps: heaps.len(),
            types: types.len(),
            budget: heap.and_then(|kind| self.budget(device, &extensions, kind.heap_index)),
            families: families.iter().enumerate().map(family).collect(),
            used: candidate.family,
        }
    }
}
