//! The queue worker: one thread a session, which owns the device.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────┐
//!        ▼                                                              │
//!   epoll_wait ─▶ mail: exit? reset, memory, log, load,                 │
//!       │               freeze or thaw, save, window, held answers        │
//!   (at once if a ring is due)                                          │
//!              ─▶ device event                                          │
//!              ─▶ each ring that is due: up to BATCH commands ──────────┘
//! ```

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use epoll::Events;

use super::answers::Answers;
use super::checkpoints::Checkpoints;
use super::counters::Count;
use super::device::Device;
use super::ring::transfer::Popped;
use super::session::Shared;
use super::state_transfer::Done;
use super::state_transfer::LoadOrder;
use crate::guest_ram::memory::GuestRam;
use crate::ledger::log::Key;
use crate::ledger::words::Words;
use crate::poller::NO_EVENT;

/// Commands taken from one ring before everything else is looked at again.
const BATCH: usize = 64;
/// A request buffer larger than this is not kept.
const KEPT_BUFFER: usize = 1 << 20;
/// How often a device that freezes is asked whether it is, apart from its events.
const A_MOMENT: Duration = Duration::from_millis(1);
const EVENTS: usize = 16;

/// What an epoll event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// Kick of a ring.
    Ring(u8),
    /// The mailbox.
    Bell,
    /// The device's own descriptor.
    Device,
}

impl Token {
    const BELL: u64 = 256;
    const DEVICE: u64 = 257;

    pub(super) fn data(self) -> u64 {
        match self {
            Self::Ring(index) => u64::from(index),
            Self::Bell => Self::BELL,
            Self::Device => Self::DEVICE,
        }
    }

    fn of(data: u64) -> Option<Self> {
        match data {
            Self::BELL => Some(Self::Bell),
            Self::DEVICE => Some(Self::Device),
            index => u8::try_from(index).ok().map(Self::Ring),
        }
    }
}

/// Why the worker ended by itself.
#[derive(Debug)]
pub(super) enum WorkerEnd {
    /// It cannot wait.
    Wait(io::Error),
    /// The device may not run, after a load.
    Start(String),
}

impl From<io::Error> for WorkerEnd {
    fn from(error: io::Error) -> Self {
        Self::Wait(error)
    }
}

/// How the device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Motion {
    Runs,
    /// Told to freeze.
    Freezes,
    Frozen,
    /// It is frozen, and its state was asked for.
    Saved,
}

/// State of the worker.
pub(super) struct Worker {
    device: Box<dyn Device>,
    shared: Shared,
    answers: Answers,
    /// Epoch that the device has been reset for.
    epoch: u64,
    /// Rings that may have something.
    due: u64,
    request: Vec<u8>,
    motion: Motion,
    /// Serial of the mail that was read last.
    serial: u64,
    /// A state was loaded, and no ring has run since.
    is_loaded: bool,
    /// Where a daemon after this one finds which chain is being handled; none where there will be none.
    words: Option<Arc<Words>>,
    /// Where it finds the device.
    checkpoints: Option<Checkpoints>,
}

impl Worker {
    pub(super) fn new(device: Box<dyn Device>, shared: Shared) -> Self {
        let answers = Answers::new(shared.rings.clone(), shared.counters.clone());
        let (motion, request) = (Motion::Runs, Vec::new());
        let (is_loaded, words, checkpoints) = (false, None, None);
        let (epoch, due, serial) = (0, 0, 0);
        Self { device, shared, answers, epoch, due, request, motion, serial, is_loaded, words, checkpoints }
    }

