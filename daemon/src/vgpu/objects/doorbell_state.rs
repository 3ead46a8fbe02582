//! One doorbell.

use campanile_host_gpu::ids::DoorbellIndex;
use campanile_protocol::queue::doorbell::DoorbellStatus;

/// What stands for a connected doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// This slot watches its cell: the dedicated model.
    Own(DoorbellIndex),
    /// This entry of the watch table has the global cell of its process stand for it too. There is one for every
    /// queue, so it is not taken away for another (UMS-15).
    Shared(DoorbellIndex),
    /// Nothing is watched: its guest says when it rings (UMS-51).
    Notified,
}

/// Where a doorbell stands. The truth that the guest's status word is a copy of (design §10.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorbellState {
    /// The cell is a dummy; the guest may connect (UMS-34, UMS-35).
    Retry,
    /// Rings are delivered.
    Connected(Place),
    /// Dead.
    Abort,
}

/// What a connect comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Connect {
    /// Find a place, put the doorbell there, then publish the status.
    FindPlace,
    /// It is connected already; nothing changes (UMS-61).
    Already,
    /// It is dead (UMS-54, UMS-60).
    Refused,
}

/// What a disconnect comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Disconnect {
    /// Publish the status, then free this place.
    Free(Place),
    /// Publish the status; there was no place.
    PublishOnly,
    /// Nothing changes (UMS-73).
    Nothing,
}

impl DoorbellState {
    /// The status word that the guest reads.
    pub const fn status(self) -> DoorbellStatus {
        match self {
            Self::Retry => DoorbellStatus::DisconnectedRetry,
            Self::Connected(Place::Own(_) | Place::Shared(_)) => DoorbellStatus::Connected,
            Self::Connected(Place::Notified) => DoorbellStatus::ConnectedNotify,
            Self::Abort => DoorbellStatus::DisconnectedAbort,
        }
    }

    /// The guest asks to connect.
    pub const fn connect(self) -> Connect {
        match self {
            Self::Retry => Connect::FindPlace,
            Self::Connected(_) => Connect::Already,
            Self::Abort => Connect::Refused,
        }
    }

    /// The place is there.
    pub fn connected(&mut self, place: Place) {
        if *self == Self::Retry {
            *self = Self::Connected(place);
        }
    }

    /// Another doorbell needs what this one has: only a slot of its own can be of use to another.
    pub fn victimise(&mut self) -> Disconnect {
        match *self {
            Self::Connected(Place::Own(_)) => self.retry(),
            Self::Connected(Place::Shared(_) | Place::Notified) | Self::Retry | Self::Abort => {
                Disconnect::Nothing
            }
        }
    }

    /// Disconnects with RETRY: F1, a change of mode, the end of the doorbell.
    pub fn retry(&mut self) -> Disconnect {
        match *self {
            Self::Connected(place) => {
                *self = Self::Retry;
                Disconnect::Free(place)
            }
            Self::Retry | Self::Abort => Disconnect::Nothing,
        }
    }

    /// Disconnects for good.
    pub fn abort(&mut self) -> Disconnect {
        match std::mem::replace(self, Self::Abort) {
            Self::Connected(place) => Disconnect::Free(place),
            Self::Retry => Disconnect::PublishOnly,
            Self::Abort => Disconnect::Nothing,
        }
    }
}
