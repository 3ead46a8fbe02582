//! Barriers and events.

use ash::vk;

use super::buffer::record;
use crate::abi;
use crate::event::Event;

fn barrier_in(name: &'static str, buffer: vk::CommandBuffer) {
    record(name, buffer, |recording, _| recording.record(|packets| packets.barrier()));
}

pub(crate) extern "system" fn barrier(
    buffer: vk::CommandBuffer,
    _from: vk::PipelineStageFlags,
    _to: vk::PipelineStageFlags,
    _flags: vk::DependencyFlags,
    _count: u32,
    _barriers: *const vk::MemoryBarrier<'_>,
    _buffer_count: u32,
    _buffer_barriers: *const vk::BufferMemoryBarrier<'_>,
    _image_count: u32,
    _image_barriers: *const vk::ImageMemoryBarrier<'_>,
) {
    barrier_in("vkCmdPipelineBarrier", buffer);
}

pub(crate) extern "system" fn barrier2(buffer: vk::CommandBuffer, _info: *const vk::DependencyInfo<'_>) {
    barrier_in("vkCmdPipelineBarrier2", buffer);
}

fn store(name: &'static str, buffer: vk::CommandBuffer, event: vk::Event, value: u64) {
    record(name, buffer, |recording, _| {
        let va = abi::get::<Event>(event).word.va();
        recording.record(|packets| packets.barrier()?.signal(va, value));
    });
}

pub(crate) extern "system" fn set_event(
    buffer: vk::CommandBuffer,
    event: vk::Event,
    _stages: vk::PipelineStageFlags,
) {
    store("vkCmdSetEvent", buffer, event, 1);
}

pub(crate) extern "system" fn set_event2(
    buffer: vk::CommandBuffer,
    event: vk::Event,
    _info: *const vk::DependencyInfo<'_>,
) {
    store("vkCmdSetEvent2", buffer, event, 1);
}

pub(crate) extern "system" fn reset_event(
    buffer: vk::CommandBuffer,
    event: vk::Event,
    _stages: vk::PipelineStageFlags,
) {
    store("vkCmdResetEvent", buffer, event, 0);
}

pub(crate) extern "system" fn reset_event2(
    buffer: vk::CommandBuffer,
    event: vk::Event,
    _stages: vk::PipelineStageFlags2,
) {
    store("vkCmdResetEvent2", buffer, event, 0);
}

fn wait(name: &'static str, buffer: vk::CommandBuffer, events: &[vk::Event]) {
    record(name, buffer, |recording, _| {
        for event in events {
            let va = abi::get::<Event>(*event).word.va();
            recording.record(|packets| packets.wait(va, 1));
        }
        recording.record(|packets| packets.barrier());
    });
}

pub(crate) extern "system" fn wait_events(
    buffer: vk::CommandBuffer,
    count: u32,
    events: *const vk::Event,
    _from: vk::PipelineStageFlags,
    _to: vk::PipelineStageFlags,
    _memory_count: u32,
    _memory: *const vk::MemoryBarrier<'_>,
    _buffer_count: u32,
    _buffers: *const vk::BufferMemoryBarrier<'_>,
    _image_count: u32,
    _images: *const vk::ImageMemoryBarrier<'_>,
) {
    wait("vkCmdWaitEvents", buffer, abi::items(events, count));
}

pub(crate) extern "system" fn wait_events2(
    buffer: vk::CommandBuffer,
    count: u32,
    events: *const vk::Event,
    _infos: *const vk::DependencyInfo<'_>,
) {
    wait("vkCmdWaitEvents2", buffer, abi::items(events, count));
}
