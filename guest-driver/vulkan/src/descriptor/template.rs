//! Templates: where in a block of the program's own making the descriptors of a set lie.

use std::ffi::c_void;
use std::sync::Arc;

use ash::vk;

use super::inline::is_inline;
use super::inline::write_run;
use super::layout::Layout;
use super::layout::PipelineLayout;
use super::pool::Set;
use super::slots::Slots;
use super::slots::put;
use super::update::image;
use super::update::is_buffer;
use super::update::is_image;
use super::update::is_texels;
use super::update::range;
use super::update::texel_buffer;
use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;

/// A template.
#[derive(Debug)]
pub(crate) struct Template {
    entries: Vec<vk::DescriptorUpdateTemplateEntry>,
    /// For push descriptors: the layout that they are for.
    pub(crate) pushed: Option<Arc<Layout>>,
}

handle!(Template, vk::DescriptorUpdateTemplate);

impl Template {
    /// Fills the inline uniform blocks of a set with what lies at `data`.
    fn fill_blocks(&self, set: &Set, data: *const c_void) -> Outcome {
        for entry in self.entries.iter().filter(|entry| is_inline(entry.descriptor_type)) {
            let bytes = abi::items(data.cast::<u8>().wrapping_add(entry.offset), entry.descriptor_count);
            write_run(&set.blocks(entry.dst_binding), entry.dst_array_element as usize, bytes)?;
        }
        Ok(())
    }

    /// Fills `slots` with what lies at `data`.
    pub(crate) fn fill(&self, layout: &Layout, slots: &mut Slots, data: *const c_void) {
        for entry in &self.entries {
            let first = layout.slot(entry.dst_binding, entry.dst_array_element);
            for at in 0..entry.descriptor_count as usize {
                let place = entry.offset + at * entry.stride;
                let slot = first.saturating_add(at);
                let found = match entry.descriptor_type {
                    kind if is_buffer(kind) => range(&abi::item_at(data, place)),
                    kind if is_texels(kind) => texel_buffer(abi::item_at(data, place)),
                    kind if is_image(kind) => image(layout, slot, kind, &abi::item_at(data, place)),
                    _ => break,
                };
                put(slots, slot, found);
            }
        }
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::DescriptorUpdateTemplateCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DescriptorUpdateTemplate,
) -> vk::Result {
    abi::command("vkCreateDescriptorUpdateTemplate", || {
        let info = abi::read(info);
        let entries =
            abi::items(info.p_descriptor_update_entries, info.descriptor_update_entry_count).to_vec();
        let is_pushed = info.template_type == vk::DescriptorUpdateTemplateType::PUSH_DESCRIPTORS_KHR;
        let layout = || abi::get::<PipelineLayout>(info.pipeline_layout).set(info.set).cloned();
        let pushed = is_pushed.then(layout).flatten();
        abi::give(Template { entries, pushed }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    template: vk::DescriptorUpdateTemplate,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyDescriptorUpdateTemplate", || drop(abi::take::<Template>(template)));
}

pub(crate) extern "system" fn update(
    _device: vk::Device,
    set: vk::DescriptorSet,
    template: vk::DescriptorUpdateTemplate,
    data: *const c_void,
) {
    let _reported = abi::command("vkUpdateDescriptorSetWithTemplate", || {
        let set = abi::get::<Set>(set);
        let template = abi::get::<Template>(template);
        template.fill(&set.layout, &mut set.slots(), data);
        template.fill_blocks(set, data)
    });
}
