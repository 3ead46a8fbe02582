//! What the operator says of where local memory lies.

use std::fmt;
use std::str::FromStr;

/// What the operator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalChoice {
    /// In the device's own memory where that is a card, and nothing is asked for that cannot be with it; else the host's.
    #[default]
    Auto,
    /// In host memory, which the device works on over its bus.
    Host,
    /// In the device's own memory.
    Device,
}

/// Where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalPlace {
    /// In host memory.
    Host,
    /// In the device's own.
    Device,
}

/// None of these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("local memory lies in host, device, or auto; {0:?} is none of these")]
pub struct NoSuchPlace(String);

impl fmt::Display for LocalChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

impl FromStr for LocalChoice {
    type Err = NoSuchPlace;

    fn from_str(name: &str) -> Result<Self, NoSuchPlace> {
        match name {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "device" => Ok(Self::Device),
            _ => Err(NoSuchPlace(name.to_owned())),
        }
    }
}
