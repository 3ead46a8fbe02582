//! Save areas of guest processes: made, looked up, hidden.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::handle::Handle;

use super::Memory;
use crate::ids::GuestProcess;
use crate::vgpu::journal::Journal;
use crate::vgpu::memory::save_areas::AreaOwner;
use crate::vgpu::memory::save_areas::refuse;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::save_area::SaveArea;

impl Memory {
    /// Makes a save area of a guest process, initialises it by a paging operation, and shows it to engines (PRE-31,
    /// PRE-37). That operation does not wait: no engine can have come to the area before.
    fn make_area(&mut self, of: GuestProcess, owner: AreaOwner) -> Result<SaveArea, Refused> {
        let kind = owner.kind();
        let allocation = self.allocations.create_area(kind.bytes()).map_err(|error| refuse(kind, &error))?;
        let initialised =
            self.allocations.initialise(allocation, self.residency.epoch, &[(0, kind.header())]);
        let made = initialised.map_err(|error| refuse(kind, &error)).and_then(|()| {
            let area = self.areas.admit(allocation, of, owner);
            let area = area.ok_or(Refused::from(Status::OutOfResources))?;
            let shown = self.show_to_gpu(self.areas.root(), area.va, area.mapping());
            if shown.is_err() {
                self.areas.disown(area);
                self.areas.release(area);
            }
            shown.map(|()| area)
        });
        if made.is_err() {
            // Video memory, to which nothing else refers.
            let _nothing = self.release(allocation);
        }
        made
    }

    /// The area of a context that is about to be made, and the device-wide one, where there is none yet.
    pub(in crate::vgpu) fn make_areas(
        &mut self,
        objects: &mut Objects,
        of: GuestProcess,
    ) -> Result<SaveArea, Refused> {
        if objects.device(of)?.area.is_none() {
            let area = self.make_area(of, AreaOwner::Device)?;
            objects.device_mut(of)?.area = Some(area);
        }
        // Its handle is known once the context is there: until then the area has no owner.
        self.make_area(of, AreaOwner::Context(ContextHandle::new(Handle::NONE)))
    }

    /// Engines do not find these areas any more, and their contexts have none.
    pub(in crate::vgpu) fn hide_areas(&mut self, areas: &[SaveArea], journal: &mut Journal) {
        for area in areas {
            self.hide_from_gpu(self.areas.root(), area.va, &area.mapping(), journal);
            self.areas.disown(*area);
        }
    }

    /// The areas that a context runs with.
    pub(in crate::vgpu) fn areas_of(
        &self,
        objects: &Objects,
        of: GuestProcess,
        handle: ContextHandle,
    ) -> impl Iterator<Item = AllocationId> + use<> {
        let device = objects.device(of).ok();
        let own = device.and_then(|device| device.contexts.get(handle)).map(|context| context.area);
        let shared = device.and_then(|device| device.area);
        own.into_iter().chain(shared).map(|area| area.allocation)
    }

    /// Whether a context may be given to its engine (PRE-32, PRE-33); where it may not, its areas are brought back.
    pub(in crate::vgpu) fn has_areas(
        &mut self,
        objects: &Objects,
        of: GuestProcess,
        handle: ContextHandle,
    ) -> bool {
        let mut has_all = true;
        for allocation in self.areas_of(objects, of, handle) {
            if matches!(self.allocations.spot(allocation), Spot::Segment(..)) {
                self.allocations.note_use(allocation, self.residency.epoch);
            } else {
                self.residency.want(allocation, None);
                has_all = false;
            }
        }
        has_all
    }

    /// The contexts whose save area an allocation is, with their engines: of one guest process.
    pub(in crate::vgpu) fn contexts_of_area(
        &self,
        objects: &Objects,
        allocation: AllocationId,
    ) -> Vec<(GuestProcess, ContextHandle, EngineAddress)> {
        let Some((of, owner)) = self.areas.owner(allocation) else { return Vec::new() };
        let Ok(device) = objects.device(of) else { return Vec::new() };
        let its = |handle: ContextHandle| owner == AreaOwner::Device || owner == AreaOwner::Context(handle);
        let contexts = device.contexts.iter().filter(|(handle, _)| its(*handle));
        contexts.map(|(handle, context)| (of, handle, context.at)).collect()
    }

    /// Of a guest process: whether the area of any of its contexts is evicted, and whether the device-wide one is.
    pub fn areas_evicted_of(&self, of: GuestProcess) -> (bool, bool) {
        let mut evicted = (false, false);
        for area in self.areas.iter() {
            let owner = self.areas.owner(area.allocation).filter(|(owner, _)| *owner == of);
            let is_evicted = owner.is_some() && self.allocations.spot(area.allocation) == Spot::Evicted;
            match area.kind {
                AreaKind::Context => evicted.0 |= is_evicted,
                AreaKind::Device => evicted.1 |= is_evicted,
            }
        }
        evicted
    }

    /// Bytes of save areas that are evicted.
    pub(in crate::vgpu) fn evicted_areas(&self) -> u64 {
        let is_there = |area: &SaveArea| matches!(self.allocations.spot(area.allocation), Spot::Segment(..));
        self.areas.iter().filter(|area| !is_there(area)).map(|area| area.kind.bytes()).sum()
    }
}
