//! What a command buffer holds while it is recorded, and after.

use std::sync::Arc;

use ash::vk;
use campanile_guest_driver::commands::CommandBuffer as Packets;
use campanile_guest_driver::error::DriverError;
use campanile_protocol::packet::MAX_CONSTANTS;
use campanile_protocol::packet::MAX_DMA_BUFFER;

use super::bound::Bound;
use crate::abi::Outcome;
use crate::failure::failed;
use crate::heap::Heap;
use crate::heap::Piece;
use crate::pipeline::Pipeline;

/// A segment that has less room than this is full: no packet is longer.
const LONGEST: usize = 2048;

/// Part of a recorded command buffer: a ring entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// GPU virtual address of its packets.
    pub(crate) va: u64,
    /// Their bytes.
    pub(crate) length: u32,
}

/// Contents of a command buffer.
#[derive(Debug)]
pub(crate) struct Recording {
    segments: Vec<Packets>,
    /// Bytes that packets copy from.
    pub(crate) inline: Vec<Piece>,
    failure: Option<vk::Result>,
    /// The pipeline that dispatches run.
    pub(crate) pipeline: Option<Arc<Pipeline>>,
    /// The sets that are bound.
    pub(crate) sets: Vec<Bound>,
    /// Push constants.
    pub(crate) constants: [u8; MAX_CONSTANTS as usize],
    /// Where the packets lie once it is ended; kept for the next time.
    memory: Option<Piece>,
    ended: Vec<Segment>,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            segments: Vec::new(),
            inline: Vec::new(),
            failure: None,
            pipeline: None,
            sets: Vec::new(),
            constants: [0; MAX_CONSTANTS as usize],
            memory: None,
            ended: Vec::new(),
        }
    }
}

impl Recording {
    /// Forgets all that was recorded, and gives the memory back where it is not to be kept.
    pub(crate) fn reset(&mut self, keep: bool) {
        let memory = self.memory.take().filter(|_| keep);
        *self = Self { memory, ..Self::default() };
    }

    /// Notes the first failure, which the end of the recording reports.
    pub(crate) fn fail(&mut self, failure: vk::Result) {
        self.failure.get_or_insert(failure);
    }

    /// Appends packets.
    pub(crate) fn record(&mut self, packets: impl FnOnce(&mut Packets) -> Result<&mut Packets, DriverError>) {
        let is_full = |last: &Packets| last.bytes().len() + LONGEST > MAX_DMA_BUFFER as usize;
        if self.segments.last().is_none_or(is_full) {
            self.segments.push(Packets::new());
        }
        if let Some(last) = self.segments.last_mut()
            && let Err(error) = packets(last)
        {
            self.fail(failed("recording")(error));
        }
    }

    /// Appends what another has recorded.
    pub(crate) fn append(&mut self, other: &Self) {
        self.segments.extend(other.segments.iter().cloned());
        self.failure = self.failure.or(other.failure);
    }

    /// Puts the packets where the engine reads them.
    pub(crate) fn end(&mut self, heap: &Heap) -> Outcome {
        self.failure.map_or(Ok(()), Err)?;
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes().len() as u64).sum();
        let has_room = |memory: &&Piece| memory.len() >= bytes;
        if bytes > 0 && self.memory.as_ref().filter(has_room).is_none() {
            self.memory = Some(heap.allocate(bytes)?);
        }
        self.ended.clear();
        let mut at = 0;
        for segment in &self.segments {
            let Some(memory) = &self.memory else { break };
            memory.write(at, segment.bytes())?;
            let length = u32::try_from(segment.bytes().len()).unwrap_or(u32::MAX);
            self.ended.push(Segment { va: memory.va() + at, length });
            at += u64::from(length);
        }
        Ok(())
    }

    /// What to submit.
    pub(crate) fn ended(&self) -> &[Segment] {
        &self.ended
    }
}
