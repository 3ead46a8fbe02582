//! What waits until every engine has let go.

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::memory::page_table::writer::Root;
use std::sync::atomic::Ordering;

use super::areas::SaveArea;
use super::barrier::Barrier;
use super::budget::Charge;
use super::reply::Origin;
use super::state::Session;
use super::timeline::Token;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::vram::Place;

/// Actions of one session that may wait while more work is taken.
pub const MAX_PENDING: usize = 16 * 1024;

/// What to do then.
#[derive(Debug)]
pub enum Action {
    /// Drop references to allocations.
    Release(Vec<AllocationId>),
    /// Free save areas.
    FreeAreas(Vec<SaveArea>),
    /// Give the tables of an address space back.
    DestroyRoot(Root),
    /// Free native fences.
    FreeFences(Vec<u32>),
    /// Raise a process's paging fence.
    PagingFence {
        /// The virtio-gpu context.
        context: u32,
        /// Its address space: a later device of the same context has another.
        root: Root,
        /// The value.
        value: u64,
    },
    /// Copy an allocation to its new place and show it there.
    Move {
        /// The allocation; this holds one reference.
        allocation: AllocationId,
        /// Where it goes.
        target: Place,
        /// The blob.
        resource: u32,
        /// What to answer.
        token: Token,
    },
    /// Copy an allocation to host memory, or to where it is less in the way.
    Relocate {
        /// The allocation; this holds one reference.
        allocation: AllocationId,
        /// Where it goes.
        target: Place,
    },
    /// Show guest RAM where it is mapped: engines have its segment.
    ShowSegment(AllocationId),
    /// Answer a control message with OK.
    Reply {
        /// Where its answer goes.
        origin: Origin,
        /// The address space of its device: a later device of the same context has another.
        root: Root,
    },
    /// Answer a command.
    Answer(Token),
    /// Let a process run that has come back.
    Return {
        /// The process.
        context: u32,
        /// Its address space.
        root: Root,
    },
}

/// An action and what it waits for.
#[derive(Debug)]
pub struct Pending {
    /// What must have passed.
    pub barrier: Barrier,
    /// What to do.
    pub action: Action,
    /// What is held until then.
    pub charges: Vec<Charge>,
}

impl Session {
    /// Whether as much waits as may. Messages that make something are refused then; those that end something
    /// never are, so what waits is bounded by what there is (MCDM-06).
    pub(super) fn has_too_much_pending(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Does `action` once every engine has passed `barrier`; now, if they have.
    pub(super) fn after(&mut self, barrier: Barrier, action: Action) {
        self.after_charged(barrier, action, Vec::new());
    }

    /// As [`Self::after`]; what was charged is held until then.
    pub(super) fn after_charged(&mut self, barrier: Barrier, action: Action, charges: Vec<Charge>) {
        let is_due = barrier.is_passed(&self.engines);
        self.pending.push(Pending { barrier, action, charges });
        // What came first is due first. Where it is not, neither is this: engines pass barriers in order.
        if is_due {
            self.run_pending();
        }
    }

    /// Does what is due, oldest first.
    pub(super) fn run_pending(&mut self) {
        let mut waiting = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            if pending.barrier.is_passed(&self.engines) {
                self.act(pending.action);
            } else {
                waiting.push(pending);
            }
        }
        waiting.append(&mut self.pending);
        self.pending = waiting;
        self.look_at_power();
        self.end_liars();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Release(allocations) => {
                for allocation in allocations {
                    self.release_allocation(allocation);
                }
            }
            Action::FreeFences(indices) => self.free_fences(&indices),
            Action::FreeAreas(areas) => self.areas_are_free(areas),
            Action::DestroyRoot(root) => self.tables.destroy_root(root),
            Action::PagingFence { context, root, value } => self.paging_is_done(context, root, value),
            Action::ShowSegment(allocation) => self.segment_is_there(allocation),
            Action::Relocate { allocation, target } => self.finish_relocation(allocation, target),
            Action::Move { allocation, target, resource, token } => {
                self.finish_move(allocation, target, resource, token)
            }
            Action::Reply { origin, root } => {
                if self.device(origin.context).is_ok_and(|device| device.root == root) {
                    self.answer(origin, Ok(Vec::new()));
                } else {
                    self.end_item(origin.context, origin.ring, origin.item);
                }
            }
            Action::Answer(token) => self.due.push((token, Ok(()))),
            Action::Return { context, root } => self.has_returned(context, root),
        }
    }

    /// An engine signalled.
    pub(super) fn engine_event(&mut self, at: EngineAddress) {
        let Some(process) = self.engines[at.index()].process() else { return };
        process.drain_event();
        let sleepy = process.wishes_f1();
        self.collect_reports(at);
        if sleepy {
            self.engine_to_f1(at);
        }
        self.run_pending();
    }

    /// Takes whatever an engine has reported in its shared block; also of a process that has ended.
    pub(super) fn collect_reports(&mut self, at: EngineAddress) {
        self.flush_reports(at);
        if self.engines[at.index()].process().is_some_and(EngineProcess::says_hung) {
            self.engine_timeout(at, "it reports that it cannot go on", None);
        }
    }

    /// Acts on what an engine has reported until now, but for what it says of itself: also right before it is reset (TDR-39).
    pub(super) fn flush_reports(&mut self, at: EngineAddress) {
        let Some(process) = self.engines[at.index()].process_mut() else { return };
        let attention = process.take_attention();
        self.counters.found_by_look.fetch_add(process.take_found_by_look(), Ordering::Relaxed);
        self.collect_completions(at);
        self.collect_suspends(at);
        for queue in attention {
            self.queue_wants_attention(at, queue);
        }
        self.read_signalled(at);
        self.read_wanted(at);
    }
}
