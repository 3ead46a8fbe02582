//! The queues behind one global cell (UMS-08): which of them to look at after a ring.
//!
//! ```text
//!   cell = value ─▶ the queue that the value names, at once (UMS-09)
//!                ─▶ all the others, a batch a loop: their rings may have been overwritten (UMS-10)
//! ```

use std::collections::BTreeMap;

use campanile_protocol::queue::doorbell::global_queue;

/// Queues looked at in one loop of the engine.
const BATCH: usize = 32;

/// The connected queues of one guest process on a node of the global model.
#[derive(Debug, Default)]
pub struct Rescan {
    /// Queue table index, by index in the device page.
    queues: BTreeMap<u32, u16>,
    order: Vec<u16>,
    at: usize,
    left: usize,
}

impl Rescan {
    /// Connects a queue: `cell` is its index in the device page. After the last, [`Self::all`].
    pub fn connect(&mut self, cell: u32, queue: u16) {
        self.queues.insert(cell, queue);
        self.order.push(queue);
    }

    /// Forgets all queues, and owes nothing.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.order.clear();
        self.at = 0;
        self.left = 0;
    }

    /// Owes a look at every queue: the rings so far may have been taken for others.
    pub fn all(&mut self) {
        self.left = self.order.len();
    }

    /// Whether no queue is connected.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether queues are still to be looked at.
    pub fn is_due(&self) -> bool {
        self.left > 0
    }

    /// The cell held `value`. Whoever it names is looked at first; whatever it says, all are looked at.
    pub fn rung(&mut self, value: u64) -> Option<u16> {
        self.all();
        let (_, index) = global_queue(value)?;
        self.queues.get(&index).copied()
    }

    /// Looks at the next few.
    pub fn step(&mut self, mut look: impl FnMut(u16)) {
        for _ in 0..self.left.min(BATCH) {
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
    use campanile_protocol::queue::doorbell::global_value;

    use super::BATCH;
    use super::Rescan;

    fn rescan(count: u16) -> Rescan {
        let mut rescan = Rescan::default();
        for queue in 0..count {
            rescan.connect(u32::from(queue) + 500, queue);
        }
        rescan
    }

    fn drain(rescan: &mut Rescan) -> Vec<u16> {
        let mut looked = Vec::new();
        while rescan.is_due() {
            let before = looked.len();
            rescan.step(|queue| looked.push(queue));
            assert!(looked.len() - before <= BATCH);
        }
        looked
    }

    #[test]
    fn ums_09_the_value_names_the_queue_that_is_looked_at_first() {
        let mut rescan = rescan(100);
        assert_eq!(rescan.rung(global_value(1, 507)), Some(7));
        assert_eq!(rescan.rung(global_value(1, 499)), None, "not connected");
        assert_eq!(rescan.rung(1), None, "not a value that a driver stores");
    }

    #[test]
    fn ums_10_every_ring_has_all_queues_looked_at_whatever_its_value() {
        for value in [global_value(1, 500), 1, u64::MAX] {
            let mut rescan = rescan(100);
            assert!(drain(&mut rescan).is_empty(), "nobody rang");
            let _named = rescan.rung(value);
            let mut looked = drain(&mut rescan);
            looked.sort_unstable();
            assert_eq!(looked, (0..100).collect::<Vec<u16>>());
        }
    }

    #[test]
    fn ums_10_a_ring_during_a_round_owes_a_whole_round_from_there() {
        let mut rescan = rescan(100);
        let _named = rescan.rung(global_value(1, 500));
        rescan.step(|_| ());
        let _named = rescan.rung(global_value(1, 501));
        let mut looked = drain(&mut rescan);
        looked.sort_unstable();
        assert_eq!(looked, (0..100).collect::<Vec<u16>>());
    }
}
