//! A device of the driver, with what it made of segments and kernels.
//!
//! A queue of a CPU driver runs one dispatch at a time, each on all CPUs: the CPU that is done first has to wait for
//! the others, and all of them for the next to be begun. Two queues share those CPUs, and there is always something to
//! go on with. So a node has two instances of the device there, and slices take turns; a device that is not the CPU has one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;

use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;

use super::candidate::Candidate;
use super::local_copies;
use super::packet::Grid;
use super::packet::Launch;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::kernel::program::Binding;
use crate::kernel::program::BindingPoint;
use crate::memory::local::DeviceFailed;
use crate::memory::local::LocalMemory;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Run;
use crate::vulkan::chain;
use crate::vulkan::chain::Load;
use crate::vulkan::driver::Driver;
use crate::vulkan::driver::Ticket;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::options::Executor;
use crate::vulkan::pipeline::Compiler;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::Slice;

/// What a dispatch binds, resolved.
#[derive(Debug, Clone, Copy)]
pub struct Resolved {
    /// Which buffer of the kernel.
    pub binding: BindingPoint,
    /// Where it lies.
    pub run: Run,
    /// Its address, should it be at fault.
    pub va: u64,
    /// The format of a texel buffer; 0 for any other.
    pub format: u16,
}

/// What the slices of a dispatch have in common.
#[derive(Debug, Clone, Copy)]
pub struct DispatchRequest<'a> {
    /// The kernel that runs.
    pub kernel: KernelName,
    /// What it binds.
    pub resolved: &'a [Resolved],
    /// The bytes of its constants.
    pub constants: &'a [u8],
    /// Number of its first group.
    pub origin: [u32; 3],
}

/// A dispatch of a chain, resolved.
pub(super) struct Link<'a> {
    /// Its kernel.
    pub(super) kernel: KernelName,
    /// What it binds.
    pub(super) resolved: Vec<Resolved>,
    /// What is to run, with a grid of the packet's own.
    pub(super) launch: &'a Launch,
}

/// Held by the thread that uses the queue of the secondary instance: to submit a slice, or to compile.
pub type QueueLock = Arc<Mutex<()>>;

/// A kernel for one device instance.
#[derive(Debug)]
pub struct Compiled {
    /// Which of all kernels that this engine was given: names are used again.
    pub serial: u64,
    /// Its pipeline on that instance.
    pub pipeline: Pipeline,
    /// What may be compiled for the secondary instance, too.
    pub candidate: Option<Candidate>,
}

/// Memory that is bound, and where in its segment it begins.
#[derive(Debug)]
struct Imported {
    memory: Import,
    start: u64,
}

/// The imports of what is bound.
fn bounds<'a>(
    imports: &'a HashMap<SegmentId, Imported>,
    resolved: &[Resolved],
) -> Result<Vec<Bound<'a>>, InstanceError> {
    let bound = |resolved: &Resolved| {
        let Resolved { binding, run, format, .. } = *resolved;
        let Imported { memory, start } = imports.get(&run.segment).ok_or(InstanceError::Unknown)?;
        let offset = run.offset.checked_sub(*start).ok_or(InstanceError::Unknown)?;
        Ok(Bound { binding, memory, offset, length: run.length, format })
    };
    resolved.iter().map(bound).collect()
}

/// One logical device of the driver.
#[derive(Debug)]
pub struct DeviceInstance {
    driver: Driver,
    imports: HashMap<SegmentId, Imported>,
    /// Where local memory lies, where it is a device's own.
    local: Option<LocalMemory>,
    pipelines: HashMap<KernelName, Pipeline>,
}

impl DeviceInstance {
    /// A device that has been given nothing.
    pub fn new(driver: Driver) -> Self {
        Self { driver, imports: HashMap::new(), local: None, pipelines: HashMap::new() }
    }

    /// Local memory is a device's own, behind this descriptor.
    ///
    /// # Errors
    /// It is not this device's, or shorter; or Vulkan's.
    pub fn import_local(&mut self, local: LocalMemory, descriptor: OwnedFd) -> Result<(), DeviceFailed> {
        let memory = local_copies::import(&self.driver, &local, descriptor)?;
        self.imports.insert(SegmentId::LOCAL, Imported { memory, start: local.start });
        self.local = Some(local);
        Ok(())
    }

    /// The driver of this device.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Whether it works on copies of memory.
    pub fn copies_memory(&self) -> bool {
        self.driver.copies_memory()
    }

    /// What compiles for it.
    pub fn compiler(&self) -> Compiler {
        self.driver.compiler()
    }

