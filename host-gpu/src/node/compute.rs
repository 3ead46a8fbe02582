//! The compute node: kernels on Vulkan.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;

use super::packet::Grid;
use super::packet::Launch;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::kernel::program::BufferAccess;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Intent;
use crate::memory::page_table::reader::Run;
use crate::vulkan::driver::Driver;
use crate::vulkan::driver::IN_FLIGHT;
use crate::vulkan::driver::Ticket;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;

/// State of the compute node, owned by the execution thread.
#[derive(Debug)]
pub struct ComputeNode {
    kernels: HashMap<KernelName, Pipeline>,
    imports: HashMap<SegmentId, Import>,
    in_flight: VecDeque<Ticket>,
    driver: Driver,
    shared: Arc<Mapping>,
}

/// What a dispatch binds, resolved.
struct Resolved {
    binding: u32,
    run: Run,
}

impl ComputeNode {
    /// A node without kernels, which notes in the shared block what it runs.
    pub fn new(driver: Driver, shared: Arc<Mapping>) -> Self {
        Self { kernels: HashMap::new(), imports: HashMap::new(), in_flight: VecDeque::new(), driver, shared }
    }

    /// Notes which kernel runs, started by the packet at byte `at` of its buffer, should it never end.
    fn note(&self, kernel: u64, at: usize) {
        for (place, value) in [(block::LAUNCHED, kernel), (block::LAUNCHED_AT, at as u64)] {
            if let Some(word) = self.shared.word(place) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Adds a kernel that is compiled and warm.
    pub fn add_kernel(&mut self, name: KernelName, pipeline: Pipeline) {
        self.kernels.insert(name, pipeline);
    }

    /// Forgets a kernel.
    pub fn remove_kernel(&mut self, name: KernelName) {
        self.kernels.remove(&name);
    }

    /// Forgets what the driver made of a segment.
    pub fn forget_segment(&mut self, id: SegmentId) {
        self.imports.remove(&id);
    }

    /// Starts the kernel of the packet at byte `at` of its buffer; its stores are visible after [`Self::finish`].
    pub fn launch(&mut self, space: &Space<'_>, at: usize, launch: &Launch) -> Result<(), Stop> {
        let grid = match launch.grid {
            Grid::Direct(grid) => grid,
            Grid::Indirect(address) => {
                self.finish().map_err(Stop::fault)?;
                read_grid(space, address)?
            }
        };
        while self.in_flight.len() >= IN_FLIGHT {
            self.finish_oldest().map_err(Stop::fault)?;
        }
        let name = KernelName { root: space.root, handle: launch.kernel.0 };
        let pipeline = self.kernels.get(&name).ok_or(Stop::Fault(Fault::UnknownKernel, launch.kernel.0))?;
        let mut resolved = Vec::with_capacity(launch.bindings.len());
        for binding in &launch.bindings {
            let mut declared = pipeline.bindings().iter();
            let declared = declared.find(|declared| declared.binding == binding.slot);
            let intent = match declared.map(|declared| declared.access) {
                Some(BufferAccess::Read) => Intent::Read,
                Some(BufferAccess::ReadWrite) => Intent::Write,
                None => return Err(Stop::Fault(Fault::Bindings, binding.va)),
            };
            let runs = space.runs(binding.va, binding.length, intent)?;
            // A binding lies in one allocation, and an allocation in one piece.
            let [run] = runs[..] else { return Err(Stop::Fault(Fault::Bindings, binding.va)) };
            import(&mut self.imports, &self.driver, space, run, binding.va)?;
            resolved.push(Resolved { binding: binding.slot, run });
        }
        let mut bounds = Vec::with_capacity(resolved.len());
        for Resolved { binding, run } in resolved {
            let memory = self.imports.get(&run.segment).ok_or(Stop::fault(Fault::Driver))?;
            bounds.push(Bound { binding, memory, offset: run.offset, length: run.length });
        }
        self.note(launch.kernel.0, at);
        let ticket =
            self.driver.dispatch(pipeline, &bounds, &launch.constants, [0; 3], grid).map_err(|error| {
                log::debug!("a dispatch was refused: {error}");
                Stop::fault(if matches!(error, DispatchError::Vulkan(_)) {
                    Fault::Driver
                } else {
                    Fault::Bindings
                })
            })?;
        self.in_flight.push_back(ticket);
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), Fault> {
        let Some(ticket) = self.in_flight.pop_front() else { return Ok(()) };
        self.driver.wait(ticket).map_err(|error| {
            log::debug!("the driver failed: {error}");
            Fault::Driver
        })
    }

    /// Waits until all that was started is done and its stores are visible.
    pub fn finish(&mut self) -> Result<(), Fault> {
        let mut outcome = Ok(());
        while !self.in_flight.is_empty() {
            outcome = outcome.and(self.finish_oldest());
            if self.in_flight.is_empty() {
                self.note(0, 0);
            }
        }
        outcome
    }
}

fn read_grid(space: &Space<'_>, address: u64) -> Result<[u32; 3], Stop> {
    let mut bytes = [0; 12];
    space.read(address, &mut bytes)?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok([word(0), word(4), word(8)])
}

/// Makes the segment of `run` known to the driver, where it is not.
fn import(
    imports: &mut HashMap<SegmentId, Import>,
    driver: &Driver,
    space: &Space<'_>,
    run: Run,
    address: u64,
) -> Result<(), Stop> {
    if imports.contains_key(&run.segment) {
        return Ok(());
    }
    let mapping = space.segments.get(run.segment).ok_or(Stop::Fault(Fault::PageFault, address))?;
    let import = driver.import(&HostRange::whole(mapping, Access::ReadWrite)).map_err(|error| {
        log::error!("the driver cannot use segment {}: {error}", run.segment.0);
        Stop::Fault(Fault::Driver, address)
    })?;
    imports.insert(run.segment, import);
    Ok(())
}
