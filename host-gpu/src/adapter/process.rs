//! An engine process, from the daemon.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::power;
use campanile_protocol::page_table::SegmentId;

use super::Adapter;
use super::error::AdapterError;
use super::indices::Indices;
use super::program::Memory;
use super::program::Program;
use super::scheduling::Preemptions;
use super::stderr::Allowance;
use super::suspends::Contexts;
use super::teardown::Snapshot;
use super::tracking::Tracking;
use crate::dirty::method::Method;
use crate::engine::answers::Answers;
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
    /// None where none was started yet, or the last was killed.
    pub(super) child: Option<Child>,
    /// Whether any was ever started, as a spare at least.
    pub(super) has_begun: bool,
    pub(super) channel: Channel,
    pub(super) block: File,
    pub(super) shared: Arc<Mapping>,
    pub(super) event: Event,
    pub(super) wake: Arc<Event>,
    pub(super) asks: Arc<Event>,
    pub(super) sequence: u64,
    pub(super) generation: u64,
    /// Serial of the last request to add or remove a segment.
    pub(super) segments_announced: u64,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) progress: u64,
    pub(super) notified: u64,
    pub(super) found_by_look: u64,
    pub(super) doorbell_generation: u16,
    pub(super) processes: Indices,
    pub(super) queues: Indices,
    pub(super) contexts: Contexts,
    pub(super) preemptions: Preemptions,
    pub(super) lost: bool,
    /// Ids of the kernel-mode buffers in the hardware queue, oldest first.
    pub(super) fence_ids: VecDeque<u64>,
    pub(super) last_submitted: u64,
    pub(super) last_completed: u64,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) node: NodeKind,
    pub(super) tracking: Tracking,
    /// It is to be told to begin, as soon as its channel has room.
    pub(super) owes_begin: Cell<bool>,
    /// What this process still has to answer.
    pub(super) answers: RefCell<Answers>,
    /// The process that takes its place, where one was started ahead.
    pub(super) spare: Option<(Option<Child>, Channel)>,
    /// What its processes may write to standard error.
    pub(super) allowance: Arc<Allowance>,
}

/// What the supervisor needs of an engine to give it the node and take it back.
#[derive(Debug, Clone)]
pub struct GrantHandle {
    /// The shared block.
    pub shared: Arc<Mapping>,
    /// Wakes the engine.
    pub wake: Arc<Event>,
    /// The engine wants the node, gives it back, or has something to say of it. The engine may signal, drain and change it at
    /// will: a read of it may wait for ever.
    pub asks: Arc<Event>,
}

impl EngineProcess {
    /// Starts a process; it answers `Started` or `Refused` later.
    pub fn spawn(program: &Program, start: &Start, memory: Memory<'_>) -> io::Result<Self> {
        let mut engine = Self::unstarted(start.node)?;
        engine.begin_tracking(start, memory)?;
        let (child, channel) = engine.launch(program, start, memory)?;
        (engine.child, engine.channel, engine.lost) = (child, channel, false);
        Ok(engine)
    }

