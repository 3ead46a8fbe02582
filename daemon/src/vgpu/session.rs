//! The session's state, and its events.

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use epoll::Events;

use super::config::Config;
use super::counters::Counters;
use super::doorbells::room::Doorbells;
use super::engines::room::Engines;
use super::engines::wakeup::Wakeup;
use super::fences::table::FenceTable;
use super::hotplug::detached::Absences;
use super::journal::Journal;
use super::memory::dirty::check_caps;
use super::memory::vidmm::vram::VideoMemory;
use super::objects::budget::Purse;
use super::objects::process::Process;
use super::objects::timeline::Token;
use super::power::d3::Power;
use super::power::quiesce::Freeze;
use super::timer::Timer;
use crate::guest_ram::memory::GuestRam;
use crate::poller::NO_EVENT;
use crate::poller::Poller;
use crate::vgpu::memory::room::Memory;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::refusal::Refusal;

/// Everything that one VM has of one vGPU. Dropping it ends its engines.
#[derive(Debug)]
pub struct Session {
    pub(super) config: Arc<Config>,
    pub(super) counters: Arc<Counters>,
    /// What is charged to the VM, and to no process.
    pub(super) purse: Purse,
    pub(super) journal: Journal,
    pub(super) memory: Memory,
    pub(super) fences: FenceTable,
    pub(super) objects: Objects,
    /// Of processes that are away, or are to go.
    pub(super) away: Absences,
    pub(super) engines: Engines,
    pub(super) kernel_bytes: usize,
    pub(super) power: Power,
    pub(super) freeze: Freeze,
    /// Whether nothing was ever asked of it: only then another session's state can become its own (LM-31).
    pub(super) is_fresh: bool,
    /// Since when engines may all be asleep.
    pub(super) quiet_since: Option<Instant>,
    pub(super) timer: Timer,
    /// When the front must be looked at.
    pub(super) front_at: Option<Instant>,
    /// When engines must be looked at that run nothing.
    pub(super) look_at: Option<Instant>,
    /// When all this began: what liveness counts from.
    pub(super) begun: Instant,
    pub(super) poller: Poller,
    pub(super) doorbells: Doorbells,
}

impl Session {
    /// A session without anything in it.
    ///
    /// # Errors
    /// Video memory, page tables or descriptors could not be had.
    pub fn new(config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        // Before anything else is asked of it (DIRTY-01).
        let memory = VideoMemory::new(config.vram_bytes, config.account.quota().max, config.tracking)?;
        check_caps(&memory, false).map_err(io::Error::other)?;
        let engines = Engines::new(&config)?;
        let poller = Poller::new()?;
        for at in engines.addresses() {
            let alarm = engines[at.index()].alarm().as_fd();
            poller.add(alarm, Wakeup::Alarm(at).data(), Events::EPOLLIN)?;
        }
        let timer = Timer::new()?;
        for (descriptor, wakeup) in [
            (timer.as_fd(), Wakeup::Timer),
            (config.orders.as_fd(), Wakeup::Orders),
            (config.notify.as_fd(), Wakeup::Switch),
        ] {
            poller.add(descriptor, wakeup.data(), Events::EPOLLIN)?;
        }
        let journal = Journal::new(&config.name, Arc::clone(&config.log));
        let purse = config.budget.vm();
        let memory = Memory::new(memory, Arc::clone(&config.account))?;
        let session = Self {
            config,
            journal,
            counters,
            purse,
            memory,
            fences: FenceTable::new()?,
            objects: Objects::default(),
            away: Absences::default(),
            engines,
            kernel_bytes: 0,
            power: Power::D0,
            freeze: Freeze::Running,
            is_fresh: true,
            quiet_since: None,
            timer,
            front_at: None,
            look_at: None,
            begun: clock::now(),
            poller,
            doorbells: Doorbells::default(),
        };
        session.config.orders.begin_session();
        session.begin_anew();
        session.show_trackers();
        Ok(session)
    }

    /// The engines that it may have: all nodes of each physical adapter.
    pub(super) fn addresses(&self) -> impl Iterator<Item = EngineAddress> + use<> {
        EngineAddress::all(self.config.engines)
    }

    /// Readable when [`Self::event`] has something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The video memory, for the front to show its aperture.
    pub fn video_memory(&self) -> &VideoMemory {
        self.memory.allocations.memory()
    }

    /// Guest memory is now this.
    pub fn set_guest_memory(&mut self, memory: Arc<GuestRam>) {
        self.memory.guest_memory = Some(memory);
        self.find_guest_pages();
    }

    /// The guest can see the aperture now, or never will; what waits for it is served.
    pub fn set_window(&mut self, is_open: bool) {
        let window = if is_open { Window::Open } else { Window::Never };
        let Window::Awaited(waiting) = std::mem::replace(&mut self.memory.window, window) else { return };
        if self.is_stopping() {
            // Nothing moves now.
            return self.memory.residency.deferred.extend(waiting);
        }
        for (resource, offset, token) in waiting {
            if let Err(refusal) = self.map_blob(resource, offset, token) {
                self.objects.due.push((token, Err(refusal)));
            }
        }
    }

