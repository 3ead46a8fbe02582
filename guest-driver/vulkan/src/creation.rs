//! Creation and end of devices, and of the queue that each has.

use ash::vk;

use crate::abi;
use crate::abi::Dispatchable;
use crate::device::Core;
use crate::device::Device;
use crate::failure::failed;
use crate::features;
use crate::machine;
use crate::offered::Offered;
use crate::physical::PhysicalDevice;
use crate::properties;
use crate::queue::Queue;
use crate::report::report;

pub(crate) extern "system" fn create(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Device,
) -> vk::Result {
    abi::command("vkCreateDevice", || {
        let (physical, info) = (PhysicalDevice::of(physical), abi::read(info));
        let known = physical.extensions();
        let enabled = abi::items(info.pp_enabled_extension_names, info.enabled_extension_count);
        let enabled = enabled.iter().map(|name| abi::string(*name));
        for name in enabled.clone() {
            if !known.iter().any(|(known, _)| *known == name) {
                report!("vkCreateDevice: there is no {}", name.to_string_lossy());
                return Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT);
            }
        }
        features::check(physical, info)?;
        let gpu = machine::open().map_err(failed("vkCreateDevice"))?;
        let core = Core::on(gpu);
        let mut queue = vk::Queue::null();
        abi::give(Dispatchable::new(Queue::on(&core)?), &raw mut queue);
        let version = physical.asked.min(properties::api_version(&physical.profile));
        let offered = Offered::new(version, enabled);
        abi::give(Dispatchable::new(Device { core, profile: physical.profile.clone(), queue, offered }), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(device: vk::Device, _allocator: *const vk::AllocationCallbacks<'_>) {
    abi::quiet("vkDestroyDevice", || {
        let Some(device) = abi::take::<Dispatchable<Device>>(device) else { return };
        drop(abi::take::<Dispatchable<Queue>>(device.object.queue));
    });
}

pub(crate) extern "system" fn queue(device: vk::Device, _family: u32, _index: u32, out: *mut vk::Queue) {
    abi::quiet("vkGetDeviceQueue", || {
        abi::write(out, Device::of(device).queue);
    });
}

pub(crate) extern "system" fn queue2(
    device: vk::Device,
    _info: *const vk::DeviceQueueInfo2<'_>,
    out: *mut vk::Queue,
) {
    abi::quiet("vkGetDeviceQueue2", || {
        abi::write(out, Device::of(device).queue);
    });
}

pub(crate) extern "system" fn wait_idle(device: vk::Device) -> vk::Result {
    abi::command("vkDeviceWaitIdle", || Queue::of(Device::of(device).queue).wait_idle())
}

pub(crate) extern "system" fn peer_memory(
    _device: vk::Device,
    _heap: u32,
    _local: u32,
    _remote: u32,
    out: *mut vk::PeerMemoryFeatureFlags,
) {
    abi::quiet("vkGetDeviceGroupPeerMemoryFeatures", || {
        abi::write(out, vk::PeerMemoryFeatureFlags::empty());
    });
}
