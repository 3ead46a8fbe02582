//! What is kept of a session that stands still: plain data, as it is written and read (LM-26, LM-45 to LM-57).
//!
//! ```text
//!   Session ──save──▶ SavedSession ──bytes (migration::state)──▶ SavedSession ──restore──▶ Session
//!                                                                  hostile: checked whole before anything is applied
//! ```
//!
//! Nothing here refers to a host: no address, no descriptor, no moment of a clock. Moments are ages in milliseconds,
//! memory is a place in a segment, guest RAM is guest-physical, objects are named as guests name them.
//!
//! # What may change, and how
//!
//! - Structures are written as maps by field name. A reader ignores names that it does not know, and takes the default
//!   of a name that is missing: fields may be added as long as the default means what their absence meant.
//! - A field never changes its meaning or its unit, and a name is never used again for something else.
//! - Rows ([`row`]) are written as arrays without names, since there are many of them. They never change; what
//!   replaces one gets a name of its own.
//! - What an older reader must not ignore raises the minimum reader version of the header; what is removed raises the
//!   version.
//! - Files of each released version are kept (`daemon/tests/golden`), and every version since reads them.

pub mod at_work;
pub mod bytes;
pub mod engine;
pub mod immutable;
pub mod memory;
pub mod process;
pub mod row;

use serde::Deserialize;
use serde::Serialize;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use bytes::Bytes;
use engine::SavedEngine;
use memory::SavedAllocation;
use memory::SavedBlob;
use memory::SavedSegment;
use process::SavedProcess;
use process::SavedSource;
use row::SavedDrain;
use row::SavedFence;
use row::SavedMap;
use row::SavedResident;

/// All of a session that is neither immutable nor in one of its two memories.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedSession {
    /// Allocations, by number.
    pub allocations: Vec<SavedAllocation>,
    /// Blob resources.
    pub blobs: Vec<SavedBlob>,
    /// Guest RAM that engines map.
    pub segments: Vec<SavedSegment>,
    /// Kernel sources, each once.
    pub sources: Vec<SavedSource>,
    /// The same, packed (zstd) as they are written, where they are too many; never beside the others.
    #[serde(skip_serializing_if = "Bytes::is_empty")]
    pub packed_sources: Bytes,
    /// Native fences.
    pub fences: Vec<SavedFence>,
    /// Guest processes.
    pub processes: Vec<SavedProcess>,
    /// Engines by place: nodes of the first physical adapter, then of the next.
    pub engines: Vec<SavedEngine>,
    /// Doorbells that end when what was rung is done.
    pub drains: Vec<SavedDrain>,
    /// MAKE_RESIDENT messages that wait.
    pub residents: Vec<SavedResident>,
    /// MAP_BLOB commands that wait.
    pub maps: Vec<SavedMap>,
    /// Commands that are to be answered: the front's name, and the number of the refusal, 0 for none.
    pub due: Vec<(u64, u32)>,
    /// Segments whose blobs have no name any more, and the front's name for the command that waits for their end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<(u16, u64)>,
    /// Contexts that guest and session call by different numbers: the guest's, the session's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<(FrontContext, GuestProcess)>,
    /// Ages of the adapter resets that still count, milliseconds.
    pub adapter_resets: Vec<u64>,
    /// Why the vGPU may not work, if it may not.
    pub quarantine: Option<String>,
}
