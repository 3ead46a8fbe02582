//! A device whose memory others have: tests say how much of it is left. Budgets say so, and an allocation that is longer has no memory. Imports
//! take none.
#![allow(unsafe_code)]

use std::mem;
use std::sync::RwLock;

use ash::vk;

use crate::hooks;
use crate::next;

/// What stands below `vkGetPhysicalDeviceMemoryProperties2`.
static NEXT: RwLock<vk::PFN_vkVoidFunction> = RwLock::new(None);

/// The function in place of `below`, which asks for heaps and budgets.
pub(crate) fn of_properties(below: vk::PFN_vkVoidFunction) -> vk::PFN_vkGetPhysicalDeviceMemoryProperties2 {
    if let Ok(mut place) = NEXT.write() {
        *place = below;
    }
    properties
}

unsafe extern "system" fn properties(
    device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceMemoryProperties2<'_>,
) {
    let Some(next) = NEXT.read().ok().and_then(|place| *place) else { return };
    // SAFETY: what the loader gave for this name, which has this type.
    let next = unsafe {
        mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceMemoryProperties2>(next)
    };
    // SAFETY: the caller's arguments, as they came.
    unsafe { next(device, properties) };
    let Some(left) = next::left() else { return };
    let mut structure = properties.cast::<vk::BaseOutStructure<'_>>();
    // SAFETY: the caller's chain, each of whose structures begins like this, and which ends with null.
    while let Some(found) = unsafe { structure.as_mut() } {
        if found.s_type == vk::StructureType::PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT {
            // SAFETY: it has the type that it says.
            let budget = unsafe { &mut *structure.cast::<vk::PhysicalDeviceMemoryBudgetPropertiesEXT<'_>>() };
            for (may_have, has) in budget.heap_budget.iter_mut().zip(budget.heap_usage) {
                *may_have = (*may_have).min(has.saturating_add(left));
            }
        }
        structure = found.p_next;
    }
}

/// Allocates, where there is as much.
pub(crate) unsafe extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    made: *mut vk::DeviceMemory,
) -> vk::Result {
    const ENTRY: usize = hooks::of("vkAllocateMemory");
    if let Some(failure) = next::fault(ENTRY) {
        return failure;
    }
    // SAFETY: the caller's structure.
    let asked = unsafe { &*info };
    // SAFETY: the caller's chain, as Vulkan demands.
    let wanted = unsafe { own_bytes(asked) };
    if next::left().is_some_and(|left| wanted > left) {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    let Some(next) = next::get(ENTRY) else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: `next` is what the loader gave for this name, which has this type.
    let next = unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkAllocateMemory>(next) };
    // SAFETY: the caller's arguments, as they came.
    unsafe { next(device, info, allocator, made) }
}

/// Bytes of the device's memory that an allocation takes: none where it imports.
///
/// # Safety
/// The chain is as Vulkan has it.
unsafe fn own_bytes(info: &vk::MemoryAllocateInfo<'_>) -> u64 {
    let mut structure = info.p_next.cast::<vk::BaseInStructure<'_>>();
    // SAFETY: this function's contract: each structure begins like this, and the chain ends with null.
    while let Some(found) = unsafe { structure.as_ref() } {
        let imports = [
            vk::StructureType::IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
            vk::StructureType::IMPORT_MEMORY_FD_INFO_KHR,
        ];
        if imports.contains(&found.s_type) {
            return 0;
        }
        structure = found.p_next;
    }
    info.allocation_size
}
