//! Pipelines, descriptors, constants, dispatches.

use std::ffi::c_void;
use std::sync::Arc;

use ash::vk;
use campanile_protocol::packet::Binding;
use campanile_protocol::texels;

use super::bound::Bound;
use super::buffer::record;
use super::recording::Recording;
use crate::abi;
use crate::abi::Outcome;
use crate::buffer::Buffer;
use crate::descriptor::layout::Layout;
use crate::descriptor::layout::PipelineLayout;
use crate::descriptor::pool::Set;
use crate::descriptor::slots::Range;
use crate::descriptor::slots::Slots;
use crate::descriptor::template::Template;
use crate::descriptor::update;
use crate::device::Core;
use crate::lower::records::Images;
use crate::pipeline::Pipeline;
use crate::report::report;
use crate::shader::Use;

impl Recording {
    fn bind(&mut self, number: u32, bound: Bound) {
        let number = number as usize;
        if self.sets.len() <= number {
            self.sets.resize_with(number + 1, Bound::default);
        }
        self.sets[number] = bound;
    }

    /// Changes the descriptors of set `number` in the command buffer itself, for a layout; those that were there stay where they fit.
    fn push(&mut self, number: u32, layout: &Arc<Layout>, change: impl FnOnce(&mut Slots)) {
        let place = number as usize;
        if !matches!(self.sets.get(place), Some(Bound::Pushed(old, _)) if old == layout) {
            self.bind(number, Bound::Pushed(Arc::clone(layout), layout.empty()));
        }
        if let Some(Bound::Pushed(_, slots)) = self.sets.get_mut(place) {
            change(slots);
        }
    }

    /// What a dispatch of the bound pipeline carries.
    fn bindings(&self, pipeline: &Pipeline) -> Outcome<Vec<Binding>> {
        let mut bindings = Vec::with_capacity(pipeline.uses.len());
        for used in &pipeline.uses {
            for element in 0..used.count.unwrap_or(1) {
                let bound = self.sets.get(used.set as usize);
                let Some(range) = bound.and_then(|bound| bound.range(used.binding, element)) else {
                    report!(
                        "a dispatch: set {}, binding {}, element {element} is not bound",
                        used.set,
                        used.binding
                    );
                    return Err(vk::Result::ERROR_UNKNOWN);
                };
                let (format, length) = shown(pipeline.images.as_deref(), used, &range);
                bindings.push(Binding {
                    format,
                    set: u16::try_from(used.set).unwrap_or(u16::MAX),
                    element: u16::try_from(element).unwrap_or(u16::MAX),
                    ..Binding::new(range.va, length, used.slot)
                });
            }
        }
        Ok(bindings)
    }

    fn dispatch(&mut self, core: &Core, grid: Grid) {
        let Some(pipeline) = self.pipeline.clone() else { return self.fail(vk::Result::ERROR_UNKNOWN) };
        let all = self.bindings(&pipeline).and_then(|mut bindings| {
            bindings.extend(self.records(core, &pipeline)?);
            Ok(bindings)
        });
        let bindings = match all {
            Ok(bindings) => bindings,
            Err(failure) => return self.fail(failure),
        };
        let (kernel, all) = (&pipeline.kernel, self.constants);
        let constants = &all[..all.len().min(kernel.constant_bytes() as usize)];
        self.record(|packets| match grid {
            Grid::Direct(groups) => packets.dispatch(kernel, groups, &bindings, constants),
            Grid::Based(base, groups) => packets.dispatch_base(kernel, base, groups, &bindings, constants),
            Grid::Indirect(va) => packets.dispatch_indirect(kernel, va, &bindings, constants),
        });
    }
}

/// The format that a range is bound in, and its bytes: whole texels of a view, of another buffer whole words.
fn shown(images: Option<&Images>, used: &Use, range: &Range) -> (u16, u64) {
    // Another entry point may have an image where this one has a buffer.
    let images = images.filter(|_| range.view.is_some());
    let records = images.and_then(|images| images.of(used.set, used.slot));
    let format = records.map_or(range.format, |records| records.bound(range.format));
    match texels::find(format) {
        None => (0, range.length.next_multiple_of(4)),
        Some(known) if records.is_some() => {
            // A slice of an image has room for a texel of any format.
            let texel = u64::from(known.bytes);
            (format, (range.length / texel * texel).max(texel))
        }
        Some(_) => (format, range.length),
    }
}

enum Grid {
    Direct([u32; 3]),
    Based([u32; 3], [u32; 3]),
    Indirect(u64),
}

pub(crate) extern "system" fn bind_pipeline(
    buffer: vk::CommandBuffer,
    point: vk::PipelineBindPoint,
    pipeline: vk::Pipeline,
) {
    record("vkCmdBindPipeline", buffer, |recording, _| {
        if point == vk::PipelineBindPoint::COMPUTE {
            recording.pipeline = Some(abi::share::<Pipeline>(pipeline));
        }
    });
}