    /// For a daemon after this one the device is written, which chain it handles, and which are in flight.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub(super) fn write_to(&mut self, words: &Arc<Words>) -> io::Result<()> {
        for (index, ring) in (0..).zip(self.shared.rings.iter()) {
            words.ring(index).into_iter().for_each(|words| ring.lock().write_to(words));
        }
        self.words = Some(Arc::clone(words));
        self.checkpoints = Some(Checkpoints::new(&self.shared.ledger, &self.shared.counters)?);
        Ok(())
    }

    /// The device is frozen, as a process before had it.
    pub(super) fn begin_frozen(&mut self) {
        self.motion = Motion::Frozen;
    }

    /// Set where the connection goes on, served by another process.
    pub(super) fn is_handed_over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.is_handed_over)
    }

    /// Works until the mailbox says exit, or memory of the front-end turns out not to be there.
    pub(super) fn run(&mut self) -> Result<(), WorkerEnd> {
        let ended = self.work();
        // Before anything of the device ends.
        self.checkpoints = None;
        ended
    }

    fn work(&mut self) -> Result<(), WorkerEnd> {
        let poller = self.shared.poller.clone();
        poller.add(self.shared.mailbox.bell(), Token::Bell.data(), Events::EPOLLIN)?;
        if let Some(fd) = self.device.event_fd() {
            poller.add(fd, Token::Device.data(), Events::EPOLLIN)?;
        }
        let mut events = [NO_EVENT; EVENTS];
        loop {
            // Nothing that was read of it, or is written to it, counts any more.
            if self.shared.domain.fault().is_some() {
                return Ok(());
            }
            let timeout = match self.motion {
                Motion::Freezes => Some(A_MOMENT),
                Motion::Runs if self.due != 0 && !self.device.holds() => Some(Duration::ZERO),
                Motion::Runs | Motion::Frozen | Motion::Saved => self.checkpoint_due(),
            };
            let ready = match poller.wait(&mut events, timeout) {
                Ok(ready) => ready,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let (mut mail, mut event) = (false, false);
            let mut tokens = ready.filter_map(Token::of).peekable();
            if tokens.peek().is_none() {
                self.checkpoint_if_due();
            } else if let Some(checkpoints) = &mut self.checkpoints {
                checkpoints.forget();
            }
            for token in tokens {
                match token {
                    Token::Ring(index) => {
                        self.due |= 1 << index;
                        self.shared.counters.add(Count::Kicks);
                    }
                    Token::Bell => mail = true,
                    Token::Device => event = true,
                }
            }
            if mail && self.read_mail()?.is_break() {
                return Ok(());
            }
            if event {
                self.device.event(&mut self.answers);
                self.answers.flush();
            }
            self.look_whether_frozen();
            if self.motion == Motion::Runs && !self.device.holds() {
                self.serve();
            }
        }
    }

    /// How long nothing may be to do until the device is written; none where it is not to be.
    fn checkpoint_due(&self) -> Option<Duration> {
        let is_still = match self.motion {
            Motion::Runs => self.due == 0 && !self.device.holds(),
            Motion::Frozen => true,
            // One that a state was asked of may go on elsewhere.
            Motion::Freezes | Motion::Saved => false,
        };
        let may_be = is_still && !self.shared.log.is_on();
        self.checkpoints.as_ref().filter(|_| may_be)?.due()
    }

    /// Nothing is to do.
    fn checkpoint_if_due(&mut self) {
        if self.checkpoint_due().is_some_and(|left| left.is_zero())
            && let Some(checkpoints) = &mut self.checkpoints
        {
            let rings = &self.shared.rings;
            checkpoints.write(&mut *self.device, self.epoch, || {
                rings.iter().map(|ring| ring.lock().save()).collect()
            });
        }
    }

    /// The device has this memory from now on.
    pub(super) fn give_memory(&mut self, memory: Arc<GuestRam>) {
        self.device.memory_changed(memory, &mut self.answers);
        self.answers.flush();
    }

    /// One round without waiting and without mail: the device's event, then up to [`BATCH`] commands of each ring in `due`, and
    /// of those that had more in the last round.
    pub(super) fn step(&mut self, due: u64) {
        self.device.event(&mut self.answers);
        self.answers.flush();
        self.due |= due;
        self.serve();
    }

    fn read_mail(&mut self) -> Result<ControlFlow<()>, WorkerEnd> {
        let mail = self.shared.mailbox.take();
        if mail.exit {
            return Ok(ControlFlow::Break(()));
        }
        if mail.epoch != self.epoch {
            self.device.reset();
            self.epoch = mail.epoch;
            self.shared.window.set(None);
            self.shared.ledger.remove(Key::Window);
            self.motion = Motion::Runs;
            self.is_loaded = false;
        }
        if let Some(memory) = mail.memory {
            self.device.memory_changed(memory, &mut self.answers);
        }
        if let Some(log) = mail.log {
            self.device.log_changed(log);
        }
        match (mail.frozen, self.motion) {
            (true, Motion::Runs) => {
                self.motion = Motion::Freezes;
                self.device.freeze();
            }
            (false, Motion::Freezes | Motion::Frozen | Motion::Saved) => self.thaw()?,
            _ => {}
        }
        if let Some(order) = mail.load.filter(|order| order.epoch == self.epoch) {
            self.load(order);
        }
        if let Some(order) = mail.save {
            let rings = self.shared.rings.iter().map(|ring| ring.lock().save()).collect();
            order.start(rings, self.device.save());
            self.motion = Motion::Saved;
        }
        if let Some((epoch, state)) = mail.window
            && epoch == self.epoch
        {
            self.shared.window.set(Some(state.is_ok()));
            self.shared.ledger.put(Key::Window, &state.is_ok());
            self.device.window(state, &mut self.answers);
        }
        self.due |= mail.rings;
        if self.motion == Motion::Runs {
            for index in 0..self.shared.rings.len() {
                if self.due & (1 << index) != 0 {
                    self.answers.release_held(index);
                }
            }
        }
        self.answers.flush();
        self.serial = mail.serial;
        self.shared.gate.read(self.serial);
        Ok(ControlFlow::Continue(()))
    }

    /// Tells the threads that wait for it.
    fn look_whether_frozen(&mut self) {
        if self.motion == Motion::Freezes && self.device.is_frozen() {
            self.motion = Motion::Frozen;
        }
        if matches!(self.motion, Motion::Frozen | Motion::Saved) {
            self.shared.gate.frozen(self.serial);
        }
    }

    /// A ring runs again.
    fn thaw(&mut self) -> Result<(), WorkerEnd> {
        if std::mem::take(&mut self.is_loaded) {
            self.device.started().map_err(WorkerEnd::Start)?;
        }
        self.motion = Motion::Runs;
        self.device.thaw();
        // What has become due meanwhile.
        self.device.event(&mut self.answers);
        Ok(())
    }

    fn load(&mut self, order: LoadOrder) {
        let loaded = self.device.load(order.device).and_then(|()| {
            let offer = self.device.offer().map_err(|error| error.to_string())?;
            *self.shared.aperture.lock().unwrap_or_else(PoisonError::into_inner) =
                offer.aperture.map(Arc::new);
            Ok(())
        });
        let done = match loaded {
            Ok(()) => Ok(Done::AsSaved),
            Err(text) if order.may_begin_anew => {
                // What was in flight is refused by a device that knows nothing of it.
                self.device.reset();
                self.motion = Motion::Freezes;
                self.device.freeze();
                Ok(Done::Anew(text))
            }
            Err(text) => Err(text),
        };
        if done.is_ok() {
            self.is_loaded = done == Ok(Done::AsSaved);
            for (ring, saved) in self.shared.rings.iter().zip(order.rings) {
                ring.lock().restore(saved);
            }
        }
        order.promise.keep(done);
    }

    fn serve(&mut self) {
        let mut rings = self.due;
        while rings != 0 {
            let bit = rings & rings.wrapping_neg();
            rings ^= bit;
            if self.serve_ring(bit.trailing_zeros()).is_break() {
                self.due &= !bit;
            }
        }
    }

    /// Takes up to [`BATCH`] commands. Break: nothing is left.
    fn serve_ring(&mut self, index: u32) -> ControlFlow<()> {
        let ring = usize::try_from(index).ok().and_then(|index| self.shared.rings.ring(index));
        let Some(ring) = ring else { return ControlFlow::Break(()) };
        for _ in 0..BATCH {
            let popped = ring.lock().pop(self.epoch, &mut self.request);
            match popped {
                Popped::Command(ticket) => {
                    self.shared.counters.add(Count::Commands);
                    self.device.command(ticket.queue, &self.request, ticket, &mut self.answers);
                }
                Popped::Malformed(reason, ticket) => {
                    self.shared.counters.add(Count::Malformed);
                    log::debug!("queue {index}: {reason}");
                    self.device.malformed(ticket.queue, reason, ticket, &mut self.answers);
                }
                Popped::Restored { ticket, read, answer } => {
                    if let Err(reason) = read {
                        self.shared.counters.add(Count::Malformed);
                        let head = ticket.head;
                        log::warn!("queue {index}: head {head}, in flight in the saved state: {reason}");
                    }
                    match (answer, read) {
                        // The device has done with it.
                        (Some(answer), Ok(())) => self.answers.answer(ticket, &answer),
                        (Some(_), Err(_)) => self.answers.answer(ticket, &[]),
                        (None, read) => {
                            let request = read.map(|()| &*self.request);
                            self.device.restored(request, ticket, &mut self.answers);
                        }
                    }
                }
                Popped::NoChain(reason) => {
                    self.shared.counters.add(Count::Malformed);
                    log::debug!("queue {index}: {reason}");
                }
                Popped::Nothing => return ControlFlow::Break(()),
            }
            self.words.iter().for_each(|words| words.end_handling());
            self.answers.flush();
            if self.request.capacity() > KEPT_BUFFER {
                self.request = Vec::new();
            }
        }
        ControlFlow::Continue(())
    }
}
