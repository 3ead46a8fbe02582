//! What is free of the machine's memory, handed out in pages and given back all at once.

use campanile_protocol::PAGE_SIZE;

use crate::memory;
use crate::memory::Memory;

/// Bytes above the program that are taken for granted: less than machines of 256 MiB have.
const BYTES: u64 = 224 << 20;

/// Memory that is not in use.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    next: u64,
    end: u64,
}

impl Arena {
    /// All that is above the program.
    pub(crate) fn new() -> Self {
        let next = memory::free_from();
        Self { next, end: next + BYTES }
    }

    /// Whole pages of zeros.
    pub(crate) fn take(&mut self, bytes: u64) -> Memory {
        let memory = self.take_as_it_is(bytes);
        memory.zero();
        memory
    }

    /// Whole pages.
    pub(crate) fn take_as_it_is(&mut self, bytes: u64) -> Memory {
        let bytes = bytes.next_multiple_of(PAGE_SIZE);
        let memory = Memory::at(self.next, bytes);
        self.next += bytes;
        assert!(self.next <= self.end, "out of memory");
        memory
    }
}