pub(crate) extern "system" fn bind_sets(
    buffer: vk::CommandBuffer,
    point: vk::PipelineBindPoint,
    _layout: vk::PipelineLayout,
    first: u32,
    count: u32,
    sets: *const vk::DescriptorSet,
    offset_count: u32,
    offsets: *const u32,
) {
    record("vkCmdBindDescriptorSets", buffer, |recording, _| {
        if point != vk::PipelineBindPoint::COMPUTE {
            return;
        }
        let mut offsets = abi::items(offsets, offset_count).iter().copied();
        for (number, set) in (first..).zip(abi::items(sets, count)) {
            let set = abi::share::<Set>(*set);
            let own = offsets.by_ref().take(set.layout.dynamic()).collect();
            recording.bind(number, Bound::Set(set, own));
        }
    });
}

pub(crate) extern "system" fn push_descriptors(
    buffer: vk::CommandBuffer,
    point: vk::PipelineBindPoint,
    layout: vk::PipelineLayout,
    set: u32,
    count: u32,
    writes: *const vk::WriteDescriptorSet<'_>,
) {
    record("vkCmdPushDescriptorSetKHR", buffer, |recording, _| {
        let layout = abi::get::<PipelineLayout>(layout).set(set);
        let Some(layout) = layout.filter(|_| point == vk::PipelineBindPoint::COMPUTE) else { return };
        recording.push(set, layout, |slots| {
            abi::items(writes, count).iter().for_each(|write| update::write(layout, slots, write));
        });
    });
}

pub(crate) extern "system" fn push_template(
    buffer: vk::CommandBuffer,
    template: vk::DescriptorUpdateTemplate,
    _layout: vk::PipelineLayout,
    set: u32,
    data: *const c_void,
) {
    record("vkCmdPushDescriptorSetWithTemplateKHR", buffer, |recording, _| {
        let template = abi::get::<Template>(template);
        let Some(layout) = &template.pushed else { return recording.fail(vk::Result::ERROR_UNKNOWN) };
        recording.push(set, layout, |slots| template.fill(layout, slots, data));
    });
}

pub(crate) extern "system" fn push_constants(
    buffer: vk::CommandBuffer,
    _layout: vk::PipelineLayout,
    _stages: vk::ShaderStageFlags,
    offset: u32,
    size: u32,
    values: *const c_void,
) {
    record("vkCmdPushConstants", buffer, |recording, _| {
        let place =
            recording.constants.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..size as usize));
        match place {
            Some(place) => place.copy_from_slice(abi::items(values.cast(), size)),
            None => recording.fail(vk::Result::ERROR_UNKNOWN),
        }
    });
}

pub(crate) extern "system" fn dispatch(buffer: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    record("vkCmdDispatch", buffer, |recording, core| {
        if x != 0 && y != 0 && z != 0 {
            recording.dispatch(core, Grid::Direct([x, y, z]));
        }
    });
}

pub(crate) extern "system" fn dispatch_base(
    buffer: vk::CommandBuffer,
    base_x: u32,
    base_y: u32,
    base_z: u32,
    x: u32,
    y: u32,
    z: u32,
) {
    record("vkCmdDispatchBase", buffer, |recording, core| {
        if x != 0 && y != 0 && z != 0 {
            recording.dispatch(core, Grid::Based([base_x, base_y, base_z], [x, y, z]));
        }
    });
}

pub(crate) extern "system" fn dispatch_indirect(
    buffer: vk::CommandBuffer,
    arguments: vk::Buffer,
    offset: vk::DeviceSize,
) {
    record("vkCmdDispatchIndirect", buffer, |recording, core| {
        recording.dispatch(core, Grid::Indirect(abi::get::<Buffer>(arguments).va(offset)));
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ash::vk;
    use campanile_protocol::texels::Number;

    use super::Images;
    use super::Range;
    use super::Recording;
    use super::Use;
    use super::shown;
    use crate::descriptor::layout::Layout;
    use crate::lower::records::Kind;
    use crate::lower::records::Records;

    fn layout(descriptor_type: vk::DescriptorType) -> Arc<Layout> {
        let binding =
            vk::DescriptorSetLayoutBinding { descriptor_type, descriptor_count: 2, ..Default::default() };
        Arc::new(Layout::of(&[binding]))
    }

    #[test]
    fn what_was_pushed_stays_for_layouts_that_are_compatible() {
        let mut recording = Recording::default();
        let range = || Some(Range { va: 256, length: 4, ..Range::default() });
        recording.push(1, &layout(vk::DescriptorType::STORAGE_BUFFER), |slots| slots[0] = range());
        let mut pushed = |kind| {
            let mut found = None;
            recording.push(1, &layout(kind), |slots| found = Some(slots.clone()));
            found.unwrap()
        };
        // Another object with the same bindings.
        let mut addresses =
            |kind| pushed(kind).into_iter().map(|range| range.map(|range| range.va)).collect::<Vec<_>>();
        assert_eq!(addresses(vk::DescriptorType::STORAGE_BUFFER), [Some(256), None]);
        assert_eq!(addresses(vk::DescriptorType::UNIFORM_BUFFER), [None, None]);
    }

    #[test]
    fn a_buffer_is_one_where_another_entry_point_has_an_image() {
        let (kind, number) = (Kind::Storage, Number::Float);
        let records = Records { set: 0, slot: 0, count: 1, kind, number, format: 100, first: 0 };
        let images = Images { place: (0, 63), records: vec![records], vectors: 2 };
        let used = Use { set: 0, binding: 0, slot: 0, count: Some(1) };
        let range = Range { va: 0x1000, length: 1026, ..Range::default() };
        assert_eq!(shown(Some(&images), &used, &range), (0, 1028));
    }
}
