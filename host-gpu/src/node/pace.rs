//! How many groups of a kernel fill a slice: learned from how long its slices take.
//!
//! ```text
//!   unknown ── the first slices: 16 groups, then 4 times as many, one at a time, while they are over at once
//!      │
//!      └─ one took long enough to be measured ──▶ known: as many as fit, by the average cost of a group,
//!                                                 but never more than 4 times what has run already
//! ```
//!
//! A slice that takes twice as long as its groups should have is believed at once, since what a group costs may depend
//! on the data. All else is looked at in pairs of slices of about one size, since the end of one that is seen late makes the
//! next one look short: two pairs in a row that were cheaper are believed, what was dearer is averaged. A host that is busy
//! makes slices slow, and never fast; were slices cut short for that, they would cost the more, and the host be busier still.

use std::time::Duration;

/// Groups of the very first slice of a kernel.
const FIRST: u64 = 16;
/// How much larger a slice may be than any before it.
const GROWTH: u64 = 4;
/// The part of a slice's length below which a measurement is mostly overhead.
const MEASURABLE: u64 = 8;
/// The part of the average that the last pair is, where it was dearer.
const WEIGHT: u64 = 4;
/// The part by which the fastest of late rises towards one that was slower.
const FORGET: u64 = 16;

/// What is known of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Picoseconds a group.
    cost: Option<u64>,
    /// The same of the fastest of late.
    floor: u64,
    /// Groups.
    ceiling: u64,
    /// The most groups of a slice that took less than could be measured.
    brief: u64,
    /// The last dispatch that the device's clock measured: groups and picoseconds.
    clocked: Option<(u64, u64)>,
    /// The last slice: groups and picoseconds.
    last: (u64, u64),
    /// Picoseconds a group of the last two slices.
    last_pair: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { cost: None, floor: 0, ceiling: FIRST, brief: 0, clocked: None, last: (0, 0), last_pair: 0 }
    }
}

impl Pace {
    /// Whether its cost is known: slices may be in flight together.
    pub fn is_known(&self) -> bool {
        self.cost.is_some()
    }

    /// Groups of a slice that is to take `target`; one or more.
    pub fn groups(&self, target: Duration) -> u64 {
        let fit = match self.cost {
            None => self.ceiling,
            Some(cost) => (picoseconds(target) / cost.max(1)).min(self.ceiling),
        };
        fit.max(1)
    }

    /// How long a slice of so many groups may well take, when little disturbs it; zero where that is not known.
    pub fn likely(&self, groups: u64) -> Duration {
        let cost = self.cost.unwrap_or(0);
        let likely = cost.min(self.floor).midpoint(cost);
        Duration::from_nanos(likely.saturating_mul(groups) / 1000)
    }

    /// Whether so many groups are likely to be over in a small part of `target`: a slice of as many was, or their cost says so.
    pub fn is_brief(&self, groups: u64, target: Duration) -> bool {
        let cost = self.cost.map_or(u64::MAX, |cost| cost.saturating_mul(groups));
        groups <= self.brief || cost < picoseconds(target) / MEASURABLE
    }

    /// How long so many groups, which are brief, take at the most as far as is known.
    pub fn brief_time(&self, groups: u64, target: Duration) -> Duration {
        let most = target / u32::try_from(MEASURABLE).unwrap_or(u32::MAX);
        let Some((before, took)) = self.clocked else { return most };
        // Fewer groups may take as long: what they wait for, they wait for together.
        let scaled = took / before.max(1) * groups.saturating_sub(before);
        Duration::from_nanos(took.saturating_add(scaled) / 1000).min(most)
    }

    /// A dispatch of so many groups, one or more, took so long by the device's clock.
    pub fn clock(&mut self, groups: u64, took: Duration, target: Duration) {
        self.clocked = Some((groups, picoseconds(took)));
        if picoseconds(took) >= picoseconds(target) / MEASURABLE {
            self.observe(groups, took, target);
        }
    }

