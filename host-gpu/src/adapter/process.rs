//! An engine process, from the daemon.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::engine::suspension::Suspension;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::power;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::Adapter;
use super::AdapterError;
use super::debug_info::DebugInfo;
use super::indices::Indices;
use super::program::Memory;
use super::program::Program;
use super::program::launch;
use super::suspends::Contexts;
use super::teardown::Snapshot;
use crate::engine::channel::Channel;
use crate::engine::channel::ChannelError;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::event::Event;
use crate::memory::bits;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram;

/// An engine process.
#[derive(Debug)]
pub struct EngineProcess {
    pub(super) child: Child,
    pub(super) channel: Channel,
    pub(super) block: File,
    pub(super) shared: Arc<Mapping>,
    pub(super) event: Event,
    pub(super) wake: Arc<Event>,
    pub(super) sequence: u64,
    generation: u64,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    progress: u64,
    notified: u64,
    pub(super) found_by_look: u64,
    doorbell_generation: u16,
    processes: Indices,
    queues: Indices,
    pub(super) contexts: Contexts,
    pub(super) lost: bool,
    /// Ids of the kernel-mode buffers in the hardware queue, oldest first.
    pub(super) fence_ids: VecDeque<u64>,
    pub(super) last_submitted: u64,
    pub(super) last_completed: u64,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) node: NodeKind,
    /// The process that takes its place, where one was started ahead.
    pub(super) spare: Option<(Child, Channel)>,
}

/// What the supervisor needs of an engine to give it the node and take it back.
#[derive(Debug, Clone)]
pub struct GrantHandle {
    /// The shared block.
    pub shared: Arc<Mapping>,
    /// Wakes the engine.
    pub wake: Arc<Event>,
}

impl EngineProcess {
    /// Starts a process; it answers `Started` or `Refused` later.
    pub fn spawn(program: &Program, start: &Start, memory: Memory<'_>) -> io::Result<Self> {
        let block = vram::create_memfd("campanile-engine-block", block::BLOCK_BYTES)?;
        let shared = Mapping::new(block.try_clone()?, 0, block::BLOCK_BYTES, Access::ReadWrite)
            .map_err(io::Error::other)?;
        for queue in 0..block::MAX_QUEUES {
            if let Some(word) = shared.word(block::queue(queue) + block::QUEUE_MONITORED) {
                word.store(fence::NOBODY, Ordering::Relaxed);
            }
        }
        if let Some(word) = shared.word(block::LISTENER) {
            word.store(power::ASLEEP, Ordering::Relaxed);
        }
        let event = Event::new()?;
        let wake = Event::new()?;
        let (child, channel) = launch(program, start, memory, &block, &event, &wake)?;
        Ok(Self {
            child,
            channel,
            block,
            shared: Arc::new(shared),
            event,
            wake: Arc::new(wake),
            sequence: 0,
            generation: 0,
            submitted: 0,
            completed: 0,
            progress: 0,
            notified: 0,
            found_by_look: 0,
            doorbell_generation: 0,
            processes: Indices::new(block::MAX_PROCESSES),
            queues: Indices::new(block::MAX_QUEUES),
            contexts: Contexts::default(),
            lost: false,
            fence_ids: VecDeque::new(),
            last_submitted: 0,
            last_completed: 0,
            snapshot: None,
            node: start.node,
            spare: None,
        })
    }

    /// Readable when the engine has something to report.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Readable when a response is there, or the process is gone.
    pub fn channel_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// For the supervisor.
    pub fn grant_handle(&self) -> GrantHandle {
        GrantHandle { shared: Arc::clone(&self.shared), wake: Arc::clone(&self.wake) }
    }

    /// Operating-system id, for the log.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process is gone.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Takes the event signal before the words are read.
    pub fn drain_event(&self) {
        self.event.drain();
    }

    /// The next response. `Err(Closed)` when the process is gone.
    pub fn receive(&self) -> Result<Option<Response>, ChannelError> {
        Ok(self.channel.receive::<Response>(false)?.map(|received| received.message))
    }

    /// Sends a request; a full channel is an error, never a wait.
    pub fn request(
        &self,
        request: &Request,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), AdapterError> {
        if self.lost {
            return Err(AdapterError::Lost);
        }
        Ok(self.channel.send(request, bytes, descriptors, false)?)
    }

