//! What moves page by page.

use std::fmt;
use std::io;

use serde::Deserialize;
use serde::Serialize;

/// A memory of a vGPU. Everything else is state, which the front-end carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Video memory: segment 0, aperture and local memory.
    Vram,
    /// Host memory that what is evicted lies in.
    Evicted,
}

impl Memory {
    /// All, by index.
    pub const ALL: [Self; 2] = [Self::Vram, Self::Evicted];

    /// Its place in arrays of memories, and its number on the wire.
    pub const fn index(self) -> usize {
        match self {
            Self::Vram => 0,
            Self::Evicted => 1,
        }
    }

    /// From the number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vram => "video memory",
            Self::Evicted => "evicted memory",
        })
    }
}

/// A memory on the source: who writes to it goes on, and is tracked. Called from migration threads while the vGPU's
/// thread works.
pub trait MovingMemory: Send + Sync {
    /// Bytes, whole pages.
    fn length(&self) -> u64;

    /// Bytes that one dirty bit stands for: a power of two, at least [`super::pages::PAGE`].
    fn page_size(&self) -> u64;

    /// Whether it is tracked all the time (DIRTY-30). Where it is not, [`MovingMemory::start`] comes before the first
    /// page is read, the whole memory goes in the first pass, and the first query comes after it (DIRTY-61).
    fn performant(&self) -> bool;

    /// Tracking begins, with a plane that reads zero. Not called where it is [`MovingMemory::performant`].
    ///
    /// # Errors
    /// It cannot be tracked.
    fn start(&self) -> io::Result<()>;

    /// Tracking ends.
    fn stop(&self);

    /// Bit `i` of `bits`, least significant first, becomes whether page `i` was written since the last call, atomically
    /// (DIRTY-44). `bits` holds the whole memory.
    ///
    /// # Errors
    /// It cannot be said.
    fn query_and_clear(&self, bits: &mut [u8]) -> io::Result<()>;

    /// Copies `buffer.len()` bytes at byte `offset`, whole pages. A page that a CPU of the guest can write is hashed as it is
    /// in the copy (design §10.6), so what is sent is what the next query compares with.
    ///
    /// # Errors
    /// It is not all inside.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}
