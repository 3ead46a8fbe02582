//! What can go wrong.

use campanile_protocol::control::status::Status;

use crate::loss::DeviceLoss;
use crate::transport::error::TransportError;

/// Failure of a guest driver call.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The way to the daemon failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Daemon and driver are of different major versions.
    #[error(
        "the daemon speaks protocol {}.{}, this program {}.{}: install the program that came with the daemon",
        daemon >> 16, daemon & 0xffff, own >> 16, own & 0xffff
    )]
    Version {
        /// What the daemon speaks, `major << 16 | minor`.
        daemon: u32,
        /// What this program speaks.
        own: u32,
    },
    /// The device reports scheduling caps that contradict each other (PRE-08, PRE-09).
    #[error("the device has scheduling cap {cap:#x} without {needs:#x}, which it needs: it is not used")]
    Caps {
        /// The cap that is set.
        cap: u32,
        /// Those without which it must not be.
        needs: u32,
    },
    /// The daemon refused a message.
    #[error("{message} was refused: {status:?}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// Which message.
        message: &'static str,
        /// The daemon's status.
        status: Status,
        /// The daemon's words.
        text: String,
    },
    /// The daemon's answer makes no sense.
    #[error("the answer to {0} makes no sense")]
    BadAnswer(&'static str),
    /// The device is in error: drop all that was made from it, and [`recreate`](crate::device::Device::recreate) it.
    #[error("the device is lost: {0}; drop what was made from it, and open it anew")]
    DeviceLost(DeviceLoss),
    /// The device cannot be recreated while there are objects of it.
    #[error("objects of the device are still in use: drop them all first")]
    DeviceInUse,
    /// A range that is not inside its buffer.
    #[error("bytes {offset}..{} are outside a buffer of {size} bytes", offset.saturating_add(*length))]
    Range {
        /// Where it starts.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// A command buffer that is too long, or a packet that breaks a rule.
    #[error("command buffer: {0}")]
    Commands(&'static str),
    /// The address space is full.
    #[error("no GPU address range of {0} bytes is free")]
    AddressSpace(u64),
    /// It did not happen in time.
    #[error("timed out")]
    Timeout,
}
