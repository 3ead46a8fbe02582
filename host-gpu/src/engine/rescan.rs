//! The queues behind one global cell (UMS-08): which of them to look at after a ring.
//!
//! ```text
//!   cell = value ─▶ the queue that the value names, at once (UMS-09)
//!                ─▶ all the others: at once where the value says that rings are hidden, or names no queue; else a few
//!                   a loop, since what a guest says is not relied on (UMS-10)
//! ```

use std::collections::BTreeMap;

use crate::ids::QueueIndex;
use campanile_protocol::queue::doorbell::GLOBAL_HIDDEN;
use campanile_protocol::queue::doorbell::global_queue;

/// Queues looked at in one loop of the engine: few, since a doorbell may be about to ring.
const BATCH: usize = 4;
/// And where a queue has just been named, which wants to run.
const BATCH_BESIDE: usize = 1;

/// The connected queues of one guest process on a node of the global model.
#[derive(Debug, Default)]
pub struct Rescan {
    /// Queue table index, by index in the device page.
    queues: BTreeMap<u32, QueueIndex>,
    order: Vec<QueueIndex>,
    at: usize,
    left: usize,
    batch: usize,
}

impl Rescan {
    /// Connects a queue: `cell` is its index in the device page. After the last, [`Self::all`].
    pub fn connect(&mut self, cell: u32, queue: QueueIndex) {
        self.queues.insert(cell, queue);
        self.order.push(queue);
    }

    /// The connected queues: index in the device page, number.
    pub fn queues(&self) -> impl Iterator<Item = (u32, QueueIndex)> {
        self.queues.iter().map(|(&cell, &queue)| (cell, queue))
    }

    /// Forgets all queues, and owes nothing.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.order.clear();
        self.at = 0;
        self.left = 0;
        self.batch = BATCH;
    }

    /// Owes a look at every queue in the next step: the rings so far may have been taken for others.
    pub fn all(&mut self) {
        self.left = self.order.len();
        self.batch = self.left;
    }

    /// Whether no queue is connected.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether queues are still to be looked at.
    pub fn is_due(&self) -> bool {
        self.left > 0
    }

    /// The cell held `value`. The queue that it names is looked at first; whatever it says, all are looked at.
    pub fn rung(&mut self, value: u64) -> Option<QueueIndex> {
        let named = global_queue(value).and_then(|(_, index)| self.queues.get(&index).copied());
        self.all();
        if named.is_some() && value & GLOBAL_HIDDEN == 0 {
            self.batch = BATCH_BESIDE;
        }
        named
    }

    /// Looks at the next few, or at all where that is owed.
    pub fn step(&mut self, mut look: impl FnMut(QueueIndex)) {
        let batch = std::mem::replace(&mut self.batch, BATCH);
        for _ in 0..self.left.min(batch) {
            self.at = if self.at + 1 < self.order.len() { self.at + 1 } else { 0 };
            if let Some(queue) = self.order.get(self.at) {
                look(*queue);
            }
            self.left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::queue::doorbell::GLOBAL_HIDDEN;
    use campanile_protocol::queue::doorbell::global_value;

    use super::BATCH;
    use super::BATCH_BESIDE;
    use super::Rescan;
    use crate::ids::QueueIndex;

    fn rescan(count: u16) -> Rescan {
        let mut rescan = Rescan::default();
        for queue in 0..count {
            rescan.connect(u32::from(queue) + 500, QueueIndex::new(queue));
        }
        rescan
    }

    fn step(rescan: &mut Rescan) -> Vec<QueueIndex> {
        let mut looked = Vec::new();
        rescan.step(|queue| looked.push(queue));
        looked
    }

    fn drain(rescan: &mut Rescan) -> Vec<QueueIndex> {
        let mut looked = Vec::new();
        while rescan.is_due() {
            looked.extend(step(rescan));
        }
        looked.sort_unstable();
        looked
    }

    fn all() -> Vec<QueueIndex> {
        (0..100).map(QueueIndex::new).collect()
    }

    #[test]
    fn ums_09_the_value_names_the_queue_that_is_looked_at_first() {
        let mut rescan = rescan(100);
        assert_eq!(rescan.rung(global_value(1, 507)), Some(QueueIndex::new(7)));
        assert_eq!(rescan.rung(global_value(1, 499)), None, "not connected");
        assert_eq!(rescan.rung(1), None, "not a value that a driver stores");
    }

    #[test]
    fn ums_10_every_ring_has_all_queues_looked_at_whatever_its_value() {
        for value in [global_value(1, 500), global_value(1, 500) | GLOBAL_HIDDEN, 1, u64::MAX] {
            let mut rescan = rescan(100);
            assert!(drain(&mut rescan).is_empty(), "no doorbell rang");
            let _named = rescan.rung(value);
            assert_eq!(drain(&mut rescan), all());
        }
    }

    #[test]
    fn ums_10_a_hidden_ring_has_all_queues_looked_at_at_once_and_a_plain_one_lets_its_queue_run() {
        let mut rescan = rescan(100);
        for value in [global_value(1, 500) | GLOBAL_HIDDEN, GLOBAL_HIDDEN, global_value(1, 3)] {
            let _named = rescan.rung(value);
            assert_eq!(step(&mut rescan).len(), 100);
        }
        let _named = rescan.rung(global_value(1, 500));
        assert_eq!(step(&mut rescan).len(), BATCH_BESIDE);
        assert_eq!(step(&mut rescan).len(), BATCH);
    }

    #[test]
    fn ums_10_a_ring_during_a_round_owes_a_whole_round_from_there() {
        let mut rescan = rescan(100);
        let _named = rescan.rung(global_value(1, 500));
        step(&mut rescan);
        let _named = rescan.rung(global_value(1, 501));
        assert_eq!(drain(&mut rescan), all());
        // A queue that rings without end keeps no other from being looked at.
        let mut looked = Vec::new();
        for _ in 0..100 {
            let _named = rescan.rung(global_value(1, 500));
            looked.extend(step(&mut rescan));
        }
        looked.sort_unstable();
        assert_eq!(looked, all());
    }
}
