//! By what slices, or whole dispatches, that were submitted together are called off, each by itself, as long as it has not begun.
//!
//! ```text
//!   host    opens all ──▶ submits …                 closes all …          reads what was noted
//!   gate                1 1 1 1 1 1        1 1 1 0 0 0
//!   device                └ copies a gate's word when its slice is to begin, and runs that if the copy is no zero
//!   noted               ? ? ? ? ? ?        1 1 ? ? ? ?        1 1 1 0 0 0
//! ```
//!
//! Gates are the host's to write, notes the device's, from the submission to its end. Whether the device saw a gate before it
//! was closed can be known only by the note, which is what the device itself goes by.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::pipeline::anonymous;
use crate::vulkan::raw::commands::Conditions;
use crate::vulkan::raw::commands::WORD;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::memory::Buffer;
use crate::vulkan::raw::memory::Memory;
use crate::vulkan::request::IN_FLIGHT;

/// Slices of one dispatch that may be submitted together, at the most.
pub const BATCH: usize = 8;
/// Dispatches that may be, each whole.
pub const CHAIN: usize = 32;

/// Bytes of the gates of one submission, and of its notes.
const WORDS: u64 = CHAIN as u64 * WORD;

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const UNSEEN: u64 = 2;

/// What the device made of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing yet.
    Waits,
    /// It runs, or has run.
    Begun,
    /// It was called off.
    CalledOff,
}

/// Gates and notes of all submissions that may be in flight.
pub(super) struct Gates {
    mapping: Arc<Mapping>,
    buffer: Arc<Buffer>,
}

impl Gates {
    /// None where the device knows no conditions.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Option<Self>, VulkanError> {
        if gpu.conditions.is_none() {
            return Ok(None);
        }
        let length = (2 * WORDS * IN_FLIGHT as u64).next_multiple_of(gpu.limits.import_alignment.max(4096));
        let mapping = anonymous(length)?;
        let memory = Arc::new(Memory::import_host_pointer(gpu, &mapping, 0, length)?);
        let buffer = Arc::new(Buffer::of_conditions(&memory)?);
        Ok(Some(Self { mapping, buffer }))
    }

    /// Opens the gates of the next submission in slot `slot`, where nothing is in flight, and clears its notes.
    pub(super) fn open(&self, slot: usize) -> Conditions {
        let from = slot as u64 * 2 * WORDS;
        let to = from + WORDS;
        for (first, value) in [(from, OPEN), (to, UNSEEN)] {
            self.fill(first, value);
        }
        Conditions { buffer: Arc::clone(&self.buffer), from, to }
    }

    /// Closes the gates of the submission in slot `slot`.
    pub(super) fn close(&self, slot: usize) {
        self.fill(slot as u64 * 2 * WORDS, CLOSED);
    }

    fn fill(&self, first: u64, value: u64) {
        for index in 0..CHAIN as u64 {
            if let Some(word) = self.mapping.word(first + index * WORD) {
                word.store(value, Ordering::Release);
            }
        }
    }

    /// What was noted of slice `index` of the submission in slot `slot`.
    pub(super) fn fate(&self, slot: usize, index: usize) -> Fate {
        let place = (slot as u64 * 2 + 1) * WORDS + index as u64 * WORD;
        match self.mapping.word(place).map(|word| word.load(Ordering::Acquire)) {
            Some(CLOSED) => Fate::CalledOff,
            Some(OPEN) => Fate::Begun,
            _ => Fate::Waits,
        }
    }
}
