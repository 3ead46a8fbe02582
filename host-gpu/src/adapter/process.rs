//! The handle of an engine: the daemon's half of it, over all processes that work on its shared block.
//!
//! ```text
//!   EngineProcess ─┬─ parts over the shared block ─▶ tables, contexts, hw_queue, schedule, segments, page_tables,
//!                  │                                 native_fences, uses, power
//!                  ├─ tracking                     ─▶ what its processes write
//!                  ├─ conversation, instance       ─▶ the process that is there
//!                  └─ spare                        ─▶ the one that takes its place
//! ```
//!
//! Each part owns its state and its words of the block; only what starts, ends or tells a process is here.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::handshake::power;
use campanile_protocol::page_table::SegmentId;

use super::code_log::CodeLog;
use super::conversation::Conversation;
use super::ddi::Adapter;
use super::error::AdapterError;
use super::hw_queue::HwQueue;
use super::launcher::Instance;
use super::launcher::Launched;
use super::launcher::Launcher;
use super::launcher::Memory;
use super::launcher::Own;
use super::native_fences::NativeFences;
use super::power::Power;
use super::residency::Uses;
use super::scheduling::Schedule;
use super::segments::Announcements;
use super::segments::Invalidations;
pub use super::shared::GrantHandle;
use super::shared::SharedBlock;
use super::stderr::Allowance;
pub use super::successor::Spare;
use super::successor::Successor;
use super::successor::Waiting;
use super::suspends::Contexts;
use super::tables::Tables;
use super::tracking::Tracking;
use crate::dirty::method::Method;
use crate::engine::channel::ChannelError;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::ids::QueueIndex;
use crate::kernel::name::KernelName;

/// An engine: its shared block, and the process that works on it, if there is one.
#[derive(Debug)]
pub struct EngineProcess {
    pub(super) shared: Arc<SharedBlock>,
    /// Guest processes, user-mode queues and doorbells.
    pub tables: Tables,
    /// Contexts and their suspends.
    pub contexts: Contexts,
    /// Kernel-mode buffers.
    pub hw_queue: HwQueue,
    /// Bands, the scheduling log, slices.
    pub schedule: Schedule,
    /// Segments that it is told of.
    pub segments: Announcements,
    /// What it is told to forget of page tables.
    pub page_tables: Invalidations,
    /// Native fences.
    pub native_fences: NativeFences,
    /// What it misses and has used.
    pub uses: Uses,
    /// Whether it gets further, sleeps or hangs.
    pub power: Power,
    /// What it writes.
    pub tracking: Tracking,
    pub(super) node: NodeKind,
    /// None where none was started yet, or the last was ended.
    instance: Option<Box<dyn Instance>>,
    conversation: Conversation,
    /// The process that takes its place, where one was started ahead.
    pub(super) successor: Successor,
    /// Kernels that this one was asked to compile before it took its place.
    pub(super) ahead: Vec<KernelName>,
    /// Whether any was ever started, as a spare at least.
    has_begun: bool,
    /// What its processes may write to standard error.
    allowance: Arc<Allowance>,
}

impl EngineProcess {
    /// Starts a process; it answers `Started` or `Refused` later.
    ///
    /// # Errors
    /// It cannot be started; memory or descriptors could not be had.
    pub fn spawn(launcher: &dyn Launcher, start: &Start, memory: Memory<'_>) -> io::Result<Self> {
        let mut engine = Self::unstarted(start.node)?;
        engine.begin_tracking(start, memory)?;
        let launched = engine.launch(launcher, start, memory)?;
        engine.seat(launched.into());
        Ok(engine)
    }

