//! The copy engine moves memory for the daemon: see [`super::device_moves`].

use std::io;

use campanile_host_gpu::adapter::copy_process::CopyProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use log::Level;

use super::device_moves::ATTEMPTS;
use super::device_moves::Next;
use super::device_moves::Then;
use super::device_moves::mover;
use super::lifecycle::Lifecycle;
use super::outbox::Outgoing;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::memory::vidmm::device_local::Zeroed;
use crate::vgpu::memory::vidmm::device_memory::DeviceCopy;
use crate::vgpu::tdr::reason::Reason;

impl Lifecycle<'_> {
    /// Has the device zero what was given back, and go on with what it is to move.
    pub(in crate::vgpu) fn run_moves(&mut self) {
        if self.vm.memory.allocations.memory().device().is_none() {
            return;
        }
        for (offset, bytes) in self.vm.memory.allocations.take_unclean() {
            self.vm.engines.moves.zero(offset, bytes);
        }
        if self.vm.engines.moves.is_empty() || self.vm.freeze.is_stopping() {
            return;
        }
        let at = mover();
        // What is only to be zeroed waits until something needs it, or the engine runs anyway.
        let is_needed = self.vm.engines.moves.has_arrivals() || !self.vm.memory.residency.wants.is_empty();
        let is_missing = self.vm.engines[at.index()].process().is_none();
        if is_needed && is_missing && self.vm.engines.moves.is_available() {
            // Why it cannot be is in the log.
            let is_started = self.ensure_engine(at).is_ok();
            self.vm.engines.moves.set_available(is_started);
        }
        loop {
            let slot = &self.vm.engines[at.index()];
            if !slot.has_begun() || self.vm.engines.is_condemned(at) {
                return;
            }
            let pid = slot.process().map_or(0, |process| process.pid());
            match self.vm.engines.moves.next(pid) {
                Next::Nothing => return,
                Next::Send(request) => {
                    self.vm.engines[at.index()].outbox.push(Outgoing::Move(request));
                    Kernels::of(self.vm).flush_outbox(at);
                }
                Next::GiveUp(then) => self.give_up_move(at, then),
            }
        }
    }

    /// An engine says that it has moved what it was asked.
    pub(in crate::vgpu) fn has_moved(&mut self, serial: u64) {
        if let Some(then) = self.vm.engines.moves.moved(serial) {
            self.follow(then);
        }
        self.run_moves();
    }

    fn follow(&mut self, then: Then) {
        match then {
            Then::Clean { offset, bytes } => {
                self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::Done);
                self.vm.memory.residency.look_again();
            }
            Then::Arrived(action) => Deferred::of(self.vm).carry_out(action),
        }
    }

    /// No engine runs, and what is on its way is to arrive: it is copied by a process of its own, which is waited for. What was to be
    /// zeroed is zeroed when engines run again.
    pub(in crate::vgpu) fn finish_moves(&mut self) {
        let mut process = None;
        while let Some((copy, then)) = self.vm.engines.moves.next_arrival() {
            match self.finish_move(&mut process, copy) {
                Ok(()) => self.follow(then),
                Err(error) => {
                    self.vm.journal.line(Level::Error, format_args!("memory that moves: {error}"));
                    self.give_up_move(mover(), then);
                }
            }
        }
        self.abandon_moves();
    }

    fn finish_move(&self, process: &mut Option<CopyProcess>, copy: DeviceCopy) -> io::Result<()> {
        let none = || io::Error::other("there is no device");
        let memory = self.vm.memory.allocations.memory();
        let port = memory.device().map(|device| device.reader().port()).ok_or_else(none)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let opened = match process.take() {
                Some(opened) => Ok(opened),
                None => port.open(memory.file(), memory.evicted_file()),
            };
            let copied = opened.and_then(|mut opened| {
                opened.carry_out(copy.from, copy.to, copy.bytes)?;
                Ok(opened)
            });
            match copied {
                Ok(opened) => {
                    *process = Some(opened);
                    return Ok(());
                }
                Err(error) if attempts == ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// A move that no process could do: its contents are lost, and with them everything of this vGPU. What was to be zeroed stays
    /// out of use.
    fn give_up_move(&mut self, at: EngineAddress, then: Then) {
        match then {
            Then::Clean { offset, bytes } => {
                self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::Never);
                self.vm.journal.line(
                    Level::Error,
                    format_args!(
                        "{bytes} bytes of local memory at {offset:#x} cannot be zeroed: they stay unused"
                    ),
                );
            }
            Then::Arrived(action) => {
                let text = "memory could not be moved by the device: its contents are lost";
                self.vm.journal.line(Level::Error, format_args!("{text}"));
                self.vm.engines.condemn_for(at, Reason::PromotedToAdapter, text);
                Deferred::of(self.vm).carry_out(action);
            }
        }
    }

    /// No engine runs, and none of what was to be moved is needed.
    pub(in crate::vgpu) fn abandon_moves(&mut self) {
        for then in self.vm.engines.moves.abandon() {
            match then {
                Then::Clean { offset, bytes } => {
                    self.vm.memory.allocations.is_zeroed((offset, bytes), Zeroed::NotYet);
                }
                Then::Arrived(action) => Deferred::of(self.vm).carry_out(action),
            }
        }
    }
}
