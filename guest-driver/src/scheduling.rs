//! How contexts and processes are scheduled.

use std::time::Duration;

use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use zerocopy::IntoBytes;

use crate::context::Context;
use crate::device::Device;
use crate::error::DriverError;

/// Scheduling band (PRE-62).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Band {
    /// Runs when nothing else has work.
    Idle,
    /// Where contexts begin.
    #[default]
    Normal,
    /// What a user looks at. The operator grants it.
    Focus,
    /// Before all others, higher levels (0 to 31) first (PRE-63). The operator grants it.
    Realtime(u8),
}

impl Band {
    /// Its number, and the level in it.
    const fn numbers(self) -> (u32, u32) {
        match self {
            Self::Idle => (scheduling::BAND_IDLE, 0),
            Self::Normal => (scheduling::BAND_NORMAL, 0),
            Self::Focus => (scheduling::BAND_FOCUS, 0),
            Self::Realtime(level) => (scheduling::BAND_REALTIME, level as u32),
        }
    }
}

/// How a context is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties {
    /// Its band.
    pub band: Band,
    /// Orders the contexts of one process, -7 to 7, higher first (PRE-64).
    pub in_process_priority: i8,
    /// How long it runs on while others wait; none for the default (PRE-66). Counted in 100 ns, at most 1 s.
    pub quantum: Option<Duration>,
    /// How long the running context may go on when this one, of the same priority, wakes (PRE-66). As the quantum.
    pub grace_same: Option<Duration>,
    /// The same against lower priority (PRE-66). As the quantum.
    pub grace_lower: Option<Duration>,
}

/// Priority class of a process (PRE-61).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum ProcessClass {
    /// Its contexts are in [`Band::Idle`].
    Idle = scheduling::CLASS_IDLE,
    /// Half the weight of others.
    BelowNormal = scheduling::CLASS_BELOW_NORMAL,
    /// Where processes begin.
    #[default]
    Normal = scheduling::CLASS_NORMAL,
    /// Twice the weight.
    AboveNormal = scheduling::CLASS_ABOVE_NORMAL,
    /// Four times the weight.
    High = scheduling::CLASS_HIGH,
    /// Its contexts are in [`Band::Realtime`] at level 0. The operator grants it.
    Realtime = scheduling::CLASS_REALTIME,
}

/// In units of 100 ns; what is shorter counts as one, since 0 asks for the default.
fn units(time: Option<Duration>) -> u32 {
    time.map_or(0, |time| u32::try_from(time.as_nanos() / 100).unwrap_or(u32::MAX).max(1))
}

impl Context {
    /// Has it scheduled so from the next scheduling decision on (PRE-69).
    ///
    /// # Errors
    /// `Refused` with NOT_PERMITTED for a band that the operator has not granted (PRE-65), with INVALID_PARAMETER for
    /// values out of range.
    pub fn set_scheduling(&self, properties: &Properties) -> Result<(), DriverError> {
        let (band, realtime_level) = properties.band.numbers();
        let message = SetSchedulingProperties {
            context: self.handle(),
            band,
            realtime_level,
            in_process_priority: i32::from(properties.in_process_priority),
            quantum: units(properties.quantum),
            grace_same: units(properties.grace_same),
            grace_lower: units(properties.grace_lower),
        };
        let control = &self.shared().control;
        let opcode = scheduling::SET_SCHEDULING_PROPERTIES;
        control.call("SET_SCHEDULING_PROPERTIES", opcode, &[message.as_bytes()]).map(|_| ())
    }
}

impl Device {
    /// Sets the priority class of this process: for its contexts whose band was never set.
    ///
    /// # Errors
    /// As of [`Context::set_scheduling`].
    pub fn set_process_class(&self, class: ProcessClass) -> Result<(), DriverError> {
        let message = SetProcessClass { class: class as u32, reserved: 0 };
        let opcode = scheduling::SET_PROCESS_CLASS;
        self.shared.control.call("SET_PROCESS_CLASS", opcode, &[message.as_bytes()]).map(|_| ())
    }
}
