//! The queue worker: one thread a session, which owns the device.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────┐
//!        ▼                                                              │
//!   epoll_wait ─▶ mail: exit? reset, memory, window, held answers       │
//!   (at once if a ring is due)                                          │
//!              ─▶ device event                                          │
//!              ─▶ each ring that is due: up to BATCH commands ──────────┘
//! ```

use std::io;
use std::ops::ControlFlow;

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;

use super::answers::Answers;
use super::counters::Count;
use super::device::Device;
use super::ring::transfer::Popped;
use super::session::Shared;

/// Commands taken from one ring before everything else is looked at again.
const BATCH: usize = 64;
/// A request buffer larger than this is not kept.
const KEPT_BUFFER: usize = 1 << 20;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
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

    pub(super) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Ring(index) => u64::from(index),
            Self::Bell => Self::BELL,
            Self::Device => Self::DEVICE,
        })
    }

    fn of(event: &epoll::Event) -> Option<Self> {
        let data = event.data;
        match data.u64() {
            Self::BELL => Some(Self::Bell),
            Self::DEVICE => Some(Self::Device),
            index => u8::try_from(index).ok().map(Self::Ring),
        }
    }
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
}

impl Worker {
    pub(super) fn new(device: Box<dyn Device>, shared: Shared) -> Self {
        let answers = Answers::new(shared.rings.clone(), shared.counters.clone());
        Self { device, shared, answers, epoch: 0, due: 0, request: Vec::new() }
    }

    /// Works until the mailbox says exit.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let epoll_fd = self.shared.epoll.clone();
        epoll::add(&*epoll_fd, self.shared.mailbox.bell(), Token::Bell.data(), epoll::EventFlags::IN)?;
        if let Some(fd) = self.device.event_fd() {
            epoll::add(&*epoll_fd, fd, Token::Device.data(), epoll::EventFlags::IN)?;
        }
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; EVENTS];
        loop {
            let patience = if self.due == 0 { None } else { Some(&AT_ONCE) };
            let count = match epoll::wait(&*epoll_fd, &mut events, patience) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let (mut mail, mut event) = (false, false);
            for token in events.iter().take(count).filter_map(Token::of) {
                match token {
                    Token::Ring(index) => {
                        self.due |= 1 << index;
                        self.shared.counters.add(Count::Kicks);
                    }
                    Token::Bell => mail = true,
                    Token::Device => event = true,
                }
            }
            if mail && self.read_mail().is_break() {
                return Ok(());
            }
            if event {
                self.device.event(&mut self.answers);
                self.answers.flush();
            }
            self.serve();
        }
    }

    fn read_mail(&mut self) -> ControlFlow<()> {
        let mail = self.shared.mailbox.take();
        if mail.exit {
            return ControlFlow::Break(());
        }
        if mail.epoch != self.epoch {
            self.device.reset();
            self.epoch = mail.epoch;
        }
        if let Some(memory) = mail.memory {
            self.device.memory_changed(memory, &mut self.answers);
        }
        if let Some((epoch, state)) = mail.window
            && epoch == self.epoch
        {
            self.device.window(state, &mut self.answers);
        }
        for index in 0..self.shared.rings.len() {
            if mail.rings & (1 << index) != 0 {
                self.answers.release_held(index);
            }
        }
        self.due |= mail.rings;
        self.answers.flush();
        ControlFlow::Continue(())
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
                Popped::NoChain(reason) => {
                    self.shared.counters.add(Count::Malformed);
                    log::debug!("queue {index}: {reason}");
                }
                Popped::Nothing => return ControlFlow::Break(()),
            }
            self.answers.flush();
            if self.request.capacity() > KEPT_BUFFER {
                self.request = Vec::new();
            }
        }
        ControlFlow::Continue(())
    }
}
