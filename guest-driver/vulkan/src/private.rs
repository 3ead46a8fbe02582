//! Private data: words that programs and layers keep with objects of theirs (`VK_EXT_private_data`).

use ash::vk;

use crate::abi;
use crate::abi::handle;
use crate::words;

/// A slot, by its number.
#[derive(Debug)]
pub(crate) struct Slot(u64);

handle!(Slot, vk::PrivateDataSlot);

impl Drop for Slot {
    fn drop(&mut self) {
        words::end(self.0);
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    _info: *const vk::PrivateDataSlotCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::PrivateDataSlot,
) -> vk::Result {
    abi::command("vkCreatePrivateDataSlot", || {
        abi::give(Slot(words::make()), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    slot: vk::PrivateDataSlot,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyPrivateDataSlot", || drop(abi::take::<Slot>(slot)));
}

/// No two objects have one handle, whatever their types.
pub(crate) extern "system" fn set(
    _device: vk::Device,
    _kind: vk::ObjectType,
    object: u64,
    slot: vk::PrivateDataSlot,
    word: u64,
) -> vk::Result {
    abi::command("vkSetPrivateData", || {
        words::set(abi::get::<Slot>(slot).0, object, word);
        Ok(())
    })
}

pub(crate) extern "system" fn get(
    _device: vk::Device,
    _kind: vk::ObjectType,
    object: u64,
    slot: vk::PrivateDataSlot,
    out: *mut u64,
) {
    abi::quiet("vkGetPrivateData", || abi::write(out, words::get(abi::get::<Slot>(slot).0, object)));
}
