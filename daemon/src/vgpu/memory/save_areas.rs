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
//! Which areas are evicted:
//!
//! | the context | its area, and the device-wide one |
//! |---|---|
//! | has a buffer in the hardware queue, or one of its queues runs | never (PRE-32, PRE-33) |
//! | was the last that ran, so its state is on the engine | after all others; the page-table generation is the null switch (PRE-28) |
//! | else | by when it was brought there, or its context last had a buffer handed over |
//!
//! What runs is the engine's word. A wrong one costs a wait and no data: areas move only when every engine has let go.

use std::collections::BTreeMap;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_host_gpu::memory::page_table::writer::TableError;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::FIRST_ADDRESS;

use super::vidmm::allocations::MemoryError;
use super::vidmm::ranges::Ranges;
use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::save_area::SaveArea;

/// Whose an area is, within one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaOwner {
    /// All contexts of the device.
    Device,
    /// One context.
    Context(ContextHandle),
}

impl AreaOwner {
    /// From what asks for one (PRE-35): shared across contexts, with no context named, or not shared, with one. None for
    /// anything else.
    pub fn new(is_shared_across_contexts: bool, context: ContextHandle) -> Option<Self> {
        match (is_shared_across_contexts, context.get() == Handle::NONE) {
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
    owners: BTreeMap<AllocationId, (GuestProcess, AreaOwner)>,
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
    pub fn admit(
        &mut self,
        allocation: AllocationId,
        of: GuestProcess,
        owner: AreaOwner,
    ) -> Option<SaveArea> {
        let kind = owner.kind();
        let area = SaveArea { allocation, va: self.addresses.allocate(kind.bytes())?, kind };
        self.by_address.insert(area.va, area);
        self.owners.insert(allocation, (GuestProcess::new(of.get()), owner));
        Some(area)
    }

    /// An area that was admitted becomes that of this context, whose handle is only known now.
    pub fn name(&mut self, area: SaveArea, context: ContextHandle) {
        if let Some((_, owner)) = self.owners.get_mut(&area.allocation) {
            *owner = AreaOwner::Context(context);
        }
    }

    /// It has no context any more. Its address is taken until [`Self::release`].
    pub(in crate::vgpu) fn disown(&mut self, area: SaveArea) {
        self.owners.remove(&area.allocation);
        self.by_address.remove(&area.va);
    }

    pub(in crate::vgpu) fn release(&mut self, area: SaveArea) {
        self.addresses.release(area.va, area.kind.bytes());
    }

    /// Whose an allocation is, if it is an area: guest process, and which of it.
    pub fn owner(&self, allocation: AllocationId) -> Option<(GuestProcess, AreaOwner)> {
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

pub(in crate::vgpu) fn refuse(kind: AreaKind, error: &MemoryError) -> Refused {
    let text = format!("a save area of {} bytes: {error}", kind.bytes());
    Refused { status: Status::OutOfResources, text }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::memory::page_table::writer::PageTables;
    use campanile_protocol::engine::save_area::AreaKind;
    use campanile_protocol::handle::Handle;

    use super::AreaOwner;
    use super::Areas;
    use crate::ids::GuestProcess;
    use crate::vgpu::objects::ids::AllocationId;
    use crate::vgpu::objects::ids::ContextHandle;

    #[test]
    fn pre_35_shared_without_a_context_is_the_device_wide_kind_and_a_context_unshared_its_own() {
        let context = Handle::new(3, 1);
        let device = AreaOwner::new(true, ContextHandle::new(Handle::NONE)).unwrap();
        assert_eq!((device, device.kind()), (AreaOwner::Device, AreaKind::Device));
        let own = AreaOwner::new(false, ContextHandle::new(context)).unwrap();
        assert_eq!((own, own.kind()), (AreaOwner::Context(ContextHandle::new(context)), AreaKind::Context));
        assert_eq!(AreaOwner::new(true, ContextHandle::new(context)), None);
        assert_eq!(AreaOwner::new(false, ContextHandle::new(Handle::NONE)), None);
    }

    #[test]
    fn pre_31_areas_lie_beside_each_other_and_are_found_by_their_addresses_until_they_are_nobodys() {
        let mut tables = PageTables::new().unwrap();
        let mut areas = Areas::new(&mut tables).unwrap();
        let shared = areas.admit(AllocationId(1), GuestProcess::new(7), AreaOwner::Device).unwrap();
        let own = areas
            .admit(
                AllocationId(2),
                GuestProcess::new(7),
                AreaOwner::Context(ContextHandle::new(Handle::new(0, 1))),
            )
            .unwrap();
        for area in [shared, own] {
            assert_eq!(areas.at(area.va), Some(area));
            assert_eq!(areas.at(area.va + area.kind.bytes() - 1), Some(area));
        }
        assert_eq!(areas.owner(AllocationId(1)), Some((GuestProcess::new(7), AreaOwner::Device)));
        areas.disown(own);
        assert_eq!((areas.at(own.va), areas.owner(AllocationId(2))), (None, None));
        let next = areas
            .admit(
                AllocationId(3),
                GuestProcess::new(7),
                AreaOwner::Context(ContextHandle::new(Handle::new(0, 2))),
            )
            .unwrap();
        assert_ne!(next.va, own.va, "engines may still come to it");
        areas.disown(next);
        areas.release(next);
        areas.release(own);
        assert_eq!(
            areas.admit(AllocationId(4), GuestProcess::new(7), AreaOwner::Device).unwrap().kind,
            AreaKind::Device
        );
    }
}
