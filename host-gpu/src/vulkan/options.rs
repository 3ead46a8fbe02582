//! Which device to open and how to wait on it.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use campanile_protocol::named_profile::GpuProfile;

use crate::vulkan::info::Kind;

/// How work is handed to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// A driver that runs kernels on the CPU: what was submitted is called off by conditions that the driver looks at when each part
    /// begins, slices take turns on two instances, and the engine sleeps while kernels want the cores.
    Cpu,
    /// A GPU: what was submitted runs to its end, so that no more is submitted than may be waited for; the device's own clock says how
    /// far it is and how long each part took, and the engine polls.
    Gpu,
}

/// An environment variable that says how work is handed to a device, whatever its kind: `cpu` or `gpu`. For tests of the way of GPUs on a
/// CPU.
pub const EXECUTOR: &str = "CAMPANILE_EXECUTOR";

/// What [`EXECUTOR`] says is neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{EXECUTOR} is {0:?}, neither cpu nor gpu")]
pub struct ExecutorError(String);

impl FromStr for Executor {
    type Err = ExecutorError;

    fn from_str(text: &str) -> Result<Self, ExecutorError> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            _ => Err(ExecutorError(text.to_owned())),
        }
    }
}

impl Executor {
    /// What the environment says, if it does.
    ///
    /// # Errors
    /// It says neither `cpu` nor `gpu`.
    pub fn of_environment() -> Result<Option<Self>, ExecutorError> {
        env::var_os(EXECUTOR).map(|text| text.to_string_lossy().parse()).transpose()
    }

    /// That of a device of this kind.
    pub fn of(kind: Kind) -> Self {
        if kind == Kind::Cpu { Self::Cpu } else { Self::Gpu }
    }
}

/// What the operator wants of the device. The driver library itself is chosen by `VK_DRIVER_FILES`, which
/// the process that starts this one sets.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only a device that this means, as a [`DeviceName`](crate::vulkan::device_name::DeviceName).
    pub name: Option<String>,
    /// The kind to take where there is one. Others follow in the order discrete, integrated, virtual, CPU.
    pub prefer: Option<Kind>,
    /// How long to look at the completion counter before sleeping on it. A wake-up costs 20 to 100 µs; a spin
    /// takes a core from a CPU driver.
    pub spin: Duration,
    /// How work is handed to it; by its kind where this is none.
    pub executor: Option<Executor>,
    /// What kernels may use, and how much: all that the device has, or what a named profile does.
    pub profile: GpuProfile,
    /// Whether its queues are to have the highest [global priority](crate::vulkan::priority) that can be had, for work in the realtime
    /// band; else none is asked for.
    pub is_realtime: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            prefer: None,
            spin: Duration::from_micros(50),
            executor: None,
            profile: GpuProfile::Host,
            is_realtime: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_that_of_cpus_or_of_gpus_and_nothing_else() {
        assert_eq!("cpu".parse(), Ok(Executor::Cpu));
        assert_eq!("gpu".parse(), Ok(Executor::Gpu));
        let why = "GPU".parse::<Executor>().unwrap_err().to_string();
        assert_eq!(why, "CAMPANILE_EXECUTOR is \"GPU\", neither cpu nor gpu");
    }
}
