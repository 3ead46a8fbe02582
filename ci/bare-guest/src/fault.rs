//! What goes wrong.

use core::fmt;

use campanile_protocol::fs::errno::ENODEV;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_CONTEXT_ID;

/// Why something did not come about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// There is no device, or it is not what it should be.
    Device(&'static str),
    /// The device does not answer.
    Silence(&'static str),
    /// The device answered a command with an error.
    Command(&'static str, u32),
    /// The device answered a FUSE request with this error.
    Fuse(&'static str, i32),
    /// The daemon refused a control message.
    Message(&'static str, u32),
    /// The device page says so: its status.
    DeviceLost(u64),
    /// A queue gets nowhere, though the daemon answers.
    NoProgress,
    /// The doorbell says ABORT.
    Abort,
    /// A word of a frame is wrong: which buffer, which word, what it is, what it should be.
    Wrong(&'static str, u64, u32, u32),
}

impl Fault {
    /// Whether a new session helps. Otherwise the machine has nothing left to do.
    pub(crate) fn is_loss(self) -> bool {
        !matches!(self, Self::Device(_) | Self::Wrong(..))
    }

    /// Whether the device has forgotten the session: its memory is not written to any more.
    pub(crate) fn is_forgotten(self) -> bool {
        matches!(self, Self::Command(_, ERR_INVALID_CONTEXT_ID) | Self::Fuse(_, ENODEV))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(what) => write!(f, "{what}"),
            Self::Silence(name) => write!(f, "{name} is not answered"),
            Self::Command(name, code) => write!(f, "{name} is answered with {code:#x}"),
            Self::Fuse(name, error) => write!(f, "{name} is answered with error {error}"),
            Self::Message(name, status) => write!(f, "{name} is refused with status {status}"),
            Self::DeviceLost(status) => write!(f, "the device is lost, status {status}"),
            Self::NoProgress => write!(f, "work gets nowhere"),
            Self::Abort => write!(f, "the doorbell reads ABORT"),
            Self::Wrong(buffer, word, is, should) => {
                write!(f, "word {word} of {buffer} is {is:#010x}, and should be {should:#010x}")
            }
        }
    }
}
