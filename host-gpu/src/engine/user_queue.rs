//! One user-mode queue in an engine: fetches its ring, runs, and writes its progress fence.
//!
//! ```text
//!   ring rung ──▶ PENDING ──fetch──▶ RUNNING ──▶ fence ──▶ PENDING or IDLE
//!                                      │  ▲
//!                              Blocked ▼  │ looked at again
//!                                    BLOCKED
//!   a rule broken, anywhere ──▶ STOPPED: the report says why; its device is put in error by the daemon
//! ```

use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::QUEUE_EXEMPT;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::handshake::doorbell;
use campanile_protocol::packet::Fault;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::Pending;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::FromBytes;

use super::machine::Machine;
use super::process::Process;
use super::save_area;
use super::save_area::Owner;
use super::save_area::Slot;
use super::words::load;
use crate::ids::ContextIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Intent;
use crate::memory::segment::Place;
use crate::memory::wants::Missing;
use crate::node::buffer::Buffer;
use crate::node::buffer::Step;
use crate::node::space::Space;
use crate::node::space::Stop;

/// What became of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing left to do.
    Idle,
    /// More to do.
    More,
    /// Waits for memory or a fence.
    Blocked,
    /// Stopped for good; the daemon must be told.
    Faulted,
    /// A waiter of the progress fence must be woken. More to do, perhaps.
    WakeWaiter,
}

#[derive(Debug)]
pub(super) struct Resolved {
    ring: Place,
    pub(super) control: Place,
}

/// A user-mode queue.
#[derive(Debug)]
pub struct UserQueue {
    pub(super) index: QueueIndex,
    pub(super) entry: QueueEntry,
    pub(super) consumed: u64,
    pub(super) completed: u64,
    pub(super) write_pointer: u64,
    resolved: Option<Resolved>,
    /// Its slot in a save area, while that is known.
    pub(super) slot: Option<Slot>,
    pub(super) running: Option<(Buffer, RingEntry)>,
    /// A look found the ring control on the move.
    owes_look: bool,
    /// An address that was not resident, or on the move, when it was last blocked.
    missing: Option<Missing>,
    /// Its context is suspended.
    is_held: bool,
    stopped: bool,
    /// An earlier process ran some of it, and may have ended between two of the stores that retire a buffer: those before
    /// the end are not repeated, and those after it are made up for.
    pub(super) takes_over: bool,
}

impl UserQueue {
    /// A queue that came up, or one that an earlier process of this engine had: goes on where that stopped.
    pub fn new(shared: &Mapping, index: QueueIndex, entry: QueueEntry) -> Self {
        let base = block::queue(u32::from(index.get()));
        let consumed = load(shared, base + block::QUEUE_CONSUMED);
        let completed = load(shared, base + block::QUEUE_COMPLETED);
        Self {
            index,
            entry,
            consumed,
            completed,
            write_pointer: consumed,
            resolved: None,
            slot: None,
            running: None,
            owes_look: false,
            missing: None,
            is_held: false,
            stopped: false,
            takes_over: (consumed, completed) != (entry.consumed, entry.completed),
        }
    }

    /// Generation of its entry.
    pub fn generation(&self) -> u64 {
        self.entry.generation
    }

    /// Whether no timeout holds for its work (UMS-27).
    pub fn is_exempt(&self) -> bool {
        self.entry.flags & QUEUE_EXEMPT != 0
    }

    /// Index of its process.
    pub fn process(&self) -> ProcessIndex {
        ProcessIndex::new(self.entry.process)
    }

    /// Index of its context.
    pub fn context(&self) -> ContextIndex {
        ContextIndex::new(self.entry.context)
    }

    /// Forgets what was resolved.
    pub fn drop_resolved(&mut self) {
        self.resolved = None;
        self.slot = None;
    }

    /// The guest rang with this write pointer. One behind what was seen already is an old cell, read again because
    /// a neighbour rang, or a guest that goes back: the ring control says which (UMS-93).
    pub fn rung(&mut self, value: u64, space: &Space<'_>) {
        if value >= self.write_pointer {
            self.write_pointer = value;
        } else {
            self.look(space);
        }
    }

    /// Puts it aside while its context is suspended: nothing of it runs, and nothing that it resolved is kept. What it
    /// ran is saved in its context's save area, and goes on from there.
    pub fn hold(&mut self, is_held: bool) {
        if is_held && !self.is_held {
            self.running = None;
            self.drop_resolved();
        }
        self.is_held = is_held;
    }

