//! Writes and copies of descriptors.

use std::sync::Arc;

use ash::vk;
use ash::vk::Handle;

use super::inline::is_inline;
use super::inline::read_run;
use super::inline::write_run;
use super::inline::written;
use super::layout::Layout;
use super::layout::has_sampler;
use super::pool::Set;
use super::slots::Range;
use super::slots::Slots;
use super::slots::put;
use crate::abi;
use crate::buffer::Buffer;
use crate::image::sampler::Sampler;
use crate::image::view::View as ImageView;
use crate::texels::View;

/// Whether descriptors of a type are texel buffers.
pub(crate) fn is_texels(kind: vk::DescriptorType) -> bool {
    matches!(kind, vk::DescriptorType::UNIFORM_TEXEL_BUFFER | vk::DescriptorType::STORAGE_TEXEL_BUFFER)
}

/// Whether descriptors of a type are images or samplers.
pub(crate) fn is_image(kind: vk::DescriptorType) -> bool {
    has_sampler(kind) || matches!(kind, vk::DescriptorType::SAMPLED_IMAGE | vk::DescriptorType::STORAGE_IMAGE)
}

/// Whether descriptors of a type are buffers that are not seen as texels. What is none of these is inert.
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
    let (va, length) = (buffer.va(info.offset), buffer.range(info.offset, info.range));
    Some(Range { va, length, ..Range::default() })
}

/// What a texel buffer's descriptor names; none for VK_NULL_HANDLE.
pub(crate) fn texel_buffer(view: vk::BufferView) -> Option<Range> {
    abi::find::<View>(view).map(|view| Range {
        va: view.va,
        length: view.length,
        format: view.format,
        ..Range::default()
    })
}

/// What the descriptor of an image or a sampler names at a slot; none for VK_NULL_HANDLE, and for an image without contents.
pub(crate) fn image(
    layout: &Layout,
    slot: usize,
    kind: vk::DescriptorType,
    info: &vk::DescriptorImageInfo,
) -> Option<Range> {
    let given = || (!info.sampler.is_null()).then(|| abi::share::<Sampler>(info.sampler));
    let sampler = if has_sampler(kind) { layout.sampler(slot).cloned().or_else(given) } else { None };
    if kind == vk::DescriptorType::SAMPLER {
        return sampler.map(|sampler| Range { sampler: Some(sampler), ..Range::default() });
    }
    let view = (!info.image_view.is_null()).then(|| abi::share::<ImageView>(info.image_view))?;
    let shown = view.shown.as_ref()?;
    // What the host would stop the queue for is as unbound as what has no contents.
    if kind == vk::DescriptorType::STORAGE_IMAGE && !view.is_stored {
        return None;
    }
    let (va, length, format) = (shown.va, shown.length, shown.format);
    Some(Range { va, length, format, sampler, view: Some(view), block: None })
}

/// Carries out a write.
pub(crate) fn write(layout: &Layout, slots: &mut Slots, write: &vk::WriteDescriptorSet<'_>) {
    let (first, count) = (layout.slot(write.dst_binding, write.dst_array_element), write.descriptor_count);
    let mut put = |at: usize, range| put(slots, first.saturating_add(at), range);
    if is_image(write.descriptor_type) {
        let of = |at: usize, info| image(layout, first.saturating_add(at), write.descriptor_type, info);
        abi::items(write.p_image_info, count).iter().enumerate().for_each(|(at, info)| put(at, of(at, info)));
    } else if is_buffer(write.descriptor_type) {
        abi::items(write.p_buffer_info, count).iter().enumerate().for_each(|(at, info)| put(at, range(info)));
    } else if is_texels(write.descriptor_type) {
        let views = abi::items(write.p_texel_buffer_view, count);
        views.iter().enumerate().for_each(|(at, view)| put(at, texel_buffer(*view)));
    }
}

/// What a copy leaves in a slot: a sampler that its layout fixes stays.
fn copied(fixed: Option<&Arc<Sampler>>, range: Range) -> Range {
    Range { sampler: fixed.cloned().or(range.sampler), ..range }
}

pub(crate) extern "system" fn update(
    _device: vk::Device,
    write_count: u32,
    writes: *const vk::WriteDescriptorSet<'_>,
    copy_count: u32,
    copies: *const vk::CopyDescriptorSet<'_>,
) {
    let _reported = abi::command("vkUpdateDescriptorSets", || {
        for info in abi::items(writes, write_count) {
            let set = abi::get::<Set>(info.dst_set);
            if is_inline(info.descriptor_type) {
                let blocks = set.blocks(info.dst_binding);
                write_run(&blocks, info.dst_array_element as usize, written(info))?;
            } else {
                write(&set.layout, &mut set.slots(), info);
            }
        }
        for copy in abi::items(copies, copy_count) {
            let (from, to) = (abi::get::<Set>(copy.src_set), abi::get::<Set>(copy.dst_set));
            let blocks = from.blocks(copy.src_binding);
            if !blocks.is_empty() {
                let bytes =
                    read_run(&blocks, copy.src_array_element as usize, copy.descriptor_count as usize);
                write_run(&to.blocks(copy.dst_binding), copy.dst_array_element as usize, &bytes)?;
                continue;
            }
            let first = from.layout.slot(copy.src_binding, copy.src_array_element);
            // A set may be copied onto itself.
            let count = copy.descriptor_count as usize;
            let found: Slots = from.slots().iter().skip(first).take(count).cloned().collect();
            let first = to.layout.slot(copy.dst_binding, copy.dst_array_element);
            let mut slots = to.slots();
            found.into_iter().enumerate().for_each(|(at, range)| {
                let slot = first.saturating_add(at);
                put(&mut slots, slot, range.map(|range| copied(to.layout.sampler(slot), range)));
            });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Range;
    use super::Sampler;
    use super::copied;

    #[test]
    fn a_sampler_that_a_layout_fixes_outlives_a_copy_and_any_other_is_copied() {
        let [fixed, other] = [1, 2].map(|word| Arc::new(Sampler { record: [word; 8] }));
        let range = || Range { va: 7, sampler: Some(Arc::clone(&other)), ..Range::default() };
        let record = |range: Range| (range.va, range.sampler.unwrap().record[0]);
        assert_eq!(record(copied(Some(&fixed), range())), (7, 1));
        assert_eq!(record(copied(None, range())), (7, 2));
    }
}
