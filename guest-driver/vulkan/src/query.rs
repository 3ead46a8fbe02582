//! Query pools: timestamps, two words each: nanoseconds of the host's monotonic clock, and whether they are there. Pools of occlusion queries can be
//! made, as on every device; only draws would give them results.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ash::vk;

use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::device::Core;
use crate::heap::Piece;

/// Bytes of a query.
const BYTES: u64 = 16;
/// How long a wait for a result sleeps between two looks.
const NAP: Duration = Duration::from_micros(100);

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Piece,
    count: u32,
}

handle!(Pool, vk::QueryPool);

impl Pool {
    /// GPU virtual address and bytes of queries.
    pub(crate) fn range(&self, first: u32, count: u32) -> (u64, u64) {
        let first = first.min(self.count);
        (self.memory.va() + u64::from(first) * BYTES, u64::from(count.min(self.count - first)) * BYTES)
    }

    fn load(&self, query: u32, at: u64) -> Outcome<u64> {
        // PAIRS WITH the engine's release of the second word.
        Ok(self.memory.word(u64::from(query) * BYTES + at)?.load(Ordering::Acquire))
    }

    fn reset(&self, first: u32, count: u32) -> Outcome {
        for query in first..first.saturating_add(count).min(self.count) {
            for at in [8, 0] {
                self.memory.word(u64::from(query) * BYTES + at)?.store(0, Ordering::Release);
            }
        }
        Ok(())
    }
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::QueryPoolCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::QueryPool,
) -> vk::Result {
    abi::command("vkCreateQueryPool", || {
        let (info, core) = (abi::read(info), Core::of(device));
        if ![vk::QueryType::TIMESTAMP, vk::QueryType::OCCLUSION].contains(&info.query_type) {
            return Err(vk::Result::ERROR_FEATURE_NOT_PRESENT);
        }
        let count = info.query_count;
        let pool = Pool { memory: core.heap.allocate(u64::from(count) * BYTES)?, count };
        pool.reset(0, count)?;
        abi::give(pool, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    pool: vk::QueryPool,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyQueryPool", || drop(abi::take::<Pool>(pool)));
}

pub(crate) extern "system" fn reset(_device: vk::Device, pool: vk::QueryPool, first: u32, count: u32) {
    abi::quiet("vkResetQueryPool", || {
        let _words_of_our_own = abi::get::<Pool>(pool).reset(first, count);
    });
}

pub(crate) extern "system" fn results(
    device: vk::Device,
    pool: vk::QueryPool,
    first: u32,
    count: u32,
    _size: usize,
    out: *mut c_void,
    stride: vk::DeviceSize,
    flags: vk::QueryResultFlags,
) -> vk::Result {
    abi::command_with("vkGetQueryPoolResults", || {
        let (core, pool) = (Core::of(device), abi::get::<Pool>(pool));
        let has = |flag| flags.contains(flag);
        let mut outcome = vk::Result::SUCCESS;
        for (at, query) in (0..).zip(first..first.saturating_add(count)) {
            while has(vk::QueryResultFlags::WAIT) && pool.load(query, 8)? == 0 {
                core.check()?;
                std::thread::sleep(NAP);
            }
            let is_there = pool.load(query, 8)?;
            let place = out.wrapping_byte_add(usize::try_from(at * stride).unwrap_or(0));
            let value = pool.load(query, 0)?;
            let put = |index: usize, value: u64| {
                if has(vk::QueryResultFlags::TYPE_64) {
                    abi::write(place.cast::<u64>().wrapping_add(index), value);
                } else {
                    abi::write(place.cast::<u32>().wrapping_add(index), (value & 0xffff_ffff) as u32);
                }
            };
            if is_there != 0 || has(vk::QueryResultFlags::PARTIAL) {
                put(0, value);
            }
            if has(vk::QueryResultFlags::WITH_AVAILABILITY) {
                put(1, is_there);
            }
            if is_there == 0 {
                outcome = vk::Result::NOT_READY;
            }
        }
        core.check()?;
        Ok(outcome)
    })
}
