//! Sets of descriptors, and the pools that they come from.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;
use ash::vk::Handle;

use super::inline::Block;
use super::layout::Layout;
use super::slots::Range;
use super::slots::Slots;
use super::slots::put;
use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::device::Core;
use crate::heap::Heap;

/// A set.
#[derive(Debug)]
pub(crate) struct Set {
    /// Its layout.
    pub(crate) layout: Arc<Layout>,
    slots: Mutex<Slots>,
}

/// How many sets may live, and which do.
#[derive(Debug)]
pub(crate) struct Pool {
    most: usize,
    sets: Mutex<HashSet<u64>>,
}

handle!(Set, vk::DescriptorSet);
handle!(Pool, vk::DescriptorPool);

impl Set {
    /// Its slots.
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a layout, with nothing bound but its inline uniform blocks.
    fn of(layout: Arc<Layout>, heap: &Heap) -> Outcome<Self> {
        let mut slots = layout.empty();
        for (slot, bytes) in layout.blocks() {
            let block = Block::new(heap, bytes)?;
            let (va, length) = (block.va(), bytes as u64);
            put(&mut slots, slot, Some(Range { va, length, block: Some(block), ..Range::default() }));
        }
        Ok(Self { layout, slots: Mutex::new(slots) })
    }

    /// The inline uniform blocks that an update of a binding goes through, in their order; none where it is no such.
    pub(crate) fn blocks(&self, binding: u32) -> Vec<Arc<Block>> {
        let slots = self.slots();
        let block = |slot: usize| slots.get(slot)?.as_ref()?.block.clone();
        self.layout.blocks_from(binding).filter_map(block).collect()
    }
}

impl Pool {
    fn sets(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset(&self) {
        for set in self.sets().drain() {
            drop(abi::take::<Set>(vk::DescriptorSet::from_raw(set)));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.reset();
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::DescriptorPoolCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DescriptorPool,
) -> vk::Result {
    abi::command("vkCreateDescriptorPool", || {
        abi::give(Pool { most: abi::read(info).max_sets as usize, sets: Mutex::default() }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    pool: vk::DescriptorPool,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyDescriptorPool", || drop(abi::take::<Pool>(pool)));
}

pub(crate) extern "system" fn reset(
    _device: vk::Device,
    pool: vk::DescriptorPool,
    _flags: vk::DescriptorPoolResetFlags,
) -> vk::Result {
    abi::command("vkResetDescriptorPool", || {
        abi::get::<Pool>(pool).reset();
        Ok(())
    })
}

pub(crate) extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::DescriptorSetAllocateInfo<'_>,
    out: *mut vk::DescriptorSet,
) -> vk::Result {
    abi::command("vkAllocateDescriptorSets", || {
        let info = abi::read(info);
        let pool = abi::get::<Pool>(info.descriptor_pool);
        let layouts = abi::items(info.p_set_layouts, info.descriptor_set_count);
        let places = abi::room(out, info.descriptor_set_count);
        let mut sets = pool.sets();
        if sets.len() + layouts.len() > pool.most {
            places.fill(vk::DescriptorSet::null());
            return Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY);
        }
        let heap = &Core::of(device).heap;
        let made: Outcome<Vec<Set>> =
            layouts.iter().map(|layout| Set::of(abi::share::<Layout>(*layout), heap)).collect();
        let made = made.inspect_err(|_| places.fill(vk::DescriptorSet::null()))?;
        for (place, set) in places.iter_mut().zip(made) {
            abi::give(set, place);
            sets.insert(place.as_raw());
        }
        Ok(())
    })
}

pub(crate) extern "system" fn free(
    _device: vk::Device,
    pool: vk::DescriptorPool,
    count: u32,
    sets: *const vk::DescriptorSet,
) -> vk::Result {
    abi::command("vkFreeDescriptorSets", || {
        let pool = abi::get::<Pool>(pool);
        for set in abi::items(sets, count) {
            if pool.sets().remove(&set.as_raw()) {
                drop(abi::take::<Set>(*set));
            }
        }
        Ok(())
    })
}
