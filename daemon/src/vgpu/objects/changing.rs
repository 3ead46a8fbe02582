//! The ranges of an address space that waiting operations change: a process may have 65,536 unmaps wait, and map behind them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

#[cfg(test)]
thread_local! {
    /// Pairs of addresses that were compared, and changes that were looked at one after the other.
    pub(in crate::vgpu) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[derive(Debug, Clone, Copy)]
struct Address(u64);

impl Ord for Address {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        STEPS.set(STEPS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Address {}

#[derive(Debug, Clone, Copy)]
struct Range {
    end: u64,
    /// The last operation that changes it: operations happen in order, so it is settled when that one has happened.
    operation: u64,
}

/// Ranges and the last operation that changes each. Each call costs a logarithm of their number, over all calls.
#[derive(Debug, Default)]
pub struct Changing {
    /// By first byte; none meets another.
    ranges: BTreeMap<Address, Range>,
    /// First bytes by operation.
    by_operation: BTreeSet<(u64, Address)>,
}

impl Changing {
    /// Operation `operation`, which comes after all others, changes `size` bytes at `va`.
    pub fn add(&mut self, va: u64, size: u64, operation: u64) {
        let end = va.saturating_add(size);
        while let Some((start, range)) = self.last_before(end).filter(|(_, range)| range.end > va) {
            self.ranges.remove(&Address(start));
            self.by_operation.remove(&(range.operation, Address(start)));
            // What it changes beside them stays.
            self.insert(start, Range { end: va, ..range });
            self.insert(end, range);
        }
        self.insert(va, Range { end, operation });
    }

    /// All operations up to this one have happened.
    pub fn settle(&mut self, operation: u64) {
        while let Some((of, start)) = self.by_operation.first().copied().filter(|(of, _)| *of <= operation) {
            self.by_operation.remove(&(of, start));
            self.ranges.remove(&start);
        }
    }

    /// Whether an operation that waits changes any of `size` bytes at `va`.
    pub fn meets(&self, va: u64, size: u64) -> bool {
        self.last_before(va.saturating_add(size)).is_some_and(|(_, range)| range.end > va)
    }

    fn last_before(&self, end: u64) -> Option<(u64, Range)> {
        self.ranges.range(..Address(end)).next_back().map(|(start, range)| (start.0, *range))
    }

    fn insert(&mut self, start: u64, range: Range) {
        if start < range.end {
            self.ranges.insert(Address(start), range);
            self.by_operation.insert((range.operation, Address(start)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::proptest;

    use super::Changing;

    #[test]
    fn a_range_waits_until_the_last_operation_that_changes_it_has_happened() {
        let mut changing = Changing::default();
        changing.add(0x1000, 0x4000, 1);
        changing.add(0x2000, 0x1000, 2);
        assert!(changing.meets(0x4fff, 1) && changing.meets(0, 0x1001) && changing.meets(0, u64::MAX));
        assert!(!changing.meets(0, 0x1000) && !changing.meets(0x5000, u64::MAX), "only beside it");
        changing.settle(1);
        assert!(!changing.meets(0x1000, 0x1000) && !changing.meets(0x3000, 0x2000));
        assert!(changing.meets(0x2fff, 0x1000));
        changing.settle(2);
        assert!(!changing.meets(0, u64::MAX));
        assert!(changing.ranges.is_empty() && changing.by_operation.is_empty(), "nothing is left of it");
    }

    proptest! {
        /// Against a list of all that waits.
        #[test]
        fn what_waits_is_what_a_list_of_all_operations_says(
            steps in proptest::collection::vec((0u64..32, 1u64..16, 0u64..3), 1..60),
        ) {
            let mut changing = Changing::default();
            let (mut list, mut operation) = (std::collections::VecDeque::new(), 0);
            for (va, size, settles) in steps {
                operation += 1;
                changing.add(va, size, operation);
                list.push_back((va, size, operation));
                for _ in 1..settles {
                    list.pop_front();
                    changing.settle(list.front().map_or(operation, |(.., next)| next - 1));
                }
                for at in 0..48 {
                    for length in [1, 3] {
                        let meets = list.iter().any(|(va, size, _)| *va < at + length && at < va + size);
                        assert_eq!(changing.meets(at, length), meets, "{at} with {length} of {list:?}");
                    }
                }
            }
        }
    }
}
