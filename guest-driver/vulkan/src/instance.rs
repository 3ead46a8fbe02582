//! Instances: what a program opens first.

use std::ffi::CStr;
use std::ffi::c_char;

use ash::vk;
use ash::vk::Handle;

use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::handle;
use crate::claims::Claims;
use crate::extensions;
use crate::machine;
use crate::physical::PhysicalDevice;
use crate::report::report;

/// The version of Vulkan that the driver speaks.
pub(crate) const API_VERSION: u32 = vk::API_VERSION_1_3;

/// An instance, with the GPU of this machine if it has one.
#[derive(Debug)]
pub(crate) struct Instance {
    /// The one physical device, or none.
    physical: Option<vk::PhysicalDevice>,
}

handle!(Dispatchable<Instance>, vk::Instance);

pub(crate) extern "system" fn enumerate_version(version: *mut u32) -> vk::Result {
    abi::command("vkEnumerateInstanceVersion", || {
        abi::write(version, API_VERSION);
        Ok(())
    })
}

pub(crate) extern "system" fn enumerate_extensions(
    layer: *const c_char,
    count: *mut u32,
    out: *mut vk::ExtensionProperties,
) -> vk::Result {
    abi::command_with("vkEnumerateInstanceExtensionProperties", || {
        if !layer.is_null() {
            return Err(vk::Result::ERROR_LAYER_NOT_PRESENT);
        }
        Ok(abi::list(&extensions::properties(extensions::INSTANCE), count, out))
    })
}

pub(crate) extern "system" fn enumerate_layers(count: *mut u32, out: *mut vk::LayerProperties) -> vk::Result {
    abi::command_with("vkEnumerateInstanceLayerProperties", || Ok(abi::list(&[], count, out)))
}

pub(crate) extern "system" fn create(
    info: *const vk::InstanceCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Instance,
) -> vk::Result {
    abi::command("vkCreateInstance", || {
        let info = abi::read(info);
        let wanted = abi::items(info.pp_enabled_extension_names, info.enabled_extension_count);
        let wanted: Vec<&CStr> = wanted.iter().map(|name| abi::string(*name)).collect();
        // The loader implements those of surfaces and debugging and passes their names on.
        if let Some(unknown) = wanted.iter().find(|name| !extensions::is_known_to_instances(name)) {
            report!("vkCreateInstance: there is no {}", unknown.to_string_lossy());
            return Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT);
        }
        let program = abi::read_optional(info.p_application_info);
        let application = program.map_or(c"", |program| abi::string(program.p_application_name));
        let engine = program.map_or(c"", |program| abi::string(program.p_engine_name));
        // None is the first.
        let asked = program.map_or(0, |program| program.api_version).max(vk::API_VERSION_1_0);
        let claims = Claims::of(application, engine);
        report!("an instance for {application:?} on {engine:?}: {claims:?}");
        let mut physical = vk::PhysicalDevice::null();
        match machine::open().map(|gpu| PhysicalDevice::on(gpu, claims, asked)) {
            Ok(Ok(found)) => abi::give(Dispatchable::new(found), &raw mut physical),
            Ok(Err(error)) => report!("no device: {error:?}"),
            Err(error) => report!("no device: {error}"),
        }
        let physical = (!physical.is_null()).then_some(physical);
        abi::give(Dispatchable::new(Instance { physical }), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    instance: vk::Instance,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyInstance", || {
        let Some(instance) = abi::take::<Dispatchable<Instance>>(instance) else { return };
        if let Some(physical) = instance.object.physical {
            drop(abi::take::<Dispatchable<PhysicalDevice>>(physical));
        }
    });
}

pub(crate) extern "system" fn enumerate_physical_devices(
    instance: vk::Instance,
    count: *mut u32,
    out: *mut vk::PhysicalDevice,
) -> vk::Result {
    abi::command_with("vkEnumeratePhysicalDevices", || {
        let instance = &abi::get::<Dispatchable<Instance>>(instance).object;
        Ok(abi::list(instance.physical.as_slice(), count, out))
    })
}

pub(crate) extern "system" fn enumerate_groups(
    instance: vk::Instance,
    count: *mut u32,
    out: *mut vk::PhysicalDeviceGroupProperties<'_>,
) -> vk::Result {
    abi::command_with("vkEnumeratePhysicalDeviceGroups", || {
        let instance = &abi::get::<Dispatchable<Instance>>(instance).object;
        let there = u32::from(instance.physical.is_some());
        if out.is_null() {
            abi::write(count, there);
            return Ok(vk::Result::SUCCESS);
        }
        let given = (*abi::read(count)).min(there);
        for (group, device) in abi::room(out, given).iter_mut().zip(instance.physical) {
            group.physical_device_count = 1;
            group.physical_devices[0] = device;
            group.subset_allocation = vk::FALSE;
        }
        abi::write(count, given);
        Ok(if given < there { vk::Result::INCOMPLETE } else { vk::Result::SUCCESS })
    })
}
