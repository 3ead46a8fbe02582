//! An address space: page tables out of mappings, and the changes that wait.

use std::collections::BTreeMap;

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::page_table::SegmentId;

use super::builder::Builder;
use super::invalid::Invalid;
use super::invalid::ensure;
use crate::vgpu::fences::native::FENCE_BYTES;
use crate::vgpu::memory::mapping::MAPPING_BYTES;
use crate::vgpu::memory::residency_requests::PAGING_BYTES;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::list_bytes;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::paging_queue::Paging;
use crate::vgpu::objects::paging_queue::PagingOperation;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::MAX_MAPPINGS;
use crate::vgpu::objects::process::MAX_OPEN_FENCES;
use crate::vgpu::objects::table::Table;
use crate::vgpu::objects::waits::OpenFence;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::row::SavedChange;

impl Builder<'_> {
    /// What the page tables have now is what was mapped before the first change that waits: the mappings of today less
    /// those that are still to come, and those that are still to go.
    pub(super) fn build_space(&mut self, device: &mut Device, saved: &SavedDevice) -> Result<(), Invalid> {
        ensure(saved.mappings.len() <= MAX_MAPPINGS, || "too many mappings".to_owned())?;
        let root = device.root;
        let mut end = 0;
        for row in &saved.mappings {
            let (va, mapping) = self.memory.mapping(row)?;
            ensure(va >= end, || format!("mappings that meet at {va:#x}"))?;
            end = va + mapping.size;
            self.memory.refer(mapping.allocation.0, || format!("the mapping at {va:#x}"))?;
            let charge = self.charge(Kind::Mappings, MAPPING_BYTES)?;
            device.mappings.insert(va, Mapped { mapping, charge });
        }
        let mut to_come: BTreeMap<u64, GpuMapping> = BTreeMap::new();
        let (mut waiting, mut value) = (Vec::new(), saved.paging_applied);
        for operation in &saved.paging {
            value = value.saturating_add(1);
            ensure(operation.0 == value, || "the order of its paging operations".to_owned())?;
            let mut changes = Vec::new();
            for change in &operation.1 {
                changes.push(self.build_change(root, change, &mut to_come)?);
            }
            let charge = self.charge_operation(&operation.1)?;
            waiting.push(PagingOperation { value, changes, charge });
        }
        ensure(value == saved.paging_issued, || "its paging operations".to_owned())?;
        ensure(value < u64::MAX / 2, || "its paging fence".to_owned())?;
        let now: Vec<(u64, GpuMapping)> = device
            .mappings
            .iter()
            .filter(|(va, _)| !to_come.contains_key(va))
            .map(|(va, it)| (*va, it.mapping))
            .collect();
        // The mapping of today is the one that holds its memory.
        let is_asked_for = |(va, mapping): (&u64, &GpuMapping)| {
            device.mappings.get(va).is_some_and(|today| today.mapping == *mapping)
        };
        let fits = to_come.iter().all(is_asked_for);
        ensure(fits, || "a mapping is to come that nobody asked for".to_owned())?;
        for (va, mapping) in now {
            self.memory.show(root, va, mapping)?;
        }
        device.paging = Paging::resume(saved.paging_applied, waiting);
        self.build_fences(device, saved)
    }

    /// Mappings have paid for what maps and unmaps them.
    fn charge_operation(&self, changes: &[SavedChange]) -> Result<Option<Charge>, Invalid> {
        let lists = changes.iter().filter_map(|change| match change {
            SavedChange::Evict(ids) => Some(ids.len()),
            SavedChange::Map(_) | SavedChange::Unmap(_) => None,
        });
        let bytes = lists.map(|count| list_bytes(count, size_of::<AllocationId>()));
        let bytes = bytes.reduce(u64::saturating_add);
        bytes.map(|bytes| self.charge(Kind::Paging, bytes.saturating_add(PAGING_BYTES))).transpose()
    }

    fn build_change(
        &mut self,
        root: Root,
        saved: &SavedChange,
        to_come: &mut BTreeMap<u64, GpuMapping>,
    ) -> Result<Change, Invalid> {
        match saved {
            SavedChange::Map(row) => {
                let (va, mapping) = self.memory.mapping(row)?;
                let before = to_come.insert(va, mapping);
                ensure(before.is_none(), || format!("two mappings are to come at {va:#x}"))?;
                self.memory.tables.prepare(root, va, mapping.size).map_err(|error| error.to_string())?;
                Ok(Change::Map(va, mapping))
            }
            SavedChange::Unmap(row) => {
                let (va, mapping) = self.memory.mapping(row)?;
                let what = || format!("the mapping that goes at {va:#x}");
                self.memory.refer(mapping.allocation.0, what)?;
                match to_come.remove(&va) {
                    // One that was to come first has never been shown.
                    Some(coming) => ensure(coming == mapping, what)?,
                    None => self.memory.show(root, va, mapping)?,
                }
                let charge = self.charge(Kind::Mappings, MAPPING_BYTES)?;
                Ok(Change::Unmap(va, Mapped { mapping, charge }))
            }
            SavedChange::Evict(ids) => {
                let known = ids.iter().all(|id| self.memory.allocations.contains_key(id));
                ensure(known, || "what is to make room".to_owned())?;
                Ok(Change::Evict(ids.iter().copied().map(AllocationId).collect()))
            }
        }
    }

    fn build_fences(&mut self, device: &mut Device, saved: &SavedDevice) -> Result<(), Invalid> {
        let mut places = Vec::new();
        for (generation, open) in &saved.fences.0 {
            let open = open.map(|open| OpenFence { index: open.0, va: open.1 });
            if let Some(OpenFence { index, va }) = open {
                let is_there = index < MAX_FENCES && self.saved.fences.iter().any(|fence| fence.0 == index);
                ensure(is_there, || format!("native fence {index}"))?;
                // Behind a mapping that is to come there is nothing yet that it could meet.
                let taken = device.mappings.range(..va.saturating_add(PAGE_SIZE)).next_back();
                let is_free = taken.is_none_or(|(at, mapping)| at.saturating_add(mapping.size) <= va);
                ensure(is_free, || format!("native fence {index} meets a mapping at {va:#x}"))?;
                let offset = u64::from(index) * PAGE_SIZE;
                let mapped =
                    self.memory.tables.map(device.root, va, SegmentId::FENCES, offset, PAGE_SIZE, true);
                mapped.map_err(|error| error.to_string())?;
                *self.claims.openers.entry(index).or_default() += 1;
            }
            let open = match open {
                Some(open) => Some((open, self.charge(Kind::Objects, FENCE_BYTES)?)),
                None => None,
            };
            places.push((*generation, open));
        }
        let table = Table::from_places(MAX_OPEN_FENCES, places);
        device.fences = table.ok_or_else(|| "its native fences".to_owned())?;
        Ok(())
    }
}
