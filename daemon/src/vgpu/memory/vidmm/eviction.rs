//! Which allocations have to leave, so that another finds room: the least important, and of those the least recently
//! used.

use super::compaction::Movable;
use super::compaction::Relocation;
use super::compaction::relocations;
use super::ranges::Ranges;
use crate::vgpu::objects::ids::AllocationId;

/// An allocation that could leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub id: AllocationId,
    /// Where it lies, bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// What has less goes first.
    pub priority: u32,
    /// The epoch in which it was last used, as far as is known.
    pub last_use: u64,
}

/// The room that there is, and would be.
#[derive(Debug, Clone)]
pub struct Plan {
    free: Ranges,
    /// In the order in which they go.
    candidates: Vec<Candidate>,
}

impl Plan {
    /// Over what is free now, and what could leave.
    pub fn new(free: Ranges, mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_unstable_by_key(|candidate| (candidate.priority, candidate.last_use, candidate.id));
        Self { free, candidates }
    }

    /// Takes `size` bytes in one piece, if there is one.
    pub fn take(&mut self, size: u64) -> bool {
        self.free.allocate(size).is_some()
    }

    /// What has to move for `size` bytes in one piece, of what is `movable` and no longer is then, at most `limit` bytes in
    /// all. The places that it moves to are taken then; what it leaves is not free yet, as far as this plan goes.
    pub fn compact(&mut self, movable: &mut Vec<Movable>, size: u64, limit: u64) -> Option<Vec<Relocation>> {
        let moves = relocations(&self.free, movable, size, limit)?;
        for Relocation { id, target } in &moves {
            for it in movable.extract_if(.., |it| it.id == *id) {
                self.free.reserve(*target, it.size);
            }
            self.candidates.retain(|candidate| candidate.id != *id);
        }
        Some(moves)
    }

    /// What has to leave for `size` bytes in one piece, of those that `may_leave`; nothing where there is room. That
    /// room is taken then, as far as this plan goes. None, and nothing changed, where it cannot be.
    pub fn make_room(
        &mut self,
        size: u64,
        may_leave: impl Fn(&Candidate) -> bool,
    ) -> Option<Vec<AllocationId>> {
        let mut left: Vec<Candidate> = Vec::new();
        let mut found = self.free.allocate(size);
        let mut rest = self.candidates.iter().filter(|candidate| may_leave(candidate));
        while found.is_none() {
            let Some(candidate) = rest.next() else { break };
            self.free.release(candidate.offset, candidate.size);
            left.push(*candidate);
            found = self.free.allocate(size);
        }
        let overlaps = |candidate: &Candidate| {
            found.is_some_and(|start| {
                candidate.offset < start + size && start < candidate.offset + candidate.size
            })
        };
        // What is not in the way after all stays.
        let (victims, spared): (Vec<Candidate>, Vec<Candidate>) = left.into_iter().partition(overlaps);
        for candidate in spared {
            self.free.reserve(candidate.offset, candidate.size);
        }
        let victims: Vec<AllocationId> = victims.into_iter().map(|victim| victim.id).collect();
        found?;
        self.candidates.retain(|candidate| !victims.contains(&candidate.id));
        Some(victims)
    }
}

#[cfg(test)]
mod tests {
    use proptest::proptest;

    use super::Candidate;
    use super::Plan;
    use crate::vgpu::memory::vidmm::compaction::Movable;
    use crate::vgpu::memory::vidmm::compaction::Relocation;
    use crate::vgpu::memory::vidmm::ranges::Ranges;
    use crate::vgpu::objects::ids::AllocationId;

    fn candidate(id: u64, offset: u64, priority: u32, last_use: u64) -> Candidate {
        Candidate { id: AllocationId(id), offset, size: 10, priority, last_use }
    }

    fn full(candidates: &[Candidate]) -> Plan {
        let mut free = Ranges::new(0, 40);
        free.reserve(0, 40);
        Plan::new(free, candidates.to_vec())
    }

