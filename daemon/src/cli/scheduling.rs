//! Settings of the scheduler.

use std::ffi::OsString;

use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Settings;
use clap::Args;

use crate::host::options::Scheduling;
use crate::sched::awake::CpuLatency;

/// What runs next, between vGPUs and inside of each.
#[derive(Debug, Clone, Args)]
pub struct SchedulingArguments {
    /// Policy by which vGPUs, and the contexts of each, get the engines: fair or strict-priority.
    #[arg(long, value_name = "NAME", default_value_t = Choice::default())]
    pub scheduler: Choice,
    /// Percent of an engine that the band NORMAL gets while the band FOCUS has work, 0 to 50.
    #[arg(long, value_name = "PERCENT", default_value_t = Settings::DEFAULT_NORMAL_SHARE,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(Settings::MAX_NORMAL_SHARE)))]
    pub normal_share: u32,
    /// How long the host's CPUs may take to wake up while realtime work of a vGPU with bands=realtime comes: auto, off, or
    /// microseconds; at 0 idle CPUs poll. auto is 0 where they are run by haltpoll, as in VMs, else 10. Needs root.
    #[arg(long, value_name = "auto|off|MICROSECONDS", default_value_t = CpuLatency::default())]
    pub cpu_latency: CpuLatency,
}

impl SchedulingArguments {
    /// The settings, without a broker.
    pub fn scheduling(&self) -> Scheduling {
        let Self { scheduler, normal_share, cpu_latency } = *self;
        Scheduling { broker: None, policy: scheduler, normal_share, cpu_latency }
    }

    /// The same settings as arguments of `campanile serve`.
    pub fn to_arguments(&self) -> [OsString; 6] {
        [
            "--scheduler".into(),
            self.scheduler.to_string().into(),
            "--normal-share".into(),
            self.normal_share.to_string().into(),
            "--cpu-latency".into(),
            self.cpu_latency.to_string().into(),
        ]
    }
}
