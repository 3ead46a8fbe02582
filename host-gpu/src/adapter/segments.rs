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

use campanile_protocol::engine::block;

use super::process::EngineProcess;

impl EngineProcess {
    /// The serial for the next request to add or remove a segment.
    pub fn next_segment_serial(&mut self) -> u64 {
        self.segments_announced += 1;
        self.segments_announced
    }

    /// The serial that was given out last.
    pub fn segments_announced(&self) -> u64 {
        self.segments_announced
    }

    /// The serial up to which the engine has carried them out; a lost engine resolves nothing.
    pub fn segments_acknowledged(&self) -> u64 {
        // PAIRS WITH engine/execution.rs `drain_commands`.
        if self.is_lost() { u64::MAX } else { self.load(block::SEGMENT_ACK).min(self.segments_announced) }
    }

    /// Another process is about to start: what the last one was told is of no concern to it.
    pub(super) fn forget_announcements(&self) {
        self.store(block::SEGMENT_ACK, self.segments_announced);
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::engine::block;

    use crate::adapter::process::EngineProcess;
    use crate::engine::message::NodeKind;

    #[test]
    fn an_engine_is_believed_no_more_than_it_was_told_and_one_that_is_lost_holds_nothing() {
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        assert_eq!([engine.next_segment_serial(), engine.next_segment_serial()], [1, 2]);
        assert_eq!((engine.segments_announced(), engine.segments_acknowledged()), (2, u64::MAX));
        engine.lost = false;
        assert_eq!(engine.segments_acknowledged(), 0);
        engine.store(block::SEGMENT_ACK, 1);
        assert_eq!(engine.segments_acknowledged(), 1);
        engine.store(block::SEGMENT_ACK, u64::MAX);
        assert_eq!(engine.segments_acknowledged(), 2);
        // What the last process was told and had not done is not waited for in vain.
        engine.store(block::SEGMENT_ACK, 1);
        engine.forget_announcements();
        assert_eq!(engine.segments_acknowledged(), 2);
        engine.next_segment_serial();
        assert_eq!(engine.segments_acknowledged(), 2);
        engine.lost = true;
    }
}
