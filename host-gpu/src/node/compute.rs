//! The compute node: kernels on Vulkan, slice by slice.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::engine::scheduling;
use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;

use super::pace::Pace;
use super::packet::Grid;
use super::packet::Launch;
use super::slices;
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
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::Slice;

/// The part of a slice that is left when the next one is started.
const LEAD_PART: u32 = 4;
/// What is left at the least: this thread must wake up and start it meanwhile, on CPUs that may be busy. Short slices
/// are started without waiting.
const LEAD: Duration = Duration::from_micros(500);

/// State of the compute node, owned by the execution thread.
#[derive(Debug)]
pub struct ComputeNode {
    kernels: HashMap<KernelName, Kernel>,
    imports: HashMap<SegmentId, Import>,
    in_flight: VecDeque<Running>,
    /// When the last of what was in flight was seen done.
    done_at: Option<Instant>,
    driver: Driver,
    /// It has failed once: whatever is asked of it now fails too, whoever asks.
    is_lost: bool,
    shared: Arc<Mapping>,
    /// How long a slice is to take; zero where dispatches run in one piece.
    slice: Duration,
}

#[derive(Debug)]
struct Kernel {
    pipeline: Pipeline,
    pace: Pace,
}

/// A slice in flight.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    kernel: KernelName,
    groups: u64,
    started: Instant,
}

/// How far a dispatch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// Thread groups that were started, counted in x, then y, then z.
    pub done: u64,
    /// The grid where it was read from memory and some are done, else zero.
    pub grid: [u32; 3],
}

/// What a dispatch binds, resolved.
struct Resolved {
    binding: u32,
    run: Run,
}

impl ComputeNode {
    /// A node without kernels, which notes in the shared block what it runs, and cuts dispatches into slices of about
    /// this length; zero for not at all.
    pub fn new(driver: Driver, shared: Arc<Mapping>, slice: Duration) -> Self {
        let (kernels, imports, in_flight) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Self { kernels, imports, in_flight, done_at: None, driver, is_lost: false, shared, slice }
    }

    /// Whether the driver has failed: another process has to take its place.
    pub fn is_lost(&self) -> bool {
        self.is_lost
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
        self.kernels.insert(name, Kernel { pipeline, pace: Pace::default() });
    }

    /// Forgets a kernel.
    pub fn remove_kernel(&mut self, name: KernelName) {
        self.kernels.remove(&name);
    }

    /// Forgets what the driver made of a segment.
    pub fn forget_segment(&mut self, id: SegmentId) {
        self.imports.remove(&id);
    }

