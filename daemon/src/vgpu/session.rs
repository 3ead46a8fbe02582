//! The session's state, and its events: requests are dispatched in [`super::dispatch`], orders in [`super::orders`].

use campanile_host_gpu::clock;
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
use super::hotplug::absences::Absences;
use super::memory::dirty::check_caps;
use super::memory::vidmm::local_reader::LocalReader;
use super::memory::vidmm::vram::VideoMemory;
use super::objects::process::Process;
use super::objects::timeline::Token;
use super::power::d3::Power;
use super::power::freeze::Freeze;
use super::vm::Vm;
use crate::guest_ram::memory::GuestRam;
use crate::ids::GuestProcess;
use crate::poller::NO_EVENT;
use crate::vgpu::control::caps::capset;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::control::memory::blobs::Blobs;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::doorbells::requests::DoorbellRequests;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::hotplug::detached::Hotplug;
use crate::vgpu::memory::room::Memory;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::power::d3::State;
use crate::vgpu::power::d3::Transitions;
use crate::vgpu::power::quiesce::Quiesce;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::tdr::liveness_checks::Watch;
use crate::vgpu::tdr::recovery::Recovery;
use campanile_protocol::capset::Capset;

/// Everything that one VM has of one vGPU. Dropping it ends its engines.
#[derive(Debug)]
pub struct Session {
    pub(super) vm: Vm,
    /// Of processes that are away, or are to go.
    pub(super) away: Absences,
    pub(super) power: Power,
    /// When the front must be looked at.
    pub(super) front_at: Option<Instant>,
    pub(super) look_at: Watch,
}