    /// The shared block alone, as if its process had ended: tables can be filled before [`Self::revive`] starts one.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub fn unstarted(node: NodeKind) -> io::Result<Self> {
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
        let asks = Event::new()?;
        // Nobody is at its other end.
        let (channel, _) = Channel::pair()?;
        Ok(Self {
            child: None,
            has_begun: false,
            channel,
            block,
            shared: Arc::new(shared),
            event,
            wake: Arc::new(wake),
            asks: Arc::new(asks),
            sequence: 0,
            generation: 0,
            segments_announced: 0,
            submitted: 0,
            completed: 0,
            progress: 0,
            notified: 0,
            found_by_look: 0,
            doorbell_generation: 0,
            processes: Indices::new(block::MAX_PROCESSES),
            queues: Indices::new(block::MAX_QUEUES),
            contexts: Contexts::default(),
            preemptions: Preemptions::default(),
            lost: true,
            fence_ids: VecDeque::new(),
            last_submitted: 0,
            last_completed: 0,
            snapshot: None,
            node,
            // Nothing writes before a process is started.
            tracking: Tracking::new(Method::Off, None, 0)?,
            owes_begin: Cell::new(false),
            answers: RefCell::default(),
            spare: None,
            allowance: Arc::default(),
        })
    }

    /// A test plays its process, or no longer does.
    #[cfg(test)]
    pub(crate) fn play(&mut self, is_there: bool) {
        self.lost = !is_there;
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
        GrantHandle {
            shared: Arc::clone(&self.shared),
            wake: Arc::clone(&self.wake),
            asks: Arc::clone(&self.asks),
        }
    }

    /// Operating-system id, for the log; 0 where none was started yet.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Whether the process is gone.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Takes the event signal before the words are read.
    pub fn drain_event(&self) {
        self.event.drain();
    }

    /// Has the daemon look at the words again after all else that it has to do, as if the engine had signalled.
    pub fn look_again(&self) {
        self.event.signal();
    }

    /// The next response. One that has come up is tracked, and then told to begin: see [`Self::pay_begin`].
    ///
    /// # Errors
    /// `Closed` when the process is gone; others when it said what it may not: it is to be ended.
    pub fn receive(&mut self) -> Result<Option<Response>, ChannelError> {
        let response = self.channel.receive::<Response>(false)?.map(|received| received.message);
        if let Some(response) = &response {
            self.answers.borrow_mut().judge(response)?;
        }
        match &response {
            Some(Response::Started { vram, .. }) => {
                self.tracking.attach(self.pid(), *vram);
                self.owes_begin.set(true);
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

    /// Tells a process to begin that has come up and was not told yet.
    ///
    /// # Errors
    /// The channel is full, so it is still to be told; or it is gone.
    pub fn pay_begin(&self) -> Result<(), AdapterError> {
        if self.owes_begin.get() && !self.lost {
            let begin = Request::Begin { segments: self.segments_announced };
            self.channel.send(&begin, &[], &[], false)?;
            self.owes_begin.set(false);
        }
        Ok(())
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
        self.channel.send(request, bytes, descriptors, false)?;
        self.answers.borrow_mut().asked(request);
        if let Request::RemoveSegment { segment, .. } = request {
            self.tracking.view().remove_segment(SegmentId(*segment));
        }
        Ok(())
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

    pub(super) fn change(&mut self) {
        self.sequence += 1;
        // PAIRS WITH engine/watch.rs `refresh`.
        self.store(block::WATCH_SEQUENCE, self.sequence);
    }

    /// The engine has to look at a table up to this place; before the watch sequence.
    pub(super) fn uses(&self, word: u64, index: u32) {
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::SendFlags;

    use super::Channel;
    use super::ChannelError;
    use super::EngineProcess;
    use super::NodeKind;
    use super::Request;
    use super::Response;
    use crate::engine::answers::Breach;

    /// A node whose engine is the test, at the other end of its channel.
    fn bench() -> (EngineProcess, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        (engine.channel, engine.lost) = (ours, false);
        (engine, theirs)
    }

    fn started() -> Response {
        Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 4096 }
    }

    #[test]
    fn an_engine_that_says_twice_that_it_has_started_is_told_to_begin_once() {
        let (mut engine, theirs) = bench();
        theirs.send(&started(), &[], &[], true).unwrap();
        theirs.send(&started(), &[], &[], true).unwrap();
        assert_eq!(engine.receive().unwrap(), Some(started()));
        assert!(matches!(engine.receive(), Err(ChannelError::Breach(Breach::StartedTwice))));
        let begin = theirs.receive::<Request>(false).unwrap().unwrap().message;
        assert_eq!(begin, Request::Begin { segments: 0 });
        assert!(theirs.receive::<Request>(false).unwrap().is_none(), "it begins once");
        engine.lost = true;
    }

    #[test]
    fn an_engine_answers_what_it_was_sent_and_nothing_else() {
        let (mut engine, theirs) = bench();
        theirs.send(&started(), &[], &[], true).unwrap();
        engine.receive().unwrap();
        let kernel = crate::kernel::name::KernelName { root: 1, handle: 2 };
        let gone = Response::KernelDestroyed { kernel };
        engine.request(&Request::DestroyKernel { kernel }, &[], &[]).unwrap();
        theirs.send(&gone, &[], &[], true).unwrap();
        theirs.send(&gone, &[], &[], true).unwrap();
        assert_eq!(engine.receive().unwrap(), Some(gone));
        assert!(matches!(engine.receive(), Err(ChannelError::Breach(Breach::Unasked(_)))));
        engine.lost = true;
    }

    #[test]
    fn what_is_no_message_of_an_engine_is_an_error_and_no_more() {
        let mut long = vec![0; 64 << 10];
        long[..4].copy_from_slice(b"CPE1");
        for packet in [vec![0xff; 100], b"CPE1".to_vec(), long] {
            let (mut engine, theirs) = bench();
            rustix::net::send(&theirs, &packet, SendFlags::NOSIGNAL).unwrap();
            let why = engine.receive().unwrap_err();
            assert!(matches!(why, ChannelError::Malformed(_) | ChannelError::Truncated), "{why}");
            engine.lost = true;
        }
        let (mut engine, theirs) = bench();
        theirs.send(&Request::Begin { segments: 0 }, &[], &[], true).unwrap();
        assert!(matches!(engine.receive(), Err(ChannelError::Malformed(_))), "a message of the daemon");
        theirs.send(&started(), &[], &[theirs.as_fd()], true).unwrap();
        assert!(matches!(engine.receive(), Err(ChannelError::Malformed(_))), "with a descriptor");
        drop(theirs);
        assert!(matches!(engine.receive(), Err(ChannelError::Closed)));
        engine.lost = true;
    }
}