    /// Starts the kernel of the packet at byte `at` of its buffer, slice by slice, from where `part` says, and notes there
    /// how far it came. Its stores are visible after [`Self::finish`]. False where `should_pause`, which is asked before
    /// each slice but the first, had it stop before the end (PRE-16).
    pub fn launch(
        &mut self,
        space: &Space<'_>,
        at: usize,
        launch: &Launch,
        part: &mut Part,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Stop> {
        let grid = match launch.grid {
            Grid::Direct(grid) => grid,
            Grid::Indirect(_) if part.done > 0 => part.grid,
            Grid::Indirect(address) => {
                self.finish().map_err(Stop::fault)?;
                read_grid(space, address)?
            }
        };
        let total = slices::count(grid);
        // Whoever saved that may be hostile.
        if part.done > 0 && total.is_none_or(|total| part.done > total) {
            return Err(Stop::fault(Fault::PacketField));
        }
        self.make_room(IN_FLIGHT, true)?;
        let kernel = KernelName { root: space.root, handle: launch.kernel.0 };
        let resolved = self.resolve(space, kernel, launch)?;
        self.note(launch.kernel.0, at);
        let mut slice = match slices::next(grid, part.done, self.limit(kernel)) {
            Some(slice) => slice,
            None if part.done > 0 => return Ok(true),
            // Nothing to do, or too much to count: the driver says which.
            None => Slice::whole(grid),
        };
        loop {
            self.start(kernel, &resolved, &launch.constants, &slice)?;
            part.done += slice.count();
            if total.is_none_or(|total| part.done >= total) {
                return Ok(true);
            }
            if matches!(launch.grid, Grid::Indirect(_)) {
                part.grid = grid;
            }
            // Two slices of unknown cost could be much more than one may take.
            let is_known = self.kernels.get(&kernel).is_some_and(|kernel| kernel.pace.is_known());
            self.make_room(if is_known { IN_FLIGHT } else { 1 }, !is_known)?;
            self.hold_back().map_err(Stop::fault)?;
            if should_pause() {
                return Ok(false);
            }
            match slices::next(grid, part.done, self.limit(kernel)) {
                Some(next) => slice = next,
                None => return Ok(true),
            }
        }
    }

    /// Groups that a slice of this kernel may have.
    fn limit(&self, kernel: KernelName) -> u64 {
        if self.slice.is_zero() {
            return u64::MAX;
        }
        self.kernels.get(&kernel).map_or(1, |kernel| kernel.pace.groups(self.slice))
    }

    /// Finds what the packet binds, and makes it known to the driver.
    fn resolve(
        &mut self,
        space: &Space<'_>,
        name: KernelName,
        launch: &Launch,
    ) -> Result<Vec<Resolved>, Stop> {
        let kernel = self.kernels.get(&name).ok_or(Stop::Fault(Fault::UnknownKernel, name.handle))?;
        let mut resolved = Vec::with_capacity(launch.bindings.len());
        for binding in &launch.bindings {
            let mut declared = kernel.pipeline.bindings().iter();
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
        Ok(resolved)
    }

    /// Hands a slice to the driver, which has room for it.
    fn start(
        &mut self,
        name: KernelName,
        resolved: &[Resolved],
        constants: &[u8],
        slice: &Slice,
    ) -> Result<(), Stop> {
        let kernel = self.kernels.get(&name).ok_or(Stop::Fault(Fault::UnknownKernel, name.handle))?;
        let mut bounds = Vec::with_capacity(resolved.len());
        for Resolved { binding, run } in resolved {
            let memory = self.imports.get(&run.segment).ok_or(Stop::fault(Fault::Driver))?;
            bounds.push(Bound { binding: *binding, memory, offset: run.offset, length: run.length });
        }
        let started = Instant::now();
        let ticket = self.driver.dispatch(&kernel.pipeline, &bounds, constants, slice).map_err(|error| {
            log::debug!("a dispatch was refused: {error}");
            let is_driver = matches!(error, DispatchError::Vulkan(_));
            self.is_lost |= is_driver;
            Stop::fault(if is_driver { Fault::Driver } else { Fault::Bindings })
        })?;
        self.in_flight.push_back(Running { ticket, kernel: name, groups: slice.count(), started });
        Ok(())
    }

    /// Waits until less than `most` is in flight.
    fn make_room(&mut self, most: usize, spin: bool) -> Result<(), Stop> {
        while self.in_flight.len() >= most {
            self.finish_oldest(spin).map_err(Stop::fault)?;
        }
        Ok(())
    }

    /// Waits for the oldest slice: by looking first where the next one waits for this, else asleep, since a CPU driver
    /// wants the core.
    fn finish_oldest(&mut self, spin: bool) -> Result<(), Fault> {
        let Some(Running { ticket, kernel, groups, started }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let waited = if spin { self.driver.wait(ticket) } else { self.driver.sleep(ticket) };
        waited.map_err(|error| self.lose(&error))?;
        let now = Instant::now();
        // It began when the one before it was done.
        let began = self.done_at.map_or(started, |done| done.max(started));
        self.done_at = Some(now);
        if groups > 0
            && !self.slice.is_zero()
            && let Some(kernel) = self.kernels.get_mut(&kernel)
        {
            let took = now.saturating_duration_since(began);
            kernel.pace.observe(groups, took, self.slice);
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            for (place, more) in [(scheduling::SLICES, 1), (scheduling::SLICE_NANOSECONDS, took)] {
                if let Some(word) = self.shared.word(place) {
                    // Nobody else stores there.
                    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Waits until the only slice in flight is nearly done. The next one need not be there sooner, and what is more urgent
    /// would have to wait for both.
    fn hold_back(&mut self) -> Result<(), Fault> {
        let [running] = self.in_flight.make_contiguous() else { return Ok(()) };
        let Some(kernel) = self.kernels.get(&running.kernel) else { return Ok(()) };
        let likely = kernel.pace.likely(running.groups);
        let began = self.done_at.map_or(running.started, |done| done.max(running.started));
        let wait = likely.saturating_sub((likely / LEAD_PART).max(LEAD)).saturating_sub(began.elapsed());
        if wait.is_zero() {
            return Ok(());
        }
        let waited = self.driver.sleep_for(&running.ticket, wait);
        waited.map(|_| ()).map_err(|error| self.lose(&error))
    }

    /// The driver has failed.
    fn lose(&mut self, error: &VulkanError) -> Fault {
        log::debug!("the driver failed: {error}");
        self.is_lost = true;
        Fault::Driver
    }

    /// Waits until all that was started is done and its stores are visible.
    pub fn finish(&mut self) -> Result<(), Fault> {
        let mut outcome = Ok(());
        while !self.in_flight.is_empty() {
            outcome = outcome.and(self.finish_oldest(true));
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
