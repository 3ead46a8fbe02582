//! Save areas: what contexts keep of their buffers that are put aside, as allocations (PRE-31 to PRE-39).
//!
//! ```text
//!   CREATE_CONTEXT ─▶ promised to the quota ─▶ placed, initialised (paging) ─▶ shown to engines ─▶ context entry
//!                         └── no: OUT_OF_RESOURCES, and nothing has changed
//!   buffer to be handed over ─▶ both areas there? ── no: wanted, the context off the run list until they are
//!   DESTROY_CONTEXT, end of the device ─▶ hidden from engines ─▶ they have let go ─▶ freed
//! ```
//!
//! One for each context, and one for all contexts of a device, made with its first context. They are mapped into an address
//! space of their own, which is of no guest process, so that no packet reaches them; no resource names them, so that no
//! message does; and they are never put where the guest's CPU could see them. Engines come to an area as to any other
//! memory: what is evicted is asked for, what moves is waited for. What is in a slot is the engine's business
//! ([`campanile_protocol::engine::save_area`]): the daemon writes headers, and reads for reports alone.
//!
//! Who is evicted:
//!
//! | the context | its area, and the device-wide one |
//! |---|---|
//! | has a buffer in the hardware queue, or one of its queues runs | never (PRE-32, PRE-33) |
//! | was the last that ran, so its state is on the engine | after all others; the page-table generation is the null switch (PRE-28) |
//! | else | by when it was brought there, or its context last had a buffer handed over |
//!
//! What runs is the engine's word. A wrong one costs a wait and no data: areas move only when every engine has let go.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use campanile_host_gpu::adapter::debug_info::DebugInfo;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_host_gpu::memory::page_table::writer::TableError;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::save_area;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::FIRST_ADDRESS;

use super::vidmm::allocations::MemoryError;
use super::vidmm::allocations::Spot;
use super::vidmm::ranges::Ranges;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::session::Session;

/// Whose an area is, within one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaOwner {
    /// All contexts of the device.
    Device,
    /// One context.
    Context(Handle),
}

impl AreaOwner {
    /// From what asks for one (PRE-35): shared across contexts, with no context named, or not shared, with one. None for
    /// anything else.
    pub fn new(is_shared_across_contexts: bool, context: Handle) -> Option<Self> {
        match (is_shared_across_contexts, context == Handle::NONE) {
            (true, true) => Some(Self::Device),
            (false, false) => Some(Self::Context(context)),
            _ => None,
        }
    }

    /// The kind that it selects.
    pub const fn kind(self) -> AreaKind {
        match self {
            Self::Device => AreaKind::Device,
            Self::Context(_) => AreaKind::Context,
        }
    }
}

/// The address space of all areas, and whose is what.
#[derive(Debug)]
pub struct Areas {
    root: Root,
    addresses: Ranges,
    by_address: BTreeMap<u64, SaveArea>,
    owners: BTreeMap<AllocationId, (u32, AreaOwner)>,
}

impl Areas {
    /// None, in a new address space.
    ///
    /// # Errors
    /// No table is left.
    pub fn new(tables: &mut PageTables) -> Result<Self, TableError> {
        Ok(Self {
            root: tables.create_root()?,
            addresses: Ranges::new(FIRST_ADDRESS, END_ADDRESS - FIRST_ADDRESS),
            by_address: BTreeMap::new(),
            owners: BTreeMap::new(),
        })
    }

    /// The address space.
    pub fn root(&self) -> Root {
        self.root
    }

    /// Gives an allocation an address, as an area of a guest process; `None` where there is no address.
    pub fn admit(&mut self, allocation: AllocationId, of: u32, owner: AreaOwner) -> Option<SaveArea> {
        let kind = owner.kind();
        let area = SaveArea { allocation, va: self.addresses.allocate(kind.bytes())?, kind };
        self.by_address.insert(area.va, area);
        self.owners.insert(allocation, (of, owner));
        Some(area)
    }

    /// An area that was admitted becomes that of this context, whose handle is only known now.
    pub fn name(&mut self, area: SaveArea, context: Handle) {
        if let Some((_, owner)) = self.owners.get_mut(&area.allocation) {
            *owner = AreaOwner::Context(context);
        }
    }

    /// It has no context any more. Its address is taken until [`Self::release`].
    fn disown(&mut self, area: SaveArea) {
        self.owners.remove(&area.allocation);
        self.by_address.remove(&area.va);
    }

