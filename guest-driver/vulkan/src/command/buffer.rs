//! Command buffers: begun, ended, and executed by others.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;

use super::recording::Recording;
use crate::abi;
use crate::abi::Dispatchable;
use crate::abi::handle;
use crate::device::Core;

/// A command buffer, primary or secondary.
#[derive(Debug)]
pub(crate) struct CommandBuffer {
    /// Its device.
    pub(crate) core: Arc<Core>,
    recording: Mutex<Recording>,
}

handle!(Dispatchable<CommandBuffer>, vk::CommandBuffer);

impl CommandBuffer {
    /// An empty one.
    pub(crate) fn on(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), recording: Mutex::default() }
    }

    /// The object behind a handle.
    pub(crate) fn of<'a>(handle: vk::CommandBuffer) -> &'a Self {
        &abi::get::<Dispatchable<Self>>(handle).object
    }

    /// Its contents.
    pub(crate) fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the body of a command that is recorded.
pub(crate) fn record(
    name: &'static str,
    buffer: vk::CommandBuffer,
    body: impl FnOnce(&mut Recording, &Core),
) {
    let buffer = CommandBuffer::of(buffer);
    let recorded = abi::command(name, || {
        body(&mut buffer.recording(), &buffer.core);
        Ok(())
    });
    // What was not recorded as it should be must not run.
    if recorded != vk::Result::SUCCESS {
        buffer.recording().fail(recorded);
    }
}

pub(crate) extern "system" fn begin(
    buffer: vk::CommandBuffer,
    _info: *const vk::CommandBufferBeginInfo<'_>,
) -> vk::Result {
    abi::command("vkBeginCommandBuffer", || {
        CommandBuffer::of(buffer).recording().reset(true);
        Ok(())
    })
}

pub(crate) extern "system" fn end(buffer: vk::CommandBuffer) -> vk::Result {
    abi::command("vkEndCommandBuffer", || {
        let buffer = CommandBuffer::of(buffer);
        buffer.recording().end(&buffer.core.heap)
    })
}

pub(crate) extern "system" fn reset(
    buffer: vk::CommandBuffer,
    flags: vk::CommandBufferResetFlags,
) -> vk::Result {
    abi::command("vkResetCommandBuffer", || {
        let keep = !flags.contains(vk::CommandBufferResetFlags::RELEASE_RESOURCES);
        CommandBuffer::of(buffer).recording().reset(keep);
        Ok(())
    })
}

pub(crate) extern "system" fn execute(
    buffer: vk::CommandBuffer,
    count: u32,
    secondaries: *const vk::CommandBuffer,
) {
    record("vkCmdExecuteCommands", buffer, |recording, _| {
        for secondary in abi::items(secondaries, count) {
            recording.append(&CommandBuffer::of(*secondary).recording());
        }
        // What was bound before is undefined from here on.
        recording.pipeline = None;
        recording.sets.clear();
    });
}

/// There is one device in a group.
pub(crate) extern "system" fn device_mask(_buffer: vk::CommandBuffer, _mask: u32) {}