    /// Nothing is brief before it was seen to be so again.
    pub fn doubt(&mut self) {
        (self.brief, self.cost, self.clocked) = (0, None, None);
        self.ceiling = self.ceiling.min(FIRST);
    }

    /// A slice of so many groups, one or more, took so long from when it could begin.
    pub fn observe(&mut self, groups: u64, took: Duration, target: Duration) {
        let (took, target, groups) = (picoseconds(took), picoseconds(target), groups.max(1));
        if took <= target {
            self.ceiling = self.ceiling.max(groups.saturating_mul(GROWTH));
        }
        if took < target / MEASURABLE {
            self.brief = self.brief.max(groups);
        } else if groups <= self.brief {
            self.brief = groups - 1;
        }
        let expected = self.cost.map_or(0, |cost| cost.saturating_mul(groups));
        if took.max(expected) < target / MEASURABLE {
            return;
        }
        let measured = took / groups;
        self.floor = match self.cost {
            Some(_) if measured > self.floor => self.floor + (measured - self.floor) / FORGET,
            _ => measured,
        };
        let last = std::mem::replace(&mut self.last, (groups, took));
        let is_alike = (groups / 2..=groups.saturating_mul(2)).contains(&last.0);
        let (groups_before, took_before) = if is_alike { last } else { (0, 0) };
        let pair = took.saturating_add(took_before) / groups.saturating_add(groups_before);
        let seen = pair.max(std::mem::replace(&mut self.last_pair, pair));
        self.cost = Some(match self.cost {
            Some(cost) if took <= target || measured / 2 <= cost => {
                if seen < cost {
                    seen
                } else {
                    cost + (seen - cost) / WEIGHT
                }
            }
            _ => measured,
        });
    }
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prop_assert;
    use proptest::proptest;

    use super::FIRST;
    use super::Pace;

    const TARGET: Duration = Duration::from_millis(2);
    /// What every slice costs on top.
    const OVERHEAD: u64 = 40_000;

    /// Runs `groups` at `cost` nanoseconds each; the groups of each slice.
    fn run(pace: &mut Pace, mut groups: u64, cost: u64) -> Vec<u64> {
        let mut slices = Vec::new();
        while groups > 0 {
            let slice = pace.groups(TARGET).min(groups);
            pace.observe(slice, Duration::from_nanos(OVERHEAD + slice * cost), TARGET);
            slices.push(slice);
            groups -= slice;
        }
        slices
    }

    proptest! {
        #[test]
        fn slices_soon_take_what_they_should_whatever_a_group_costs(cost in 1u64..1_000_000) {
            let mut pace = Pace::default();
            run(&mut pace, 10_000_000_000 / cost, cost);
            let length = pace.groups(TARGET) * cost + OVERHEAD;
            prop_assert!((1_000_000..=2_100_000).contains(&length), "{} ns", length);
        }

        #[test]
        fn pre_05_a_kernel_that_becomes_dear_is_believed_at_its_first_slice(
            cost in 1u64..10_000,
            times in 10u64..1000,
        ) {
            let mut pace = Pace::default();
            run(&mut pace, 10_000_000_000 / cost, cost);
            let dear = cost * times;
            run(&mut pace, 1, dear);
            let groups = pace.groups(TARGET);
            run(&mut pace, groups, dear);
            let length = pace.groups(TARGET) * dear;
            prop_assert!(length <= 2_100_000.max(dear), "{} ns", length);
        }

        #[test]
        fn a_slice_whose_end_was_seen_late_makes_the_next_no_longer(late in 0u64..2_000_000) {
            let mut pace = Pace::default();
            run(&mut pace, 10_000_000, 1000);
            let before = pace.groups(TARGET);
            let exact = before * 1000;
            for took in [exact, exact + late, exact.saturating_sub(late), exact, exact] {
                pace.observe(before, Duration::from_nanos(took), TARGET);
                prop_assert!(pace.groups(TARGET) <= before + before / 25, "{} groups", pace.groups(TARGET));
            }
        }

        #[test]
        fn pre_05_a_few_groups_that_are_dear_are_believed_beside_many_that_were_cheap(
            groups in 1u64..100,
            took in 1_000_000u64..2_000_000,
        ) {
            let mut pace = Pace::default();
            run(&mut pace, 100_000_000, 2);
            pace.observe(groups, Duration::from_nanos(took), TARGET);
            let length = pace.groups(TARGET) * took / groups;
            prop_assert!(length <= 5 * 2_000_000, "{} ns", length);
        }

        #[test]
        fn a_slice_has_a_group_whatever_was_measured(
            seen in proptest::collection::vec((0u64..1 << 50, 0u64..1 << 50), 0..50),
        ) {
            let mut pace = Pace::default();
            for (groups, took) in seen {
                pace.observe(groups, Duration::from_nanos(took), TARGET);
                prop_assert!(pace.groups(TARGET) >= 1);
            }
        }
    }