    pub(super) fn load(&self, offset: u64) -> u64 {
        self.shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.shared.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Has an engine that sleeps, or naps, look at what it waits for.
    pub fn poke(&self) {
        if let Some(word) = self.shared.word(block::POWER)
            && power::needs_poke(word)
        {
            self.wake.signal();
        }
    }

    /// Has the engine look at its rings, asleep or not (UMS-94).
    pub fn wake(&self) {
        self.wake.signal();
    }

    /// Has the engine look at a queue's write pointer when it next looks at the slots (UMS-64, UMS-71). False when
    /// that was asked already, and the engine has not looked yet.
    pub fn ask_look(&self, queue: u16) -> bool {
        // PAIRS WITH engine/watch.rs `refresh`: the slot has changed before.
        u32::from(queue) < block::MAX_QUEUES && bits::raise(&self.shared, block::LOOK, u32::from(queue))
    }

    pub(super) fn changed(&mut self) {
        self.change();
        self.poke();
    }

    fn change(&mut self) {
        self.sequence += 1;
        // PAIRS WITH engine/watch.rs `refresh`.
        self.store(block::WATCH_SEQUENCE, self.sequence);
    }

    /// The engine has to look at a table up to this place; before the watch sequence.
    fn uses(&self, word: u64, index: u32) {
        self.store(word, self.load(word).max(u64::from(index) + 1));
    }

    /// The watch sequence of the last change.
    pub fn watch_sequence(&self) -> u64 {
        self.sequence
    }

    /// The last watch sequence that the engine has acted on; a lost engine has acted on all.
    pub fn watch_acknowledged(&self) -> u64 {
        if self.lost { u64::MAX } else { self.load(block::WATCH_ACK).min(self.sequence) }
    }

    /// Whether the engine has acted on all changes.
    pub fn is_up_to_date(&self) -> bool {
        self.watch_acknowledged() >= self.sequence
    }

    /// Tells the engine to forget what it has resolved; returns the generation to wait for.
    pub fn invalidate_page_tables(&mut self) -> u64 {
        self.generation += 1;
        self.store(block::PAGE_TABLE_GENERATION, self.generation);
        self.poke();
        self.generation
    }

    /// The last generation that was asked for.
    pub fn page_table_generation(&self) -> u64 {
        self.generation
    }

    /// The generation that the engine has acknowledged; a lost engine holds nothing.
    pub fn page_tables_acknowledged(&self) -> u64 {
        if self.lost { u64::MAX } else { self.load(block::PAGE_TABLE_ACK).min(self.generation) }
    }

    /// Lets the engine sleep: its doorbells are disconnected. False when work came to it meanwhile.
    pub fn allow_f1(&mut self) -> bool {
        let allowed = self.shared.word(block::POWER).is_some_and(power::allow_f1);
        self.poke();
        allowed
    }
}

impl Adapter for EngineProcess {
    fn create_process(&mut self, root: u64, page_va: u64, global_cell: u64) -> Result<u32, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let (index, generation) =
            self.processes.take(acknowledged).ok_or(AdapterError::Full("process entry"))?;
        let entry = ProcessEntry { generation: 0, root, page_va, global_cell };
        if let Some(slice) = self.shared.slice(block::process(index), size_of::<ProcessEntry>() as u64) {
            slice.copy_from(entry.as_bytes());
        }
        self.store(block::process(index), generation);
        self.uses(block::USED_PROCESSES, index);
        self.changed();
        Ok(index)
    }

    fn destroy_process(&mut self, process: u32) {
        self.store(block::process(process), 0);
        self.changed();
        self.processes.retire(process, self.sequence);
    }

