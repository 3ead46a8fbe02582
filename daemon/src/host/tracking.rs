//! How writes of engines are tracked: what the operator says, or what this machine can.

use std::fmt;
use std::io;
use std::str::FromStr;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::method::NoSuchMethod;

use super::findings::Findings;

/// What the operator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrackingChoice {
    /// The best that works here.
    #[default]
    Auto,
    /// This, or no start.
    Fixed(Method),
}

impl fmt::Display for TrackingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(method) => method.fmt(f),
        }
    }
}

impl FromStr for TrackingChoice {
    type Err = NoSuchMethod;

    fn from_str(name: &str) -> Result<Self, NoSuchMethod> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Fixed) }
    }
}

impl TrackingChoice {
    /// The method, on a machine where a device writes to video memory by itself, or engines alone do.
    ///
    /// # Errors
    /// `Unsupported`, with the reason, where what the operator wants does not work here; no engine could be started.
    pub(super) fn decide(
        self,
        (program, findings): (&Program, &Findings),
        sandbox: bool,
        is_by_device: bool,
    ) -> io::Result<Method> {
        let unsupported = |reason: String| io::Error::new(io::ErrorKind::Unsupported, reason);
        let probe = || {
            if is_by_device {
                return Ok(Err("the device writes to memory by itself, which no process notes".to_owned()));
            }
            findings.tracking(program, sandbox)
        };
        match self {
            Self::Fixed(Method::WriteProtect) => match probe()? {
                Ok(()) => Ok(Method::WriteProtect),
                Err(reason) => Err(unsupported(format!("--dirty-tracking write-protect: {reason}"))),
            },
            Self::Fixed(method) => Ok(method),
            Self::Auto => Ok(match probe()? {
                Ok(()) => Method::WriteProtect,
                Err(reason) => {
                    log::info!("writes are tracked by the ranges that work binds: {reason}");
                    Method::BoundRanges
                }
            }),
        }
    }
}
