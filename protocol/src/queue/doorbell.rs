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

#[cfg(test)]
mod tests {
    use super::DoorbellStatus;

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
}
