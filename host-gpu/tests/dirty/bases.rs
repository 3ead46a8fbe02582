//! Memory bases.

use campanile_host_gpu::dirty::basis::MAX_RANGES;
use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::requests::MAX_BASES;

use crate::support::Memory;
use crate::support::PAGE;
use crate::support::SEGMENT;
use crate::support::pages;

fn refused(memory: &Memory, ranges: &[Range]) -> DirtyError {
    memory.tracker.create_memory_basis(SEGMENT, ranges).unwrap_err()
}

#[test]
fn dirty_12_dirty_13_a_basis_is_ranges_of_a_segment_that_need_not_be_contiguous() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(3, 2), (40, 5)]);
    for page in [3, 44, 5, 39] {
        memory.write(page, 1);
    }
    assert_eq!(memory.dirty(basis, 7, false), [0, 6]);
}

#[test]
fn dirty_14_a_range_that_leaves_the_segment_is_refused() {
    let memory = Memory::new(64);
    for (first, count) in [(64, 1), (63, 2), (0, 65), (1 << 40, 1)] {
        assert_eq!(refused(&memory, &pages(&[(0, 1), (first, count)])), DirtyError::Outside { index: 1 });
    }
    let wraps = Range { offset: u64::MAX - PAGE + 1, length: 2 * PAGE };
    assert_eq!(refused(&memory, &[wraps]), DirtyError::Outside { index: 0 });
    memory.basis(&[(0, 64)]);
    memory.basis(&[(63, 1)]);
}

#[test]
fn dirty_15_ranges_that_overlap_are_refused_in_whatever_order() {
    let memory = Memory::new(64);
    for ranges in [[(0, 8), (7, 2)], [(7, 2), (0, 8)], [(5, 1), (5, 1)], [(0, 64), (30, 1)]] {
        assert_eq!(refused(&memory, &pages(&ranges)), DirtyError::Overlap(0, 1));
    }
    memory.basis(&[(8, 2), (0, 8)]);
}

#[test]
fn dirty_16_dirty_41_ranges_keep_the_order_in_which_they_came_and_their_bits_touch() {
    let memory = Memory::new(64);
    // Two odd counts, the higher one first: no padding, no sorting.
    let basis = memory.started(&[(50, 5), (2, 3)]);
    for page in [50, 54, 2, 4] {
        memory.write(page, 1);
    }
    let mut buffer = [0; 1];
    memory.tracker.query_dirty_bit_data(basis, None, &mut buffer, true).unwrap();
    assert_eq!(buffer, [0b1011_0001]);
}

#[test]
fn dirty_17_ranges_are_made_of_whole_pages() {
    let memory = Memory::new(64);
    for (offset, length) in [(1, PAGE), (0, PAGE + 1), (PAGE / 2, PAGE / 2)] {
        let refused = refused(&memory, &[Range { offset, length }]);
        assert_eq!(refused, DirtyError::Misaligned { index: 0, page_size: PAGE });
    }
}

#[test]
fn dirty_18_a_basis_is_of_one_segment() {
    let memory = Memory::new(64);
    let other = memory.tracker.create_memory_basis(SEGMENT + 1, &pages(&[(0, 1)]));
    assert_eq!(other, Err(DirtyError::Segment(SEGMENT + 1)));
}

#[test]
fn dirty_19_no_ranges_empty_ones_and_too_many_are_refused() {
    let memory = Memory::new(64);
    assert_eq!(refused(&memory, &[]), DirtyError::RangeCount(0));
    assert_eq!(refused(&memory, &pages(&[(0, 1), (4, 0)])), DirtyError::Empty { index: 1 });
    assert_eq!(MAX_RANGES, 65_536);
    let many = |count| vec![Range { offset: 0, length: PAGE }; count];
    assert_eq!(refused(&memory, &many(65_537)), DirtyError::RangeCount(65_537));
    assert_eq!(refused(&memory, &many(65_536)), DirtyError::Overlap(0, 1), "as many as may be");
    let made = std::iter::repeat_with(|| memory.tracker.create_memory_basis(SEGMENT, &pages(&[(0, 1)])));
    let made = made.take_while(Result::is_ok).count();
    assert_eq!(made, MAX_BASES - 1, "one of the whole memory is there from the beginning");
}

#[test]
fn dirty_21_dirty_22_a_basis_can_always_be_destroyed_which_ends_its_tracking_and_no_other() {
    let memory = Memory::new(64);
    let (one, other) = (memory.started(&[(0, 8)]), memory.started(&[(0, 8)]));
    memory.tracker.destroy_memory_basis(one).unwrap();
    memory.write(3, 1);
    assert_eq!(memory.dirty(other, 8, true), [3]);
    for bad in [one, BasisHandle(0), BasisHandle(u64::MAX)] {
        assert_eq!(memory.tracker.destroy_memory_basis(bad), Err(DirtyError::NoSuchBasis));
        assert_eq!(memory.tracker.start_dirty_tracking(bad), Err(DirtyError::NoSuchBasis));
        assert_eq!(memory.tracker.stop_dirty_tracking(bad), Err(DirtyError::NoSuchBasis));
        let asked = memory.tracker.query_dirty_bit_data(bad, None, &mut [0; 8], false);
        assert_eq!(asked, Err(DirtyError::NoSuchBasis));
    }
}

#[test]
fn dirty_20_dirty_23_dirty_27_bases_may_overlap_and_each_is_named_by_its_handle() {
    let memory = Memory::new(64);
    let (low, high) = (memory.started(&[(0, 40)]), memory.started(&[(20, 44)]));
    for page in [1, 30, 60] {
        memory.write(page, 1);
    }
    assert_eq!(memory.dirty(low, 40, true), [1, 30]);
    assert_eq!(memory.dirty(high, 44, true), [10, 40]);
}
