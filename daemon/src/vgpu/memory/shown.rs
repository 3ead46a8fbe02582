//! Where page tables show each allocation: what has to change when it moves, and goes one by one when a process ends.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use campanile_host_gpu::memory::page_table::writer::Root;

use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;

/// An address of an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    root: Root,
    va: u64,
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        (self.root.0, self.va).cmp(&(other.root.0, other.va))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The mappings that page tables have, by allocation and place: a process may map one allocation 65,536 times.
#[derive(Debug, Default)]
pub struct Shown {
    by_allocation: BTreeMap<AllocationId, BTreeMap<Place, GpuMapping>>,
}

impl Shown {
    /// A mapping is in page tables.
    pub fn insert(&mut self, root: Root, va: u64, mapping: GpuMapping) {
        self.by_allocation.entry(mapping.allocation).or_default().insert(Place { root, va }, mapping);
    }

    /// A mapping is in no page table any more.
    pub fn remove(&mut self, allocation: AllocationId, root: Root, va: u64) {
        if let Some(places) = self.by_allocation.get_mut(&allocation) {
            places.remove(&Place { root, va });
            if places.is_empty() {
                self.by_allocation.remove(&allocation);
            }
        }
    }

    /// Whether page tables show an allocation anywhere.
    pub fn contains(&self, allocation: AllocationId) -> bool {
        self.by_allocation.contains_key(&allocation)
    }

    /// Where page tables show an allocation.
    pub fn of(&self, allocation: AllocationId) -> impl Iterator<Item = (Root, u64, &GpuMapping)> {
        let places = self.by_allocation.get(&allocation).into_iter().flatten();
        places.map(|(place, mapping)| (place.root, place.va, mapping))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use campanile_host_gpu::memory::page_table::writer::Root;

    use super::Place;
    use super::Shown;
    use crate::vgpu::objects::ids::AllocationId;
    use crate::vgpu::objects::mapping::GpuMapping;

    thread_local! {
        /// Pairs of places that were compared.
        pub static COMPARED: Cell<u64> = const { Cell::new(0) };
    }

    const ONE: AllocationId = AllocationId(1);
    const OTHER: AllocationId = AllocationId(2);

    fn mapping(allocation: AllocationId) -> GpuMapping {
        GpuMapping { size: 4096, allocation, offset: 0, writable: true }
    }

    /// Comparisons that it takes to show one allocation so often, and to forget all of that, the first one first.
    fn cost(count: u64) -> u64 {
        let mut shown = Shown::default();
        COMPARED.set(0);
        (0..count).for_each(|va| shown.insert(Root(1), va << 12, mapping(ONE)));
        assert_eq!(shown.of(ONE).count() as u64, count);
        (0..count).for_each(|va| shown.remove(ONE, Root(1), va << 12));
        assert!(!shown.contains(ONE));
        COMPARED.get()
    }

    #[test]
    fn forgetting_all_mappings_of_one_allocation_costs_little_for_each() {
        let (some, most) = (cost(512), cost(8192));
        assert!(some > 0);
        // Sixteen times as many: a list would be looked through sixteen times as long for each of them.
        assert!(most <= 16 * some * 2, "{some} comparisons for 512 mappings, and {most} for 8,192");
        assert!(most <= 8192 * 2 * 64, "{most} comparisons");
    }

    #[test]
    fn what_is_forgotten_is_one_mapping_at_one_address_of_one_space() {
        let mut shown = Shown::default();
        for (root, va, allocation) in
            [(1, 0x1000, ONE), (2, 0x1000, ONE), (1, 0x2000, ONE), (1, 0x3000, OTHER)]
        {
            shown.insert(Root(root), va, mapping(allocation));
        }
        shown.remove(ONE, Root(1), 0x1000);
        shown.remove(ONE, Root(1), 0x3000);
        let left: Vec<(u64, u64)> = shown.of(ONE).map(|(root, va, _)| (root.0, va)).collect();
        assert_eq!(left, [(1, 0x2000), (2, 0x1000)]);
        assert!(shown.contains(OTHER));
    }

    #[test]
    fn places_are_in_the_order_of_their_spaces_and_of_their_addresses_there() {
        let place = |root, va| Place { root: Root(root), va };
        assert!(place(1, 5) < place(1, 6) && place(1, 6) < place(2, 5));
        assert!(place(2, 5) == place(2, 5) && place(2, 5) != place(2, 6));
    }
}
