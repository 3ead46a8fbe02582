//! What devices say of themselves, without the feature and with less of the limits that are hidden: those of
//! [`FEATURE`], [`CONSTANTS`] and [`ALLOCATION`].
#![allow(unsafe_code)]

use std::mem;
use std::sync::RwLock;

use ash::vk;

use crate::next;

/// The feature that can be hidden.
const FEATURE: &[u8] = b"shaderFloat16";
/// A limit, and what is left of it: the least of Vulkan.
const CONSTANTS: (&[u8], u32) = (b"maxPushConstantsSize", 128);
const ALLOCATION: (&[u8], u64) = (b"maxMemoryAllocationSize", 1 << 30);

/// What stands below: of features, and of properties.
static NEXT: [RwLock<vk::PFN_vkVoidFunction>; 2] = [const { RwLock::new(None) }; 2];

fn set(which: usize, function: vk::PFN_vkVoidFunction) {
    if let Ok(mut place) = NEXT[which].write() {
        *place = function;
    }
}

fn get(which: usize) -> vk::PFN_vkVoidFunction {
    NEXT[which].read().ok().and_then(|place| *place)
}

fn is_hidden(name: &[u8]) -> bool {
    next::hidden().iter().any(|hidden| hidden == name)
}

/// The function in place of `below`, which asks for features.
pub(crate) fn of_features(below: vk::PFN_vkVoidFunction) -> vk::PFN_vkGetPhysicalDeviceFeatures2 {
    set(0, below);
    features
}

/// The function in place of `below`, which asks for properties.
pub(crate) fn of_properties(below: vk::PFN_vkVoidFunction) -> vk::PFN_vkGetPhysicalDeviceProperties2 {
    set(1, below);
    properties
}

unsafe extern "system" fn features(
    device: vk::PhysicalDevice,
    features: *mut vk::PhysicalDeviceFeatures2<'_>,
) {
    let Some(next) = get(0) else { return };
    // SAFETY: what the loader gave for this name, which has this type.
    let next =
        unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceFeatures2>(next) };
    // SAFETY: the caller's arguments, as they came.
    unsafe { next(device, features) };
    let mut structure = features.cast::<vk::BaseOutStructure<'_>>();
    // SAFETY: the caller's chain, each of whose structures begins like this, and which ends with null.
    while let Some(found) = unsafe { structure.as_mut() } {
        if found.s_type == vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_2_FEATURES && is_hidden(FEATURE) {
            // SAFETY: it has the type that it says.
            let features = unsafe { &mut *structure.cast::<vk::PhysicalDeviceVulkan12Features<'_>>() };
            features.shader_float16 = vk::FALSE;
        }
        structure = found.p_next;
    }
}

unsafe extern "system" fn properties(
    device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties2<'_>,
) {
    let Some(next) = get(1) else { return };
    // SAFETY: what the loader gave for this name, which has this type.
    let next = unsafe {
        mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceProperties2>(next)
    };
    // SAFETY: the caller's arguments, as they came.
    unsafe { next(device, properties) };
    let (name, left) = CONSTANTS;
    // SAFETY: the caller's structure, which was just written.
    if let Some(properties) = unsafe { properties.as_mut() }.filter(|_| is_hidden(name)) {
        properties.properties.limits.max_push_constants_size = left;
    }
    let (name, left) = ALLOCATION;
    let mut structure = properties.cast::<vk::BaseOutStructure<'_>>();
    // SAFETY: the caller's chain, each of whose structures begins like this, and which ends with null.
    while let Some(found) = unsafe { structure.as_mut() } {
        if found.s_type == vk::StructureType::PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES && is_hidden(name) {
            // SAFETY: it has the type that it says.
            let known = unsafe { &mut *structure.cast::<vk::PhysicalDeviceVulkan11Properties<'_>>() };
            known.max_memory_allocation_size = left;
        }
        structure = found.p_next;
    }
}
