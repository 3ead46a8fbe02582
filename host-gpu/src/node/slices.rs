//! A grid cut into boxes, each of which a device runs in one piece.
//!
//! The groups of a grid are counted in x, then y, then z. A slice begins where the count is, and is part of a row, or
//! whole rows of a plane, or whole planes, so that what is done is one number:
//!
//! ```text
//!   x ──▶                        limit 6:  0 0 0 1 1   a row has more than half a slice: rows one by one
//!   0 0 0 1 1    limit 3                   0 . . .
//!   2 2 2 3 3                    limit 12: 0 0 0 0 0
//!   4 4 4 5 5                              0 0 0 0 0   two rows
//! ```
//!
//! Where a row, or a plane, is more than a slice may have, it is cut into as few parts as possible, all of about the
//! same size: a part of one group would cost as much overhead as any other.

use crate::vulkan::request::Slice;

/// How many groups a grid has; none where 64 bits cannot count them.
pub fn count(grid: [u32; 3]) -> Option<u64> {
    let [x, y, z] = grid.map(u64::from);
    x.checked_mul(y)?.checked_mul(z)
}

/// The slice of `grid` that begins after the first `done` groups and has at most `limit`, but always one. None where
/// all are done.
pub fn next(grid: [u32; 3], done: u64, limit: u64) -> Option<Slice> {
    if done >= count(grid)? {
        return None;
    }
    let ([x, y, z], limit) = (grid.map(u64::from), limit.max(1));
    let (row, plane) = (x, x * y);
    let base = [done % x, done / x % y, done / plane];
    let groups = if base[0] != 0 || limit < row {
        [part(x - base[0], limit), 1, 1]
    } else if base[1] != 0 || limit < plane {
        [x, part(y - base[1], limit / row), 1]
    } else {
        [x, y, part(z - base[2], limit / plane)]
    };
    // None of them is more than the side of the grid.
    let side = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(Slice { grid, base: base.map(side), groups: groups.map(side) })
}

/// The first of the fewest even parts of `whole` that are no more than `most` each.
fn part(whole: u64, most: u64) -> u64 {
    whole.div_ceil(whole.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::count;
    use super::next;

    proptest! {
        #[test]
        fn pre_40_every_group_is_in_one_slice_whatever_the_limits(
            grid in [0u32..20, 0u32..20, 0u32..20],
            limits in proptest::collection::vec(0u64..500, 1..20),
        ) {
            let total = count(grid).unwrap();
            let mut seen = vec![0; usize::try_from(total).unwrap()];
            let (mut done, mut limits) = (0, limits.into_iter().cycle());
            while done < total {
                let limit = limits.next().unwrap();
                let slice = next(grid, done, limit).unwrap();
                prop_assert!(slice.count() >= 1 && slice.count() <= limit.max(1));
                prop_assert_eq!(slice.first(), done);
                let [x, y, z] = slice.base;
                for (k, j, i) in (0..slice.groups[2])
                    .flat_map(|k| (0..slice.groups[1]).map(move |j| (k, j)))
                    .flat_map(|(k, j)| (0..slice.groups[0]).map(move |i| (k, j, i)))
                {
                    prop_assert!(x + i < grid[0] && y + j < grid[1] && z + k < grid[2]);
                    let at = u64::from(z + k) * u64::from(grid[0] * grid[1])
                        + u64::from(y + j) * u64::from(grid[0])
                        + u64::from(x + i);
                    prop_assert!((done..done + slice.count()).contains(&at), "what is done is one number");
                    seen[usize::try_from(at).unwrap()] += 1;
                }
                done += slice.count();
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
            prop_assert_eq!(next(grid, done, 1), None);
        }

        #[test]
        fn any_state_is_a_slice_inside_the_grid_or_none(
            grid in any::<[u32; 3]>(),
            done in any::<u64>(),
            limit in any::<u64>(),
        ) {
            let Some(slice) = next(grid, done, limit) else {
                prop_assert!(count(grid).is_none_or(|total| done >= total));
                return Ok(());
            };
            for ((base, groups), side) in slice.base.into_iter().zip(slice.groups).zip(grid) {
                prop_assert!(groups >= 1 && base.checked_add(groups).unwrap() <= side);
            }
            prop_assert!(slice.count() <= limit.max(1));
        }

        #[test]
        fn no_slice_but_the_last_of_a_row_or_plane_is_less_than_half_of_what_it_may_be(
            grid in [1u32..1000, 1u32..50, 1u32..50],
            limit in 1u64..5000,
        ) {
            let (mut done, mut slices) = (0, 0u64);
            while let Some(slice) = next(grid, done, limit) {
                done += slice.count();
                slices += 1;
            }
            let least = done.div_ceil(limit);
            let planes = u64::from(grid[2]).max(1);
            prop_assert!(slices <= 2 * least + planes, "{} slices instead of {}", slices, least);
        }
    }

    #[test]
    fn a_grid_that_fits_is_one_slice() {
        for grid in [[1; 3], [7, 1, 1], [1, 9, 3], [65535, 1, 1]] {
            let slice = next(grid, 0, count(grid).unwrap()).unwrap();
            assert_eq!((slice.base, slice.groups), ([0; 3], grid));
        }
    }

    #[test]
    fn a_grid_without_a_group_has_no_slice() {
        for grid in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0; 3]] {
            assert_eq!(next(grid, 0, 10), None);
        }
    }
}
