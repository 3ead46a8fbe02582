//! Settings of timeout detection and recovery.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::vgpu::tdr::policy::DebugMode;
use crate::vgpu::tdr::policy::Level;
use crate::vgpu::tdr::policy::Policy;
use crate::vgpu::tdr::policy::Readmission;

/// When work hangs, and what follows.
#[derive(Debug, Clone, Args)]
pub struct TdrArguments {
    /// Milliseconds that work may stand still, or hold a node that another vGPU wants, before its engine is reset.
    #[arg(long = "tdr-timeout", value_name = "MILLISECONDS", default_value_t = 2000)]
    pub timeout: u64,
    /// The same, of compute nodes alone.
    #[arg(long = "tdr-timeout-compute", value_name = "MILLISECONDS")]
    pub timeout_compute: Option<u64>,
    /// The same, of copy nodes alone.
    #[arg(long = "tdr-timeout-copy", value_name = "MILLISECONDS")]
    pub timeout_copy: Option<u64>,
    /// What a timeout leads to: 0 nothing (off), 1 quarantine at once (fatal), 3 recovery.
    #[arg(long = "tdr-level", value_name = "LEVEL", default_value = "3", value_parser = Policy::level)]
    pub level: Level,
    /// How it is recovered from: 0 stop the engine for a debugger, 1 ignore it, 2 recover, 3 recover past all limits.
    #[arg(long = "tdr-debug", value_name = "MODE", default_value = "2", value_parser = Policy::debug_mode)]
    pub debug: DebugMode,
    /// Adapter resets, and resets of one engine, that are tolerated within the limit's time.
    #[arg(long = "tdr-limit-count", value_name = "N", default_value_t = Policy::LIMIT_COUNT)]
    pub limit_count: usize,
    /// Seconds of the limit's time.
    #[arg(long = "tdr-limit-time", value_name = "SECONDS", default_value_t = Policy::LIMIT_TIME.as_secs())]
    pub limit_time: u64,
    /// What lifts a quarantine beside the operator.
    #[arg(long, value_name = "WHO", value_enum, default_value = "operator")]
    pub readmission: Readmission,
    /// Milliseconds that a kernel may compile before its engine is reset.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 60_000)]
    pub compile_timeout: u64,
}

impl TdrArguments {
    /// The timeouts of the nodes, by ordinal.
    pub fn timeouts(&self) -> [Duration; 2] {
        [self.timeout_compute, self.timeout_copy]
            .map(|own| Duration::from_millis(own.unwrap_or(self.timeout)))
    }

    /// What hangs lead to.
    pub fn policy(&self) -> Policy {
        Policy {
            level: self.level,
            debug: self.debug,
            limit_count: self.limit_count,
            limit_time: Duration::from_secs(self.limit_time),
            readmission: self.readmission,
            compile_timeout: Duration::from_millis(self.compile_timeout),
        }
    }

    /// The same settings as arguments of `campanile serve`.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--tdr-timeout".into(),
            self.timeout.to_string().into(),
            "--tdr-level".into(),
            self.level.number().to_string().into(),
            "--tdr-debug".into(),
            self.debug.number().to_string().into(),
            "--tdr-limit-count".into(),
            self.limit_count.to_string().into(),
            "--tdr-limit-time".into(),
            self.limit_time.to_string().into(),
            "--compile-timeout".into(),
            self.compile_timeout.to_string().into(),
        ];
        let of_nodes =
            [("--tdr-timeout-compute", self.timeout_compute), ("--tdr-timeout-copy", self.timeout_copy)];
        for (option, timeout) in of_nodes {
            if let Some(timeout) = timeout {
                arguments.extend([option.into(), timeout.to_string().into()]);
            }
        }
        arguments
    }
}
