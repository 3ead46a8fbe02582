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
use super::engines::wakeup::Wakeup;
use super::hotplug::detached::Absences;
use super::memory::dirty::check_caps;
use super::memory::vidmm::vram::VideoMemory;
use super::objects::process::Process;
use super::objects::timeline::Token;
use super::power::d3::Power;
use super::power::freeze::Freeze;
use super::rooms::Rooms;
use crate::guest_ram::memory::GuestRam;
use crate::poller::NO_EVENT;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::doorbells::requests::DoorbellRequests;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::tdr::recovery::Recovery;

/// Everything that one VM has of one vGPU. Dropping it ends its engines.
#[derive(Debug)]
pub struct Session {
    pub(super) rooms: Rooms,
    /// Of processes that are away, or are to go.
    pub(super) away: Absences,
    pub(super) power: Power,
    /// Since when engines may all be asleep.
    pub(super) quiet_since: Option<Instant>,
    /// When the front must be looked at.
    pub(super) front_at: Option<Instant>,
    /// When engines must be looked at that run nothing.
    pub(super) look_at: Option<Instant>,
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
        let rooms = Rooms::new(config, counters, memory)?;
        for (descriptor, wakeup) in [
            (rooms.timer.as_fd(), Wakeup::Timer),
            (rooms.config.orders.as_fd(), Wakeup::Orders),
            (rooms.config.notify.as_fd(), Wakeup::Switch),
        ] {
            rooms.engines.poller.add(descriptor, wakeup.data(), Events::EPOLLIN)?;
        }
        let mut session = Self {
            rooms,
            away: Absences::default(),
            power: Power::D0,
            quiet_since: None,
            front_at: None,
            look_at: None,
        };
        session.rooms.config.orders.begin_session();
        session.begin_anew();
        GuestPages::of(&mut session.rooms).show_trackers();
        Ok(session)
    }

    /// Readable when [`Self::event`] has something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.rooms.engines.poller.as_fd()
    }

    /// Whether it stands still, or is on its way there: requests are refused.
    pub fn is_stopping(&self) -> bool {
        self.rooms.freeze.is_stopping()
    }

    /// Whether nothing runs, and nothing is written any more, until [`Self::thaw`].
    pub fn is_frozen(&self) -> bool {
        self.rooms.freeze.is_frozen()
    }

    /// Guest RAM, as engines have it and write to it.
    pub fn guest_pages(&mut self) -> GuestPages<'_> {
        GuestPages::of(&mut self.rooms)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.rooms.config
    }

    /// The video memory, for the front to show its aperture.
    pub fn video_memory(&self) -> &VideoMemory {
        self.rooms.memory.allocations.memory()
    }

    /// Guest memory is now this.
    pub fn set_guest_memory(&mut self, memory: Arc<GuestRam>) {
        self.rooms.memory.guest_memory = Some(memory);
        self.find_guest_pages();
    }

    /// The guest can see the aperture now, or never will; what waits for it is served.
    pub fn set_window(&mut self, is_open: bool) {
        let window = if is_open { Window::Open } else { Window::Never };
        let Window::Awaited(waiting) = std::mem::replace(&mut self.rooms.memory.window, window) else {
            return;
        };
        if self.rooms.freeze.is_stopping() {
            // Nothing moves now.
            return self.rooms.memory.residency.deferred.extend(waiting);
        }
        for (resource, offset, token) in waiting {
            if let Err(refusal) = Deferred::of(&mut self.rooms).map_blob(resource, offset, token) {
                self.rooms.objects.due.push((token, Err(refusal)));
            }
        }
    }

    /// The guest has reset the device: as if it had just been made. Engines end; video memory is new, since the
    /// guest's window onto it goes with the reset only when the front-end says so: contents are cleared when
    /// handed out again.
    pub fn reset(&mut self) {
        if self.rooms.objects.processes.values().any(Process::is_away) {
            return self.reset_around_absent();
        }
        Lifecycle::of(&mut self.rooms).stop_engines();
        self.power = Power::D0;
        self.rooms.freeze = Freeze::Running;
        Deferred::of(&mut self.rooms).run_pending();
        let contexts: Vec<u32> = self.rooms.objects.processes.keys().copied().collect();
        contexts.into_iter().for_each(|context| self.end_process(context));
        self.forget_absences();
        let blobs: Vec<u32> = self.rooms.memory.blobs.keys().copied().collect();
        for resource in blobs {
            if let Err(refusal) = self.unref_blob(resource) {
                log::error!("{}: freeing resource {resource}: {refusal:?}", self.rooms.config.name);
            }
        }
        Deferred::of(&mut self.rooms).run_pending();
        self.rooms.objects.due.clear();
        self.rooms.memory.retired.clear();
        self.front_at = None;
        self.rooms.is_fresh = true;
        self.begin_anew();
        self.rooms.memory.window = Window::Awaited(Vec::new());
    }

    /// What is due to be answered, in order.
    pub fn take_due(&mut self) -> Vec<(Token, Result<(), Refusal>)> {
        if self.rooms.freeze.is_frozen() {
            return Vec::new();
        }
        self.settle();
        Pager::of(&mut self.rooms).serve_residency();
        std::mem::take(&mut self.rooms.objects.due)
    }

    /// Handles the descriptors that are ready.
    pub fn event(&mut self) {
        let mut events = [NO_EVENT; 8];
        let ready = match self.rooms.engines.poller.wait(&mut events, Some(Duration::ZERO)) {
            Ok(ready) => ready,
            Err(error) => {
                log::warn!("{}: waiting for engines: {error}", self.rooms.config.name);
                return;
            }
        };
        for token in ready {
            if self.rooms.freeze.is_frozen() {
                self.put_off(token);
                continue;
            }
            match Wakeup::from_data(token) {
                Some(Wakeup::Event(at)) => self.engine_event(at),
                Some(Wakeup::Channel(at)) => Lifecycle::of(&mut self.rooms).engine_responses(at),
                Some(Wakeup::Alarm(at)) => Recovery::of(&mut self.rooms).engine_alarm(at),
                Some(Wakeup::Timer) => self.timer_event(),
                Some(Wakeup::Orders) => self.run_errands(),
                Some(Wakeup::Switch) => DoorbellRequests::of(&mut self.rooms).notify_switched(),
                None => {}
            }
            self.settle();
        }
        // Here, where nothing else is half done.
        self.look_at_parking();
        self.look_at_leave();
        self.look_at_freeze();
        self.keep_looking();
    }

    /// An engine signalled.
    pub(super) fn engine_event(&mut self, at: EngineAddress) {
        let Some(process) = self.rooms.engines[at.index()].process() else { return };
        process.drain_event();
        let sleepy = process.power.wishes_f1();
        Recovery::of(&mut self.rooms).collect_reports(at);
        if sleepy {
            self.engine_to_f1(at);
        }
        Deferred::of(&mut self.rooms).run_pending();
    }

    /// Nothing is looked at while everything stands still; what was to be looked at is when it goes on.
    fn put_off(&mut self, data: u64) {
        match Wakeup::from_data(data) {
            Some(Wakeup::Alarm(at)) => drop(self.rooms.engines[at.index()].alarm().take()),
            Some(Wakeup::Timer) => self.rooms.timer.take(),
            Some(Wakeup::Orders) => self.run_errands(),
            Some(Wakeup::Switch) => self.rooms.config.notify.take(),
            Some(Wakeup::Event(_) | Wakeup::Channel(_)) | None => {}
        }
    }

    /// A guest begins, or begins again: that may lift a quarantine.
    fn begin_anew(&self) {
        if self.rooms.config.standing.reboot(&self.rooms.config.policy, clock::now()) {
            log::warn!("{}: the guest began anew: no longer quarantined", self.rooms.config.name);
        }
    }

    /// There is an event at this moment, at the latest; none of that kind, where there is no moment.
    pub fn wake_front(&mut self, at: Option<Instant>) {
        if self.front_at != at {
            self.front_at = at;
            if !self.rooms.freeze.is_stopping() {
                self.set_timer();
            }
        }
    }

    /// Sets the timer for what must be looked at first.
    pub(super) fn set_timer(&mut self) {
        let decisions = self.rooms.engines.iter().map(|slot| slot.decide_at);
        let others = [
            self.rooms.doorbells.next_drain(),
            self.next_idleness(),
            self.rooms.freeze.limit(),
            self.look_at,
            self.away.next(),
            self.rooms.memory.residency.retry_at,
            self.rooms.memory.dirty.sweep_at,
            self.front_at,
        ];
        if let Some(at) = decisions.chain(others).flatten().min() {
            self.rooms.timer.set(at);
        }
    }

    /// A moment that something waited for has come.
    pub(super) fn timer_event(&mut self) {
        self.rooms.timer.take();
        if self.rooms.freeze.is_stopping() {
            self.look_at_freeze();
            if let Some(at) = self.rooms.freeze.limit() {
                self.rooms.timer.set(at);
            }
            return;
        }
        self.front_at = self.front_at.filter(|at| *at > clock::now());
        // Who waits for a doorbell has woken the device, but the operator may have sent it to sleep since.
        let waits = self.rooms.engines.iter().any(|slot| slot.line.first().is_some());
        let woken = waits && self.leave_d3();
        for at in self.rooms.engines.addresses() {
            DoorbellRequests::of(&mut self.rooms).serve_connects(at);
            Submission::of(&mut self.rooms).decide_if_due(at);
        }
        self.rooms.engines.poke_listed();
        if woken {
            self.resume_from_d3();
        }
        self.look_at_parking();
        self.look_at_leave();
        Deferred::of(&mut self.rooms).look_at_drains();
        self.look_at_idleness();
        self.look_at_engines();
        GuestPages::of(&mut self.rooms).sweep_if_due();
        self.set_timer();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.rooms.config.orders.end_session();
        GuestPages::of(&mut self.rooms).hide_trackers();
        Lifecycle::of(&mut self.rooms).stop_engines();
    }
}