/// A guest begins, or begins again: that may lift a quarantine.
fn begin_anew(config: &Config) {
    if config.standing.reboot(&config.policy, clock::now()) {
        log::warn!("{}: the guest began anew: no longer quarantined", config.name);
    }
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
        let memory = match config.local_port() {
            Some(port) => memory.in_device(Arc::new(LocalReader::new(port)?)),
            None => memory,
        };
        let vm = Vm::new(config, counters, memory)?;
        for (descriptor, wakeup) in [
            (vm.timer.as_fd(), Wakeup::Timer),
            (vm.config.orders.as_fd(), Wakeup::Orders),
            (vm.config.notify.as_fd(), Wakeup::Switch),
        ] {
            vm.engines.poller.add(descriptor, wakeup.data(), Events::EPOLLIN)?;
        }
        let mut session = Self {
            vm,
            away: Absences::default(),
            power: Power::default(),
            front_at: None,
            look_at: Watch::default(),
        };
        session.vm.config.orders.begin_session();
        begin_anew(&session.vm.config);
        GuestPages::of(&mut session.vm).show_trackers();
        Ok(session)
    }

    /// Readable when [`Self::event`] has something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.vm.engines.poller.as_fd()
    }

    /// Whether it stands still, or is on its way there: requests are refused.
    pub fn is_stopping(&self) -> bool {
        self.vm.freeze.is_stopping()
    }

    /// Whether nothing runs, and nothing is written any more, until [`Self::thaw`].
    pub fn is_frozen(&self) -> bool {
        self.vm.freeze.is_frozen()
    }

    /// Guest RAM, as engines have it and write to it.
    pub fn guest_pages(&mut self) -> GuestPages<'_> {
        GuestPages::of(&mut self.vm)
    }

    /// Blobs.
    pub fn blobs(&mut self) -> Blobs<'_> {
        Blobs::of(&mut self.vm, &mut self.away)
    }

    /// Processes that go and come back.
    pub fn hotplug(&mut self) -> Hotplug<'_> {
        Hotplug::of(&mut self.vm, &mut self.away)
    }

    /// The power state.
    pub(super) fn power(&mut self) -> Transitions<'_> {
        Transitions::of(&mut self.vm, &mut self.power)
    }

    /// The standstill.
    pub fn quiesce(&mut self) -> Quiesce<'_> {
        Quiesce::of(&mut self.vm, &mut self.power)
    }

    /// What replaces engines and resets the vGPU.
    pub fn recovery(&mut self) -> Recovery<'_> {
        Recovery::of(&mut self.vm)
    }

    /// Begins to bring everything to a standstill; [`Self::is_frozen`] says when it is there, after the events that
    /// [`Self::event_fd`] announces. Nothing of the session may be called meanwhile but [`Self::event`] and
    /// [`Self::take_due`]. False, and nothing is changed, where that was begun before (LM-29).
    pub fn freeze(&mut self) -> bool {
        let is_begun = self.quiesce().freeze();
        self.settle();
        is_begun
    }

    /// Goes on, as if nothing had happened; guests see RETRY in their doorbells. False, and nothing is changed, where it
    /// did not stand still, nor was on its way there (LM-29).
    pub fn thaw(&mut self) -> bool {
        if !self.quiesce().thaw() {
            return false;
        }
        self.hotplug().write_names();
        self.settle();
        self.look_at = Watch::default();
        self.look_at.keep_looking(&mut self.vm);
        self.set_timer();
        true
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.vm.memory
    }

    /// The capability set.
    pub fn capset(&self) -> Capset {
        capset(&self.vm)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.vm.config
    }

    /// The video memory, for the front to show its aperture.
    pub fn video_memory(&self) -> &VideoMemory {
        self.vm.memory.allocations.memory()
    }

    /// Guest memory is now this.
    pub fn set_guest_memory(&mut self, memory: Arc<GuestRam>) {
        self.vm.memory.guest_memory = Some(memory);
        Devices::of(&mut self.vm).find_guest_pages();
    }

    /// The guest can see the aperture now, or never will; what waits for it is served.
    pub fn set_window(&mut self, is_open: bool) {
        let window = if is_open { Window::Open } else { Window::Never };
        let Window::Awaited(waiting) = std::mem::replace(&mut self.vm.memory.window, window) else {
            return;
        };
        if self.vm.freeze.is_stopping() {
            // Nothing moves now.
            return self.vm.memory.residency.deferred.extend(waiting);
        }
        for (resource, offset, token) in waiting {
            if let Err(refusal) = Deferred::of(&mut self.vm).map_blob(resource, offset, token) {
                self.vm.objects.due.push((token, Err(refusal)));
            }
        }
    }

    /// The guest has reset the device: as if it had just been made. Engines end; video memory is new, since the
    /// guest's window onto it goes with the reset only when the front-end says so: contents are cleared when
    /// handed out again.
    pub fn reset(&mut self) {
        self.front_at = None;
        if self.vm.objects.processes.values().any(Process::is_away) {
            // As its driver does when it is plugged in: processes that are away know nothing of that. Engines go on, since what
            // they know of these processes is in their blocks.
            self.thaw();
            self.hotplug().end_present();
            self.vm.memory.retired.clear();
            self.vm.memory.window = Window::Awaited(Vec::new());
            return;
        }
        Lifecycle::of(&mut self.vm).stop_engines();
        Lifecycle::of(&mut self.vm).abandon_moves();
        self.power.state = State::D0;
        self.vm.freeze = Freeze::Running;
        Deferred::of(&mut self.vm).run_pending();
        let contexts: Vec<GuestProcess> = self.vm.objects.processes.keys().copied().collect();
        contexts.into_iter().for_each(|context| self.hotplug().end_process(context));
        self.blobs().forget_absences();
        let blobs: Vec<u32> = self.vm.memory.blobs.keys().copied().collect();
        for resource in blobs {
            if let Err(refusal) = self.blobs().unref_blob(resource) {
                log::error!("{}: freeing resource {resource}: {refusal:?}", self.vm.config.name);
            }
        }
        Deferred::of(&mut self.vm).run_pending();
        Lifecycle::of(&mut self.vm).abandon_moves();
        self.vm.objects.due.clear();
        self.vm.memory.retired.clear();
        self.vm.is_fresh = true;
        begin_anew(&self.vm.config);
        self.vm.memory.window = Window::Awaited(Vec::new());
    }

    /// What is due to be answered, in order.
    pub fn take_due(&mut self) -> Vec<(Token, Result<(), Refusal>)> {
        if self.vm.freeze.is_frozen() {
            return Vec::new();
        }
        self.settle();
        Pager::of(&mut self.vm).serve_residency();
        Lifecycle::of(&mut self.vm).run_moves();
        std::mem::take(&mut self.vm.objects.due)
    }

    /// Handles the descriptors that are ready.
    pub fn event(&mut self) {
        let mut events = [NO_EVENT; 8];
        let ready = match self.vm.engines.poller.wait(&mut events, Some(Duration::ZERO)) {
            Ok(ready) => ready,
            Err(error) => {
                log::warn!("{}: waiting for engines: {error}", self.vm.config.name);
                return;
            }
        };
        for token in ready {
            match Wakeup::from_data(token) {
                Some(Wakeup::Orders) => self.run_orders(),
                // Nothing is looked at while everything stands still; what was to be looked at is when it goes on.
                Some(Wakeup::Alarm(at)) if self.is_frozen() => {
                    let _seen = self.vm.engines[at.index()].alarm().take();
                }
                Some(Wakeup::Timer) if self.is_frozen() => self.vm.timer.take(),
                Some(Wakeup::Switch) if self.is_frozen() => self.vm.config.notify.take(),
                _ if self.is_frozen() => {}
                Some(Wakeup::Event(at)) => self.power().engine_event(at),
                Some(Wakeup::Channel(at)) => Lifecycle::of(&mut self.vm).engine_responses(at),
                Some(Wakeup::Alarm(at)) => Recovery::of(&mut self.vm).engine_alarm(at),
                Some(Wakeup::Timer) => self.timer_event(),
                Some(Wakeup::Switch) => DoorbellRequests::of(&mut self.vm).notify_switched(),
                None => {}
            }
            self.settle();
        }
        // Here, where nothing else is half done.
        self.hotplug().look_at_parking();
        self.hotplug().look_at_leave();
        self.quiesce().look_at_freeze();
        self.settle();
        self.look_at.keep_looking(&mut self.vm);
    }

    /// There is an event at this moment, at the latest; none of that kind, where there is no moment.
    pub fn wake_front(&mut self, at: Option<Instant>) {
        if self.front_at != at {
            self.front_at = at;
            if !self.vm.freeze.is_stopping() {
                self.set_timer();
            }
        }
    }

    /// Sets the timer for what must be looked at first.
    pub(super) fn set_timer(&mut self) {
        let idleness = self.power().next_idleness();
        let decisions = self.vm.engines.iter().map(|slot| slot.decide_at);
        let others = [
            self.vm.doorbells.next_drain(),
            idleness,
            self.vm.freeze.limit(),
            self.look_at.at,
            self.away.next(),
            self.vm.memory.residency.retry_at,
            self.vm.memory.dirty.sweep_at,
            self.front_at,
        ];
        if let Some(at) = decisions.chain(others).flatten().min() {
            self.vm.timer.set(at);
        }
    }

    /// A moment that something waited for has come.
    pub(super) fn timer_event(&mut self) {
        self.vm.timer.take();
        if self.vm.freeze.is_stopping() {
            self.quiesce().look_at_freeze();
            if let Some(at) = self.vm.freeze.limit() {
                self.vm.timer.set(at);
            }
            return;
        }
        self.front_at = self.front_at.filter(|at| *at > clock::now());
        // Who waits for a doorbell has woken the device, but the operator may have sent it to sleep since.
        let waits = self.vm.engines.iter().any(|slot| slot.line.first().is_some());
        let woken = waits && self.power().leave_d3();
        for at in self.vm.engines.addresses() {
            DoorbellRequests::of(&mut self.vm).serve_connects(at);
            Submission::of(&mut self.vm).decide_if_due(at);
        }
        self.vm.engines.poke_listed();
        if woken {
            self.power().resume_from_d3();
        }
        self.hotplug().look_at_parking();
        self.hotplug().look_at_leave();
        Deferred::of(&mut self.vm).look_at_drains();
        self.power().look_at_idleness();
        self.look_at.look_at_engines(&mut self.vm);
        GuestPages::of(&mut self.vm).sweep_if_due();
        self.set_timer();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.vm.config.orders.end_session();
        GuestPages::of(&mut self.vm).hide_trackers();
        Lifecycle::of(&mut self.vm).stop_engines();
    }
}
