//! Doorbell states as the guest reads them (UMS-49).

/// What a doorbell's status word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum DoorbellStatus {
    /// Rings are delivered (UMS-50).
    Connected = 0,
    /// Rings are delivered, and the guest sends a notify after each (UMS-51).
    ConnectedNotify = 1,
    /// Not delivered now: connect and ring again (UMS-52).
    DisconnectedRetry = 2,
    /// Never again: the queue is dead (UMS-53).
    DisconnectedAbort = 3,
}

impl DoorbellStatus {
    /// Decodes a status word; `None` for a word that no host writes.
    pub const fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::Connected),
            1 => Some(Self::ConnectedNotify),
            2 => Some(Self::DisconnectedRetry),
            3 => Some(Self::DisconnectedAbort),
            _ => None,
        }
    }

    /// The word that the guest reads.
    pub const fn word(self) -> u64 {
        self as u64
    }
}

/// How queues share what an engine watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DoorbellModel {
    /// Each connected queue has a physical doorbell of its own, of which there are finitely many (UMS-11, UMS-12).
    #[default]
    Dedicated,
    /// All queues of a guest process on a node ring one cell, and what they store says which queue rang (UMS-08,
    /// UMS-09).
    Global,
}

/// In [`global_value`]: a queue rang.
const GLOBAL_RUNG: u64 = 1 << 63;
/// In a global cell: a ring was overwritten before the engine took it, so that the queue named is not the only one.
pub const GLOBAL_HIDDEN: u64 = 1 << 62;

/// What queue `index` of a device page stores in the global cell of node `node` (UMS-09); never zero.
///
/// ```text
///   63   62       61        32 31         0
///  +----+--------+------------+------------+
///  | 1  | hidden | node       | queue      |
///  +----+--------+------------+------------+
/// ```
pub const fn global_value(node: u32, index: u32) -> u64 {
    GLOBAL_RUNG | ((node as u64 & 0x3fff_ffff) << 32) | index as u64
}

/// The node and queue that a global cell names; `None` for a value that no driver stores.
pub const fn global_queue(value: u64) -> Option<(u32, u32)> {
    if value & GLOBAL_RUNG == 0 {
        return None;
    }
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    Some((u32::from_le_bytes([e, f, g, h & 0x3f]), u32::from_le_bytes([a, b, c, d])))
}

#[cfg(test)]
mod tests {
    use super::DoorbellStatus;
    use super::GLOBAL_HIDDEN;
    use super::global_queue;
    use super::global_value;

    #[test]
    fn ums_49_status_words_have_the_published_values() {
        assert_eq!(DoorbellStatus::Connected.word(), 0);
        assert_eq!(DoorbellStatus::ConnectedNotify.word(), 1);
        assert_eq!(DoorbellStatus::DisconnectedRetry.word(), 2);
        assert_eq!(DoorbellStatus::DisconnectedAbort.word(), 3);
        for word in 0..4 {
            assert_eq!(DoorbellStatus::from_word(word).map(DoorbellStatus::word), Some(word));
        }
        assert_eq!(DoorbellStatus::from_word(4), None);
    }

    #[test]
    fn ums_09_the_value_of_a_global_ring_names_queue_and_engine() {
        for node in [0, 1, 7, 0x3fff_ffff] {
            for index in [0, 1, 1023, u32::MAX] {
                let value = global_value(node, index);
                assert_ne!(value, 0, "zero says that no queue rang");
                assert_eq!(global_queue(value), Some((node, index)));
                assert_eq!(global_queue(value | GLOBAL_HIDDEN), Some((node, index)));
                assert_eq!(value & GLOBAL_HIDDEN, 0);
            }
        }
        assert_eq!((global_queue(0), global_queue(7)), (None, None));
    }
}
