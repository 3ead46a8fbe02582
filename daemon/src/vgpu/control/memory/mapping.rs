//! Mappings that a guest asks for, and segments of guest RAM that engines are told of.

use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use std::collections::BTreeSet;

use crate::ids::GuestProcess;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::memory::mapping::MAPPING_BYTES;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Entries;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;

impl Pager<'_> {
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
        (!self.vm.engines.has_too_much_pending()).or(Status::OutOfResources)?;
        let (mut late, mut mapped) = (Vec::new(), Vec::new());
        let objects = &mut self.vm.objects;
        let charges = objects.charge_each(origin.context, Kind::Mappings, MAPPING_BYTES, entries.len())?;
        for (message, charge) in entries.iter().zip(charges) {
            match self.vm.memory.map_one(&mut self.vm.objects, origin.context, message, charge) {
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
            self.vm.objects.device(origin.context)?.paging.done()
        } else {
            self.issue_paging(origin.context, late, None)?
        };
        Ok(Handled::with(&Paging { fence }))
    }

    /// The first entries of a list whose next one was refused: nothing was answered, so they are not in use.
    fn unmap_again(&mut self, context: GuestProcess, mapped: &[u64]) -> Result<(), Refused> {
        let device = self.vm.objects.device_mut(context)?;
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
        let device = self.vm.objects.device_mut(origin.context)?;
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
