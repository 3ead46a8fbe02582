//! The device as sessions see it, whichever of the daemon's fronts it is: virtio-gpu, or virtio-fs with its one file.

use campanile_protocol::capset::Capset;
use campanile_protocol::fs as fs_protocol;
use campanile_protocol::virtio_gpu;

use crate::arena::Arena;
use crate::fault::Fault;
use crate::fs::Fs;
use crate::gpu::Gpu;
use crate::memory::Memory;
use crate::options::Options;
use crate::pci::Function;
use crate::serial::say;
use crate::virtio::Device;

/// Which.
enum Kind {
    Gpu(Gpu),
    Fs(Fs),
}

/// A device with its queues set up.
pub(crate) struct Front {
    device: Device,
    kind: Kind,
}

impl Front {
    /// The device of this machine.
    pub(crate) fn find(arena: &mut Arena) -> Result<Device, Fault> {
        let found = [virtio_gpu::DEVICE_ID, fs_protocol::DEVICE_ID]
            .into_iter()
            .find_map(|id| Function::find(id).map(|function| (id, function)));
        let (id, function) = found.ok_or(Fault::Device("there is no virtio device 16 or 26"))?;
        let device = Device::open(id, function, arena)?;
        say!("device {id} slot {}", function.slot());
        Ok(device)
    }

    /// Resets the device, and sets it up with memory of `arena`.
    pub(crate) fn begin(device: Device, options: &Options, arena: &mut Arena) -> Result<Self, Fault> {
        let (offered, acked) = device.reset(options.log)?;
        let kind = if device.id == virtio_gpu::DEVICE_ID {
            Kind::Gpu(Gpu::begin(&device, arena)?)
        } else {
            Kind::Fs(Fs::begin(&device, arena)?)
        };
        device.run();
        let front = Self { device, kind };
        front.check_config()?;
        say!("device features {offered:#x} acked {acked:#x}");
        Ok(front)
    }

    /// Lets go of it, to begin anew.
    pub(crate) fn end(self) -> Device {
        self.device
    }

    /// That the device still says what it is.
    pub(crate) fn check_config(&self) -> Result<(), Fault> {
        match &self.kind {
            Kind::Gpu(_) => Gpu::check_config(&self.device),
            Kind::Fs(_) => Fs::check_config(&self.device),
        }
    }

    /// What the device can do; the first thing that is asked of it for each session.
    pub(crate) fn capset(&mut self) -> Result<Capset, Fault> {
        match &mut self.kind {
            Kind::Gpu(gpu) => gpu.capset(),
            Kind::Fs(fs) => fs.open().and_then(|()| fs.capset()),
        }
    }

    /// Opens a context.
    pub(crate) fn create_context(&mut self, context: u32) -> Result<(), Fault> {
        match &mut self.kind {
            Kind::Gpu(gpu) => gpu.create_context(context),
            // The open file is one.
            Kind::Fs(_) => Ok(()),
        }
    }

    /// Makes a blob of this machine's own memory, or of video memory where there is none, for a context; its number.
    pub(crate) fn create_blob(
        &mut self,
        context: u32,
        size: u64,
        memory: Option<Memory>,
    ) -> Result<u32, Fault> {
        match &mut self.kind {
            Kind::Gpu(gpu) => gpu.create_blob(context, size, memory),
            Kind::Fs(fs) => fs.create_blob(size, memory),
        }
    }

    /// Sends a control message, and waits until it and its work are done.
    pub(crate) fn submit(
        &mut self,
        name: &'static str,
        context: u32,
        frame_header: &[u8],
        body: &[u8],
    ) -> Result<(), Fault> {
        match &mut self.kind {
            Kind::Gpu(gpu) => gpu.submit(name, context, frame_header, body),
            Kind::Fs(fs) => fs.submit(name, frame_header, body),
        }
    }
}
