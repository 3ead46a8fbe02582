//! Rows: arrays without names, of which there are many. They never change (see [`super`]).

use crate::ids::GuestProcess;
use serde::Deserialize;
use serde::Serialize;

/// Where a message came from: guest process, response slot, the guest's number, timeline, place on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOrigin(pub GuestProcess, pub u32, pub u64, pub u8, pub Option<u64>);

/// A mapping: GPU virtual address, bytes, allocation, bytes into it, whether stores are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMapping(pub u64, pub u64, pub u64, pub u64, pub bool);

/// How far a buffer is: bytes of packets, what is done of the packet there, the grid of a dispatch there (PRE-31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SavedProgress(pub u32, pub u64, pub [u32; 3]);

/// A native fence: its number, its global handle, its type, its value. Its openers follow from the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFence(pub u32, pub u64, pub u32, pub u64);

/// A native fence that a process has open: number, and where its page is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOpenFence(pub u32, pub u64);

/// A wait for a progress fence: of which process, which queue, which value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedWait(pub SavedOrigin, pub u64, pub u64);

/// A context that waits for a native fence outside of its engine: context, number of the fence, value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedGpuWait(pub u64, pub u32, pub u64);

/// A doorbell that is to end: guest process, doorbell, the message to answer, the value that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedDrain(pub GuestProcess, pub u64, pub SavedOrigin, pub u64);

/// A MAKE_RESIDENT message that waits: its origin, and the allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedResident(pub SavedOrigin, pub Vec<u64>);

/// A MAP_BLOB command that waits: resource, offset, the front's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMap(pub u32, pub u64, pub u64);

/// A change of an address space that waits for work before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedChange {
    /// This is to be mapped.
    Map(SavedMapping),
    /// This is to be unmapped.
    Unmap(SavedMapping),
    /// These allocations are to make room.
    Evict(Vec<u64>),
}

/// Changes that happen together: the value of the paging fence, and the changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOperation(pub u64, pub Vec<SavedChange>);

/// Objects by handle: for each place the generation of what lives or lived there, and what lives there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTable<T>(pub Vec<(u32, Option<T>)>);

impl<T> Default for SavedTable<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SavedTable<T> {
    /// Those that live.
    pub fn living(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|(_, object)| object.as_ref())
    }
}
