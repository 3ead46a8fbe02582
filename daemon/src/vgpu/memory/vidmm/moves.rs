//! Allocations that change their place. Contents go along; what could use the old place is the caller's business.

use super::allocations::Allocations;
use super::allocations::Backing;
use super::allocations::MemoryError;
use super::allocations::Spot;
use super::vram::Place;
use crate::vgpu::objects::ids::AllocationId;

impl Allocations {
    /// Takes the place in the aperture that an allocation will move to. The contents stay where they are until
    /// [`Self::finish_move`].
    pub fn begin_move_in(&mut self, id: AllocationId, offset: u64) -> Result<Place, MemoryError> {
        if self.table.get(&id).is_some_and(|allocation| allocation.is_area) {
            return Err(MemoryError::Protected);
        }
        let length = self.size(id);
        let target = self.memory.reserve_aperture(offset, length);
        self.moving(id, target.ok_or(MemoryError::Aperture { offset, length })?)
    }

    /// Takes the place outside the aperture that an allocation will move to: where engines reach it, if there is room; but where the
    /// daemon sees it, if a device page is in it.
    pub fn begin_move_out(&mut self, id: AllocationId) -> Result<Place, MemoryError> {
        let length = self.size(id);
        let has_page = self.table.get(&id).is_some_and(|allocation| allocation.pins > 0);
        let is_seen = has_page && self.memory.device().is_some();
        let target = if is_seen { None } else { self.memory.take_local(length) };
        let target = target.or_else(|| self.memory.take_host(length));
        self.moving(id, target.ok_or(MemoryError::Exhausted(length))?)
    }

    /// Takes the place in host memory that an allocation will move to.
    pub fn begin_eviction(&mut self, id: AllocationId) -> Result<Place, MemoryError> {
        let length = self.size(id);
        let target = self.memory.take_host(length);
        self.moving(id, target.ok_or(MemoryError::Exhausted(length))?)
    }

    /// Takes the place at `offset`, in its own region outside of the aperture, that an allocation will move to.
    pub fn begin_relocation(&mut self, id: AllocationId, offset: u64) -> Result<Place, MemoryError> {
        let length = self.size(id);
        let is_area = self.table.get(&id).is_some_and(|allocation| allocation.is_area);
        let target = if is_area {
            self.memory.reserve_area(offset, length)
        } else {
            self.memory.reserve_local(offset, length)
        };
        self.moving(id, target.ok_or(MemoryError::Exhausted(length))?)
    }

    fn moving(&mut self, id: AllocationId, target: Place) -> Result<Place, MemoryError> {
        if let Some(allocation) = self.table.get_mut(&id) {
            allocation.is_moving = true;
        }
        Ok(target)
    }

    /// Copies the contents to `target`, unless a device did ([`Self::device_copy`]), and lets the old place go. Nothing may use the old place any more.
    pub fn finish_move(&mut self, id: AllocationId, target: Place, epoch: u64) {
        let Some(allocation) = self.table.get_mut(&id) else {
            return;
        };
        allocation.is_moving = false;
        allocation.placed_in = epoch;
        let size = allocation.size;
        if let Backing::Vram(place) = &mut allocation.backing {
            if let Some(old) = place.replace(target) {
                if old.is_hidden(&self.memory) || target.is_hidden(&self.memory) {
                    self.memory.mark(target, target.offset(), size);
                } else {
                    self.memory.copy(old, target, size);
                }
                self.memory.release(old, size);
            }
        } else {
            self.memory.release(target, size);
        }
    }

    /// Brings what is evicted, or never had a place, to where engines reach it; true if there was room. No engine knows
    /// of the old place, so nothing is waited for.
    pub fn bring_back(&mut self, id: AllocationId, epoch: u64) -> bool {
        let Some(allocation) = self.table.get_mut(&id).filter(|allocation| !allocation.is_moving) else {
            return false;
        };
        let size = allocation.size;
        match allocation.backing {
            Backing::Vram(Some(Place::Host(_))) if !allocation.is_area && self.memory.device().is_some() => {
                false
            }
            Backing::Vram(Some(host @ Place::Host(_))) => {
                let target = if allocation.is_area {
                    self.memory.take_area(size)
                } else {
                    self.memory.take_local(size)
                };
                let Some(target) = target else { return false };
                self.memory.copy(host, target, size);
                self.memory.release(host, size);
                allocation.backing = Backing::Vram(Some(target));
                allocation.placed_in = epoch;
                true
            }
            _ => matches!(self.locate(id, epoch), Spot::Segment(..)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_host_gpu::dirty::method::Method;
    use campanile_host_gpu::memory::local::Passport;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::PAGE_SIZE as PAGE;

    use super::*;
    use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
    use crate::vgpu::memory::vidmm::device_memory::described;
    use crate::vgpu::memory::vidmm::local_reader::LocalReader;
    use crate::vgpu::memory::vidmm::quota::Account;
    use crate::vgpu::memory::vidmm::quota::Pool;
    use crate::vgpu::memory::vidmm::quota::Quota;
    use crate::vgpu::memory::vidmm::vram::VideoMemory;

    const LENGTH: u64 = 16 * PAGE;

    #[test]
    fn what_a_device_has_moved_is_not_copied_over_by_the_daemon() {
        let passport = Passport { length: LENGTH / 2, ..Passport::default() };
        let device = DeviceLocal::new(create_memfd("opaque", LENGTH / 2).unwrap().into(), passport);
        let device = Arc::new(device);
        let reader = LocalReader::without_process(Arc::clone(&device), described(&device, LENGTH, LENGTH));
        let memory = VideoMemory::new(LENGTH, LENGTH, Method::Off).unwrap().in_device(Arc::new(reader));
        let account = Arc::new(Account::new(Quota { min: 0, max: LENGTH }, Pool::new(None, []).unwrap()));
        let mut all = Allocations::new(memory, account);
        let id = all.create_vram(PAGE).unwrap();
        let _placed = all.locate(id, 1);
        let target = all.begin_move_in(id, 0).unwrap();
        assert_eq!(target, Place::Aperture(0));
        // As the device does.
        all.memory().mapping_of(target).slice(0, 1).unwrap().copy_from(&[7_u8]);
        all.finish_move(id, target, 2);
        let mut first = [0_u8];
        all.memory().mapping_of(target).slice(0, 1).unwrap().copy_to(&mut first);
        assert_eq!(first, [7]);
    }
}