    fn ids(victims: Option<Vec<AllocationId>>) -> Option<Vec<u64>> {
        victims.map(|victims| victims.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn the_least_important_leaves_first_and_of_equals_the_least_recently_used() {
        let all =
            [candidate(1, 0, 5, 1), candidate(2, 10, 5, 9), candidate(3, 20, 4, 9), candidate(4, 30, 5, 3)];
        let mut plan = full(&all);
        assert_eq!(ids(plan.make_room(10, |_| true)), Some(vec![3]));
        assert_eq!(ids(plan.make_room(10, |_| true)), Some(vec![1]));
        assert_eq!(ids(plan.make_room(10, |it| it.id.0 != 4)), Some(vec![2]));
        assert_eq!(ids(plan.make_room(10, |it| it.id.0 != 4)), None);
        assert_eq!(ids(plan.make_room(10, |_| true)), Some(vec![4]));
    }

    #[test]
    fn room_in_one_piece_costs_nobody_who_is_not_in_the_way() {
        // The oldest is alone at the end: it makes no room for two.
        let all = [candidate(1, 0, 5, 2), candidate(2, 10, 5, 3), candidate(3, 30, 5, 1)];
        let mut plan = full(&all);
        assert_eq!(ids(plan.make_room(20, |_| true)), Some(vec![1, 2]));
        assert_eq!(ids(plan.make_room(20, |_| true)), None, "what lies between stays where it is");
        assert_eq!(ids(plan.make_room(10, |_| true)), Some(vec![3]));
    }

    #[test]
    fn what_lies_directly_behind_the_room_stays() {
        let sized = |id, offset, size| Candidate { size, ..candidate(id, offset, 5, id) };
        let mut free = Ranges::new(0, 25);
        free.reserve(0, 25);
        // The first goes first, makes too little room, and is not in the way of that which the second makes.
        let mut plan = Plan::new(free, vec![sized(1, 20, 5), sized(2, 0, 20)]);
        assert_eq!(ids(plan.make_room(20, |_| true)), Some(vec![2]));
        assert_eq!(ids(plan.make_room(5, |_| true)), Some(vec![1]));
    }

    #[test]
    fn what_moves_for_a_long_piece_has_its_new_place_and_is_neither_moved_nor_evicted_again() {
        // free 0..4, 1 at 4..6, free 6..10, 2 at 10..13, free 13..20
        let mut free = Ranges::new(0, 20);
        assert!(free.reserve(4, 2) && free.reserve(10, 3));
        let movable = |id, offset, size| Movable { id: AllocationId(id), offset, size };
        let mut left = vec![movable(1, 4, 2), movable(2, 10, 3)];
        let sized = |id, offset, size| Candidate { size, ..candidate(id, offset, 5, id) };
        let mut plan = Plan::new(free, vec![sized(1, 4, 2), sized(2, 10, 3)]);
        assert_eq!(plan.compact(&mut left, 10, 1), None, "more than may be moved");
        assert_eq!(left.len(), 2);
        let moves = plan.compact(&mut left, 10, u64::MAX).unwrap();
        assert_eq!(moves, [Relocation { id: AllocationId(1), target: 13 }]);
        assert_eq!(left, [movable(2, 10, 3)]);
        // What it leaves is not free yet, and where it goes is not free any more.
        assert_eq!([5, 5, 4, 4, 1].map(|size| plan.take(size)), [true, false, true, true, false]);
        assert_eq!(ids(plan.make_room(3, |_| true)), Some(vec![2]));
        assert_eq!(ids(plan.make_room(1, |_| true)), None);
    }

    proptest! {
        /// What leaves was allowed to, and the room is there then.
        #[test]
        fn a_plan_keeps_its_word(
            sizes in proptest::collection::vec((1u64..8, 0u32..3, 0u64..5), 1..20),
            wanted in proptest::collection::vec(1u64..12, 1..8),
        ) {
            const PAGES: u64 = 48;
            let mut free = Ranges::new(0, PAGES);
            let mut all = Vec::new();
            for (id, (size, priority, last_use)) in (0u64..).zip(sizes) {
                if let Some(offset) = free.allocate(size) {
                    all.push(Candidate { id: AllocationId(id), offset, size, priority, last_use });
                }
            }
            let mut model = free.clone();
            let mut plan = Plan::new(free, all.clone());
            let allowed = |candidate: &Candidate| !candidate.id.0.is_multiple_of(3);
            for size in wanted {
                let Some(victims) = plan.make_room(size, allowed) else { continue };
                for victim in victims {
                    let at = all.iter().position(|candidate| candidate.id == victim).unwrap();
                    let victim = all.swap_remove(at);
                    assert!(allowed(&victim));
                    model.release(victim.offset, victim.size);
                }
                assert!(model.allocate(size).is_some());
            }
        }
    }
}
