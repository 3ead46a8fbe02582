//! Why the device could not be reached, or what it refused.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use campanile_protocol::virtio_gpu::response;

/// Failure of a transport. The names of commands are those of virtio 1.3, 5.7.6.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Nobody serves the socket.
    #[error("no Campanile daemon answers at {}: {source}; start `campanile serve`, or name its socket", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// This machine has no render node that is Campanile's.
    #[error("no render node of a Campanile device: {why}")]
    NoRenderNode {
        /// Each node, and why it is not the one.
        why: String,
    },
    /// This machine has no file that is Campanile's on a virtiofs mount.
    #[error("no file `gpu` of a Campanile device on virtiofs: {why}")]
    NoChannel {
        /// Each mount, and why it is not the one.
        why: String,
    },
    /// The render node is Campanile's, and no device behind it answers.
    #[error(
        "{}: the device has not answered for {after:?}: the daemon on the host has ended, or hangs; start it, then \
         restart this VM", path.display()
    )]
    Silent {
        /// The node.
        path: PathBuf,
        /// How long.
        after: Duration,
    },
    /// The system refused something that the transport needs.
    #[error("the system refused {what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A vhost-user message failed.
    #[error("vhost-user message {message} failed: {source}")]
    VhostUser {
        /// Its name.
        message: &'static str,
        /// What the exchange said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The device is no Campanile, or an old one.
    #[error("the device does not offer {feature}")]
    Missing {
        /// What it lacks.
        feature: &'static str,
    },
    /// The device refused a command.
    #[error("{command} was refused: {refusal}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The device's reason.
        refusal: Refusal,
    },
    /// The device's answer makes no sense.
    #[error("the answer to {command} makes no sense: {why}")]
    BadAnswer {
        /// The command.
        command: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The daemon hung up, or this side did, or the device was unplugged.
    #[error("the device is gone, or its daemon; open the device again")]
    Disconnected,
    /// The device was reset under this context.
    #[error("the device was reset; open the device again")]
    DeviceReset,
    /// The daemon wrote a used ring that no device writes.
    #[error("the device broke its used ring; open the device again")]
    BrokenRing,
    /// The VM is paused, or it was stopped for its state.
    #[error("the VM is paused")]
    Paused,
    /// The VM was not stopped for its state.
    #[error("the VM was not stopped for its state")]
    NotStopped,
    /// A virtual CPU wants to stop itself, or to be one twice.
    #[error("the calling thread is a virtual CPU of a VM already")]
    VirtualCpu,
    /// The VMM changed its mind.
    #[error("the VMM gave up")]
    GivenUp,
    /// The guest has no run of free pages that is long enough.
    #[error("the guest has no {bytes} bytes of free memory in one run")]
    OutOfGuestRam {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The VM has no window onto video memory.
    #[error(
        "this VM shows no video memory (QEMU from 11.1 on does, by its host-visible window); use guest RAM"
    )]
    NoWindow,
    /// The host-visible window has no gap that is long enough.
    #[error("the host-visible window has no gap of {bytes} bytes; unmap blobs or ask for a larger aperture")]
    OutOfWindow {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The device said that a blob is mapped, but the VMM has nothing there.
    #[error("the device mapped no memory at offset {offset} of the host-visible window ({bytes} bytes)")]
    WindowUnmapped {
        /// Bytes into the window.
        offset: u64,
        /// Bytes of the blob.
        bytes: u64,
    },
    /// A size that no command can have.
    #[error("{what} of {bytes} bytes: at least 1 and at most {limit} are possible")]
    Size {
        /// Of what.
        what: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Most bytes.
        limit: u64,
    },
    /// A timeline that does not exist.
    #[error("ring index {ring_index}: at most {limit} is possible")]
    RingIndex {
        /// The index.
        ring_index: u8,
        /// The highest.
        limit: u8,
    },
    /// A chain with more descriptors than the ring has.
    #[error("a chain of {descriptors} descriptors does not fit a ring of {ring_size}")]
    ChainTooLong {
        /// Descriptors of the chain.
        descriptors: usize,
        /// Descriptors of the ring.
        ring_size: u16,
    },
    /// A blob that this context did not create.
    #[error("resource {resource_id} is no blob of this context")]
    ForeignBlob {
        /// Its name.
        resource_id: u32,
    },
    /// Nothing came in time. The command is still under way and may be waited for again.
    #[error("no answer to {what} within {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
}

/// A device's reason for refusing a command (virtio 1.3, 5.7.6.7, `VIRTIO_GPU_RESP_ERR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// `ERR_UNSPEC`.
    Unspecified,
    /// `ERR_OUT_OF_MEMORY`.
    OutOfMemory,
    /// `ERR_INVALID_RESOURCE_ID`.
    InvalidResourceId,
    /// `ERR_INVALID_CONTEXT_ID`.
    InvalidContextId,
    /// `ERR_INVALID_PARAMETER`.
    InvalidParameter,
    /// Another code of the error range.
    Other(u32),
}

impl Refusal {
    /// The reason behind a response code, or `None` where the code is no error.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            response::ERR_UNSPEC => Self::Unspecified,
            response::ERR_OUT_OF_MEMORY => Self::OutOfMemory,
            response::ERR_INVALID_RESOURCE_ID => Self::InvalidResourceId,
            response::ERR_INVALID_CONTEXT_ID => Self::InvalidContextId,
            response::ERR_INVALID_PARAMETER => Self::InvalidParameter,
            _ if code >> 8 == 0x12 => Self::Other(code),
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("for no stated reason"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::InvalidResourceId => f.write_str("no such resource"),
            Self::InvalidContextId => f.write_str("no such context"),
            Self::InvalidParameter => f.write_str("invalid parameter"),
            Self::Other(code) => write!(f, "code {code:#06x}"),
        }
    }
}
