//! One long piece out of many short ones: what lies in the way moves to other free pieces.
//!
//! ```text
//!   before  |aa| free |b| free |ccc| free |          wanted: a piece as long as two of the free ones
//!   after   |aa|      free     |ccc|b|free|          b was in the way, and found a place
//! ```
//!
//! What the guest's CPU has mapped never moves (design §10.4); what engines use may, since they let go of a page table's
//! entry before what it leads to moves.

use super::ranges::Ranges;
use crate::vgpu::objects::ids::AllocationId;

/// Ranges that are looked at closely, cheapest first: the work for one request is bounded.
const MOST_TRIED: usize = 32;

/// An allocation that may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movable {
    /// Which.
    pub id: AllocationId,
    /// Where it lies, bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

impl Movable {
    fn end(&self) -> u64 {
        self.offset + self.size
    }
}

/// An allocation and where it goes, bytes: a place that is free now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// Which.
    pub id: AllocationId,
    /// Where to.
    pub target: u64,
}

/// A range that would be one piece, and what lies in it.
struct Window<'a> {
    start: u64,
    /// Bytes in it that would have to move.
    cost: u64,
    inside: &'a [Movable],
}

/// What has to move for `size` free bytes in one piece, as few as was found and no more than `limit` in all; places are
/// free now, none of them in that piece. None where it cannot be done by that.
pub fn relocations(free: &Ranges, movable: &[Movable], size: u64, limit: u64) -> Option<Vec<Relocation>> {
    if size == 0 || free.free_bytes() < size {
        return None;
    }
    let mut sorted = movable.to_vec();
    sorted.sort_unstable_by_key(|it| it.offset);
    // The cheapest range begins where something free or something movable begins.
    let starts = free.iter().map(|(start, _)| start).chain(sorted.iter().map(|it| it.offset));
    let mut windows: Vec<Window<'_>> = starts
        .filter_map(|start| {
            let end = start.checked_add(size)?;
            let first = sorted.partition_point(|it| it.end() <= start);
            let inside = &sorted[first..sorted.partition_point(|it| it.offset < end).max(first)];
            let within = |it: &Movable| it.end().min(end) - it.offset.max(start);
            let taken: u64 = inside.iter().map(within).sum();
            let cost: u64 = inside.iter().map(|it| it.size).sum();
            // All that is neither free nor movable stays: then this is no piece.
            (cost <= limit && free.bytes_within(start, end) + taken == size).then_some(Window {
                start,
                cost,
                inside,
            })
        })
        .collect();
    windows.sort_unstable_by_key(|window| (window.cost, window.start));
    windows.iter().take(MOST_TRIED).find_map(|window| relocate(free, window, size))
}

fn relocate(free: &Ranges, window: &Window<'_>, size: u64) -> Option<Vec<Relocation>> {
    let mut outside = free.clone();
    outside.take_all_within(window.start, window.start + size);
    let mut inside = window.inside.to_vec();
    // The longest finds its place first.
    inside.sort_unstable_by_key(|it| std::cmp::Reverse(it.size));
    inside.iter().map(|it| Some(Relocation { id: it.id, target: outside.allocate(it.size)? })).collect()
}

#[cfg(test)]
mod tests {
    use proptest::proptest;

    use super::Movable;
    use super::Relocation;
    use super::relocations;
    use crate::vgpu::memory::vidmm::ranges::Ranges;
    use crate::vgpu::objects::ids::AllocationId;

    fn movable(id: u64, offset: u64, size: u64) -> Movable {
        Movable { id: AllocationId(id), offset, size }
    }

    fn without(length: u64, taken: &[(u64, u64)]) -> Ranges {
        let mut free = Ranges::new(0, length);
        for (offset, size) in taken {
            assert!(free.reserve(*offset, *size));
        }
        free
    }

    #[test]
    fn the_cheapest_that_lies_in_the_way_moves() {
        // free 0..4, a 4..6, free 6..10, b 10..13, free 13..20
        let free = without(20, &[(4, 2), (10, 3)]);
        let all = [movable(1, 4, 2), movable(2, 10, 3)];
        let moves = relocations(&free, &all, 10, u64::MAX).unwrap();
        assert_eq!(moves, vec![Relocation { id: AllocationId(1), target: 13 }]);
        assert_eq!(relocations(&free, &all, 10, 1), None, "more than may be moved");
    }

    #[test]
    fn what_may_not_move_is_no_piece_and_what_has_no_place_stays() {
        let free = without(20, &[(4, 2), (10, 3)]);
        assert_eq!(relocations(&free, &[movable(2, 10, 3)], 15, u64::MAX), None, "a is in the way of all");
        let full = without(20, &[(0, 9), (10, 9)]);
        assert_eq!(relocations(&full, &[movable(1, 0, 9), movable(2, 10, 9)], 2, u64::MAX), None);
    }

    #[test]
    fn all_that_is_free_can_become_one_piece_and_no_piece_is_no_request() {
        // free 0..2, a 2..4, free 4..6
        let free = without(6, &[(2, 2)]);
        let moves = relocations(&free, &[movable(1, 2, 2)], 4, u64::MAX).unwrap();
        assert_eq!(moves, [Relocation { id: AllocationId(1), target: 4 }]);
        assert_eq!(relocations(&free, &[movable(1, 2, 2)], 5, u64::MAX), None);
        assert_eq!(relocations(&free, &[movable(1, 2, 2)], 0, u64::MAX), None);
    }

    proptest! {
        /// After the moves the piece is there, and nothing lies on anything.
        #[test]
        fn a_piece_is_free_when_all_have_moved(
            sizes in proptest::collection::vec((1u64..6, 0u64..4), 1..24),
            wanted in 1u64..20,
        ) {
            const PAGES: u64 = 64;
            let mut free = Ranges::new(0, PAGES);
            let (mut all, mut at) = (Vec::new(), 0);
            for (id, (size, gap)) in (0u64..).zip(sizes) {
                at += gap;
                if free.reserve(at, size) {
                    all.push(movable(id, at, size));
                }
                at += size;
            }
            let may_move: Vec<Movable> =
                all.iter().copied().filter(|it| !it.id.0.is_multiple_of(4)).collect();
            let Some(moves) = relocations(&free, &may_move, wanted, u64::MAX) else { return Ok(()) };
            for Relocation { id, target } in &moves {
                let it = may_move.iter().find(|it| it.id == *id).unwrap();
                assert!(free.reserve(*target, it.size), "the place is free before anything has left");
            }
            for Relocation { id, .. } in &moves {
                let it = may_move.iter().find(|it| it.id == *id).unwrap();
                free.release(it.offset, it.size);
            }
            assert!(free.longest() >= wanted);
        }
    }
}