    /// Tells the daemon, if it waits for that, that nothing is left to run. True when it must be signalled. Of a
    /// queue whose context is suspended that is not known.
    pub fn report_drained(&self, shared: &Mapping) -> bool {
        let base = block::queue(u32::from(self.index.get()));
        if self.is_held || self.has_work() || load(shared, base + block::QUEUE_DRAIN) == 0 {
            return false;
        }
        // PAIRS WITH adapter/tables.rs `queue_is_drained`.
        shared.word(base + block::QUEUE_DRAINED).is_some_and(|word| word.swap(1, Ordering::Release) == 0)
    }

    /// The global cell that this queue is behind was rung: the write pointer says whether for this queue (UMS-10).
    pub fn recheck(&mut self, space: &Space<'_>) {
        if self.stopped || self.is_held || self.owes_look {
            return;
        }
        match self.resolve(space) {
            Ok(resolved) => {
                if let Some(word) = resolved.control.word(ring::CONTROL_WRITE_POINTER) {
                    self.write_pointer = doorbell::recheck(word);
                }
            }
            Err(stop) => self.owes_look = stop == Stop::Moving,
        }
    }

    /// Whether there is something to do.
    pub fn has_work(&self) -> bool {
        !self.stopped
            && !self.is_held
            && (self.running.is_some()
                || self.takes_over
                || self.owes_look
                || self.write_pointer != self.consumed)
    }

    /// Whether a blocked queue can go on.
    pub fn is_ready(&self, space: &Space<'_>) -> bool {
        space.segments.wants.begin(u64::from(self.index.get()), self.consumed);
        if let Some((buffer, _)) = &self.running {
            buffer.show_progress(space);
        }
        if self.missing.is_some_and(|missing| space.is_missing(missing)) {
            return false;
        }
        self.running.as_ref().is_none_or(|(buffer, _)| buffer.is_ready(space))
    }

    /// Looks at the write pointer in the ring control (after a connect, before a disconnect is done).
    ///
    /// Not while its context is suspended: when that is over, the daemon asks for a look.
    pub fn look(&mut self, space: &Space<'_>) {
        if self.stopped || self.is_held {
            return;
        }
        // A guest may take its ring away before it destroys the doorbell. If it rings after that, the fetch faults.
        self.owes_look = self.read_write_pointer(space) == Err(Stop::Moving);
    }

    fn read_write_pointer(&mut self, space: &Space<'_>) -> Result<(), Stop> {
        if let Some(word) = self.resolve(space)?.control.word(ring::CONTROL_WRITE_POINTER) {
            self.write_pointer = doorbell::final_look(word);
        }
        self.owes_look = false;
        Ok(())
    }

    pub(super) fn resolve(&mut self, space: &Space<'_>) -> Result<&Resolved, Stop> {
        if self.resolved.is_none() {
            let bytes = u64::from(self.entry.ring_entries) * ring::RING_ENTRY_BYTES;
            self.resolved = Some(Resolved {
                ring: space.place(self.entry.ring_va, bytes, Intent::Read)?,
                control: space.place_to_keep(self.entry.control_va, ring::CONTROL_BYTES)?,
            });
        }
        self.resolved.as_ref().ok_or(Stop::Moving)
    }

    fn fetch(&mut self, space: &Space<'_>) -> Result<Option<RingEntry>, Stop> {
        match ring::pending(self.consumed, self.write_pointer, self.entry.ring_entries) {
            Pending::Nothing => return Ok(None),
            Pending::Invalid => return Err(Stop::fault(Fault::WritePointer)),
            Pending::Entries(_) => {}
        }
        let entry = self.next_entry(space)?;
        let place = self.entry.ring_va + ring::place(self.consumed, self.entry.ring_entries);
        if entry.flags != 0 || entry.reserved != 0 || entry.length > MAX_DMA_BUFFER {
            return Err(Stop::Fault(Fault::RingEntry, place));
        }
        if entry.fence_value <= self.completed {
            return Err(Stop::Fault(Fault::FenceValue, place));
        }
        Ok(Some(entry))
    }

    /// The entry of the ring that is next, as the guest wrote it.
    pub(super) fn next_entry(&mut self, space: &Space<'_>) -> Result<RingEntry, Stop> {
        let place = ring::place(self.consumed, self.entry.ring_entries);
        let ring_va = self.entry.ring_va;
        let resolved = self.resolve(space)?;
        let mut bytes = [0; size_of::<RingEntry>()];
        let offset = resolved.ring.offset + place;
        let slice = resolved.ring.mapping.slice(offset, ring::RING_ENTRY_BYTES);
        slice.ok_or(Stop::Fault(Fault::PageFault, ring_va + place))?.copy_to(&mut bytes);
        RingEntry::read_from_bytes(&bytes).map_err(|_| Stop::fault(Fault::RingEntry))
    }

