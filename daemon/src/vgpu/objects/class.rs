//! Priority classes of guest processes.

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::DEFAULT_WEIGHT;
use campanile_protocol::control::scheduling;

/// Priority class of a process (PRE-61).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessClass {
    /// Contexts in the band IDLE.
    Idle,
    /// Half the weight.
    BelowNormal,
    /// As any other.
    #[default]
    Normal,
    /// Twice the weight.
    AboveNormal,
    /// Four times the weight.
    High,
    /// Contexts in the band REALTIME.
    Realtime,
}

impl ProcessClass {
    /// Its number.
    pub(in crate::vgpu) const fn number(self) -> u32 {
        match self {
            Self::Idle => scheduling::CLASS_IDLE,
            Self::BelowNormal => scheduling::CLASS_BELOW_NORMAL,
            Self::Normal => scheduling::CLASS_NORMAL,
            Self::AboveNormal => scheduling::CLASS_ABOVE_NORMAL,
            Self::High => scheduling::CLASS_HIGH,
            Self::Realtime => scheduling::CLASS_REALTIME,
        }
    }

    /// From its number.
    pub(in crate::vgpu) fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            scheduling::CLASS_IDLE => Self::Idle,
            scheduling::CLASS_BELOW_NORMAL => Self::BelowNormal,
            scheduling::CLASS_NORMAL => Self::Normal,
            scheduling::CLASS_ABOVE_NORMAL => Self::AboveNormal,
            scheduling::CLASS_HIGH => Self::High,
            scheduling::CLASS_REALTIME => Self::Realtime,
            _ => return None,
        })
    }

    /// The band of its contexts.
    pub const fn band(self) -> Band {
        match self {
            Self::Idle => Band::Idle,
            Self::BelowNormal | Self::Normal | Self::AboveNormal | Self::High => Band::Normal,
            Self::Realtime => Band::Realtime,
        }
    }

    /// The weight of its contexts.
    pub const fn weight(self) -> u32 {
        match self {
            Self::BelowNormal => DEFAULT_WEIGHT / 2,
            Self::Idle | Self::Normal | Self::Realtime => DEFAULT_WEIGHT,
            Self::AboveNormal => DEFAULT_WEIGHT * 2,
            Self::High => DEFAULT_WEIGHT * 4,
        }
    }
}
