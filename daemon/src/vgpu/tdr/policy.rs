//! What the operator decided about hangs.

use std::time::Duration;

use clap::ValueEnum;

/// What a timeout leads to (TDR-16). Level 2, recovery to a VGA display, does not exist without a display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// 0: nothing is watched.
    Off,
    /// 1: a timeout is fatal. The host goes on, the vGPU does not: it is quarantined at once (TDR-83).
    Fatal,
    /// 3: recovery.
    Recover,
}

/// How recovery goes about it (TDR-17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugMode {
    /// 0: the engine is stopped and kept for a debugger, until the operator resets it.
    Break,
    /// 1: timeouts are counted and ignored.
    Ignore,
    /// 2: recovery.
    Recover,
    /// 3: recovery even past the limits.
    RecoverAlways,
}

/// Who lets a quarantined vGPU work again, beside the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Readmission {
    /// Nobody.
    Operator,
    /// A reset of the guest, no sooner than the limit's time after the quarantine began.
    Reboot,
}

/// The whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// What a timeout leads to.
    pub level: Level,
    /// How.
    pub debug: DebugMode,
    /// Adapter resets within [`Self::limit_time`] that are tolerated (TDR-18, TDR-19); as many resets of one engine are,
    /// before one is promoted.
    pub limit_count: usize,
    /// See [`Self::limit_count`].
    pub limit_time: Duration,
    /// What lifts a quarantine.
    pub readmission: Readmission,
    /// How long a kernel may compile.
    pub compile_timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            level: Level::Recover,
            debug: DebugMode::Recover,
            limit_count: Self::LIMIT_COUNT,
            limit_time: Self::LIMIT_TIME,
            readmission: Readmission::Operator,
            compile_timeout: Self::COMPILE_TIMEOUT,
        }
    }
}

impl Level {
    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Fatal => 1,
            Self::Recover => 3,
        }
    }
}

impl DebugMode {
    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Break => 0,
            Self::Ignore => 1,
            Self::Recover => 2,
            Self::RecoverAlways => 3,
        }
    }
}

impl Policy {
    /// How long a kernel may compile by default.
    pub const COMPILE_TIMEOUT: Duration = Duration::from_secs(60);
    /// The default limit (TDR-18).
    pub const LIMIT_COUNT: usize = 5;
    /// The default period of the limit (TDR-18).
    pub const LIMIT_TIME: Duration = Duration::from_secs(60);

    /// Engine timeouts of one process that are tolerated: one fewer than of the adapter (TDR-21).
    pub const fn process_limit(&self) -> usize {
        self.limit_count.saturating_sub(1)
    }

    /// Whether limits hold.
    pub fn has_limits(&self) -> bool {
        self.debug != DebugMode::RecoverAlways
    }

    /// A level from its number.
    ///
    /// # Errors
    /// No such level here, and why.
    pub fn level(text: &str) -> Result<Level, String> {
        match text {
            "0" => Ok(Level::Off),
            "1" => Ok(Level::Fatal),
            "2" => Err("level 2 recovers to a VGA display, and there is none".to_owned()),
            "3" => Ok(Level::Recover),
            _ => Err("levels are 0 (off), 1 (fatal) and 3 (recover)".to_owned()),
        }
    }

    /// A debug mode from its number.
    ///
    /// # Errors
    /// No such mode.
    pub fn debug_mode(text: &str) -> Result<DebugMode, String> {
        match text {
            "0" => Ok(DebugMode::Break),
            "1" => Ok(DebugMode::Ignore),
            "2" => Ok(DebugMode::Recover),
            "3" => Ok(DebugMode::RecoverAlways),
            _ => Err("debug modes are 0 (break), 1 (ignore), 2 (recover) and 3 (recover always)".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DebugMode;
    use super::Level;
    use super::Policy;

    #[test]
    fn tdr_16_tdr_17_levels_and_debug_modes_have_their_numbers() {
        assert_eq!(
            ["0", "1", "3"].map(Policy::level),
            [Ok(Level::Off), Ok(Level::Fatal), Ok(Level::Recover)]
        );
        assert!(Policy::level("2").unwrap_err().contains("VGA"));
        assert!(Policy::level("4").is_err());
        let modes = [DebugMode::Break, DebugMode::Ignore, DebugMode::Recover, DebugMode::RecoverAlways];
        assert_eq!(["0", "1", "2", "3"].map(Policy::debug_mode), modes.map(Ok));
        assert!(Policy::debug_mode("4").is_err());
        assert_eq!([Level::Off, Level::Fatal, Level::Recover].map(Level::number), [0, 1, 3]);
        assert_eq!(modes.map(DebugMode::number), [0, 1, 2, 3]);
    }

    #[test]
    fn tdr_18_tdr_21_a_process_is_tolerated_one_hang_fewer_than_the_adapter() {
        let limits = |limit_count| Policy { limit_count, ..Policy::default() }.process_limit();
        assert_eq!(Policy::default().limit_count, 5);
        assert_eq!([5, 4, 1, 0].map(limits), [4, 3, 0, 0]);
    }
}