    /// Runs at most one buffer.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        process: &mut Process,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        machine.segments.wants.begin(u64::from(self.index.get()), self.consumed);
        let outcome = self.run(machine, process, should_pause);
        let is_blocked = outcome == Outcome::Blocked;
        self.missing = if is_blocked { machine.segments.wants.take_missing() } else { None };
        outcome
    }

    fn run(
        &mut self,
        machine: &mut Machine,
        process: &mut Process,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        if self.stopped || self.is_held {
            return Outcome::Idle;
        }
        let Machine { shared, tables, segments, node, signals } = machine;
        let space = process.space(tables, segments);
        if self.owes_look && self.running.is_none() {
            return match self.read_write_pointer(&space) {
                // What it found was rung just now perhaps, after commands that come before it.
                Ok(()) => Outcome::More,
                Err(stop) => self.stop(shared, stop),
            };
        }
        if self.takes_over {
            return self.take_over(machine, process);
        }
        let saved = block::queue(u32::from(self.index.get())) + block::QUEUE_SAVED;
        if self.running.is_none() {
            match self.begin(shared, process, &space, saved) {
                Ok(None) => return Outcome::Idle,
                Ok(running) => self.running = running,
                Err(stop) => return self.stop(shared, stop),
            }
        } else if let Err(stop) = self.open_slot(shared, process, &space) {
            return self.stop(shared, stop);
        }
        let (Some((buffer, entry)), Some(slot)) = (self.running.as_mut(), self.slot.as_ref()) else {
            return Outcome::Idle;
        };
        let entry = *entry;
        let step = buffer.run(node, &space, signals, should_pause);
        if matches!(step, Step::Blocked | Step::Paused) {
            slot.save(segments, shared, self.consumed, buffer, (saved, self.consumed));
        }
        match step {
            Step::Done => {}
            Step::Blocked => return Outcome::Blocked,
            Step::Paused => return Outcome::More,
            Step::Fault(fault, address) => return self.stop(shared, Stop::Fault(fault, address)),
        }
        match self.retire(&entry, machine, process) {
            Ok(true) => Outcome::WakeWaiter,
            Ok(false) if self.has_work() => Outcome::More,
            Ok(false) => Outcome::Idle,
            Err(stop) => {
                self.save_done(machine);
                self.stop(&machine.shared, stop)
            }
        }
    }

    /// The next buffer of the ring, from where it was put aside if it was; not before the save areas are there (PRE-32).
    fn begin(
        &mut self,
        shared: &Mapping,
        process: &Process,
        space: &Space<'_>,
        saved: u64,
    ) -> Result<Option<(Buffer, RingEntry)>, Stop> {
        let Some(entry) = self.fetch(space)? else { return Ok(None) };
        let count = self.consumed;
        let buffer = Buffer::fetch(space, entry.buffer_va, entry.length)?;
        let slot = self.open_slot(shared, process, space)?;
        let is_saved = save_area::is_saved(shared, saved, count);
        let buffer = if is_saved { slot.restore(count, buffer)? } else { buffer };
        Ok(Some((buffer, entry)))
    }

    fn open_slot(&mut self, shared: &Mapping, process: &Process, space: &Space<'_>) -> Result<&Slot, Stop> {
        let slot = match self.slot.take() {
            Some(slot) => slot,
            None => {
                let (QueueEntry { context, fence_index, .. }, va) = (self.entry, process.area_va());
                let areas = process.areas(space.tables, space.segments);
                Slot::open(shared, &areas, ContextIndex::new(context), va, Owner::Queue(fence_index))?
            }
        };
        Ok(self.slot.insert(slot))
    }

    fn stop(&mut self, shared: &Mapping, stop: Stop) -> Outcome {
        let Stop::Fault(fault, address) = stop else { return Outcome::Blocked };
        self.stopped = true;
        self.running = None;
        let base = block::queue(u32::from(self.index.get()));
        if let Some(word) = shared.word(base + block::QUEUE_FAULT_VA) {
            word.store(address, Ordering::Relaxed);
        }
        if let Some(word) = shared.word(base + block::QUEUE_FAULT) {
            // PAIRS WITH the daemon's load after ATTENTION: the address is there first.
            word.store(fault as u64, Ordering::Release);
        }
        Outcome::Faulted
    }
}
