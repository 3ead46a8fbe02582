//! The driver: open a device, import memory, run kernels.

use std::hint;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::profile::Profile as Told;

use crate::kernel::program::Kernel;
use crate::shader::profile::Profile;
use crate::vulkan::device_name::DeviceName;
use crate::vulkan::error::VulkanError;
use crate::vulkan::gates::BATCH;
use crate::vulkan::gates::CHAIN;
use crate::vulkan::gates::Fate;
use crate::vulkan::gates::Gates;
use crate::vulkan::grids::Grids;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::import::try_import;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;
use crate::vulkan::info::Limits;
use crate::vulkan::options::Executor;
use crate::vulkan::options::Options;
use crate::vulkan::pipeline::Compiler;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::priority::GlobalPriority;
use crate::vulkan::raw::commands::Groups;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::commands::Slot;
use crate::vulkan::raw::commands::Work;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::device::Timeline;
use crate::vulkan::raw::instance::Candidate;
use crate::vulkan::raw::instance::Instance;
use crate::vulkan::raw::stamps::Stamps;
use crate::vulkan::request;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::IN_FLIGHT;
use crate::vulkan::request::Slice;
use crate::vulkan::staging::Staging;

/// A dispatch, to be waited for at the driver that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what the dispatch writes is seen only after its ticket is done"]
pub struct Ticket {
    /// The timeline's value when it is done; 0 for what needed no work.
    pub(super) value: u64,
}

/// An opened device, for one thread.
pub struct Driver {
    info: Info,
    spin: Duration,
    compiler: Compiler,
    /// The dispatch with timeline value `v` is in slot `v` modulo their number.
    pub(super) slots: Vec<Slot>,
    timeline: Arc<Timeline>,
    pub(super) submitted: u64,
    pub(super) grids: Grids,
    /// Where submissions can be called off.
    pub(super) gates: Option<Gates>,
    executor: Executor,
    /// Where the device says how far a submission is.
    pub(super) stamps: Option<Stamps>,
    /// Kept to be filled again, never read across calls.
    places: Vec<Place>,
    /// Copies of host memory of which the device has something.
    pub(super) staged: Vec<Arc<Staging>>,
    /// What guests are told of it.
    told: Box<Told>,
    pub(super) gpu: Arc<Gpu>,
}

/// Opens a device. One that takes no pages of files copies host memory, whatever it offers: then also why.
pub(super) fn open_gpu(
    instance: &Arc<Instance>,
    candidate: &mut Candidate,
    executor: Executor,
    is_realtime: bool,
) -> Result<(Arc<Gpu>, Option<VulkanError>), VulkanError> {
    let gpu = Gpu::open(Arc::clone(instance), candidate, executor, is_realtime)?;
    let Err(refused) = try_import(&gpu)? else { return Ok((gpu, None)) };
    log::warn!("{}: {refused}; what kernels bind is copied to the device and back", candidate.info.name);
    drop(gpu);
    candidate.copy_memory();
    Ok((Gpu::open(Arc::clone(instance), candidate, executor, is_realtime)?, Some(refused)))
}

impl Driver {
    /// Opens the best device there is.
    pub fn open(options: &Options) -> Result<Self, VulkanError> {
        let instance = Instance::open()?;
        let mut candidate = choose(instance.candidates()?, options)?;
        let told = candidate.restrict(options.profile)?;
        let executor = options.executor.unwrap_or(Executor::of(candidate.info.kind));
        let (gpu, _) = open_gpu(&Arc::new(instance), &mut candidate, executor, options.is_realtime)?;
        Self::of(gpu, candidate.info, options.spin, executor, told)
    }

    /// Another device of the same kind, with a queue of its own: what one runs, the other need not wait for.
    pub fn secondary(&self) -> Result<Self, VulkanError> {
        let told = self.told.clone();
        Self::of(self.gpu.secondary()?, self.info.clone(), self.spin, self.executor, told)
    }

    pub(super) fn of(
        gpu: Arc<Gpu>,
        info: Info,
        spin: Duration,
        executor: Executor,
        told: Box<Told>,
    ) -> Result<Self, VulkanError> {
        let timeline = Arc::new(Timeline::new(&gpu)?);
        let slots = (0..IN_FLIGHT).map(|_| Slot::new(&gpu, &timeline)).collect::<Result<_, _>>()?;
        let compiler = Compiler::new(&gpu)?;
        let grids = Grids::new(&gpu)?;
        let gates = Gates::new(&gpu).unwrap_or_else(|error| {
            log::warn!("slices are submitted one by one: {error}");
            None
        });
        let stamps = match executor {
            Executor::Cpu => None,
            Executor::Gpu => Stamps::new(&gpu, IN_FLIGHT, CHAIN)?,
        };
        let (places, staged) = (Vec::new(), Vec::new());
        Ok(Self {
            info,
            spin,
            compiler,
            slots,
            timeline,
            submitted: 0,
            grids,
            gates,
            executor,
            stamps,
            places,
            staged,
            told,
            gpu,
        })
    }

