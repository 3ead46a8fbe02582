//! Guest RAM that engines have written, told to the log of the VMM; and the trackers of video memory, shown to other threads.

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::page_table::SegmentId;
use std::sync::Arc;

use crate::guest_ram::mark::MarkGuestRam;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::memory::dirty::SWEEP;
use crate::vgpu::memory::dirty::SWEEP_PART;

impl GuestPages<'_> {
    /// Shows the trackers on the board; to be repeated when the session gets another memory.
    pub(in crate::vgpu) fn show_trackers(&self) {
        *self.vm.config.trackers.lock() = Some(self.vm.memory.trackers());
    }

    /// Takes them off it.
    pub(in crate::vgpu) fn hide_trackers(&self) {
        let mut shown = self.vm.config.trackers.lock();
        // Another session's are not this one's to take.
        if shown
            .as_ref()
            .is_some_and(|[vram, _]| Arc::ptr_eq(vram, self.vm.memory.allocations.memory().tracker()))
        {
            *shown = None;
        }
    }

    /// Guest RAM that is written from here on is told to this log; to none, where there is none.
    pub fn set_dirty_log(&mut self, log: Option<Arc<dyn MarkGuestRam>>) {
        if self.vm.memory.dirty.has_log() && log.is_none() {
            // The front-end has read what is in the log before it took it away.
            self.sweep_guest_ram();
        }
        self.vm.memory.dirty.log = log;
        let is_logged = self.vm.memory.dirty.has_log();
        for process in self.vm.engines.iter_mut().filter_map(|slot| slot.process_mut()) {
            process.tracking.log_guest_writes(is_logged);
        }
        self.vm.memory.dirty.sweep_at = None;
        if is_logged {
            self.sweep_guest_ram();
        }
    }

    /// Moves what engines have written to guest RAM into the log. Complete when no engine runs.
    pub fn sweep_guest_ram(&mut self) {
        let begun = clock::now();
        self.sweep(None);
        let next = || clock::now() + SWEEP.max(clock::since(begun) * SWEEP_PART);
        self.vm.memory.dirty.sweep_at = self.vm.memory.dirty.has_log().then(next);
        if let Some(at) = self.vm.memory.dirty.sweep_at {
            self.vm.timer.set(at);
        }
    }

    /// The same of one segment, which no engine writes any more, and which is about to go.
    pub(in crate::vgpu) fn sweep_segment(&mut self, segment: SegmentId) {
        self.sweep(Some(segment));
    }

    /// An engine is about to go with all that it knows: it is ended, and what it wrote to guest RAM moved into the log.
    pub(in crate::vgpu) fn sweep_for_the_last_time(&mut self, at: EngineAddress) {
        let Some(process) =
            self.vm.engines[at.index()].process_mut().filter(|_| self.vm.memory.dirty.has_log())
        else {
            return;
        };
        if let Err(error) = process.reset_engine() {
            log::error!("{}: {error}", self.vm.config.name);
        }
        self.sweep(None);
    }

    fn sweep(&mut self, only: Option<SegmentId>) {
        let Some(log) = &self.vm.memory.dirty.log else { return };
        let segments = &self.vm.memory.segments;
        for process in self.vm.engines.iter_mut().filter_map(|slot| slot.process_mut()) {
            process.tracking.sweep_guest_writes(only, |segment, offset, length| {
                if let Some(segment) = segments.get(segment) {
                    segment.pieces_of(offset, length, |address, length| log.mark(address, length));
                }
            });
        }
    }

    pub(in crate::vgpu) fn sweep_if_due(&mut self) {
        if self.vm.memory.dirty.sweep_at.is_some_and(|at| at <= clock::now()) {
            self.sweep_guest_ram();
        }
    }
}
