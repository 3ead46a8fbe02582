//! A control message on its way through the rooms: where it came from, and what its handler came to.

use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

use super::budget::OverBudget;
use super::timeline::Item;
use crate::ids::GuestProcess;

/// Bytes of a message or buffer that is begun and not done: itself, its place in its queue and on its timeline.
pub(in crate::vgpu) const WORK_BYTES: u64 = 256;

/// Where a message came from, and so where its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The virtio-gpu context.
    pub context: GuestProcess,
    /// Response slot.
    pub slot: u32,
    /// The guest's number.
    pub sequence: u64,
    /// Timeline of its SUBMIT_3D.
    pub ring: u8,
    /// Its place on that timeline, once parked.
    pub item: Option<Item>,
}

/// A message that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why, as a code.
    pub status: Status,
    /// Why, in words; may be empty.
    pub text: String,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { status, text: String::new() }
    }
}

/// What a handler came to.
#[derive(Debug)]
pub enum Handled {
    /// Answer now.
    Now(Vec<u8>),
    /// The handler has kept the origin, and will answer.
    Parked,
}

impl Handled {
    /// Answers with nothing but OK.
    pub fn done() -> Self {
        Self::Now(Vec::new())
    }

    /// Answers with `payload`.
    pub fn with(payload: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self::Now(payload.as_bytes().to_vec())
    }
}

/// A handler's outcome.
pub type Outcome = Result<Handled, Refused>;

/// The entries of a list message, at most `MAX_LIST`, and what its head says of them.
#[derive(Debug)]
pub(in crate::vgpu) struct Entries<T> {
    pub(in crate::vgpu) argument: u32,
    pub(in crate::vgpu) entries: Vec<T>,
}

/// Turns a condition that a message must meet into a refusal.
pub trait Checked {
    /// `Err(status)` when it is not met.
    fn or(self, status: Status) -> Result<(), Status>;
}

impl Checked for bool {
    fn or(self, status: Status) -> Result<(), Status> {
        if self { Ok(()) } else { Err(status) }
    }
}

impl From<OverBudget> for Refused {
    fn from(over: OverBudget) -> Self {
        Self { status: Status::OutOfResources, text: over.to_string() }
    }
}
