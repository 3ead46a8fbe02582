//! Events: words that are 1 where they are set.

use std::sync::atomic::Ordering;

use ash::vk;

use crate::abi;
use crate::abi::handle;
use crate::device::Core;
use crate::heap::Piece;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Its word.
    pub(crate) word: Piece,
}

handle!(Event, vk::Event);

pub(crate) extern "system" fn create(
    device: vk::Device,
    _info: *const vk::EventCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Event,
) -> vk::Result {
    abi::command("vkCreateEvent", || {
        abi::give(Event { word: Core::of(device).heap.word(0)? }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    event: vk::Event,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyEvent", || drop(abi::take::<Event>(event)));
}

pub(crate) extern "system" fn status(device: vk::Device, event: vk::Event) -> vk::Result {
    abi::command_with("vkGetEventStatus", || {
        Core::of(device).check()?;
        // PAIRS WITH the engine's release of the word.
        let is_set = abi::get::<Event>(event).word.word(0)?.load(Ordering::Acquire) != 0;
        Ok(if is_set { vk::Result::EVENT_SET } else { vk::Result::EVENT_RESET })
    })
}

fn store(name: &'static str, event: vk::Event, value: u64) -> vk::Result {
    abi::command(name, || {
        abi::get::<Event>(event).word.word(0)?.store(value, Ordering::Release);
        Ok(())
    })
}

pub(crate) extern "system" fn set(_device: vk::Device, event: vk::Event) -> vk::Result {
    store("vkSetEvent", event, 1)
}

pub(crate) extern "system" fn reset(_device: vk::Device, event: vk::Event) -> vk::Result {
    store("vkResetEvent", event, 0)
}