    fn create_context(&mut self) -> Result<u32, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let index = self.contexts.take(acknowledged).ok_or(AdapterError::Full("context entry"))?;
        // The engine has acknowledged the end of the context before it, and touches neither until it is asked.
        self.store(block::context_request(index), Suspension::default().word());
        self.store(block::context_report(index), 0);
        Ok(index)
    }

    fn destroy_context(&mut self, context: u32) {
        self.changed();
        self.contexts.retire(context, self.sequence);
    }

    fn suspend_context(&mut self, context: u32) -> u64 {
        self.change_suspension(context, Suspension::suspend).fence
    }

    fn resume_context(&mut self, context: u32) {
        let _resumed = self.change_suspension(context, Suspension::resume);
    }

    fn create_hw_queue(&mut self, entry: QueueEntry) -> Result<u16, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let (index, generation) = self.queues.take(acknowledged).ok_or(AdapterError::Full("queue entry"))?;
        let place = block::queue(index);
        let words = [
            (block::QUEUE_CONSUMED, entry.consumed),
            (block::QUEUE_COMPLETED, entry.completed),
            (block::QUEUE_FAULT, 0),
            (block::QUEUE_FAULT_VA, 0),
            (block::QUEUE_SAVED, 0),
            (block::QUEUE_DRAIN, 0),
            (block::QUEUE_DRAINED, 0),
        ];
        for (offset, value) in words {
            self.store(place + offset, value);
        }
        self.store(place + block::QUEUE_MONITORED, fence::NOBODY);
        if let Some(slice) = self.shared.slice(place, size_of::<QueueEntry>() as u64) {
            slice.copy_from(QueueEntry { generation: 0, ..entry }.as_bytes());
        }
        self.store(place, generation);
        self.uses(block::USED_QUEUES, index);
        self.changed();
        u16::try_from(index).map_err(|_| AdapterError::Full("queue entry"))
    }

    fn destroy_hw_queue(&mut self, queue: u16) {
        self.store(block::queue(u32::from(queue)), 0);
        self.changed();
        self.queues.retire(u32::from(queue), self.sequence);
    }

    fn connect_doorbell(&mut self, slot: u32, queue: u16, process: u32, cell: u16) {
        self.doorbell_generation = self.doorbell_generation.wrapping_add(1);
        let process = u16::try_from(process).unwrap_or(u16::MAX);
        let watched = DoorbellSlot::watch(queue, process, cell, self.doorbell_generation);
        self.store(block::doorbell(slot), watched.0);
        self.uses(block::USED_DOORBELLS, slot);
        self.ask_look(queue);
        self.change();
    }

    fn disconnect_doorbell(&mut self, slot: u32) {
        // The engine could have changed the word, and then loses a look at a queue of its own.
        let held = DoorbellSlot(self.load(block::doorbell(slot)));
        self.store(block::doorbell(slot), DoorbellSlot::FREE.0);
        if held.is_watching() {
            self.ask_look(held.queue());
        }
        self.changed();
    }

    fn connect_notified(&mut self, queue: u16) {
        self.notified += 1;
        self.store(block::NOTIFIED, self.notified);
        self.ask_look(queue);
        self.changed();
    }

    fn disconnect_notified(&mut self, queue: u16) {
        self.notified = self.notified.saturating_sub(1);
        self.store(block::NOTIFIED, self.notified);
        self.ask_look(queue);
        self.changed();
    }

    fn notify(&mut self, queue: u16) {
        // Where it is owed already, the sequence has risen since, and the engine has not seen it yet.
        if self.ask_look(queue) {
            self.changed();
        }
    }

    fn submit_command(&mut self, submission: HwSubmission) -> Result<(), AdapterError> {
        if self.lost {
            return Err(AdapterError::Lost);
        }
        if self.submitted - self.completed >= HW_QUEUE_DEPTH {
            return Err(AdapterError::HwQueueFull);
        }
        let place = hw_queue::slot(self.submitted);
        if let Some(slice) = self.shared.slice(place, size_of::<HwSubmission>() as u64) {
            slice.copy_from(submission.as_bytes());
        }
        self.submitted += 1;
        self.fence_ids.push_back(submission.fence_id);
        self.last_submitted = submission.fence_id;
        // PAIRS WITH engine/kernel_queue.rs: the slot is there first.
        self.store(block::HW_QUEUE_SUBMITTED, self.submitted);
        self.poke();
        Ok(())
    }

    fn completed_command(&mut self) -> Option<HwResult> {
        // An engine that claims more than was submitted, or takes results back, is not believed.
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        if completed <= self.completed {
            return None;
        }
        let place = hw_queue::slot(self.completed) + hw_queue::RESULT;
        let mut bytes = [0; size_of::<HwResult>()];
        self.shared.slice(place, bytes.len() as u64)?.copy_to(&mut bytes);
        self.completed += 1;
        self.last_completed = self.fence_ids.pop_front().unwrap_or(self.last_completed);
        HwResult::read_from_bytes(&bytes).ok()
    }

    fn query_engine_status(&mut self) -> u32 {
        let progress = self.load(block::PROGRESS);
        let is_idle = Progress::from_word(progress).work == Work::Nothing;
        let responsive = progress != self.progress || is_idle;
        self.progress = progress;
        u32::from(responsive)
    }

    fn query_dependent_engine_group(&self) -> u64 {
        // Every node is a process of its own: none takes another down.
        match self.node {
            NodeKind::Compute => 1,
            NodeKind::Copy => 2,
        }
    }

    fn collect_debug_info(&self) -> DebugInfo {
        self.debug_info()
    }

    fn reset_engine(&mut self) -> Result<u64, AdapterError> {
        self.kill_and_abort()
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.drop_spare();
        if self.lost {
            return;
        }
        if let Err(error) = self.reset_engine() {
            log::error!("{error}");
        }
    }
}
