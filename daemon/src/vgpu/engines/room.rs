//! The engines of one VM: their places, what waits until they have let go, and which must be poked or ended.
//!
//! It calls the rooms below alone. What must follow from a change elsewhere is returned, and the dispatcher carries it out:
//! [`Flushed`](super::sending::Flushed) when engines were asked for something, [`Resumed`](super::suspends::Resumed) when a
//! context runs again, actions that are due when engines have passed their barriers.

use std::io;
use std::ops::Deref;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::MAX_PLACES;
use epoll::Events;

use super::barrier::Barrier;
use super::barrier::Reached;
use super::device_moves::DeviceMoves;
use super::pending::Action;
use super::pending::MAX_PENDING;
use super::pending::Pending;
use super::slot::EngineSlot;
use super::slot::WaitingMessage;
use super::suspending::Suspending;
use super::wakeup::Wakeup;
use crate::poller::Poller;
use crate::vgpu::config::Config;
use crate::vgpu::memory::room::LetGo;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::tdr::reason::Reason;

/// An engine that is to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condemned {
    /// The engine.
    pub at: EngineAddress,
    /// Its process.
    pub pid: Option<u32>,
    /// Why.
    pub reason: Reason,
    /// Why, in words.
    pub text: String,
}

/// The engines of one VM, by place: those of the first physical adapter, then those of the next (TDR-08).
#[derive(Debug)]
pub struct Engines {
    pub(super) slots: Vec<EngineSlot>,
    adapters: u8,
    /// What waits until engines have let go, oldest first.
    pub(in crate::vgpu) pending: Vec<Pending>,
    /// What the device is to move.
    pub(in crate::vgpu) moves: DeviceMoves,
    /// Suspends that messages wait for.
    pub(in crate::vgpu) suspending: Vec<Suspending>,
    /// Engines that are no good any more, the first that was found first.
    condemned: Vec<Condemned>,
    /// Messages that waited for an engine and wait no more: to be handled where nothing else is half done.
    pub(in crate::vgpu) to_handle: Vec<WaitingMessage>,
    /// Says what engines, and whatever else wakes the thread, have to say.
    pub(in crate::vgpu) poller: Poller,
    /// When all this began: what turns and liveness count from.
    pub(in crate::vgpu) begun: Instant,
    /// Engines that must be poked once the message at hand is answered, by place.
    to_poke: [bool; MAX_PLACES],
}

impl Engines {
    /// Places without processes, as many as the configuration says.
    ///
    /// # Errors
    /// No descriptor could be had.
    pub fn new(config: &Config) -> io::Result<Self> {
        let poller = Poller::new()?;
        let mut slots = Vec::new();
        for at in EngineAddress::all(config.engines) {
            let slot = EngineSlot::new(config.doorbells, config.scheduler, &config.bands)?;
            poller.add(slot.alarm().as_fd(), Wakeup::Alarm(at).data(), Events::EPOLLIN)?;
            slots.push(slot);
        }
        Ok(Self {
            slots,
            adapters: config.engines,
            pending: Vec::new(),
            moves: DeviceMoves::default(),
            suspending: Vec::new(),
            condemned: Vec::new(),
            to_handle: Vec::new(),
            poller,
            begun: clock::now(),
            to_poke: [false; MAX_PLACES],
        })
    }

    /// The time since all this began.
    pub fn now(&self) -> Duration {
        clock::since(self.begun)
    }

    /// The engines that there may be: all nodes of each physical adapter.
    pub fn addresses(&self) -> impl Iterator<Item = EngineAddress> + use<> {
        EngineAddress::all(self.adapters)
    }

    /// What engines must pass before the contents of memory that moves may be copied.
    pub(in crate::vgpu) fn barrier_for(&mut self, let_go: LetGo) -> Barrier {
        match let_go {
            LetGo::EveryEngine => Barrier::raise(self),
            LetGo::WhatWasAsked => Barrier::raised(self),
        }
    }

    /// Whether as much waits as may. Messages that make something are refused then; those that end something never are, so
    /// what waits is bounded by what there is (MCDM-06).
    pub fn has_too_much_pending(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Keeps `action`, and what was charged for it, until every engine has passed `barrier`. True where they have: then it
    /// is due, with all that came before it, since engines pass barriers in order.
    #[must_use]
    pub fn defer(&mut self, barrier: Barrier, action: Action, charges: Vec<Charge>) -> bool {
        let is_due = barrier.is_passed(&Reached::by(self));
        self.pending.push(Pending { barrier, action, charges });
        is_due
    }

    /// Takes all that waits: what is due by one look at the engines, oldest first, and the rest, which
    /// [`Self::put_back`] takes when what is due was done.
    #[must_use]
    pub fn take_pending(&mut self) -> (Vec<Action>, Vec<Pending>) {
        let reached = Reached::by(self);
        let mut due = Vec::new();
        let mut waiting = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            if pending.barrier.is_passed(&reached) {
                due.push(pending.action);
            } else {
                waiting.push(pending);
            }
        }
        (due, waiting)
    }

    /// What still waits comes before what has come since it was taken.
    pub fn put_back(&mut self, mut waiting: Vec<Pending>) {
        waiting.append(&mut self.pending);
        self.pending = waiting;
    }