    /// The guest has reset the device: as if it had just been made. Engines end; video memory is new, since the
    /// guest's window onto it goes with the reset only when the front-end says so: contents are cleared when
    /// handed out again.
    pub fn reset(&mut self) {
        if self.objects.processes.values().any(Process::is_away) {
            return self.reset_around_absent();
        }
        self.stop_engines();
        self.power = Power::D0;
        self.freeze = Freeze::Running;
        self.run_pending();
        let contexts: Vec<u32> = self.objects.processes.keys().copied().collect();
        contexts.into_iter().for_each(|context| self.end_process(context));
        self.forget_absences();
        let blobs: Vec<u32> = self.memory.blobs.keys().copied().collect();
        for resource in blobs {
            if let Err(refusal) = self.unref_blob(resource) {
                log::error!("{}: freeing resource {resource}: {refusal:?}", self.config.name);
            }
        }
        self.run_pending();
        self.objects.due.clear();
        self.memory.retired.clear();
        self.front_at = None;
        self.is_fresh = true;
        self.begin_anew();
        self.memory.window = Window::Awaited(Vec::new());
    }

    /// What is due to be answered, in order.
    pub fn take_due(&mut self) -> Vec<(Token, Result<(), Refusal>)> {
        if self.is_frozen() {
            return Vec::new();
        }
        self.serve_residency();
        std::mem::take(&mut self.objects.due)
    }

    /// Handles the descriptors that are ready.
    pub fn event(&mut self) {
        let mut events = [NO_EVENT; 8];
        let ready = match self.poller.wait(&mut events, Some(Duration::ZERO)) {
            Ok(ready) => ready,
            Err(error) => {
                log::warn!("{}: waiting for engines: {error}", self.config.name);
                return;
            }
        };
        for token in ready {
            if self.is_frozen() {
                self.put_off(token);
                continue;
            }
            match Wakeup::from_data(token) {
                Some(Wakeup::Event(at)) => self.engine_event(at),
                Some(Wakeup::Channel(at)) => self.engine_responses(at),
                Some(Wakeup::Alarm(at)) => self.engine_alarm(at),
                Some(Wakeup::Timer) => self.timer_event(),
                Some(Wakeup::Orders) => self.run_errands(),
                Some(Wakeup::Switch) => self.notify_switched(),
                None => {}
            }
        }
        // Here, where nothing else is half done.
        self.look_at_parking();
        self.look_at_leave();
        self.look_at_freeze();
        self.keep_looking();
    }

    /// Nothing is looked at while everything stands still; what was to be looked at is when it goes on.
    fn put_off(&mut self, data: u64) {
        match Wakeup::from_data(data) {
            Some(Wakeup::Alarm(at)) => drop(self.engines[at.index()].alarm().take()),
            Some(Wakeup::Timer) => self.timer.take(),
            Some(Wakeup::Orders) => self.run_errands(),
            Some(Wakeup::Switch) => self.config.notify.take(),
            Some(Wakeup::Event(_) | Wakeup::Channel(_)) | None => {}
        }
    }

    /// A guest begins, or begins again: that may lift a quarantine.
    fn begin_anew(&self) {
        if self.config.standing.reboot(&self.config.policy, clock::now()) {
            log::warn!("{}: the guest began anew: no longer quarantined", self.config.name);
        }
    }

    /// There is an event at this moment, at the latest; none of that kind, where there is no moment.
    pub fn wake_front(&mut self, at: Option<Instant>) {
        if self.front_at != at {
            self.front_at = at;
            if !self.is_stopping() {
                self.set_timer();
            }
        }
    }

    /// Sets the timer for what must be looked at first.
    pub(super) fn set_timer(&mut self) {
        let decisions = self.engines.iter().map(|slot| slot.decide_at);
        let others = [
            self.doorbells.next_drain(),
            self.next_idleness(),
            self.next_freeze(),
            self.look_at,
            self.away.next(),
            self.memory.residency.retry_at,
            self.memory.dirty.sweep_at,
            self.front_at,
        ];
        if let Some(at) = decisions.chain(others).flatten().min() {
            self.timer.set(at);
        }
    }

    /// A moment that something waited for has come.
    pub(super) fn timer_event(&mut self) {
        self.timer.take();
        if self.is_stopping() {
            self.look_at_freeze();
            if let Some(at) = self.next_freeze() {
                self.timer.set(at);
            }
            return;
        }
        self.front_at = self.front_at.filter(|at| *at > clock::now());
        // Who waits for a doorbell has woken the device, but the operator may have sent it to sleep since.
        let waits = self.engines.iter().any(|slot| slot.line.first().is_some());
        let woken = waits && self.leave_d3();
        for at in self.addresses() {
            self.serve_connects(at);
            self.decide_if_due(at);
        }
        self.engines.poke_listed();
        if woken {
            self.resume_from_d3();
        }
        self.look_at_parking();
        self.look_at_leave();
        self.look_at_drains();
        self.look_at_idleness();
        self.look_at_engines();
        self.sweep_if_due();
        self.set_timer();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.config.orders.end_session();
        self.hide_trackers();
        self.stop_engines();
    }
}