    fn release(&mut self, area: SaveArea) {
        self.addresses.release(area.va, area.kind.bytes());
    }

    /// Whose an allocation is, if it is an area: guest process, and which of it.
    pub fn owner(&self, allocation: AllocationId) -> Option<(u32, AreaOwner)> {
        self.owners.get(&allocation).copied()
    }

    /// The area that an address lies in.
    pub fn at(&self, va: u64) -> Option<SaveArea> {
        let (start, area) = self.by_address.range(..=va).next_back()?;
        (va - start < area.kind.bytes()).then_some(*area)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = SaveArea> {
        self.by_address.values().copied()
    }
}

fn refuse(kind: AreaKind, error: &MemoryError) -> Refused {
    let text = format!("a save area of {} bytes: {error}", kind.bytes());
    Refused { status: Status::OutOfResources, text }
}

impl Session {
    /// Makes a save area of a guest process, initialises it by a paging operation, and shows it to engines (PRE-31,
    /// PRE-37). That operation does not wait: no engine can have come to the area before.
    fn make_area(&mut self, of: u32, owner: AreaOwner) -> Result<SaveArea, Refused> {
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
            self.release_allocation(allocation);
        }
        made
    }

    /// The area of a context that is about to be made, and the device-wide one, where there is none yet.
    pub(in crate::vgpu) fn make_areas(&mut self, of: u32) -> Result<SaveArea, Refused> {
        if self.objects.device(of)?.area.is_none() {
            let area = self.make_area(of, AreaOwner::Device)?;
            self.objects.device_mut(of)?.area = Some(area);
        }
        // Its handle is known once the context is there: until then the area has no owner.
        self.make_area(of, AreaOwner::Context(Handle::NONE))
    }

    /// Frees areas, whatever became of them, once engines have let go (PRE-36).
    pub(in crate::vgpu) fn free_areas(&mut self, areas: Vec<SaveArea>) {
        if areas.is_empty() {
            return;
        }
        for area in &areas {
            self.hide_from_gpu(self.areas.root(), area.va, &area.mapping());
            self.areas.disown(*area);
        }
        let barrier = Barrier::raise(&mut self.engines);
        self.after(barrier, Action::FreeAreas(areas));
    }

    /// Engines have let go.
    pub(in crate::vgpu) fn areas_are_free(&mut self, areas: Vec<SaveArea>) {
        for area in areas {
            self.areas.release(area);
            self.release_allocation(area.allocation);
        }
    }

    /// The areas that a context runs with.
    fn areas_of(&self, of: u32, handle: Handle) -> impl Iterator<Item = AllocationId> + use<> {
        let device = self.objects.device(of).ok();
        let own = device.and_then(|device| device.contexts.get(handle)).map(|context| context.area);
        let shared = device.and_then(|device| device.area);
        own.into_iter().chain(shared).map(|area| area.allocation)
    }

    /// Whether a context may be given to its engine (PRE-32, PRE-33); where it may not, its areas are brought back.
    pub(in crate::vgpu) fn has_areas(&mut self, of: u32, handle: Handle) -> bool {
        let mut has_all = true;
        for allocation in self.areas_of(of, handle) {
            if matches!(self.allocations.spot(allocation), Spot::Segment(..)) {
                self.allocations.note_use(allocation, self.residency.epoch);
            } else {
                self.residency.want(allocation, None);
                has_all = false;
            }
        }
        has_all
    }

    /// An allocation is where engines reach it: a context that waited for it as its save area may run.
    pub(in crate::vgpu) fn area_is_there(&mut self, allocation: AllocationId) {
        let Some((of, owner)) = self.areas.owner(allocation) else { return };
        let Ok(device) = self.objects.device(of) else { return };
        let contexts: Vec<(Handle, EngineAddress)> = match owner {
            AreaOwner::Device => {
                device.contexts.iter().map(|(handle, context)| (handle, context.at)).collect()
            }
            AreaOwner::Context(handle) => {
                device.contexts.get(handle).map(|context| (handle, context.at)).into_iter().collect()
            }
        };
        for (handle, at) in contexts {
            self.list_context(of, handle);
            self.fill_hw_queue(at);
        }
    }

