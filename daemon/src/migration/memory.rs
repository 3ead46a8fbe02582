//! What moves page by page.

use std::fmt;
use std::io;

use campanile_host_gpu::dirty::elsewhere::Ahead;
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

/// A memory on the source: writes to it go on, and are tracked. Called from migration threads while the vGPU's
/// thread works.
pub trait MovingMemory: Send + Sync {
    /// Bytes, whole pages.
    fn length(&self) -> u64;

    /// Bytes that one dirty bit stands for: a power of two, from [`super::pages::PAGE`] to
    /// [`super::channel::frame::MAX_DATA`].
    fn page_size(&self) -> u64;

    /// Whether writes are tracked. Where they are not, all of it is sent while the VM is paused (DIRTY-60).
    fn is_tracked(&self) -> bool;

    /// Whether that is cheap, so that what was written before a migration is known (DIRTY-03). Where it is not, tracking
    /// begins with the migration (LM-15), and all of the memory is sent before the first query (DIRTY-61).
    fn is_performant(&self) -> bool;

    /// A migration begins. Bit `i` of `bits`, least significant first, becomes whether page `i` was ever written since
    /// the memory was made, zero (DIRTY-31), or each is set where that is not known (DIRTY-61). What is written from here on
    /// is told by [`MovingMemory::query_and_clear`].
    ///
    /// # Errors
    /// It cannot be tracked now.
    fn begin(&self, bits: &mut [u8]) -> io::Result<()>;

    /// The VM is paused, and all that `bits` say goes in one pass. Nothing is tracked for that where tracking is costly
    /// (DIRTY-30), so there is no query after it.
    ///
    /// # Errors
    /// As [`MovingMemory::begin`].
    fn begin_paused(&self, bits: &mut [u8]) -> io::Result<()>;

    /// Bit `i` of `bits` becomes whether page `i` was written since the last call, atomically (DIRTY-44).
    ///
    /// # Errors
    /// It cannot be said.
    fn query_and_clear(&self, bits: &mut [u8]) -> io::Result<()>;

    /// The migration is over, however it went.
    fn end(&self);

    /// Copies `buffer.len()` bytes at byte `offset`, whole dirty pages. A page that a CPU of the guest can write is hashed as it is
    /// in the copy (design §10.6), so what is sent is what the next query compares with.
    ///
    /// # Errors
    /// It is not all inside.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Begins to copy `length` bytes at byte `offset`, whole pages that were dirty at the last query, as [`MovingMemory::read`] does, which is waited for
    /// later. None where nothing is gained by that.
    fn read_ahead(&self, _offset: u64, _length: u64) -> Option<Ahead<'_>> {
        None
    }
}