    /// The shared block alone, as if its process had ended: tables can be filled before [`Self::revive`] starts one.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub fn unstarted(node: NodeKind) -> io::Result<Self> {
        let shared = Arc::new(SharedBlock::new()?);
        let of = || Arc::clone(&shared);
        Ok(Self {
            tables: Tables::new(of()),
            contexts: Contexts::new(of()),
            hw_queue: HwQueue::new(of()),
            schedule: Schedule::new(of()),
            segments: Announcements::new(of()),
            page_tables: Invalidations::new(of()),
            native_fences: NativeFences::new(of()),
            uses: Uses::new(of()),
            power: Power::new(of()),
            // Nothing writes before a process is started.
            tracking: Tracking::new(Method::Off, None, 0)?,
            node,
            instance: None,
            conversation: Conversation::with_none()?,
            successor: Successor::default(),
            ahead: Vec::new(),
            has_begun: false,
            allowance: Arc::default(),
            shared,
        })
    }

    /// A test plays its process, or no longer does.
    #[cfg(test)]
    pub(crate) fn play(&mut self, is_there: bool) {
        self.shared.set_lost(!is_there);
    }

    /// The file that the shared block lies in.
    pub fn block(&self) -> &Arc<File> {
        &self.shared.file
    }

    /// Readable when the engine has something to report.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Readable when a response is there, or the process is gone.
    pub fn channel_fd(&self) -> BorrowedFd<'_> {
        self.conversation.as_fd()
    }

    /// For the supervisor.
    pub fn grant_handle(&self) -> GrantHandle {
        GrantHandle {
            shared: Arc::clone(&self.shared.mapping),
            file: Arc::clone(&self.shared.file),
            process: self.instance.as_ref().map(|instance| instance.id()),
            wake: Arc::clone(&self.shared.wake),
            asks: Arc::clone(&self.shared.asks),
        }
    }

    /// Operating-system id, for the log; 0 where none was started yet.
    pub fn pid(&self) -> u32 {
        self.instance.as_ref().map_or(0, |instance| instance.id())
    }

    /// Whether the process is gone.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// Takes the event signal before the words are read.
    pub fn drain_event(&self) {
        self.shared.event.drain();
    }

    /// Has the daemon look at the words again after all else that it has to do, as if the engine had signalled.
    pub fn look_again(&self) {
        self.shared.event.signal();
    }

    /// Has an engine that sleeps, or naps, look at what it waits for.
    pub fn poke(&self) {
        self.shared.poke();
    }

    /// Has the engine look at its rings, asleep or not (UMS-94).
    pub fn wake(&self) {
        self.shared.wake.signal();
    }

    /// Has the engine look at a queue's write pointer when it next looks at the slots (UMS-64, UMS-71). False when
    /// that was asked already, and the engine has not looked yet.
    pub fn ask_look(&self, queue: QueueIndex) -> bool {
        self.shared.ask_look(queue)
    }

    /// Has the engine acknowledge something, for no other reason than to see whether it does.
    pub fn ask_acknowledgement(&mut self) {
        self.shared.changed();
    }

    /// The watch sequence of the last change.
    pub fn watch_sequence(&self) -> u64 {
        self.shared.sequence()
    }

    /// The last watch sequence that the engine has acted on; a lost engine has acted on all.
    pub fn watch_acknowledged(&self) -> u64 {
        self.shared.acknowledged()
    }

    /// Whether the engine has acted on all changes.
    pub fn is_up_to_date(&self) -> bool {
        self.watch_acknowledged() >= self.watch_sequence()
    }

    /// The next response. One that has come up is tracked, and then told to begin: see [`Self::pay_begin`].
    ///
    /// # Errors
    /// `Closed` when the process is gone; others when it said what it may not: it is to be ended.
    pub fn receive(&mut self) -> Result<Option<Response>, ChannelError> {
        let response = self.conversation.receive()?;
        match &response {
            Some(Response::Started { vram, .. }) => {
                self.tracking.attach(self.pid(), *vram);
                match self.pay_begin() {
                    Ok(()) | Err(AdapterError::Lost | AdapterError::Channel(ChannelError::Full)) => {}
                    Err(AdapterError::Channel(error)) => return Err(error),
                    Err(error) => return Err(io::Error::other(error).into()),
                }
            }
            Some(Response::SegmentAdded { segment, serial, address }) => {
                self.tracking.view().segment_is_mapped(SegmentId(*segment), *serial, *address);
            }
            _ => {}
        }
        Ok(response)
    }

    /// The descriptor of memory that a process has allocated, once it has said so.
    pub fn take_allocated(&self) -> Option<OwnedFd> {
        self.conversation.take_allocated()
    }

    /// Tells a process to begin that has come up and was not told yet.
    ///
    /// # Errors
    /// The channel is full, so it is still to be told; or it is gone.
    pub fn pay_begin(&self) -> Result<(), AdapterError> {
        if !self.is_lost() {
            self.conversation.pay_begin(self.segments.announced())?;
        }
        Ok(())
    }

    /// Sends a request; a full channel is an error, never a wait.
    ///
    /// # Errors
    /// The channel is full or closed, or the process is gone.
    pub fn request(
        &self,
        request: &Request,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), AdapterError> {
        if self.is_lost() {
            return Err(AdapterError::Lost);
        }
        self.conversation.send(request, bytes, descriptors)?;
        if let Request::RemoveSegment { segment, .. } = request {
            self.tracking.view().remove_segment(SegmentId(*segment));
        }
        Ok(())
    }

    /// It is about to be told, by the request with this serial, to map a segment of guest RAM of `length` bytes.
    pub fn announce_segment(&self, id: SegmentId, serial: u64, length: u64) {
        self.tracking.announce_segment(id, serial, length, self.is_lost());
    }

    /// Stops the process where it is, for a debugger; only a reset ends that.
    pub fn hold(&self) {
        if let Some(instance) = self.instance.as_ref().filter(|_| !self.is_lost()) {
            instance.hold();
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        // A channel is closed some time before the process can be reaped.
        self.conversation.is_closed() || self.instance.as_mut().is_some_and(|instance| !instance.is_there())
    }

    /// How the process ended whose channel is closed, in words. It is not reaped by that.
    pub fn ending(&self) -> String {
        match self.instance.as_ref().filter(|_| !self.is_lost()) {
            Some(instance) => instance.ending(),
            None => "the engine process ended".to_owned(),
        }
    }

    /// Starts another process in the place of one that was reset. Processes, queues, doorbells and kernel-mode
    /// buffers stay what they were: it goes on where the other stopped (TDR-57). Segments and kernels are not: it
    /// must be told of them before it is given its node.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn revive(&mut self, launcher: &dyn Launcher, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        let shared = &self.shared;
        shared.store(block::POWER, power::ACTIVE);
        // As the supervisor expects it of a new process; what the last one stored there counts for nothing.
        shared.store(block::GRANT, Grant { phase: Phase::Idle, generation: 0 }.word());
        shared.store(block::PROGRESS, 0);
        self.contexts.report_suspends();
        self.hw_queue.report_preemption();
        shared.store(block::LAUNCHED, 0);
        shared.store(block::LAST_CONTEXT, 0);
        self.segments.forget();
        self.begin_tracking(start, memory)?;
        let next = match self.successor.take() {
            Some(spare) => spare,
            None => self.launch(launcher, start, memory)?.into(),
        };
        self.seat(next);
        self.tracking.renew();
        self.hw_queue.forget_snapshot();
        Ok(())
    }

    /// Before the first process, or spare, of all is started.
    pub(super) fn begin_tracking(&mut self, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.tracking = Tracking::new(start.tracking, memory.tracker, start.vram_bytes)?;
        }
        Ok(())
    }

    pub(super) fn launch(
        &self,
        launcher: &dyn Launcher,
        start: &Start,
        memory: Memory<'_>,
    ) -> io::Result<Launched> {
        let planes = self.tracking.planes.as_ref().map(|planes| planes.file());
        let SharedBlock { file, event, asks, wake, .. } = &*self.shared;
        let own = Own { block: file, planes, event, asks, wake, allowance: &self.allowance };
        let start = Start { code_mib: memory.code.map_or(0, CodeLog::mib), ..start.clone() };
        launcher.launch(&start, memory, own)
    }

    /// Listens to a process from now on.
    fn seat(&mut self, Waiting { instance, conversation, ahead }: Waiting) {
        (self.instance, self.conversation, self.ahead) = (instance, conversation, ahead);
        self.shared.set_lost(false);
    }

    /// See [`Adapter::reset_engine`]. A process that is known to stand still is not waited for until it is gone,
    /// which takes the longer the more it had mapped: no other request of its VM would be served meanwhile.
    pub(super) fn end_and_abort(&mut self) -> Result<u64, AdapterError> {
        let snapshot = self.hw_queue.noted();
        if !self.is_lost() {
            if let Some(mut instance) = self.instance.take() {
                if self.tracking.before_kill(&*instance) {
                    instance.discard();
                } else if let Err(error) = instance.end() {
                    self.instance = Some(instance);
                    return Err(error);
                }
            }
            self.shared.set_lost(true);
            self.tracking.after_end();
        }
        // From here on nothing of it touches memory.
        Ok(self.hw_queue.abort(snapshot))
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.drop_spare();
        if self.is_lost() {
            return;
        }
        if let Err(error) = self.reset_engine() {
            log::error!("{error}");
        }
    }
}

#[cfg(test)]
mod tests;
