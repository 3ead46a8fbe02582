//! The end of a buffer: what guest and daemon are told, in which order, and what the next process makes up for.

use std::sync::atomic::Ordering;

use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::scheduling;
use campanile_protocol::handshake::fence;
use campanile_protocol::packet::Fault;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::Pending;
use campanile_protocol::queue::ring::RingEntry;

use super::machine::Machine;
use super::process::Process;
use super::user_queue::Outcome;
use super::user_queue::UserQueue;
use super::words::store;
use crate::memory::mapping::Mapping;
use crate::node::space::Stop;

/// Counts buffers that are retired, for metrics.
fn count(shared: &Mapping, buffers: u64) {
    // No other thread stores there, and no guest reads it: it stays in this CPU's cache.
    if let Some(word) = shared.word(scheduling::USER_SUBMISSIONS) {
        word.store(word.load(Ordering::Relaxed).wrapping_add(buffers), Ordering::Relaxed);
    }
}

impl UserQueue {
    /// Makes up for what an earlier process did not get to of the buffer that it retired last.
    pub(super) fn take_over(&mut self, machine: &Machine, process: &mut Process) -> Outcome {
        let Machine { tables, segments, .. } = machine;
        let space = process.space(tables, segments);
        let half_retired = match ring::pending(self.consumed, self.write_pointer, self.entry.ring_entries) {
            Pending::Entries(_) => self.next_entry(&space).map(|entry| entry.fence_value == self.completed),
            Pending::Nothing | Pending::Invalid => Ok(false),
        };
        let published = half_retired.and_then(|is_half| {
            self.resolve(&space)?;
            process.page(tables, segments)?;
            self.consumed += u64::from(is_half);
            count(&machine.shared, u64::from(is_half));
            self.publish(machine, process)
        });
        self.takes_over = published == Err(Stop::Moving);
        match published {
            Ok(true) => Outcome::WakeWaiter,
            Err(Stop::Moving) => Outcome::Blocked,
            // Memory that the guest took away is looked at no more.
            Ok(false) | Err(Stop::Fault(..)) if self.has_work() => Outcome::More,
            Ok(false) | Err(Stop::Fault(..)) => Outcome::Idle,
        }
    }

    /// A buffer that is done and cannot be retired yet, since that memory is on the move, is not run again if it is put aside
    /// meanwhile.
    pub(super) fn save_done(&self, machine: &Machine) {
        if let (Some((buffer, _)), Some(slot)) = (&self.running, &self.slot) {
            let saved = block::queue(u32::from(self.index.get())) + block::QUEUE_SAVED;
            let count = self.consumed;
            slot.save(&machine.segments, &machine.shared, count, buffer, (saved, count));
        }
    }

    /// The value first, which names the buffer that is retired; then the place in the ring, so that it is not run again;
    /// then the read pointer, which lets the guest overwrite the entry; then the fence, so that a reader of the fence
    /// sees the room in the ring. True when a waiter is due.
    pub(super) fn retire(
        &mut self,
        entry: &RingEntry,
        machine: &Machine,
        process: &mut Process,
    ) -> Result<bool, Stop> {
        let Machine { shared, tables, segments, .. } = machine;
        let space = process.space(tables, segments);
        // While ring control or device page are on the move the buffer stays, done as it is.
        self.resolve(&space)?;
        process.page(tables, segments)?;
        self.running = None;
        self.consumed += 1;
        count(shared, 1);
        self.completed = entry.fence_value;
        store(shared, block::queue(u32::from(self.index.get())) + block::QUEUE_COMPLETED, self.completed);
        self.publish(machine, process)
    }

    /// Tells daemon and guest how far the queue is, apart from the value.
    fn publish(&mut self, machine: &Machine, process: &mut Process) -> Result<bool, Stop> {
        let Machine { shared, tables, segments, .. } = machine;
        let missing = Stop::Fault(Fault::PageFault, 0);
        let base = block::queue(u32::from(self.index.get()));
        store(shared, base + block::QUEUE_CONSUMED, self.consumed);
        let (consumed, completed) = (self.consumed, self.completed);
        let space = process.space(tables, segments);
        if let Some(word) = self.resolve(&space)?.control.word(ring::CONTROL_READ_POINTER) {
            word.store(consumed, Ordering::Release);
        }
        let page = process.page(tables, segments)?;
        let current = page.word(device_page::fence(self.entry.fence_index)).ok_or(missing)?;
        let monitored = shared.word(base + block::QUEUE_MONITORED).ok_or(missing)?;
        if self.takes_over && current.load(Ordering::Acquire) >= completed {
            return Ok(false);
        }
        Ok(fence::signal(current, monitored, completed))
    }
}
