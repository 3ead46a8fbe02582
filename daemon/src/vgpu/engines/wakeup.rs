//! What a session's epoll descriptor says, as epoll data.

use campanile_host_gpu::engine::address::EngineAddress;

/// What a session's epoll descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// The engine's eventfd.
    Event(EngineAddress),
    /// The engine's channel.
    Channel(EngineAddress),
    /// The supervisor's alarm.
    Alarm(EngineAddress),
    /// The session's timer.
    Timer,
    /// The operator's orders.
    Orders,
    /// The operator's switch for notify mode.
    Switch,
}

impl Wakeup {
    /// As epoll data: what it is in the second byte, the engine's place in the first.
    pub fn data(self) -> u64 {
        let place = |at: EngineAddress| at.index() as u64;
        match self {
            Self::Event(at) => place(at),
            Self::Channel(at) => 1 << 8 | place(at),
            Self::Alarm(at) => 2 << 8 | place(at),
            Self::Timer => 3 << 8,
            Self::Orders => 4 << 8,
            Self::Switch => 5 << 8,
        }
    }

    /// From epoll data.
    pub fn from_data(data: u64) -> Option<Self> {
        let at = EngineAddress::from_index(usize::try_from(data & 0xff).ok()?)?;
        match data >> 8 {
            0 => Some(Self::Event(at)),
            1 => Some(Self::Channel(at)),
            2 => Some(Self::Alarm(at)),
            3 => Some(Self::Timer),
            4 => Some(Self::Orders),
            5 => Some(Self::Switch),
            _ => None,
        }
    }
}
