//! Layouts of descriptor sets, and of pipelines, which have some.

use std::collections::BTreeMap;
use std::sync::Arc;

use ash::vk;

use super::inline::BLOCKS;
use super::inline::MOST;
use super::inline::is_inline;
use super::slots::Range;
use super::slots::Slots;
use super::slots::put;
use crate::abi;
use crate::abi::handle;
use crate::image::sampler::Sampler;

/// The bindings of a set: each has a run of slots, in the order of their numbers. Equal ones are compatible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    bindings: BTreeMap<u32, Binding>,
    slots: usize,
    dynamic: usize,
    /// Slot → the sampler that it has from the beginning on.
    samplers: BTreeMap<usize, Arc<Sampler>>,
}

/// One binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding {
    kind: vk::DescriptorType,
    /// Its first slot.
    pub(crate) first: usize,
    /// How many it has.
    pub(crate) count: usize,
    /// Bytes of an inline uniform block, which has one slot; 0 of any other.
    bytes: usize,
    /// The index of its first dynamic offset, where it takes any.
    pub(crate) dynamic: Option<usize>,
}

/// The sets of a pipeline.
#[derive(Debug)]
pub(crate) struct PipelineLayout {
    sets: Vec<Option<Arc<Layout>>>,
}

handle!(Layout, vk::DescriptorSetLayout);
handle!(PipelineLayout, vk::PipelineLayout);

/// Whether descriptors of a type have a sampler.
pub(crate) fn has_sampler(kind: vk::DescriptorType) -> bool {
    matches!(kind, vk::DescriptorType::SAMPLER | vk::DescriptorType::COMBINED_IMAGE_SAMPLER)
}

impl Layout {
    /// Of these bindings, in whichever order.
    pub(crate) fn of(infos: &[vk::DescriptorSetLayoutBinding<'_>]) -> Self {
        let mut sorted: Vec<_> = infos.iter().collect();
        sorted.sort_unstable_by_key(|info| info.binding);
        let (mut bindings, mut slots, mut dynamic) = (BTreeMap::new(), 0, 0);
        let mut samplers = BTreeMap::new();
        for info in sorted {
            let all = info.descriptor_count as usize;
            let (count, bytes) = if is_inline(info.descriptor_type) { (all.min(1), all) } else { (all, 0) };
            let is_dynamic = matches!(
                info.descriptor_type,
                vk::DescriptorType::STORAGE_BUFFER_DYNAMIC | vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC
            );
            let (kind, dynamic_first) = (info.descriptor_type, is_dynamic.then_some(dynamic));
            let binding = Binding { kind, first: slots, count, bytes, dynamic: dynamic_first };
            bindings.insert(info.binding, binding);
            let fixed = if has_sampler(kind) { abi::items(info.p_immutable_samplers, count) } else { &[] };
            samplers.extend((slots..).zip(fixed.iter().map(|sampler| abi::share::<Sampler>(*sampler))));
            slots += count;
            dynamic += if is_dynamic { count } else { 0 };
        }
        Self { bindings, slots, dynamic, samplers }
    }

    /// The binding of a number.
    pub(crate) fn binding(&self, number: u32) -> Option<Binding> {
        self.bindings.get(&number).copied()
    }

    /// The slot of an element; elements behind the last of a binding are those of the bindings that follow.
    pub(crate) fn slot(&self, binding: u32, element: u32) -> usize {
        self.binding(binding).map_or(usize::MAX, |binding| binding.first.saturating_add(element as usize))
    }

    /// The slot of each inline uniform block, and its bytes.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.bindings.values().filter(|binding| is_inline(binding.kind) && binding.count > 0);
        all.map(|binding| (binding.first, binding.bytes))
    }

    /// The slots of the inline uniform blocks that an update of a binding goes through: its own, and those that follow it. None where it is no such.
    pub(crate) fn blocks_from(&self, binding: u32) -> impl Iterator<Item = usize> {
        let all = self.bindings.range(binding..).map(|(number, found)| (*number, found));
        let known = all.skip_while(move |(number, _)| *number != binding);
        let inline = known.map(|(_, found)| found).take_while(|found| is_inline(found.kind));
        inline.filter(|found| found.count > 0).map(|found| found.first)
    }

    /// Its slots as they are before anything is written, but for inline uniform blocks.
    pub(crate) fn empty(&self) -> Slots {
        let mut slots = vec![None; self.slots];
        for (slot, sampler) in &self.samplers {
            put(&mut slots, *slot, Some(Range { sampler: Some(Arc::clone(sampler)), ..Range::default() }));
        }
        slots
    }

    /// The sampler that a slot always has.
    pub(crate) fn sampler(&self, slot: usize) -> Option<&Arc<Sampler>> {
        self.samplers.get(&slot)
    }

    /// How many dynamic offsets a bind of it takes.
    pub(crate) fn dynamic(&self) -> usize {
        self.dynamic
    }
}

