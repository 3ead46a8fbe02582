//! Which allocations may leave their place.

use super::allocations::Allocations;
use super::allocations::Backing;
use super::compaction::Movable;
use super::vram::Place;
use crate::vgpu::objects::ids::AllocationId;

impl Allocations {
    /// Whether an allocation may be moved to host memory.
    pub fn can_leave(&self, id: AllocationId) -> bool {
        self.can_move(id) && self.get(id).is_some_and(|allocation| allocation.holds == 0)
    }

    /// Whether an allocation may be moved to another place.
    pub fn can_move(&self, id: AllocationId) -> bool {
        self.get(id).is_some_and(|allocation| {
            matches!(allocation.backing, Backing::Vram(Some(Place::Local(_) | Place::Area(_))))
                && !allocation.is_moving
                && allocation.pins == 0
        })
    }

    /// What may move within its region, that of save areas or the other one; what is held, too, since it stays where engines reach it.
    pub fn movable(&self, is_area: bool) -> Vec<Movable> {
        let all = self.iter().filter(|(id, it)| it.is_area == is_area && self.can_move(*id));
        let movable = all.filter_map(|(id, allocation)| match allocation.backing {
            Backing::Vram(Some(place)) => Some(Movable { id, offset: place.offset(), size: allocation.size }),
            _ => None,
        });
        movable.collect()
    }
}
