//! Command pools.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;
use ash::vk::Handle;

use super::buffer::CommandBuffer;
use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::handle;
use crate::device::Core;

/// A pool: which command buffers end with it.
#[derive(Debug)]
pub(crate) struct Pool {
    buffers: Mutex<HashSet<u64>>,
}

handle!(Pool, vk::CommandPool);

impl Pool {
    fn buffers(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for buffer in self.buffers().drain() {
            drop(abi::take::<Dispatchable<CommandBuffer>>(vk::CommandBuffer::from_raw(buffer)));
        }
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    _info: *const vk::CommandPoolCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::CommandPool,
) -> vk::Result {
    abi::command("vkCreateCommandPool", || {
        abi::give(Pool { buffers: Mutex::default() }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    pool: vk::CommandPool,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyCommandPool", || drop(abi::take::<Pool>(pool)));
}

fn reset_all(pool: vk::CommandPool, keep: bool) {
    for buffer in abi::get::<Pool>(pool).buffers().iter() {
        CommandBuffer::of(vk::CommandBuffer::from_raw(*buffer)).recording().reset(keep);
    }
}

pub(crate) extern "system" fn reset(
    _device: vk::Device,
    pool: vk::CommandPool,
    flags: vk::CommandPoolResetFlags,
) -> vk::Result {
    abi::command("vkResetCommandPool", || {
        reset_all(pool, !flags.contains(vk::CommandPoolResetFlags::RELEASE_RESOURCES));
        Ok(())
    })
}

/// What may be trimmed is little: memory goes back with the command buffer that has it.
pub(crate) extern "system" fn trim(
    _device: vk::Device,
    _pool: vk::CommandPool,
    _flags: vk::CommandPoolTrimFlags,
) {
}

pub(crate) extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::CommandBufferAllocateInfo<'_>,
    out: *mut vk::CommandBuffer,
) -> vk::Result {
    abi::command("vkAllocateCommandBuffers", || {
        let (info, core) = (abi::read(info), Core::of(device));
        let pool = abi::get::<Pool>(info.command_pool);
        for place in abi::room(out, info.command_buffer_count) {
            abi::give(Dispatchable::new(CommandBuffer::on(core)), place);
            pool.buffers().insert(place.as_raw());
        }
        Ok(())
    })
}

pub(crate) extern "system" fn free(
    _device: vk::Device,
    pool: vk::CommandPool,
    count: u32,
    buffers: *const vk::CommandBuffer,
) {
    abi::quiet("vkFreeCommandBuffers", || {
        let pool = abi::get::<Pool>(pool);
        for buffer in abi::items(buffers, count) {
            if pool.buffers().remove(&buffer.as_raw()) {
                drop(abi::take::<Dispatchable<CommandBuffer>>(*buffer));
            }
        }
    });
}
