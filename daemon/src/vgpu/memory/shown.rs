//! Where page tables show each allocation: what has to change when it moves, and goes one by one when a process ends.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use campanile_host_gpu::memory::page_table::writer::Root;

use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;

/// An address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address(u64);

impl Ord for Address {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What is mapped at an address, of an allocation that is known.
#[derive(Debug, Clone, Copy)]
struct Part {
    size: u64,
    offset: u64,
    writable: bool,
}

/// The mappings that page tables have, by allocation, address space and address: a process may map one allocation 65,536 times.
#[derive(Debug, Default)]
pub struct Shown {
    /// Spaces by the number of their root. None of these maps is empty.
    by_allocation: BTreeMap<(AllocationId, u64), BTreeMap<Address, Part>>,
}

impl Shown {
    /// A mapping is in page tables.
    pub fn insert(&mut self, root: Root, va: u64, mapping: GpuMapping) {
        let GpuMapping { size, allocation, offset, writable } = mapping;
        let parts = self.by_allocation.entry((allocation, root.0)).or_default();
        parts.insert(Address(va), Part { size, offset, writable });
    }

    /// A mapping is in no page table any more.
    pub fn remove(&mut self, allocation: AllocationId, root: Root, va: u64) {
        if let Some(parts) = self.by_allocation.get_mut(&(allocation, root.0)) {
            parts.remove(&Address(va));
            if parts.is_empty() {
                self.by_allocation.remove(&(allocation, root.0));
            }
        }
    }

    /// Whether page tables show an allocation anywhere.
    pub fn contains(&self, allocation: AllocationId) -> bool {
        self.by_allocation.range((allocation, 0)..=(allocation, u64::MAX)).next().is_some()
    }

    /// Where page tables show an allocation.
    pub fn of(&self, allocation: AllocationId) -> impl Iterator<Item = (Root, u64, GpuMapping)> {
        let spaces = self.by_allocation.range((allocation, 0)..=(allocation, u64::MAX));
        spaces.flat_map(move |((_, root), parts)| {
            parts.iter().map(move |(va, Part { size, offset, writable })| {
                let mapping = GpuMapping { size: *size, allocation, offset: *offset, writable: *writable };
                (Root(*root), va.0, mapping)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use campanile_host_gpu::memory::page_table::writer::Root;

    use super::Address;
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
    fn what_is_shown_is_told_as_it_was_mapped() {
        let mut shown = Shown::default();
        let mapped = GpuMapping { size: 8192, allocation: ONE, offset: 4096, writable: false };
        shown.insert(Root(3), 0x1000, mapped);
        assert_eq!(shown.of(ONE).collect::<Vec<_>>(), [(Root(3), 0x1000, mapped)]);
        assert!(shown.of(OTHER).next().is_none() && !shown.contains(OTHER));
    }

    #[test]
    fn addresses_are_in_their_order() {
        assert!(Address(5) < Address(6) && Address(6) > Address(5));
        assert!(Address(5) == Address(5) && Address(5) != Address(6));
    }
}