    #[test]
    fn what_was_over_at_once_is_brief_until_it_is_not() {
        let mut pace = Pace::default();
        assert!(!pace.is_brief(1, TARGET), "it never ran");
        let brief = TARGET / 8 - Duration::from_nanos(1);
        pace.observe(10, brief, TARGET);
        assert!(pace.is_brief(10, TARGET) && !pace.is_brief(11, TARGET));
        pace.observe(4, TARGET / 8, TARGET);
        assert!(pace.is_brief(3, TARGET) && !pace.is_brief(4, TARGET), "four took long");
        pace.doubt();
        assert!(!pace.is_brief(1, TARGET));
        let mut known = Pace::default();
        known.observe(1000, TARGET / 2, TARGET);
        assert!(known.is_brief(249, TARGET) && !known.is_brief(251, TARGET), "its cost says so");
    }

    #[test]
    fn how_long_what_is_brief_takes_is_as_the_clock_said_and_never_more_than_brief_is() {
        let (mut pace, most) = (Pace::default(), TARGET / 8);
        pace.observe(1000, most / 2, TARGET);
        assert_eq!(pace.brief_time(10, TARGET), most, "no clock has measured it");
        let took = Duration::from_micros(20);
        pace.clock(10, took, TARGET);
        assert_eq!(pace.brief_time(10, TARGET), took);
        assert_eq!(pace.brief_time(5, TARGET), took, "half of it may wait as long");
        assert_eq!(pace.brief_time(20, TARGET), 2 * took);
        assert_eq!(pace.brief_time(1000, TARGET), most);
        assert!(pace.is_brief(1000, TARGET), "nothing was said of so many");
        pace.clock(400, most, TARGET);
        assert!(pace.is_brief(100, TARGET) && !pace.is_brief(400, TARGET), "so many are not");
        pace.doubt();
        assert_eq!(pace.brief_time(10, TARGET), most);
    }

    #[test]
    fn an_unknown_kernel_begins_small_and_grows_fast() {
        let slices = run(&mut Pace::default(), 1 << 20, 1);
        assert_eq!(slices[..4], [FIRST, 4 * FIRST, 16 * FIRST, 64 * FIRST]);
        assert!(slices.len() <= 10, "{slices:?}");
    }

    #[test]
    fn a_machine_that_was_busy_for_a_slice_has_short_slices_for_three() {
        let mut pace = Pace::default();
        run(&mut pace, 10_000_000, 1000);
        let before = pace.groups(TARGET);
        pace.observe(before, TARGET * 5, TARGET);
        let short = pace.groups(TARGET);
        assert!(short <= before / 4, "{short} groups: it may have been the kernel");
        for _ in 0..3 {
            pace.observe(short, Duration::from_nanos(OVERHEAD + short * 1000), TARGET);
        }
        let after = pace.groups(TARGET);
        assert!(after >= before * 3 / 4, "{after} groups after {before}");
    }

    #[test]
    fn a_short_dispatch_of_a_known_kernel_is_one_slice() {
        let mut pace = Pace::default();
        run(&mut pace, 1000, 100);
        for _ in 0..100 {
            assert_eq!(run(&mut pace, 1, 100), [1]);
            assert_eq!(run(&mut pace, 1000, 100), [1000]);
        }
    }
}
