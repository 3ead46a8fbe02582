//! Small pieces of memory that CPU and GPU share: recorded packets, words of semaphores and queries, bytes of updates.
//!
//! A slab costs control messages; a piece of one costs none, so that programs that record and submit again and again send no
//! message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

use ash::vk;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::device::Device;

use crate::abi::Outcome;
use crate::failure::failed;

/// Bytes of a slab, unless one piece needs more.
const SLAB: u64 = 1 << 20;
/// Pieces are multiples of this, bytes.
const GRAIN: u64 = 64;

/// The slabs of a device.
#[derive(Debug)]
pub(crate) struct Heap {
    device: Device,
    slabs: Mutex<Vec<Arc<Slab>>>,
}

#[derive(Debug)]
struct Slab {
    buffer: Buffer,
    /// Free ranges: offset and bytes, no two of them adjacent.
    free: Mutex<BTreeMap<u64, u64>>,
}

/// Part of a slab; its bytes are what they were when another had it.
#[derive(Debug)]
pub(crate) struct Piece {
    slab: Arc<Slab>,
    offset: u64,
    bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heap {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, slabs: Mutex::default() }
    }

    /// A piece of at least `bytes`, at a multiple of 64.
    pub(crate) fn allocate(&self, bytes: u64) -> Outcome<Piece> {
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        let mut slabs = lock(&self.slabs);
        for slab in slabs.iter() {
            if let Some(offset) = slab.take(bytes) {
                return Ok(Piece { slab: Arc::clone(slab), offset, bytes });
            }
        }
        let size = bytes.max(SLAB);
        // The window may be full of the program's memory. What is here is read and written in place from guest RAM, too.
        let buffer = self.device.create_buffer(size).or_else(|_| self.device.create_guest_buffer(size));
        let buffer = buffer.map_err(failed("memory of the driver's own"))?;
        let slab = Arc::new(Slab { buffer, free: Mutex::new(BTreeMap::from([(0, size)])) });
        let offset = slab.take(bytes).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
        // Large ones are not kept: they go when their piece does.
        if size == SLAB {
            slabs.push(Arc::clone(&slab));
        }
        Ok(Piece { slab, offset, bytes })
    }

    /// A word of 64 bits, with this value.
    pub(crate) fn word(&self, value: u64) -> Outcome<Piece> {
        let piece = self.allocate(8)?;
        piece.write(0, &value.to_le_bytes())?;
        Ok(piece)
    }
}

impl Slab {
    fn take(&self, bytes: u64) -> Option<u64> {
        let mut free = lock(&self.free);
        let (offset, there) =
            free.iter().find(|(_, there)| **there >= bytes).map(|(at, there)| (*at, *there))?;
        free.remove(&offset);
        if there > bytes {
            free.insert(offset + bytes, there - bytes);
        }
        Some(offset)
    }

    fn give_back(&self, offset: u64, bytes: u64) {
        let mut free = lock(&self.free);
        let after = free.remove(&(offset + bytes)).unwrap_or(0);
        let before = free.range(..offset).next_back().map(|(at, there)| (*at, *there));
        match before.filter(|(at, there)| at + there == offset) {
            Some((at, there)) => free.insert(at, there + bytes + after),
            None => free.insert(offset, bytes + after),
        };
    }
}

impl Piece {
    /// GPU virtual address.
    pub(crate) fn va(&self) -> u64 {
        self.slab.buffer.va() + self.offset
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Outcome {
        self.slab.buffer.write(self.offset + at, bytes).map_err(failed("a piece of the driver's own memory"))
    }

    /// The 64-bit word at byte `at`.
    pub(crate) fn word(&self, at: u64) -> Outcome<&AtomicU64> {
        self.slab.buffer.memory().word(self.offset + at).ok_or(vk::Result::ERROR_UNKNOWN)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.slab.give_back(self.offset, self.bytes);
    }
}