    /// What was opened.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The global priority of its queue, where one was asked for and is had.
    pub fn global_priority(&self) -> Option<GlobalPriority> {
        self.gpu.priority
    }

    /// How much it can.
    pub fn limits(&self) -> &Limits {
        &self.gpu.limits
    }

    /// What its kernels may use beyond 32-bit arithmetic.
    pub fn profile(&self) -> &Profile {
        &self.gpu.profile
    }

    /// What guests are told of it.
    pub fn device_profile(&self) -> &Told {
        &self.told
    }

    /// Makes host memory bindable. Microseconds, whatever its length: no byte is touched or copied until it is bound.
    pub fn import(&self, range: &HostRange) -> Result<Import, VulkanError> {
        Import::new(&self.gpu, range)
    }

    /// The part of the driver that makes pipelines, for other threads.
    pub fn compiler(&self) -> Compiler {
        self.compiler.clone()
    }

    /// Makes a pipeline and has it compiled, on this thread.
    pub fn pipeline(&self, kernel: &Kernel) -> Result<Pipeline, VulkanError> {
        self.compiler.pipeline(kernel)
    }

    /// Starts the workgroups of a slice. One without a group is done at once.
    pub fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        bounds: &[Bound<'_>],
        constants: &[u8],
        slice: &Slice,
    ) -> Result<Ticket, DispatchError> {
        self.dispatch_batch(pipeline, bounds, constants, [0; 3], std::slice::from_ref(slice))
    }

    /// Whether several slices can be submitted together, and called off.
    pub fn can_call_off(&self) -> bool {
        self.gates.is_some()
    }

    /// How work is handed to the device.
    pub fn executor(&self) -> Executor {
        self.executor
    }

    /// Starts slices of one grid, whose groups are numbered from `origin`: one to [`BATCH`], none of them empty. Until a slice begins it can be called off. That each
    /// begins after the end of the one before it is not Vulkan's promise but a CPU driver's way, and only those are given any.
    ///
    /// # Errors
    /// As [`Self::dispatch`], and where there are more; or more than one, and the device cannot call them off.
    pub fn dispatch_batch(
        &mut self,
        pipeline: &Pipeline,
        bounds: &[Bound<'_>],
        constants: &[u8],
        origin: [u32; 3],
        slices: &[Slice],
    ) -> Result<Ticket, DispatchError> {
        let most = if self.can_call_off() { BATCH } else { 1 };
        if slices.len() > most {
            return Err(DispatchError::Batch { given: slices.len(), most });
        }
        if !pipeline.is_of(&self.gpu) {
            return Err(DispatchError::Foreign);
        }
        for slice in slices {
            request::check_slice(&self.gpu.limits, origin, slice)?;
        }
        check_constants(pipeline, constants)?;
        request::place(&self.gpu, pipeline, bounds, &mut self.places)?;
        let Some(grid) = slices.iter().find(|slice| slice.count() > 0).map(|slice| slice.grid) else {
            return Ok(Ticket { value: 0 });
        };
        self.bring(pipeline, bounds)?;

        let (value, index) = self.next_slot()?;
        if pipeline.uses_num_workgroups() {
            self.places.push(self.grids.tell(index, 0, grid)?);
        }
        let parts: Vec<Groups> = slices
            .iter()
            .map(|slice| Groups { base: add(origin, slice.base), groups: slice.groups })
            .collect();
        let conditions = self.gates.as_ref().filter(|_| parts.len() > 1).map(|gates| gates.open(index));
        let (program, conditions) = (pipeline.program(), conditions.as_ref());
        let work = Work { program, places: &self.places, constants, parts: &parts, conditions };
        let slot = self.slots.get_mut(index).ok_or(DispatchError::Busy)?;
        slot.run(&[work], value, None)?;
        self.submitted = value;
        Ok(Ticket { value })
    }

    /// The value and the slot of the next submission; nothing is in flight in that slot.
    pub(super) fn next_slot(&mut self) -> Result<(u64, usize), DispatchError> {
        let value = self.submitted + 1;
        let reached = self.timeline.reached()?;
        let count = self.slots.len() as u64;
        let index = usize::try_from(value % count).unwrap_or_default();
        let free = self.slots.get_mut(index).filter(|_| value - reached <= count);
        free.ok_or(DispatchError::Busy)?.retire(reached);
        Ok((value, index))
    }

    /// Calls off whatever of a batch has not begun. Its ticket is done when what has begun is.
    pub fn call_off(&self, ticket: &Ticket) {
        if let Some((gates, slot)) = self.gates.as_ref().zip(self.slot_of(ticket)) {
            gates.close(slot);
        }
    }

    /// What the device made of slice `index` of a batch.
    pub fn fate(&self, ticket: &Ticket, index: usize) -> Fate {
        let gates = self.gates.as_ref().zip(self.slot_of(ticket));
        gates.map_or(Fate::Begun, |(gates, slot)| gates.fate(slot, index))
    }

    /// The slot of a submission, as long as no later one has it.
    pub(super) fn slot_of(&self, ticket: &Ticket) -> Option<usize> {
        let count = self.slots.len() as u64;
        let is_there = ticket.value > 0 && ticket.value + count > self.submitted;
        usize::try_from(ticket.value % count).ok().filter(|_| is_there)
    }

    /// Whether the dispatch is done and what it wrote can be seen. Never sleeps.
    pub fn is_done(&self, ticket: &Ticket) -> Result<bool, VulkanError> {
        Ok(ticket.value == 0 || self.timeline.reached()? >= ticket.value)
    }

    /// As [`Self::is_done`], and lets go of what it used.
    pub fn retire_if_done(&mut self, ticket: &Ticket) -> Result<bool, VulkanError> {
        let is_done = self.is_done(ticket)?;
        if is_done {
            self.retire()?;
        }
        Ok(is_done)
    }

    /// Waits until the dispatch is done: looks for a while, then sleeps. For ever, if the kernel never ends.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), VulkanError> {
        if !self.look_for(&ticket)? {
            self.timeline.wait(ticket.value, None)?;
        }
        self.retire()
    }

