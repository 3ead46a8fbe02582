//! The queue: a user-mode queue of the guest driver. A submission is stores to shared memory: no message, no exit.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;
use campanile_guest_driver::commands::CommandBuffer as Packets;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;

use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::command::buffer::CommandBuffer;
use crate::device::Core;
use crate::failure::failed;
use crate::fence::Fence;
use crate::semaphore::Semaphore;

/// Waits or signals that go into one buffer of packets.
const OPERATIONS: usize = 256;

/// Entries of the ring. A program may submit what waits for a value that it stores after: a submission that waits for room in the
/// ring never comes back then, so there is room for 2048 that wait and signal.
const ENTRIES: u32 = 4096;

/// The queue of a device.
#[derive(Debug)]
pub(crate) struct Queue {
    queue: Mutex<UserQueue>,
}

handle!(Dispatchable<Queue>, vk::Queue);

/// A semaphore, and a timeline's value.
type Operation<'a> = (&'a Semaphore, u64);

impl Queue {
    /// A queue on the compute node, which copies too.
    pub(crate) fn on(core: &Core) -> Outcome<Self> {
        let context = core.gpu.create_context(Node::Compute).map_err(failed("vkCreateDevice"))?;
        let mut options = QueueOptions::default();
        // In guest RAM the ring would have to lie in one run, and a small one is more likely to.
        if core.gpu.sees_video_memory() {
            options.entries = ENTRIES;
        }
        let queue = context.create_user_queue(&options).map_err(failed("vkCreateDevice"))?;
        Ok(Self { queue: Mutex::new(queue) })
    }

    /// The object behind a handle.
    pub(crate) fn of<'a>(handle: vk::Queue) -> &'a Self {
        &abi::get::<Dispatchable<Self>>(handle).object
    }

    fn queue(&self) -> MutexGuard<'_, UserQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all that was submitted is done.
    pub(crate) fn wait_idle(&self) -> Outcome {
        let last = self.queue().last();
        last.wait(None).map_err(failed("vkQueueWaitIdle"))
    }

    fn submit(&self, batches: &[Batch<'_>], fence: Option<&Fence>) -> Outcome {
        let failed = failed("vkQueueSubmit");
        let mut queue = self.queue();
        batches.iter().try_for_each(|batch| batch.submit(&mut queue)).map_err(&failed)?;
        if let Some(fence) = fence {
            // Alone, it is signalled when all before it is done.
            fence.submitted(queue.last());
        }
        Ok(())
    }
}

/// One batch of a submission, whichever command it came by.
struct Batch<'a> {
    waits: Vec<Operation<'a>>,
    buffers: Vec<&'a CommandBuffer>,
    signals: Vec<Operation<'a>>,
}

impl Batch<'_> {
    fn submit(&self, queue: &mut UserQueue) -> Result<(), DriverError> {
        for waits in self.waits.chunks(OPERATIONS) {
            let mut packets = Packets::new();
            for (semaphore, value) in waits {
                packets.wait(semaphore.va(), semaphore.to_wait_for(*value))?;
            }
            queue.submit(&packets)?;
        }
        for buffer in &self.buffers {
            for segment in buffer.recording().ended() {
                queue.submit_at(segment.va, segment.length)?;
            }
        }
        for signals in self.signals.chunks(OPERATIONS) {
            let mut packets = Packets::new();
            let mut values = Vec::with_capacity(signals.len());
            for (semaphore, value) in signals {
                let value = semaphore.to_signal(*value);
                packets.signal(semaphore.va(), value)?;
                values.push(value);
            }
            let point = Arc::new(queue.submit(&packets)?);
            signals.iter().zip(values).for_each(|((semaphore, _), value)| semaphore.submitted(value, &point));
        }
        Ok(())
    }
}

fn of_1<'a>(info: &vk::SubmitInfo<'_>) -> Batch<'a> {
    let values = abi::chained::<vk::TimelineSemaphoreSubmitInfo<'_>>(info.p_next);
    let waited =
        values.map_or(&[][..], |v| abi::items(v.p_wait_semaphore_values, v.wait_semaphore_value_count));
    let signalled =
        values.map_or(&[][..], |v| abi::items(v.p_signal_semaphore_values, v.signal_semaphore_value_count));
    let operations = |semaphores: &[vk::Semaphore], values: &[u64]| {
        let values = values.iter().copied().chain(std::iter::repeat(0));
        semaphores.iter().map(|semaphore| abi::get::<Semaphore>(*semaphore)).zip(values).collect()
    };
    let buffers = abi::items(info.p_command_buffers, info.command_buffer_count);
    Batch {
        waits: operations(abi::items(info.p_wait_semaphores, info.wait_semaphore_count), waited),
        buffers: buffers.iter().map(|buffer| CommandBuffer::of(*buffer)).collect(),
        signals: operations(abi::items(info.p_signal_semaphores, info.signal_semaphore_count), signalled),
    }
}

fn of_2<'a>(info: &vk::SubmitInfo2<'_>) -> Batch<'a> {
    let operations = |infos: &[vk::SemaphoreSubmitInfo<'_>]| {
        infos.iter().map(|info| (abi::get::<Semaphore>(info.semaphore), info.value)).collect()
    };
    let buffers = abi::items(info.p_command_buffer_infos, info.command_buffer_info_count);
    Batch {
        waits: operations(abi::items(info.p_wait_semaphore_infos, info.wait_semaphore_info_count)),
        buffers: buffers.iter().map(|info| CommandBuffer::of(info.command_buffer)).collect(),
        signals: operations(abi::items(info.p_signal_semaphore_infos, info.signal_semaphore_info_count)),
    }
}

pub(crate) extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    abi::command("vkQueueSubmit", || {
        let batches: Vec<_> = abi::items(infos, count).iter().map(of_1).collect();
        Queue::of(queue).submit(&batches, abi::find::<Fence>(fence))
    })
}

pub(crate) extern "system" fn submit2(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo2<'_>,
    fence: vk::Fence,
) -> vk::Result {
    abi::command("vkQueueSubmit2", || {
        let batches: Vec<_> = abi::items(infos, count).iter().map(of_2).collect();
        Queue::of(queue).submit(&batches, abi::find::<Fence>(fence))
    })
}

pub(crate) extern "system" fn wait_idle(queue: vk::Queue) -> vk::Result {
    abi::command("vkQueueWaitIdle", || Queue::of(queue).wait_idle())
}

/// Nothing is sparse here.
pub(crate) extern "system" fn bind_sparse(
    queue: vk::Queue,
    count: u32,
    _infos: *const vk::BindSparseInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    abi::command("vkQueueBindSparse", || {
        if count > 0 {
            return Err(vk::Result::ERROR_UNKNOWN);
        }
        Queue::of(queue).submit(&[], abi::find::<Fence>(fence))
    })
}
