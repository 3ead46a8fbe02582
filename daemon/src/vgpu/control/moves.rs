//! Memory that moves or is shown when engines have let go, or know it.

use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::counters::count;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::device_moves::Then;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::room::Leaving;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::compaction::Relocation;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::objects::timeline::Token;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::device_page;

impl Deferred<'_> {
    /// Frees areas, whatever became of them, once engines have let go (PRE-36).
    pub(in crate::vgpu) fn free_areas(&mut self, areas: Vec<SaveArea>) {
        if areas.is_empty() {
            return;
        }
        self.vm.memory.hide_areas(&areas, &mut self.vm.journal);
        let barrier = Barrier::raise(&mut self.vm.engines);
        self.after(barrier, Action::FreeAreas(areas));
    }

    /// Engines have let go.
    pub(in crate::vgpu) fn areas_are_free(&mut self, areas: Vec<SaveArea>) {
        for area in areas {
            self.vm.memory.areas.release(area);
            GuestPages::of(self.vm).release_allocation(area.allocation);
        }
    }

    /// An operation is done with all engines.
    pub(in crate::vgpu) fn paging_is_done(&mut self, context: GuestProcess, root: Root, value: u64) {
        let Some(device) = self.vm.objects.device_mut(context).ok().filter(|device| device.root == root)
        else {
            return;
        };
        device.paging.done = value;
        self.vm.memory.store_page_word(&self.vm.objects, context, device_page::PAGING_FENCE, value);
    }

    /// Shows a blob at `offset` of the window; due when it is there.
    pub fn map_blob(&mut self, resource: u32, offset: u64, token: Token) -> Result<(), Refusal> {
        match &mut self.vm.memory.window {
            Window::Open => {}
            Window::Never => return Err(Refusal::Unspecified),
            Window::Awaited(waiting) if waiting.len() < MAX_BLOBS => {
                waiting.push((resource, offset, token));
                return Ok(());
            }
            Window::Awaited(_) => return Err(Refusal::OutOfMemory),
        }
        if self.vm.engines.has_too_much_pending() {
            return Err(Refusal::OutOfMemory);
        }
        let blob = self.vm.memory.blobs.get(&resource).ok_or(Refusal::Resource)?;
        if !blob.mappable || blob.shown != Shown::No || !offset.is_multiple_of(PAGE_SIZE) {
            return Err(Refusal::Parameter);
        }
        let allocation = blob.allocation;
        if self.vm.memory.allocations.spot(allocation) == Spot::Moving {
            // It is being evicted: that is over soon.
            self.vm.memory.residency.deferred.push((resource, offset, token));
            return Ok(());
        }
        let target =
            self.vm.memory.allocations.begin_move_in(allocation, offset).map_err(|_| Refusal::Parameter)?;
        self.start_move(resource, allocation, target, token);
        Ok(())
    }

    pub(in crate::vgpu) fn start_move(
        &mut self,
        resource: u32,
        allocation: AllocationId,
        target: Place,
        token: Token,
    ) {
        if let Some(blob) = self.vm.memory.blobs.get_mut(&resource) {
            blob.shown = Shown::Moving;
        }
        let let_go = self.vm.memory.begin_move(allocation, &mut self.vm.journal);
        let barrier = self.vm.engines.barrier_for(let_go);
        self.after(barrier, Action::Move { allocation, target, resource, token });
    }

    pub(in crate::vgpu) fn finish_move(
        &mut self,
        allocation: AllocationId,
        target: Place,
        resource: u32,
        token: Token,
    ) {
        let released = self.vm.memory.finish_move(allocation, target, resource, &mut self.vm.journal);
        GuestPages::of(self.vm).forget_segment(released);
        self.vm.objects.due.push((token, Ok(())));
    }

    /// Begins to move an allocation to host memory.
    pub(in crate::vgpu) fn start_eviction(&mut self, allocation: AllocationId) {
        if let Some(leaving) = self.vm.memory.begin_eviction(allocation, &mut self.vm.journal) {
            count(&self.vm.counters.evictions);
            self.relocate(leaving);
        }
    }

    /// Begins to move an allocation to another place in video memory.
    pub(in crate::vgpu) fn start_relocation(&mut self, it: Relocation) {
        if let Some(leaving) = self.vm.memory.begin_relocation(it, &mut self.vm.journal) {
            count(&self.vm.counters.relocations);
            self.relocate(leaving);
        }
    }

    fn relocate(&mut self, Leaving { allocation, target, let_go }: Leaving) {
        let barrier = self.vm.engines.barrier_for(let_go);
        self.after(barrier, Action::Relocate { allocation, target });
    }

    /// Engines have let go of what leaves its place.
    pub(in crate::vgpu) fn finish_relocation(&mut self, allocation: AllocationId, target: Place) {
        let released = self.vm.memory.finish_relocation(allocation, target, &mut self.vm.journal);
        if matches!(target, Place::Local(_) | Place::Area(_)) {
            self.vm.engines.poke_all();
        }
        GuestPages::of(self.vm).forget_segment(released);
        self.map_deferred();
    }

    /// Maps blobs that waited until their allocations were where they were to go.
    fn map_deferred(&mut self) {
        for (resource, offset, token) in std::mem::take(&mut self.vm.memory.residency.deferred) {
            if let Err(refusal) = self.map_blob(resource, offset, token) {
                self.vm.objects.due.push((token, Err(refusal)));
            }
        }
    }

    /// Has the device bring back what is evicted; false where there is no room for it yet.
    pub(in crate::vgpu) fn start_restore(&mut self, allocation: AllocationId) -> bool {
        let Some(target) = self.vm.memory.allocations.begin_restore(allocation) else { return false };
        // It is held until then.
        self.vm.memory.allocations.retain(allocation);
        self.vm.memory.remap(allocation, &mut self.vm.journal);
        if let Some(copy) = self.vm.memory.allocations.device_copy(allocation, target) {
            self.vm.engines.moves.push(copy, Then::Arrived(Action::Restore { allocation, target }));
        }
        true
    }

    /// The device has brought it back.
    pub(in crate::vgpu) fn finish_restore(&mut self, allocation: AllocationId, target: Place) {
        let released = self.vm.memory.finish_restore(allocation, target, &mut self.vm.journal);
        GuestPages::of(self.vm).forget_segment(released);
        self.map_deferred();
    }

    /// Tells every engine to map the segment of an allocation that is guest RAM. Page tables show it as on the move until all
    /// of them have it: a guest need not wait before it maps the blob and submits work, and an engine whose page tables are
    /// newer than its segments would find no memory there, or that of the segment that had the number before.
    pub(in crate::vgpu) fn introduce_segment(&mut self, allocation: AllocationId) {
        let Some(segment) = self.vm.memory.allocations.guest_segment(allocation) else { return };
        GuestPages::of(self.vm).announce_segment_to_all(segment);
        self.show_when_announced(allocation);
    }

    /// As far as it goes for engines that were told of the segment: see [`Self::introduce_segment`].
    pub(in crate::vgpu) fn show_when_announced(&mut self, allocation: AllocationId) {
        let hidden = self.vm.memory.hide_until_announced(allocation, &mut self.vm.journal);
        if let Some(segment) = hidden {
            let barrier = Barrier::announced(&self.vm.engines);
            self.after(barrier, Action::ShowSegment(allocation, segment));
        }
    }
}
