//! Writes and copies of descriptors.

use ash::vk;
use ash::vk::Handle;

use super::layout::Layout;
use super::pool::Range;
use super::pool::Set;
use super::pool::Slots;
use crate::abi;
use crate::buffer::Buffer;

/// Whether descriptors of a type are buffers; others are inert.
pub(crate) fn is_buffer(kind: vk::DescriptorType) -> bool {
    matches!(
        kind,
        vk::DescriptorType::STORAGE_BUFFER
            | vk::DescriptorType::UNIFORM_BUFFER
            | vk::DescriptorType::STORAGE_BUFFER_DYNAMIC
            | vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC
    )
}

/// What a buffer's descriptor names; none for VK_NULL_HANDLE.
pub(crate) fn range(info: &vk::DescriptorBufferInfo) -> Option<Range> {
    let buffer = (!info.buffer.is_null()).then(|| abi::get::<Buffer>(info.buffer))?;
    Some(Range { va: buffer.va(info.offset), length: buffer.range(info.offset, info.range) })
}

/// Stores at a slot, if there is such a slot.
pub(crate) fn put(slots: &mut Slots, slot: usize, range: Option<Range>) {
    if let Some(place) = slots.get_mut(slot) {
        *place = range;
    }
}

/// Carries out a write.
pub(crate) fn write(layout: &Layout, slots: &mut Slots, write: &vk::WriteDescriptorSet<'_>) {
    if !is_buffer(write.descriptor_type) {
        return;
    }
    let first = layout.slot(write.dst_binding, write.dst_array_element);
    for (at, info) in abi::items(write.p_buffer_info, write.descriptor_count).iter().enumerate() {
        put(slots, first.saturating_add(at), range(info));
    }
}

pub(crate) extern "system" fn update(
    _device: vk::Device,
    write_count: u32,
    writes: *const vk::WriteDescriptorSet<'_>,
    copy_count: u32,
    copies: *const vk::CopyDescriptorSet<'_>,
) {
    abi::quiet("vkUpdateDescriptorSets", || {
        for info in abi::items(writes, write_count) {
            let set = abi::get::<Set>(info.dst_set);
            write(&set.layout, &mut set.slots(), info);
        }
        for copy in abi::items(copies, copy_count) {
            let (from, to) = (abi::get::<Set>(copy.src_set), abi::get::<Set>(copy.dst_set));
            let first = from.layout.slot(copy.src_binding, copy.src_array_element);
            // A set may be copied onto itself.
            let count = copy.descriptor_count as usize;
            let found: Slots = from.slots().iter().skip(first).take(count).copied().collect();
            let first = to.layout.slot(copy.dst_binding, copy.dst_array_element);
            let mut slots = to.slots();
            found
                .into_iter()
                .enumerate()
                .for_each(|(at, range)| put(&mut slots, first.saturating_add(at), range));
        }
    });
}
