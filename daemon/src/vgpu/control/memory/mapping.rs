//! Mappings that a guest asks for, and segments of guest RAM that engines are told of.

use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::page_table::SegmentId;
use std::collections::BTreeSet;

use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::memory::room::Released;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Entries;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::session::Session;

impl Session {
    /// Tells every engine to map a segment.
    pub(in crate::vgpu) fn announce_segment_to_all(&mut self, id: SegmentId) {
        for at in self.addresses() {
            self.rooms.engines.push_segment(at, id);
            self.flush_outbox(at);
        }
    }

    /// Tells every engine to map the segment of an allocation that is guest RAM. Page tables show it as on the move until all
    /// of them have it: a guest need not wait before it maps the blob and submits work, and an engine whose page tables are
    /// newer than its segments would find no memory there, or that of the segment that had the number before.
    pub(in crate::vgpu) fn introduce_segment(&mut self, allocation: AllocationId) {
        let Some(segment) = self.rooms.memory.allocations.guest_segment(allocation) else { return };
        self.announce_segment_to_all(segment);
        self.show_when_announced(allocation);
    }

    /// As far as it goes for engines that were told of the segment: see [`Self::introduce_segment`].
    pub(in crate::vgpu) fn show_when_announced(&mut self, allocation: AllocationId) {
        let hidden = self.rooms.memory.hide_until_announced(allocation, &mut self.rooms.journal);
        if let Some(segment) = hidden {
            let barrier = Barrier::announced(&self.rooms.engines);
            self.after(barrier, Action::ShowSegment(allocation, segment));
        }
    }

    /// Every engine has a segment that an allocation had.
    pub(in crate::vgpu) fn segment_is_there(&mut self, allocation: AllocationId, segment: SegmentId) {
        let released = self.rooms.memory.segment_is_there(allocation, segment, &mut self.rooms.journal);
        self.rooms.engines.poke_all();
        self.forget_segment(released);
    }

    /// Drops a reference to an allocation, and what hung on the last one.
    pub(in crate::vgpu) fn release_allocation(&mut self, allocation: AllocationId) {
        let released = self.rooms.memory.release(allocation);
        self.forget_segment(released);
    }

    /// Carries out what the end of an allocation asks for: what engines wrote to its segment is logged while they know it,
    /// then they forget it, then its owner is told.
    pub(in crate::vgpu) fn forget_segment(&mut self, released: Released) {
        let Released::Segment(segment) = released else { return };
        self.sweep_segment(segment);
        let retired = self.rooms.memory.forget_segment(segment);
        for at in self.addresses() {
            self.rooms.engines.push_segment_end(at, segment);
            self.flush_outbox(at);
        }
        self.rooms.objects.due.extend(retired.map(|token| (token, Ok(()))));
    }

    /// MAP_MEMORY.
    pub(in crate::vgpu) fn map_memory(&mut self, origin: Origin, message: &MapMemory) -> Outcome {
        self.map_all(origin, std::slice::from_ref(message))
    }

    /// MAP_LIST.
    pub(in crate::vgpu) fn map_list(&mut self, origin: Origin, list: &Entries<MapMemory>) -> Outcome {
        (list.argument == 0).or(Status::InvalidParameter)?;
        self.map_all(origin, &list.entries)
    }

    /// Maps all of them, or none.
    fn map_all(&mut self, origin: Origin, entries: &[MapMemory]) -> Outcome {
        (!self.rooms.engines.has_too_much_pending()).or(Status::OutOfResources)?;
        let (mut late, mut mapped) = (Vec::new(), Vec::new());
        for message in entries {
            match self.rooms.memory.map_one(&mut self.rooms.objects, origin.context, message) {
                Ok(change) => {
                    late.extend(change);
                    mapped.push(message.va);
                }
                Err(refused) => {
                    self.unmap_again(origin.context, &mapped)?;
                    return Err(refused);
                }
            }
        }
        // What does not wait needs no fence of its own.
        let fence = if late.is_empty() {
            self.rooms.objects.device(origin.context)?.paging.done()
        } else {
            self.issue_paging(origin.context, late, None)?
        };
        Ok(Handled::with(&Paging { fence }))
    }

    /// The first entries of a list whose next one was refused: nothing was answered, so they are not in use.
    fn unmap_again(&mut self, context: u32, mapped: &[u64]) -> Result<(), Refused> {
        let device = self.rooms.objects.device_mut(context)?;
        let undone: Vec<Change> =
            mapped.iter().filter_map(|va| Some(Change::Unmap(*va, device.mappings.remove(va)?))).collect();
        if !undone.is_empty() {
            self.issue_paging(context, undone, None)?;
        }
        Ok(())
    }

    /// UNMAP_MEMORY: one earlier mapping, whole.
    pub(in crate::vgpu) fn unmap_memory(&mut self, origin: Origin, message: &UnmapMemory) -> Outcome {
        self.unmap_all(origin, std::slice::from_ref(message))
    }

    /// UNMAP_LIST.
    pub(in crate::vgpu) fn unmap_list(&mut self, origin: Origin, list: &Entries<UnmapMemory>) -> Outcome {
        (list.argument == 0).or(Status::InvalidParameter)?;
        self.unmap_all(origin, &list.entries)
    }

    /// Unmaps all of them, or none.
    fn unmap_all(&mut self, origin: Origin, entries: &[UnmapMemory]) -> Outcome {
        let device = self.rooms.objects.device_mut(origin.context)?;
        let mut names = BTreeSet::new();
        for message in entries {
            let found = device.mappings.get(&message.va).filter(|mapping| mapping.size == message.size);
            (found.is_some() && names.insert(message.va)).or(Status::InvalidAddress)?;
            let covers = |va: u64| va >= message.va && va - message.va < message.size;
            (!covers(device.page.va)).or(Status::Busy)?;
        }
        let changes: Vec<Change> = entries
            .iter()
            .filter_map(|message| Some(Change::Unmap(message.va, device.mappings.remove(&message.va)?)))
            .collect();
        let fence = self.issue_paging(origin.context, changes, None)?;
        Ok(Handled::with(&Paging { fence }))
    }
}
