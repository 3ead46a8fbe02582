//! One chain on a ring: what it is made of, and what came of it.

use std::sync::Arc;
use std::sync::OnceLock;

use super::guest_ram::RamBlock;
use super::split_ring::Descriptor;
use super::split_ring::Links;
use campanile_guest_driver::transport::error::TransportError;

/// A chain, and the memory that it needs until the device has used it.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Name of the command, for errors.
    pub(crate) name: &'static str,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) links: Links,
    /// Body, response and indirect table; none of a raw chain.
    pub(crate) block: Option<RamBlock>,
    /// Payload that has pages of its own, held until the device has read it.
    pub(crate) _payload: Option<Arc<RamBlock>>,
    /// Where in `block` the response comes, and its most bytes.
    pub(crate) response: (usize, usize),
}

/// What the device, or its loss, made of a chain.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The device used it.
    Used {
        /// Bytes that the device says it wrote.
        length: u32,
        /// The response, as long as the device says, at most as long as there was room.
        response: Vec<u8>,
    },
    /// The device is gone or was reset.
    Lost(Loss),
}

/// How a queue ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Disconnected,
    Reset,
    BrokenRing,
}

impl Loss {
    pub(crate) fn error(self) -> TransportError {
        match self {
            Self::Disconnected => TransportError::Disconnected,
            Self::Reset => TransportError::DeviceReset,
            Self::BrokenRing => TransportError::BrokenRing,
        }
    }
}

/// A chain that was put on a ring, as its waiters see it. The outcome is set once, under the queue's lock.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) name: &'static str,
    pub(crate) outcome: OnceLock<Outcome>,
}

impl Request {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, outcome: OnceLock::new() })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Bytes written and the response. Call it only when done.
    pub(crate) fn answer(&self) -> Result<(u32, &[u8]), TransportError> {
        match self.outcome.get() {
            Some(Outcome::Used { length, response }) => Ok((*length, response)),
            Some(Outcome::Lost(loss)) => Err(loss.error()),
            None => Err(TransportError::BadAnswer { command: self.name, why: "there is none yet" }),
        }
    }
}