impl PipelineLayout {
    /// The layout of set `number`.
    pub(crate) fn set(&self, number: u32) -> Option<&Arc<Layout>> {
        self.sets.get(number as usize)?.as_ref()
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::DescriptorSetLayoutCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DescriptorSetLayout,
) -> vk::Result {
    abi::command("vkCreateDescriptorSetLayout", || {
        let info = abi::read(info);
        abi::give(Layout::of(abi::items(info.p_bindings, info.binding_count)), out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    layout: vk::DescriptorSetLayout,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyDescriptorSetLayout", || drop(abi::take::<Layout>(layout)));
}

pub(crate) extern "system" fn support(
    _device: vk::Device,
    info: *const vk::DescriptorSetLayoutCreateInfo<'_>,
    out: *mut vk::DescriptorSetLayoutSupport<'_>,
) {
    abi::quiet("vkGetDescriptorSetLayoutSupport", || {
        let (info, out) = (abi::read(info), abi::filled(out));
        let bindings = abi::items(info.p_bindings, info.binding_count);
        let is_block = |binding: &vk::DescriptorSetLayoutBinding<'_>| is_inline(binding.descriptor_type);
        let descriptors = |binding: &vk::DescriptorSetLayoutBinding<'_>| match is_block(binding) {
            true => u64::from(binding.descriptor_count.min(1)),
            false => u64::from(binding.descriptor_count),
        };
        let count: u64 = bindings.iter().map(descriptors).sum();
        let blocks: Vec<_> = bindings.iter().filter(|binding| is_block(binding)).collect();
        let are_small = blocks.iter().all(|binding| binding.descriptor_count <= MOST);
        out.supported = vk::Bool32::from(count <= 1024 && are_small && blocks.len() <= BLOCKS as usize);
        for structure in abi::chain(out.p_next) {
            type Variable<'a> = vk::DescriptorSetVariableDescriptorCountLayoutSupport<'a>;
            if let Some(variable) = abi::as_type::<Variable<'_>>(structure) {
                variable.max_variable_descriptor_count = 0;
            }
        }
    });
}

pub(crate) extern "system" fn create_of_pipeline(
    _device: vk::Device,
    info: *const vk::PipelineLayoutCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::PipelineLayout,
) -> vk::Result {
    use ash::vk::Handle;
    abi::command("vkCreatePipelineLayout", || {
        let info = abi::read(info);
        let layouts = abi::items(info.p_set_layouts, info.set_layout_count);
        let share =
            |layout: &vk::DescriptorSetLayout| (!layout.is_null()).then(|| abi::share::<Layout>(*layout));
        abi::give(PipelineLayout { sets: layouts.iter().map(share).collect() }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy_of_pipeline(
    _device: vk::Device,
    layout: vk::PipelineLayout,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyPipelineLayout", || drop(abi::take::<PipelineLayout>(layout)));
}

#[cfg(test)]
mod tests {
    use ash::vk;

    use super::Layout;

    fn binding(
        binding: u32,
        descriptor_type: vk::DescriptorType,
        descriptor_count: u32,
    ) -> vk::DescriptorSetLayoutBinding<'static> {
        vk::DescriptorSetLayoutBinding { binding, descriptor_type, descriptor_count, ..Default::default() }
    }

    #[test]
    fn bindings_have_slots_in_the_order_of_their_numbers() {
        let layout = Layout::of(&[
            binding(7, vk::DescriptorType::STORAGE_BUFFER_DYNAMIC, 2),
            binding(1, vk::DescriptorType::STORAGE_BUFFER, 3),
            binding(2, vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC, 1),
        ]);
        assert_eq!((layout.empty().len(), layout.dynamic()), (6, 3));
        assert_eq!((layout.slot(1, 0), layout.slot(2, 0), layout.slot(7, 1)), (0, 3, 5));
        assert_eq!(layout.slot(1, 3), layout.slot(2, 0), "an update goes on in the next binding");
        assert_eq!(layout.binding(7).unwrap().dynamic, Some(1));
        assert_eq!(layout.binding(1).unwrap().dynamic, None);
        assert!(layout.binding(3).is_none());
    }

    #[test]
    fn an_inline_uniform_block_has_one_slot_whatever_its_bytes() {
        let inline = vk::DescriptorType::INLINE_UNIFORM_BLOCK;
        let layout = Layout::of(&[
            binding(4, vk::DescriptorType::STORAGE_BUFFER, 2),
            binding(0, inline, 64),
            binding(1, inline, 0),
            binding(9, inline, 8),
        ]);
        assert_eq!((layout.empty().len(), layout.slot(4, 1)), (4, 2));
        assert_eq!(layout.blocks().collect::<Vec<_>>(), [(0, 64), (3, 8)]);
        let from = |number| layout.blocks_from(number).collect::<Vec<_>>();
        assert_eq!([0, 1, 4, 9].map(from), [vec![0], vec![], vec![], vec![3]]);
        let three = [binding(2, inline, 8), binding(3, inline, 0), binding(5, inline, 4)];
        let run = Layout::of(&three);
        assert_eq!(
            run.blocks_from(2).collect::<Vec<_>>(),
            [0, 1],
            "through what has no bytes, and over a gap"
        );
        assert_eq!(run.blocks_from(4).count(), 0, "there is no such binding");
        assert!(layout != Layout::of(&[binding(0, inline, 68)]));
        assert!(Layout::of(&[binding(0, inline, 64)]) != Layout::of(&[binding(0, inline, 68)]), "compatible");
    }
}
