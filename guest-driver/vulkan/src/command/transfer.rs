//! Copies, fills, updates, and what queries store.

use std::ffi::c_void;

use ash::vk;

use super::buffer::record;
use crate::abi;
use crate::buffer::Buffer;
use crate::command::recording::Recording;
use crate::query::Pool;

impl Recording {
    fn copy(&mut self, from: u64, to: u64, size: u64) {
        if size > 0 {
            self.record(|packets| packets.copy(from, to, size));
        }
    }
}

pub(crate) extern "system" fn copy(
    buffer: vk::CommandBuffer,
    from: vk::Buffer,
    to: vk::Buffer,
    count: u32,
    regions: *const vk::BufferCopy,
) {
    record("vkCmdCopyBuffer", buffer, |recording, _| {
        let (from, to) = (abi::get::<Buffer>(from), abi::get::<Buffer>(to));
        for region in abi::items(regions, count) {
            recording.copy(from.va(region.src_offset), to.va(region.dst_offset), region.size);
        }
    });
}

pub(crate) extern "system" fn copy2(buffer: vk::CommandBuffer, info: *const vk::CopyBufferInfo2<'_>) {
    record("vkCmdCopyBuffer2", buffer, |recording, _| {
        let info = abi::read(info);
        let (from, to) = (abi::get::<Buffer>(info.src_buffer), abi::get::<Buffer>(info.dst_buffer));
        for region in abi::items(info.p_regions, info.region_count) {
            recording.copy(from.va(region.src_offset), to.va(region.dst_offset), region.size);
        }
    });
}

pub(crate) extern "system" fn fill(
    buffer: vk::CommandBuffer,
    to: vk::Buffer,
    offset: vk::DeviceSize,
    size: vk::DeviceSize,
    value: u32,
) {
    record("vkCmdFillBuffer", buffer, |recording, _| {
        let to = abi::get::<Buffer>(to);
        // WHOLE_SIZE ends at the last whole word.
        let size = to.range(offset, size) & !3;
        if size > 0 {
            recording.record(|packets| packets.fill(to.va(offset), size, value));
        }
    });
}

pub(crate) extern "system" fn update(
    buffer: vk::CommandBuffer,
    to: vk::Buffer,
    offset: vk::DeviceSize,
    size: vk::DeviceSize,
    data: *const c_void,
) {
    record("vkCmdUpdateBuffer", buffer, |recording, core| {
        let bytes = abi::items(data.cast::<u8>(), size);
        let kept = core.heap.allocate(size).and_then(|piece| piece.write(0, bytes).map(|()| piece));
        match kept {
            Ok(piece) => {
                recording.copy(piece.va(), abi::get::<Buffer>(to).va(offset), size);
                recording.inline.push(piece);
            }
            Err(failure) => recording.fail(failure),
        }
    });
}

pub(crate) extern "system" fn reset_queries(
    buffer: vk::CommandBuffer,
    pool: vk::QueryPool,
    first: u32,
    count: u32,
) {
    record("vkCmdResetQueryPool", buffer, |recording, _| {
        let (va, bytes) = abi::get::<Pool>(pool).range(first, count);
        if bytes > 0 {
            recording.record(|packets| packets.fill(va, bytes, 0));
        }
    });
}

fn timestamp(recording: &mut Recording, is_at_once: bool, pool: vk::QueryPool, query: u32) {
    let (va, _) = abi::get::<Pool>(pool).range(query, 1);
    if !is_at_once {
        recording.record(|packets| packets.barrier());
    }
    recording.record(|packets| packets.timestamp(va)?.signal(va + 8, 1));
}

pub(crate) extern "system" fn write_timestamp(
    buffer: vk::CommandBuffer,
    stage: vk::PipelineStageFlags,
    pool: vk::QueryPool,
    query: u32,
) {
    record("vkCmdWriteTimestamp", buffer, |recording, _| {
        timestamp(recording, stage == vk::PipelineStageFlags::TOP_OF_PIPE, pool, query);
    });
}

pub(crate) extern "system" fn write_timestamp2(
    buffer: vk::CommandBuffer,
    stage: vk::PipelineStageFlags2,
    pool: vk::QueryPool,
    query: u32,
) {
    record("vkCmdWriteTimestamp2", buffer, |recording, _| {
        timestamp(recording, stage == vk::PipelineStageFlags2::TOP_OF_PIPE, pool, query);
    });
}

/// A query that was never written since it was reset is copied as 0.
pub(crate) extern "system" fn copy_queries(
    buffer: vk::CommandBuffer,
    pool: vk::QueryPool,
    first: u32,
    count: u32,
    to: vk::Buffer,
    offset: vk::DeviceSize,
    stride: vk::DeviceSize,
    flags: vk::QueryResultFlags,
) {
    record("vkCmdCopyQueryPoolResults", buffer, |recording, _| {
        let (pool, to) = (abi::get::<Pool>(pool), abi::get::<Buffer>(to));
        let word = if flags.contains(vk::QueryResultFlags::TYPE_64) { 8 } else { 4 };
        for (at, query) in (0..).zip(first..first.saturating_add(count)) {
            let ((va, _), to) = (pool.range(query, 1), to.va(offset + at * stride));
            if flags.contains(vk::QueryResultFlags::WAIT) {
                recording.record(|packets| packets.wait(va + 8, 1));
            }
            recording.copy(va, to, word);
            if flags.contains(vk::QueryResultFlags::WITH_AVAILABILITY) {
                recording.copy(va + 8, to + word, word);
            }
        }
    });
}