    /// Has an engine poked once the message at hand is answered: its doorbell was connected.
    pub fn poke_later(&mut self, at: EngineAddress) {
        self.to_poke[at.index()] = true;
    }

    /// Wakes the engines that [`Self::poke_later`] was called for.
    pub fn poke_listed(&mut self) {
        for (slot, is_listed) in self.slots.iter().zip(&mut self.to_poke) {
            if std::mem::take(is_listed)
                && let Some(process) = slot.process()
            {
                process.poke();
            }
        }
    }

    /// Wakes every engine.
    pub fn poke_all(&self) {
        for process in self.slots.iter().filter_map(EngineSlot::process) {
            process.poke();
        }
    }

    /// An engine is no good any more. It is replaced where nothing else is half done: see [`Self::take_condemned`].
    pub fn condemn(&mut self, at: EngineAddress, text: &str) {
        self.condemn_for(at, Reason::EngineTimeout, text);
    }

    /// As [`Self::condemn`], for any reason. The first reason holds.
    pub fn condemn_for(&mut self, at: EngineAddress, reason: Reason, text: &str) {
        let condemned = Condemned { at, pid: self.pid(at), reason, text: text.to_owned() };
        if !self.condemned.iter().any(|other| (other.at, other.pid) == (at, condemned.pid)) {
            self.condemned.push(condemned);
        }
    }

    /// Whether an engine is to be replaced.
    pub fn is_condemned(&self, at: EngineAddress) -> bool {
        self.condemned.iter().any(|it| (it.at, it.pid) == (at, self.pid(at)))
    }

    /// Why an engine is to be replaced, if it is: that is returned once, and not where it was replaced meanwhile.
    #[must_use]
    pub fn take_condemned_at(&mut self, at: EngineAddress) -> Option<Condemned> {
        let pid = self.pid(at);
        let its: Vec<Condemned> = self.condemned.extract_if(.., |it| it.at == at).collect();
        its.into_iter().find(|it| it.pid == pid)
    }

    /// As [`Self::take_condemned_at`], of any engine.
    #[must_use]
    pub fn take_condemned(&mut self) -> Option<Condemned> {
        self.addresses().find_map(|at| self.take_condemned_at(at))
    }

    /// The process of an engine.
    pub fn pid(&self, at: EngineAddress) -> Option<u32> {
        self[at.index()].process().map(EngineProcess::pid)
    }
}

impl Deref for Engines {
    type Target = [EngineSlot];

    fn deref(&self) -> &[EngineSlot] {
        &self.slots
    }
}

impl DerefMut for Engines {
    fn deref_mut(&mut self) -> &mut [EngineSlot] {
        &mut self.slots
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::adapter::process::EngineProcess;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_protocol::page_table::SegmentId;

    use super::Engines;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::tdr::reason::Reason;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::config;

    /// Places of which one has a process, which acknowledges nothing.
    fn engines() -> Engines {
        let mut engines = Engines::new(&config()).unwrap();
        engines[COPY.index()].begin(EngineProcess::unstarted(NodeKind::Copy).unwrap());
        engines
    }

    fn tokens(actions: impl Iterator<Item = Action>) -> Vec<u64> {
        let token = |action| if let Action::Answer(token) = action { Some(token.0) } else { None };
        actions.filter_map(token).collect()
    }

    #[test]
    fn what_still_waits_comes_before_what_has_come_since_it_was_taken() {
        let mut engines = engines();
        engines.push_segment(COPY, SegmentId(5));
        let barrier = Barrier::announced(&engines);
        assert!(!engines.defer(barrier, Action::Answer(Token(1)), Vec::new()), "its engine has not answered");
        assert!(
            engines.defer(Barrier::default(), Action::Answer(Token(2)), Vec::new()),
            "nothing is waited for"
        );
        let (due, waiting) = engines.take_pending();
        assert_eq!(tokens(due.into_iter()), [2]);
        assert!(engines.pending.is_empty(), "what is due may look again, and finds nothing");
        assert!(!engines.defer(barrier, Action::Answer(Token(3)), Vec::new()));
        engines.put_back(waiting);
        assert_eq!(tokens(engines.pending.into_iter().map(|pending| pending.action)), [1, 3]);
    }

    #[test]
    fn an_engine_that_is_no_good_is_named_once() {
        let mut engines = engines();
        engines.condemn_for(COPY, Reason::InvalidFence, "a");
        engines.condemn(COPY, "b");
        assert!(engines.is_condemned(COPY));
        let found = engines.take_condemned().map(|it| (it.at, it.reason, it.text));
        assert_eq!(found, Some((COPY, Reason::InvalidFence, "a".to_owned())), "the first reason holds");
        assert!(!engines.is_condemned(COPY) && engines.take_condemned().is_none());
    }

    #[test]
    fn an_engine_that_was_replaced_is_not_replaced_again() {
        let mut engines = engines();
        engines.condemn(COPY, "a");
        let _buffers = engines[COPY.index()].clear(1);
        assert!(!engines.is_condemned(COPY) && engines.take_condemned().is_none());
    }
}
