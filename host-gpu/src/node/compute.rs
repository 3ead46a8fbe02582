//! The compute node: kernels on Vulkan, slice by slice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;

use super::candidate::Candidate;
use super::candidate::Request;
use super::chain_length::Length;
use super::device_instance::Compiled;
use super::device_instance::DeviceInstance;
use super::device_instance::DispatchRequest;
use super::device_instance::QueueLock;
use super::device_instance::Resolved;
use super::flight::Flight;
use super::flight::Running;
use super::latency_boost::LatencyBoost;
use super::pace::Pace;
use super::packet::Grid;
use super::packet::Launch;
use super::slices;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferAccess;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Intent;
use crate::vulkan::driver::Ticket;
use crate::vulkan::request::IN_FLIGHT;
use crate::vulkan::request::Slice;

/// State of the compute node, owned by the execution thread.
#[derive(Debug)]
pub struct ComputeNode {
    /// The primary and, where there is one, the secondary; the primary has every kernel.
    pub(super) instances: Vec<DeviceInstance>,
    /// Of the secondary's queue.
    pub(super) queue_lock: QueueLock,
    pub(super) kernels: HashMap<KernelName, Kernel>,
    pub(super) flight: Flight<Started>,
    /// It has failed once: every later request fails too, from whichever context.
    pub(super) is_lost: bool,
    pub(super) shared: Arc<Mapping>,
    /// How long a slice is to take; zero where dispatches run in one piece.
    pub(super) slice: Duration,
    /// Whether slices are to take less for now.
    pub latency_boost: LatencyBoost,
    /// How many brief dispatches are submitted together.
    pub(super) chain_length: Length,
    /// Compiles kernels for the secondary instance, where there is one.
    pub(super) second_compiler: Option<mpsc::SyncSender<Request>>,
}

/// A kernel, on one instance or both.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) serial: u64,
    pub(super) pace: Pace,
    /// It has not been compiled for the secondary instance.
    pub(super) candidate: Option<Candidate>,
}

/// A slice that was submitted to a device instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    /// Index of the device instance.
    pub(super) instance: usize,
    /// Its driver's name for it, or for all that were submitted with it.
    pub(super) ticket: Ticket,
    /// Which it is of how many that were submitted together; none where it is alone.
    pub(super) batch: Option<(usize, usize)>,
    /// What is to be run.
    pub(super) slice: Slice,
}

/// A device instance that a slice may be submitted to; by default the primary.
#[derive(Debug, Default)]
struct Entered<'a> {
    instance: usize,
    _queue_lock: Option<MutexGuard<'a, ()>>,
}

/// How far a dispatch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// Thread groups that were started, counted in x, then y, then z.
    pub done: u64,
    /// The grid where it was read from memory and some are done, else zero.
    pub grid: [u32; 3],
}

impl ComputeNode {
    /// A node without kernels, which notes in the shared block what it runs, and cuts dispatches into slices of about this
    /// length; zero for not at all. Slices take turns on the second instance of the device, where there is one.
    pub fn new(instances: Vec<DeviceInstance>, shared: Arc<Mapping>, slice: Duration) -> Self {
        let (kernels, flight, queue_lock) = (HashMap::new(), Flight::default(), QueueLock::default());
        Self {
            instances,
            queue_lock,
            kernels,
            flight,
            is_lost: false,
            shared,
            slice,
            latency_boost: LatencyBoost::default(),
            chain_length: Length::default(),
            second_compiler: None,
        }
    }

    /// Whether the driver has failed: another process has to take its place.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Adds a kernel that is compiled and warm.
    pub fn add_kernel(&mut self, name: KernelName, compiled: Compiled) {
        // Whatever had that name before.
        self.remove_kernel(name);
        let Compiled { serial, pipeline, candidate } = compiled;
        let candidate = candidate.filter(|_| self.second_compiler.is_some());
        if let Some(first) = self.instances.first_mut() {
            first.add_kernel(name, pipeline);
            self.kernels.insert(name, Kernel { serial, pace: Pace::default(), candidate });
        }
    }

    /// Forgets a kernel.
    pub fn remove_kernel(&mut self, name: KernelName) {
        self.kernels.remove(&name);
        self.instances.iter_mut().for_each(|instance| instance.remove_kernel(name));
    }

    /// Forgets what the devices made of a segment.
    pub fn forget_segment(&mut self, id: SegmentId) {
        self.instances.iter_mut().for_each(|instance| instance.forget_segment(id));
    }

