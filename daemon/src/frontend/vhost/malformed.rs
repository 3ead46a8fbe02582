//! Why a descriptor chain could not be read, or is not handled.

use thiserror::Error;

/// What is wrong with a descriptor chain: nearly always the guest's fault (virtio 1.3, 2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MalformedChain {
    /// A head at or past the size of the queue (2.7.13).
    #[error("head {0} is not in the descriptor table")]
    HeadOutOfRange(u16),
    /// A head that the guest has already made available and not had back.
    #[error("head {0} is still in use")]
    HeadInUse(u16),
    /// More links than descriptors: the chain has a loop (2.7.5.2).
    #[error("the chain does not end")]
    Endless,
    /// A link past the end of its table.
    #[error("descriptor {0} is not in its table")]
    NextOutOfRange(u16),
    /// Memory that the guest does not have.
    #[error("address {0:#x} is outside of guest memory")]
    BadAddress(u64),
    /// A buffer of no bytes.
    #[error("a descriptor has no bytes")]
    ZeroLength,
    /// An indirect table that is nested, not negotiated, followed by another descriptor, or of a wrong length
    /// (2.7.5.3).
    #[error("the indirect table is not valid")]
    IndirectTable,
    /// A readable buffer after a writable one (2.7.4.2).
    #[error("a readable buffer follows a writable one")]
    ReadableAfterWritable,
    /// More bytes to read than [`super::MAX_REQUEST`].
    #[error("the request is too long")]
    TooLong,
    /// More writable buffers than are kept for an answer.
    #[error("too many writable buffers")]
    TooManyBuffers,
    /// A chain that was in flight when the state was saved, and is another one now.
    #[error("the chain is not the one that was in flight")]
    Changed,
    /// A chain in whose handling one daemon after the other ended.
    #[error("{0} daemons ended while they handled the chain: it is not tried again")]
    Fatal(u64),
    /// Nothing to read.
    #[error("the request has no bytes")]
    NoRequest,
    /// Fewer writable bytes than the device's smallest answer.
    #[error("no room for an answer")]
    NoRoom,
}
