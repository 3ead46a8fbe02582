//! Devices: each a guest process of its own for the daemon, with one user-mode queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::Weak;

use ash::vk;
use campanile_guest_driver::device::Device as Gpu;
use campanile_guest_driver::kernel::Kernel;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::failure::failed;
use crate::features;
use crate::heap::Heap;
use crate::machine;
use crate::physical::PhysicalDevice;
use crate::pipeline::KernelKey;
use crate::queue::Queue;
use crate::report::report;

/// What all objects of a device share.
#[derive(Debug)]
pub(crate) struct Core {
    /// The guest driver's device.
    pub(crate) gpu: Gpu,
    /// Small memory of the driver's own.
    pub(crate) heap: Heap,
    /// Kernels that pipelines hold, so that equal pipelines are compiled once.
    pub(crate) kernels: Mutex<HashMap<KernelKey, Weak<Kernel>>>,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// What its objects share.
    pub(crate) core: Arc<Core>,
    /// What the host says of it.
    pub(crate) profile: Box<Profile>,
    queue: vk::Queue,
}

handle!(Dispatchable<Device>, vk::Device);

impl Device {
    /// The object behind a handle.
    pub(crate) fn of<'a>(handle: vk::Device) -> &'a Self {
        &abi::get::<Dispatchable<Self>>(handle).object
    }
}

impl Core {
    /// What the objects of a device share.
    pub(crate) fn of<'a>(handle: vk::Device) -> &'a Arc<Self> {
        &Device::of(handle).core
    }

    /// Says so if the device is lost.
    pub(crate) fn check(&self) -> Outcome {
        self.gpu.check().map_err(failed("device"))
    }
}

pub(crate) extern "system" fn create(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Device,
) -> vk::Result {
    abi::command("vkCreateDevice", || {
        let (physical, info) = (PhysicalDevice::of(physical), abi::read(info));
        let known = physical.extensions();
        for name in abi::items(info.pp_enabled_extension_names, info.enabled_extension_count) {
            let name = abi::string(*name);
            if !known.iter().any(|(known, _)| *known == name) {
                report!("vkCreateDevice: there is no {}", name.to_string_lossy());
                return Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT);
            }
        }
        features::check(physical, info)?;
        let gpu = machine::open().map_err(failed("vkCreateDevice"))?;
        let core = Arc::new(Core { heap: Heap::new(gpu.clone()), gpu, kernels: Mutex::default() });
        let mut queue = vk::Queue::null();
        abi::give(Dispatchable::new(Queue::on(&core)?), &raw mut queue);
        abi::give(Dispatchable::new(Device { core, profile: physical.profile.clone(), queue }), out);
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
    abi::write(out, Device::of(device).queue);
}

pub(crate) extern "system" fn queue2(
    device: vk::Device,
    _info: *const vk::DeviceQueueInfo2<'_>,
    out: *mut vk::Queue,
) {
    abi::write(out, Device::of(device).queue);
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
    abi::write(out, vk::PeerMemoryFeatureFlags::empty());
}