    /// Waits like [`Driver::wait`] but sleeps at once: for work that takes long, and whose end is not urgent.
    pub fn sleep(&mut self, ticket: Ticket) -> Result<(), VulkanError> {
        if !self.is_done(&ticket)? {
            self.timeline.wait(ticket.value, None)?;
        }
        self.retire()
    }

    /// Waits like [`Driver::wait`] but sleeps no longer than `limit`. Whether the dispatch is done.
    pub fn wait_for(&mut self, ticket: &Ticket, limit: Duration) -> Result<bool, VulkanError> {
        let done = self.look_for(ticket)? || self.timeline.wait(ticket.value, Some(limit))?;
        self.retire()?;
        Ok(done)
    }

    /// Sleeps until all that was started is done.
    pub(super) fn sleep_for_all(&mut self) -> Result<(), VulkanError> {
        self.sleep(Ticket { value: self.submitted })
    }

    /// Sleeps at once, no longer than `limit`. Whether the dispatch is done.
    pub fn sleep_for(&self, ticket: &Ticket, limit: Duration) -> Result<bool, VulkanError> {
        Ok(self.is_done(ticket)? || self.timeline.wait(ticket.value, Some(limit))?)
    }

    fn look_for(&self, ticket: &Ticket) -> Result<bool, VulkanError> {
        let start = Instant::now();
        loop {
            if self.is_done(ticket)? {
                return Ok(true);
            }
            if start.elapsed() >= self.spin {
                return Ok(false);
            }
            hint::spin_loop();
        }
    }

    /// Lets go of what finished work used, so that dropping an import or pipeline takes effect.
    fn retire(&mut self) -> Result<(), VulkanError> {
        let reached = self.timeline.reached()?;
        for slot in &mut self.slots {
            slot.retire(reached);
        }
        self.places.clear();
        Ok(())
    }
}

/// The sum, which is in the device's limits.
fn add(origin: [u32; 3], base: [u32; 3]) -> [u32; 3] {
    [0, 1, 2].map(|side| origin[side].saturating_add(base[side]))
}

pub(super) fn check_constants(pipeline: &Pipeline, constants: &[u8]) -> Result<(), DispatchError> {
    if u32::try_from(constants.len()) != Ok(pipeline.constants()) {
        let (given, wanted) = (constants.len(), pipeline.constants());
        return Err(DispatchError::Constants { given, wanted });
    }
    Ok(())
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The best of `candidates` that `options` allow.
fn choose(candidates: Vec<Candidate>, options: &Options) -> Result<Candidate, VulkanError> {
    if candidates.is_empty() {
        return Err(VulkanError::NoDevice);
    }
    let names: Vec<String> = candidates.iter().map(|c| c.info.name.clone()).collect();
    let wanted = options.name.as_deref().unwrap_or_default();
    let named = DeviceName::new(wanted).pick(candidates, |candidate| &candidate.info.name);
    if named.is_empty() {
        let wanted = wanted.to_owned();
        return Err(VulkanError::NoDeviceOfThatName { wanted, found: names.join(", ") });
    }
    let (mut suitable, unsuitable): (Vec<_>, Vec<_>) = named.into_iter().partition(|c| c.missing.is_empty());
    suitable.sort_by_key(|c| rank(c.info.kind, options.prefer));
    suitable.into_iter().next().ok_or_else(|| {
        let reason = |c: &Candidate| format!("{} lacks {}", c.info, c.missing.join(", "));
        VulkanError::Unsuitable { reasons: unsuitable.iter().map(reason).collect::<Vec<_>>().join("; ") }
    })
}

fn rank(kind: Kind, prefer: Option<Kind>) -> (bool, Kind) {
    (prefer.is_some_and(|wanted| wanted != kind), kind)
}
