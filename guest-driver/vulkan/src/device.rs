//! Devices: each a guest process of its own for the daemon, with one user-mode queue.

use std::sync::Arc;

use ash::vk;
use campanile_guest_driver::device::Device as Gpu;
use campanile_protocol::profile::Profile;

use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::failure::failed;
use crate::heap::Heap;
use crate::kernels::Kernels;
use crate::offered::Offered;

/// What all objects of a device share.
#[derive(Debug)]
pub(crate) struct Core {
    /// The guest driver's device.
    pub(crate) gpu: Gpu,
    /// Small memory of the driver's own.
    pub(crate) heap: Heap,
    /// What its pipelines run.
    pub(crate) kernels: Kernels,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// What its objects share.
    pub(crate) core: Arc<Core>,
    /// What the host says of it.
    pub(crate) profile: Box<Profile>,
    /// The one queue.
    pub(crate) queue: vk::Queue,
    /// What the program has asked for.
    pub(crate) offered: Offered,
}

handle!(Dispatchable<Device>, vk::Device);

impl Device {
    /// The object behind a handle.
    pub(crate) fn of<'a>(handle: vk::Device) -> &'a Self {
        &abi::get::<Dispatchable<Self>>(handle).object
    }
}

impl Core {
    /// On a device of the guest driver's.
    pub(crate) fn on(gpu: Gpu) -> Arc<Self> {
        Arc::new(Self { heap: Heap::new(gpu.clone()), kernels: Kernels::new(gpu.clone()), gpu })
    }

    /// What the objects of a device share.
    pub(crate) fn of<'a>(handle: vk::Device) -> &'a Arc<Self> {
        &Device::of(handle).core
    }

    /// Says so if the device is lost.
    pub(crate) fn check(&self) -> Outcome {
        self.gpu.check().map_err(failed("device"))
    }
}