    /// Starts the kernel of the packet at byte `at` of its buffer, slice by slice, from where `part` says, and notes there
    /// how far it came. Its stores are visible after [`Self::finish`]. False where `should_pause`, which is asked between
    /// slices, had it stop before the end (PRE-16).
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
                space.read_grid(address)?
            }
        };
        let total = slices::count(grid);
        // What saved that may be hostile.
        if part.done > 0 && total.is_none_or(|total| part.done > total) {
            return Err(Stop::fault(Fault::PacketField));
        }
        self.make_room(IN_FLIGHT, true)?;
        let kernel = KernelName { root: space.root, handle: launch.kernel.0 };
        let resolved = self.resolve(space, kernel, launch)?;
        note(&self.shared, launch.kernel.0, at);
        let request = DispatchRequest {
            kernel,
            resolved: &resolved,
            constants: &launch.constants,
            origin: launch.base,
        };
        let mut slice = match slices::next(grid, part.done, self.limit(kernel)) {
            Some(slice) => slice,
            None if part.done > 0 => return Ok(true),
            // Nothing to do, or too much to count: the driver says which.
            None => Slice::whole(grid),
        };
        let queue_lock = Arc::clone(&self.queue_lock);
        let mut entered = self.enter_behind(kernel, &queue_lock)?;
        loop {
            let instance = entered.instance;
            self.start(space, instance, &request, &slice)?;
            drop(entered);
            part.done += slice.count();
            if total.is_none_or(|total| part.done >= total) {
                return Ok(true);
            }
            if matches!(launch.grid, Grid::Indirect(_)) {
                part.grid = grid;
            }
            if self.kernels.get(&kernel).is_some_and(|kernel| kernel.pace.is_known()) {
                self.earn_secondary(kernel, slice.count());
                self.await_turn(kernel).map_err(Stop::fault)?;
            } else {
                // Two slices of unknown cost could be much more than one may take.
                self.make_room(1, true)?;
            }
            if should_pause() {
                return Ok(false);
            }
            if let Some(ended) = self.run_ahead(space, &request, grid, part, should_pause)? {
                return Ok(ended);
            }
            match slices::next(grid, part.done, self.limit(kernel)) {
                Some(next) => slice = next,
                None => return Ok(true),
            }
            // What is in flight now is of this dispatch, and may end in any order.
            entered = self.enter(self.next_instance(), kernel, &queue_lock).unwrap_or_default();
        }
    }

    /// Enters the instance for what must not begin before the end of what is in flight: the same one.
    fn enter_behind<'a>(
        &mut self,
        kernel: KernelName,
        queue_lock: &'a QueueLock,
    ) -> Result<Entered<'a>, Stop> {
        let busy = self.flight.oldest().map_or(0, |oldest| oldest.ticket.instance);
        if let Some(entered) = self.enter(busy, kernel, queue_lock) {
            return Ok(entered);
        }
        self.make_room(1, true)?;
        Ok(Entered::default())
    }

    /// The instance after that of the newest slice.
    pub(super) fn next_instance(&self) -> usize {
        self.flight.newest().map_or(0, |newest| newest.ticket.instance + 1) % self.instances.len().max(1)
    }

    /// Enters this instance, if it has the kernel, and no compilation runs there.
    fn enter<'a>(
        &self,
        instance: usize,
        kernel: KernelName,
        queue_lock: &'a QueueLock,
    ) -> Option<Entered<'a>> {
        self.instances.get(instance).filter(|instance| instance.has_kernel(kernel))?;
        let queue_lock = if instance == 0 { None } else { Some(queue_lock.try_lock().ok()?) };
        Some(Entered { instance, _queue_lock: queue_lock })
    }

    /// Groups that a slice of this kernel may have.
    pub(super) fn limit(&self, kernel: KernelName) -> u64 {
        match self.latency_boost.slice(self.slice, Instant::now()) {
            Duration::ZERO => u64::MAX,
            slice => self.kernels.get(&kernel).map_or(1, |kernel| kernel.pace.groups(slice)),
        }
    }

    /// Finds what the packet binds.
    pub(super) fn resolve(
        &mut self,
        space: &Space<'_>,
        name: KernelName,
        launch: &Launch,
    ) -> Result<Vec<Resolved>, Stop> {
        let declared = self.instances.first().and_then(|instance| instance.bindings(name));
        let declared = declared.ok_or(Stop::Fault(Fault::UnknownKernel, name.handle))?;
        let mut resolved = Vec::with_capacity(launch.bindings.len());
        for binding in &launch.bindings {
            let point = BindingPoint {
                set: binding.set.into(),
                binding: binding.slot.into(),
                element: binding.element.into(),
            };
            let intent = match point.find(declared).map(|declared| declared.access) {
                Some(BufferAccess::Read) => Intent::Read,
                Some(BufferAccess::ReadWrite) => Intent::Write,
                None => return Err(Stop::Fault(Fault::Bindings, binding.va)),
            };
            let runs = space.runs(binding.va, binding.length, intent)?;
            // A binding lies in one allocation, and an allocation in one piece.
            let [run] = runs[..] else { return Err(Stop::Fault(Fault::Bindings, binding.va)) };
            resolved.push(Resolved { binding: point, run, va: binding.va, format: binding.format });
        }
        Ok(resolved)
    }

    /// Submits a slice to a device instance, which has room for it.
    pub(super) fn start(
        &mut self,
        space: &Space<'_>,
        instance: usize,
        request: &DispatchRequest<'_>,
        slice: &Slice,
    ) -> Result<(), Stop> {
        let started = Instant::now();
        let ticket = self.hand_over(space, instance, request, std::slice::from_ref(slice))?;
        self.push(request.kernel, Started { instance, ticket, batch: None, slice: *slice }, started);
        Ok(())
    }

    /// Submits slices to a device instance, which has room for them.
    pub(super) fn hand_over(
        &mut self,
        space: &Space<'_>,
        instance: usize,
        request: &DispatchRequest<'_>,
        slices: &[Slice],
    ) -> Result<Ticket, Stop> {
        let instance = self.instances.get_mut(instance).ok_or(Stop::fault(Fault::Driver))?;
        request.resolved.iter().try_for_each(|resolved| instance.import(space, resolved))?;
        instance.start(request, slices).map_err(|error| {
            if error.is_of_the_driver() {
                fail(&mut self.is_lost, &error);
                return Stop::fault(Fault::Driver);
            }
            log::debug!("a dispatch was refused: {error}");
            Stop::fault(Fault::Bindings)
        })
    }

    /// A slice is in flight.
    pub(super) fn push(&mut self, kernel: KernelName, slice: Started, started: Instant) {
        let groups = slice.slice.count();
        let likely = self.kernels.get(&kernel).map_or(Duration::ZERO, |kernel| kernel.pace.likely(groups));
        self.flight.push(Running { ticket: slice, kernel, groups, started, likely });
    }

    /// Waits until less than `most` is in flight.
    fn make_room(&mut self, most: usize, spin: bool) -> Result<(), Stop> {
        while self.flight.len() >= most {
            self.finish_oldest(spin).map_err(Stop::fault)?;
        }
        Ok(())
    }

    /// Waits for the oldest slice: by looking first where the next one waits for this, else asleep, since a CPU driver
    /// wants the core.
    pub(super) fn finish_oldest(&mut self, spin: bool) -> Result<(), Fault> {
        let Some(oldest) = self.flight.oldest() else { return Ok(()) };
        let Started { instance, ticket, .. } = oldest.ticket;
        let driver = self.instances.get_mut(instance).ok_or(Fault::Driver)?.driver();
        let waited = if spin { driver.wait(ticket) } else { driver.sleep(ticket) };
        waited.map_err(|error| self.lose(&error))?;
        if let Some(ended) = self.flight.end(Instant::now()) {
            self.learn(&ended, false);
        }
        Ok(())
    }

    /// The driver has failed, and says no more of what is in flight.
    pub(super) fn lose(&mut self, error: &dyn std::error::Error) -> Fault {
        fail(&mut self.is_lost, error);
        self.flight.abandon();
        Fault::Driver
    }

    /// Waits until all that was started is done and its stores are visible, and has what is started next see the stores of others.
    pub fn finish(&mut self) -> Result<(), Fault> {
        self.drain()?;
        let mut settled = self.instances.iter_mut().map(|instance| instance.driver().settle());
        settled.find_map(Result::err).map_or(Ok(()), |error| Err(self.lose(&error)))
    }

    /// Waits until all that was started is done; what is started next sees its stores.
    pub fn drain(&mut self) -> Result<(), Fault> {
        let mut outcome = Ok(());
        while !self.flight.is_empty() {
            outcome = outcome.and(self.finish_oldest(true));
        }
        note(&self.shared, 0, 0);
        // What a driver that has failed still stores is unknown.
        if self.is_lost { Err(Fault::Driver) } else { outcome }
    }
}

/// Notes in the shared block which kernel runs, started by the packet at byte `at` of its buffer, should it never end.
pub(super) fn note(shared: &Mapping, kernel: u64, at: usize) {
    for (place, value) in [(block::LAUNCHED, kernel), (block::LAUNCHED_AT, at as u64)] {
        if let Some(word) = shared.word(place) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// The driver has failed: it is said once, and another process takes over.
fn fail(is_lost: &mut bool, error: &dyn std::error::Error) {
    if !std::mem::replace(is_lost, true) {
        log::error!("the driver failed, and this engine with it: {error}");
    }
}
