//! One doorbell.

use campanile_protocol::queue::doorbell::DoorbellStatus;

/// Where a doorbell stands. The truth that the guest's status word is a copy of (design §10.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorbellState {
    /// The cell is a dummy; the guest may connect (UMS-34, UMS-35).
    Retry,
    /// Slot `0` watches the cell.
    Connected(u32),
    /// Dead.
    Abort,
}

/// What a connect comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Connect {
    /// Take a slot, point it to the cell, then publish CONNECTED.
    TakeSlot,
    /// It is connected already; nothing changes (UMS-61).
    Already,
    /// It is dead (UMS-54, UMS-60).
    Refused,
}

/// What a disconnect comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Disconnect {
    /// Publish the status, then free this slot.
    FreeSlot(u32),
    /// Publish the status; no slot was held.
    PublishOnly,
    /// Nothing changes (UMS-73).
    Nothing,
}

impl DoorbellState {
    /// The status word that the guest reads.
    pub const fn status(self) -> DoorbellStatus {
        match self {
            Self::Retry => DoorbellStatus::DisconnectedRetry,
            Self::Connected(_) => DoorbellStatus::Connected,
            Self::Abort => DoorbellStatus::DisconnectedAbort,
        }
    }

    /// The guest asks to connect.
    pub const fn connect(self) -> Connect {
        match self {
            Self::Retry => Connect::TakeSlot,
            Self::Connected(_) => Connect::Already,
            Self::Abort => Connect::Refused,
        }
    }

    /// The slot is there.
    pub fn connected(&mut self, slot: u32) {
        if *self == Self::Retry {
            *self = Self::Connected(slot);
        }
    }

    /// Disconnects with RETRY.
    pub fn retry(&mut self) -> Disconnect {
        match *self {
            Self::Connected(slot) => {
                *self = Self::Retry;
                Disconnect::FreeSlot(slot)
            }
            Self::Retry | Self::Abort => Disconnect::Nothing,
        }
    }

    /// Disconnects for good.
    pub fn abort(&mut self) -> Disconnect {
        match std::mem::replace(self, Self::Abort) {
            Self::Connected(slot) => Disconnect::FreeSlot(slot),
            Self::Retry => Disconnect::PublishOnly,
            Self::Abort => Disconnect::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Connect;
    use super::Disconnect;
    use super::DoorbellState;

    #[test]
    fn ums_54_nothing_leads_out_of_abort() {
        let mut state = DoorbellState::Abort;
        assert_eq!(state.connect(), Connect::Refused);
        state.connected(3);
        assert_eq!(state, DoorbellState::Abort);
        assert_eq!(state.retry(), Disconnect::Nothing);
        assert_eq!(state.abort(), Disconnect::Nothing);
        assert_eq!(state, DoorbellState::Abort);
    }

    #[test]
    fn ums_73_a_disconnect_of_a_disconnected_doorbell_changes_nothing() {
        let mut state = DoorbellState::Retry;
        assert_eq!(state.retry(), Disconnect::Nothing);
        assert_eq!(state, DoorbellState::Retry);
        assert_eq!(state.abort(), Disconnect::PublishOnly);
    }

    #[test]
    fn ums_63_a_doorbell_reconnects_after_retry_perhaps_elsewhere() {
        let mut state = DoorbellState::Retry;
        assert_eq!(state.connect(), Connect::TakeSlot);
        state.connected(1);
        assert_eq!(state.connect(), Connect::Already);
        assert_eq!(state.retry(), Disconnect::FreeSlot(1));
        assert_eq!(state.connect(), Connect::TakeSlot);
        state.connected(2);
        assert_eq!(state.abort(), Disconnect::FreeSlot(2));
    }
}