    /// The areas of contexts whose state is on an engine: true where one of their buffers is with it, or runs.
    pub(in crate::vgpu) fn areas_on_engines(&self) -> BTreeMap<AllocationId, bool> {
        let mut found = BTreeMap::new();
        for (place, slot) in self.engines.iter().enumerate().filter(|(_, slot)| slot.hears()) {
            let flights = slot.in_flight.iter().filter_map(|flight| flight.owner);
            for (of, buffer) in flights {
                found.extend(self.areas_of(of, buffer.context).map(|id| (id, true)));
            }
            let last = slot.process().and_then(|process| process.uses.last_context());
            let owner = last.and_then(|(entry, is_running)| {
                Some((self.objects.owner_of_entry(EngineAddress::from_index(place)?, entry)?, is_running))
            });
            if let Some(((of, handle), is_running)) = owner {
                for id in self.areas_of(of, handle) {
                    *found.entry(id).or_default() |= is_running;
                }
            }
        }
        found
    }

    /// How far the buffer was that an engine runs, when it was last put aside: what its save area says, for a report.
    pub(in crate::vgpu) fn put_aside(&self, at: EngineAddress, info: &DebugInfo) -> Option<Saved> {
        let name = info.saved?;
        let ((of, context), (kind, offset)) = match info.progress.work {
            Work::Nothing => return None,
            Work::HwQueue => {
                let (of, buffer) = self.engines[at.index()].in_flight.front()?.owner?;
                ((of, buffer.context), (AreaKind::Context, KERNEL_MODE_SLOT))
            }
            Work::UserQueue(hw_queue) => {
                let (of, queue) = self.objects.owner_of_hw_queue(at, hw_queue)?;
                let context = self.objects.device(of).ok()?.queues.get(queue)?.context;
                ((of, context), save_area::queue_slot(queue.index()))
            }
        };
        let device = self.objects.device(of).ok()?;
        let area = match kind {
            AreaKind::Device => device.area?,
            AreaKind::Context => device.contexts.get(context)?.area,
        };
        let (mapping, start) = self.allocations.view(area.allocation)?;
        let mut words = [0; SLOT_WORDS];
        for (place, word) in (start + offset..).step_by(8).zip(&mut words) {
            *word = mapping.word(place)?.load(Ordering::Acquire);
        }
        save_area::read_slot(words, name)
    }

    /// Of a guest process: whether the area of any of its contexts is evicted, and whether the device-wide one is.
    pub fn areas_evicted_of(&self, of: u32) -> (bool, bool) {
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

#[cfg(test)]
mod tests {
    use campanile_host_gpu::memory::page_table::writer::PageTables;
    use campanile_protocol::engine::save_area::AreaKind;
    use campanile_protocol::handle::Handle;

    use super::AreaOwner;
    use super::Areas;
    use crate::vgpu::objects::ids::AllocationId;

    #[test]
    fn pre_35_shared_without_a_context_is_the_device_wide_kind_and_a_context_unshared_its_own() {
        let context = Handle::new(3, 1);
        let device = AreaOwner::new(true, Handle::NONE).unwrap();
        assert_eq!((device, device.kind()), (AreaOwner::Device, AreaKind::Device));
        let own = AreaOwner::new(false, context).unwrap();
        assert_eq!((own, own.kind()), (AreaOwner::Context(context), AreaKind::Context));
        assert_eq!(AreaOwner::new(true, context), None);
        assert_eq!(AreaOwner::new(false, Handle::NONE), None);
    }

    #[test]
    fn pre_31_areas_lie_beside_each_other_and_are_found_by_their_addresses_until_they_are_nobodys() {
        let mut tables = PageTables::new().unwrap();
        let mut areas = Areas::new(&mut tables).unwrap();
        let shared = areas.admit(AllocationId(1), 7, AreaOwner::Device).unwrap();
        let own = areas.admit(AllocationId(2), 7, AreaOwner::Context(Handle::new(0, 1))).unwrap();
        for area in [shared, own] {
            assert_eq!(areas.at(area.va), Some(area));
            assert_eq!(areas.at(area.va + area.kind.bytes() - 1), Some(area));
        }
        assert_eq!(areas.owner(AllocationId(1)), Some((7, AreaOwner::Device)));
        areas.disown(own);
        assert_eq!((areas.at(own.va), areas.owner(AllocationId(2))), (None, None));
        let next = areas.admit(AllocationId(3), 7, AreaOwner::Context(Handle::new(0, 2))).unwrap();
        assert_ne!(next.va, own.va, "engines may still come to it");
        areas.disown(next);
        areas.release(next);
        areas.release(own);
        assert_eq!(areas.admit(AllocationId(4), 7, AreaOwner::Device).unwrap().kind, AreaKind::Device);
    }
}