    /// Takes a kernel that its device has compiled.
    pub fn add_kernel(&mut self, name: KernelName, pipeline: Pipeline) {
        self.pipelines.insert(name, pipeline);
    }

    /// Forgets a kernel.
    pub fn remove_kernel(&mut self, name: KernelName) {
        self.pipelines.remove(&name);
    }

    /// Whether it can run a kernel.
    pub fn has_kernel(&self, name: KernelName) -> bool {
        self.pipelines.contains_key(&name)
    }

    /// The buffers that a kernel binds.
    pub fn bindings(&self, name: KernelName) -> Option<&[Binding]> {
        self.pipelines.get(&name).map(Pipeline::bindings)
    }

    /// Forgets what the device made of a segment.
    pub fn forget_segment(&mut self, id: SegmentId) {
        self.imports.remove(&id);
    }

    /// Makes the segment of what is bound known to the device, where it is not.
    pub fn import(&mut self, space: &Space<'_>, resolved: &Resolved) -> Result<(), Stop> {
        let Resolved { run: Run { segment, .. }, va, .. } = *resolved;
        if self.imports.contains_key(&segment) {
            return Ok(());
        }
        let mapping = space.segments.get(segment).ok_or(Stop::Fault(Fault::PageFault, va))?;
        self.import_whole(segment, mapping).map_err(|error| {
            log::error!("the driver cannot use segment {}: {error}", segment.0);
            Stop::Fault(Fault::Driver, va)
        })
    }

    /// Makes a segment known to a GPU before work binds it. A GPU's driver pins each page of it, half a second for a GiB, which would
    /// count as time that the work takes; a CPU driver only notes where it is.
    pub fn import_ahead(&mut self, id: SegmentId, mapping: &Arc<Mapping>) -> Result<(), VulkanError> {
        match self.driver.executor() {
            Executor::Cpu => Ok(()),
            Executor::Gpu => self.import_whole(id, mapping),
        }
    }

    fn import_whole(&mut self, id: SegmentId, mapping: &Arc<Mapping>) -> Result<(), VulkanError> {
        let range = match &self.local {
            Some(local) => local_copies::visible_part(local, id, mapping),
            None => HostRange::whole(mapping, Access::ReadWrite),
        };
        let memory = self.driver.import(&range)?;
        self.imports.insert(id, Imported { memory, start: 0 });
        Ok(())
    }

    /// Whether whole dispatches can be started together.
    pub fn can_chain(&self) -> bool {
        self.driver.can_chain()
    }

    /// Whether slices that were started together can be called off.
    pub fn can_call_off(&self) -> bool {
        self.driver.can_call_off()
    }

    /// Hands a slice, or several together, to the device, which has room for them and knows what they bind.
    pub fn start(
        &mut self,
        request: &DispatchRequest<'_>,
        slices: &[Slice],
    ) -> Result<Ticket, InstanceError> {
        let DispatchRequest { kernel, resolved, constants, origin } = *request;
        let pipeline = self.pipelines.get(&kernel).ok_or(InstanceError::Unknown)?;
        let bounds = bounds(&self.imports, resolved)?;
        Ok(self.driver.dispatch_batch(pipeline, &bounds, constants, origin, slices)?)
    }

    /// Hands whole dispatches to the device together; as many of the first as go together.
    pub(super) fn start_chain(&mut self, links: &[Link<'_>]) -> Result<(Ticket, usize), InstanceError> {
        let (mut load, mut chain) = (Load::default(), Vec::with_capacity(links.len()));
        for link in links {
            let Grid::Direct(grid) = link.launch.grid else { break };
            let pipeline = self.pipelines.get(&link.kernel).ok_or(InstanceError::Unknown)?;
            let Some(more) = load.with(pipeline) else { break };
            load = more;
            let bounds = bounds(&self.imports, &link.resolved)?;
            let (constants, origin) = (&link.launch.constants[..], link.launch.base);
            chain.push(chain::Link { pipeline, bounds, constants, origin, grid });
        }
        let ticket = self.driver.dispatch_chain(&chain)?;
        Ok((ticket, chain.len()))
    }
}

impl InstanceError {
    /// Whether the device failed, and not what was asked of it.
    pub fn is_of_the_driver(&self) -> bool {
        matches!(self, Self::Refused(DispatchError::Vulkan(_)))
    }
}

/// Why a slice was not started.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It was not told of the kernel or a segment.
    #[error("a kernel or a segment that the device was not told of")]
    Unknown,
    /// The device refused.
    #[error(transparent)]
    Refused(#[from] DispatchError),
}
