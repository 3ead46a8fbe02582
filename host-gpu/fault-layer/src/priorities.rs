//! Global priorities of queues: what is asked for is noted, and devices are said to offer what [`Faults::offer`] says, whatever the driver
//! below does. Then a queue that is to have one is made without it, or refused where it is not permitted.
//!
//! [`Faults::offer`]: crate::faults::Faults::offer
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::c_char;
use std::mem;
use std::slice;
use std::sync::RwLock;

use ash::khr;
use ash::vk;

use crate::next;

/// What stands below.
static NEXT: RwLock<vk::PFN_vkVoidFunction> = RwLock::new(None);

/// The function in place of `below`, which asks for families of queues.
pub(crate) fn of_families(
    below: vk::PFN_vkVoidFunction,
) -> vk::PFN_vkGetPhysicalDeviceQueueFamilyProperties2 {
    if let Ok(mut place) = NEXT.write() {
        *place = below;
    }
    families
}

/// Adds the extension to `all`, where devices are said to have it.
pub(crate) fn claim(all: &mut Vec<vk::ExtensionProperties>) {
    let is_there =
        |it: &vk::ExtensionProperties| it.extension_name_as_c_str() == Ok(khr::global_priority::NAME);
    if next::offered().is_none() || all.iter().any(is_there) {
        return;
    }
    let mut extension = vk::ExtensionProperties { spec_version: 1, ..vk::ExtensionProperties::default() };
    let name = khr::global_priority::NAME.to_bytes_with_nul();
    extension.extension_name.iter_mut().zip(name).for_each(|(to, from)| *to = from.cast_signed());
    all.push(extension);
}

unsafe extern "system" fn families(
    device: vk::PhysicalDevice,
    count: *mut u32,
    families: *mut vk::QueueFamilyProperties2<'_>,
) {
    let Some(next) = NEXT.read().ok().and_then(|place| *place) else { return };
    // SAFETY: what the loader gave for this name, which has this type.
    let next = unsafe {
        mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkGetPhysicalDeviceQueueFamilyProperties2>(next)
    };
    // SAFETY: the caller's arguments, as they came.
    unsafe { next(device, count, families) };
    let Some(offered) = next::offered().filter(|_| !families.is_null()) else { return };
    // SAFETY: the caller's, which was just written.
    let count = unsafe { count.read() };
    // SAFETY: as many of the caller's were just written.
    for family in unsafe { slice::from_raw_parts_mut(families, count as usize) } {
        let mut structure = family.p_next.cast::<vk::BaseOutStructure<'_>>();
        // SAFETY: the caller's chain, each of whose structures begins like this, and which ends with null.
        while let Some(found) = unsafe { structure.as_mut() } {
            if found.s_type == vk::StructureType::QUEUE_FAMILY_GLOBAL_PRIORITY_PROPERTIES_KHR {
                let told = structure.cast::<vk::QueueFamilyGlobalPriorityPropertiesKHR<'_>>();
                // SAFETY: it has the type that it says.
                let told = unsafe { &mut *told };
                *told = told.priorities(&offered);
            }
            structure = found.p_next;
        }
    }
}

/// What a device is made with below: its queues and extensions, without what is only claimed.
#[derive(Default)]
pub(crate) struct Below<'a> {
    queues: Vec<vk::DeviceQueueCreateInfo<'a>>,
    extensions: Vec<*const c_char>,
}

impl<'a> Below<'a> {
    /// Notes the priorities that queues of a device are to have.
    ///
    /// # Errors
    /// `ERROR_NOT_PERMITTED_KHR`, as the test has it.
    ///
    /// # Safety
    /// `info` is as Vulkan demands.
    pub(crate) unsafe fn of(info: &vk::DeviceCreateInfo<'a>) -> Result<Self, vk::Result> {
        // SAFETY: the caller's list.
        let given = unsafe { list(info.p_queue_create_infos, info.queue_create_info_count) };
        let is_claimed = next::offered().is_some();
        let mut below = Self::default();
        for queue in given {
            // SAFETY: the caller's chain, whose first structure is of the type that it says.
            let priority =
                unsafe { queue.p_next.cast::<vk::DeviceQueueGlobalPriorityCreateInfoKHR<'_>>().as_ref() };
            let known = vk::StructureType::DEVICE_QUEUE_GLOBAL_PRIORITY_CREATE_INFO_KHR;
            let Some(priority) = priority.filter(|priority| priority.s_type == known) else {
                below.queues.push(*queue);
                continue;
            };
            if !next::ask(priority.global_priority) {
                return Err(vk::Result::ERROR_NOT_PERMITTED_KHR);
            }
            let p_next = if is_claimed { priority.p_next } else { queue.p_next };
            below.queues.push(vk::DeviceQueueCreateInfo { p_next, ..*queue });
        }
        // SAFETY: the caller's list.
        let names = unsafe { list(info.pp_enabled_extension_names, info.enabled_extension_count) };
        // SAFETY: the caller's names, each with a NUL behind it.
        let is_claim =
            |name: *const c_char| is_claimed && unsafe { CStr::from_ptr(name) } == khr::global_priority::NAME;
        below.extensions.extend(names.iter().filter(|name| !is_claim(**name)));
        Ok(below)
    }

    /// The rest is as it came.
    pub(crate) fn info<'b>(&'b self, info: &vk::DeviceCreateInfo<'b>) -> vk::DeviceCreateInfo<'b>
    where
        'a: 'b,
    {
        info.queue_create_infos(&self.queues).enabled_extension_names(&self.extensions)
    }
}

/// A list as Vulkan has it.
///
/// # Safety
/// There are as many, for as long as the list is used.
unsafe fn list<'l, T>(first: *const T, count: u32) -> &'l [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { slice::from_raw_parts(first, count as usize) }
}
