//! The order of segments, page tables and work, from the daemon.
//!
//! ```text
//!   daemon:  AddSegment(serial) ──────────────▶ SEGMENT_ACK ≥ serial ─▶ page tables name it ─▶ work that uses it
//!   engine:      └─▶ control thread maps it ─▶ execution thread has it ─┘
//! ```
//!
//! An engine resolves addresses through page tables that the daemon changes meanwhile, with the segments that its execution
//! thread was given. So that these are never older than the page tables, no page-table entry names a segment before every
//! engine has acknowledged it, and a number is given to another segment only after that one was announced to all and its
//! mappings were let go of. The requests of one process are numbered, and carried out in order: one word says how far it is,
//! and an answer that is late cannot be taken for another's.

use std::sync::Arc;

use campanile_protocol::engine::block;

use super::shared::SharedBlock;

/// Requests to add and remove segments: their serials.
#[derive(Debug)]
pub struct Announcements {
    shared: Arc<SharedBlock>,
    announced: u64,
}

impl Announcements {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared, announced: 0 }
    }

    /// The serial for the next request to add or remove a segment.
    pub fn next_serial(&mut self) -> u64 {
        self.announced += 1;
        self.announced
    }

    /// The serial that was given out last.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// The serial up to which the engine has carried them out; a lost engine resolves nothing.
    pub fn acknowledged(&self) -> u64 {
        // PAIRS WITH engine/execution.rs `drain_commands`.
        if self.shared.is_lost() {
            u64::MAX
        } else {
            self.shared.load(block::SEGMENT_ACK).min(self.announced)
        }
    }

    /// Another process is about to start: what the last one was told is of no concern to it.
    pub(super) fn forget(&self) {
        self.shared.store(block::SEGMENT_ACK, self.announced);
    }
}

/// What the engine has resolved through page tables, and is told to forget.
#[derive(Debug)]
pub struct Invalidations {
    shared: Arc<SharedBlock>,
    generation: u64,
}

impl Invalidations {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared, generation: 0 }
    }

    /// Tells the engine to forget what it has resolved; returns the generation to wait for.
    pub fn invalidate(&mut self) -> u64 {
        self.generation += 1;
        self.shared.store(block::PAGE_TABLE_GENERATION, self.generation);
        self.shared.poke();
        self.generation
    }

    /// The last generation that was asked for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The generation that the engine has acknowledged; a lost engine holds nothing.
    pub fn acknowledged(&self) -> u64 {
        if self.shared.is_lost() {
            u64::MAX
        } else {
            self.shared.load(block::PAGE_TABLE_ACK).min(self.generation)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;

    use super::Announcements;
    use super::Invalidations;
    use super::SharedBlock;

    #[test]
    fn an_engine_is_believed_no_more_than_it_was_told_and_one_that_is_lost_holds_nothing() {
        let shared = Arc::new(SharedBlock::new().unwrap());
        let mut segments = Announcements::new(Arc::clone(&shared));
        assert_eq!([segments.next_serial(), segments.next_serial()], [1, 2]);
        assert_eq!((segments.announced(), segments.acknowledged()), (2, u64::MAX));
        shared.set_lost(false);
        assert_eq!(segments.acknowledged(), 0);
        shared.store(block::SEGMENT_ACK, 1);
        assert_eq!(segments.acknowledged(), 1);
        shared.store(block::SEGMENT_ACK, u64::MAX);
        assert_eq!(segments.acknowledged(), 2);
        // What the last process was told and had not done is not waited for in vain.
        shared.store(block::SEGMENT_ACK, 1);
        segments.forget();
        assert_eq!(segments.acknowledged(), 2);
        segments.next_serial();
        assert_eq!(segments.acknowledged(), 2);
    }

    #[test]
    fn page_tables_are_forgotten_as_far_as_the_engine_was_told() {
        let shared = Arc::new(SharedBlock::new().unwrap());
        let mut page_tables = Invalidations::new(Arc::clone(&shared));
        assert_eq!((page_tables.invalidate(), page_tables.acknowledged()), (1, u64::MAX));
        shared.set_lost(false);
        assert_eq!((page_tables.generation(), page_tables.acknowledged()), (1, 0));
        assert_eq!(shared.load(block::PAGE_TABLE_GENERATION), 1);
        shared.store(block::PAGE_TABLE_ACK, u64::MAX);
        assert_eq!(page_tables.acknowledged(), 1);
    }
}
