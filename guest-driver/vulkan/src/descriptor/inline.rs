//! Inline uniform blocks: bindings whose bytes lie in the set itself. Kernels are bound to them as to uniform buffers, in memory of the set's own.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;
use campanile_protocol::packet::BINDING_ALIGNMENT;

use crate::abi;
use crate::abi::Outcome;
use crate::heap::Heap;
use crate::heap::Piece;

/// The most bytes of a block.
pub(crate) const MOST: u32 = 4096;

/// Blocks of a kernel, the least that Vulkan allows. On the host they are uniform buffers: a kernel may have no more of both than its profile says.
pub(crate) const BLOCKS: u32 = 4;

/// A block of a set. An update waits for no kernel: Vulkan allows none while one may read it, and what was recorded with the set before is not to be
/// submitted any more.
#[derive(Debug)]
pub(crate) struct Block {
    /// What the piece holds, which is read where a set is copied from.
    bytes: Mutex<Vec<u8>>,
    piece: Piece,
    va: u64,
}

/// Whether descriptors of a type are inline uniform blocks.
pub(crate) fn is_inline(kind: vk::DescriptorType) -> bool {
    kind == vk::DescriptorType::INLINE_UNIFORM_BLOCK
}

impl Block {
    /// Of so many bytes, all zero.
    pub(crate) fn new(heap: &Heap, size: usize) -> Outcome<Arc<Self>> {
        let piece = heap.allocate(size as u64 + BINDING_ALIGNMENT)?;
        let block = Self {
            va: piece.va().next_multiple_of(BINDING_ALIGNMENT),
            piece,
            bytes: Mutex::new(vec![0; size]),
        };
        block.write(0, &vec![0; size])?;
        Ok(Arc::new(block))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// GPU virtual address of what a kernel is bound to.
    pub(crate) fn va(&self) -> u64 {
        self.va
    }

    /// Changes the bytes from `at` on, as many of them as there are. Says what is left of the new ones.
    fn write<'a>(&self, at: usize, new: &'a [u8]) -> Outcome<&'a [u8]> {
        let mut bytes = self.bytes();
        let place = bytes.get_mut(at..).unwrap_or_default();
        let (new, left) = new.split_at(place.len().min(new.len()));
        if !new.is_empty() {
            place.iter_mut().zip(new).for_each(|(place, byte)| *place = *byte);
            self.piece.write(self.va - self.piece.va() + at as u64, new)?;
        }
        Ok(left)
    }
}

/// Changes the bytes from `at` on of blocks that follow each other: what one does not hold is the next one's.
pub(crate) fn write_run(blocks: &[Arc<Block>], mut at: usize, mut new: &[u8]) -> Outcome {
    for block in blocks {
        let size = block.bytes().len();
        if at < size {
            new = block.write(at, new)?;
        }
        at = at.saturating_sub(size);
    }
    Ok(())
}

/// The bytes from `at` on of blocks that follow each other, as many of `count` as there are.
pub(crate) fn read_run(blocks: &[Arc<Block>], at: usize, count: usize) -> Vec<u8> {
    blocks.iter().flat_map(|block| block.bytes().clone()).skip(at).take(count).collect()
}

/// The bytes that a write brings along for a block.
pub(crate) fn written<'a>(write: &vk::WriteDescriptorSet<'_>) -> &'a [u8] {
    let info = abi::chained::<vk::WriteDescriptorSetInlineUniformBlock<'_>>(write.p_next);
    info.map_or(&[], |info| abi::items(info.p_data.cast::<u8>(), info.data_size))
}
