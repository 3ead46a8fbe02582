//! Tiers that got nothing for long while others above them always had work: each gets a little, so that whoever waits for
//! a fence that one of its members holds waits no longer than that takes (priority inversion is bounded).

use super::line::Line;
use super::member::Tier;
use crate::scheduling::parameters::Band;

/// How long a tier with work goes without any time of the engine, nanoseconds.
pub const PATIENCE: u64 = 1_000_000_000;
/// What it gets then, nanoseconds of the engine.
pub const RELIEF: u64 = 2_000_000;

/// What each tier got of late. Times are nanoseconds.
#[derive(Debug)]
pub struct Patience {
    served: [u64; Tier::COUNT],
    /// What is left of its relief.
    relief: [u64; Tier::COUNT],
}

impl Default for Patience {
    fn default() -> Self {
        Self { served: [0; Tier::COUNT], relief: [0; Tier::COUNT] }
    }
}

impl Patience {
    /// A tier had the engine for `time`, up to `now`.
    pub fn ran(&mut self, tier: Tier, time: u64, now: u64) {
        let relief = &mut self.relief[tier.place()];
        *relief = relief.saturating_sub(time);
        self.served[tier.place()] = now;
    }

    /// The tier below `top` whose relief is due, or under way.
    pub fn due(&mut self, line: &Line, top: Tier, now: u64) -> Option<Tier> {
        // Realtime work that has only just come is not held up by anybody.
        if top.band() == Band::Realtime && line.since(top).saturating_add(PATIENCE) > now {
            return None;
        }
        let mut below = tiers_below(line, top);
        if let Some(tier) = below.find(|tier| self.relief[tier.place()] > 0) {
            return Some(tier);
        }
        let tier = tiers_below(line, top).find(|&tier| self.at(line, top, tier) <= now)?;
        self.relief[tier.place()] = RELIEF;
        Some(tier)
    }

    /// When the first tier below `top` is due; never, without.
    pub fn next(&self, line: &Line, top: Tier) -> u64 {
        tiers_below(line, top).map(|tier| self.at(line, top, tier)).min().unwrap_or(u64::MAX)
    }

    /// What is left of a relief that is under way.
    pub fn left(&self, tier: Tier) -> Option<u64> {
        let left = self.relief[tier.place()];
        (left > 0).then_some(left)
    }

    /// A tier has no work any more.
    pub fn sleeps(&mut self, tier: Tier) {
        self.relief[tier.place()] = 0;
    }

    fn at(&self, line: &Line, top: Tier, tier: Tier) -> u64 {
        let waits = self.served[tier.place()].max(line.since(tier));
        let waits = if top.band() == Band::Realtime { waits.max(line.since(top)) } else { waits };
        waits.saturating_add(PATIENCE)
    }
}

fn tiers_below(line: &Line, top: Tier) -> impl Iterator<Item = Tier> + '_ {
    (0..top.place()).filter_map(Tier::at).filter(|&tier| line.has(tier))
}

#[cfg(test)]
mod tests {
    use super::Line;
    use super::PATIENCE;
    use super::Patience;
    use super::RELIEF;
    use super::Tier;
    use crate::scheduling::parameters::Band;
    use crate::scheduling::policy::EntityId;
    use crate::scheduling::rota::line::Place;

    const URGENT: u8 = 5;

    /// Tiers with work, each since then.
    fn line(tiers: &[(Tier, u64)]) -> Line {
        let mut line = Line::default();
        for (number, (tier, since)) in (0..).zip(tiers) {
            line.insert(Place { tier: *tier, group: number, priority: 0 }, EntityId(number), 0, *since);
        }
        line
    }

    #[test]
    fn a_tier_that_got_nothing_for_long_gets_its_relief_to_the_end() {
        let idle = Tier::of(Band::Idle, 0);
        let line = line(&[(Tier::NORMAL, 0), (idle, 100)]);
        let mut patience = Patience::default();
        let due = |patience: &mut Patience, now| patience.due(&line, Tier::NORMAL, now);
        assert_eq!(patience.next(&line, Tier::NORMAL), 100 + PATIENCE);
        assert_eq!(due(&mut patience, 99 + PATIENCE), None);
        assert_eq!(patience.left(idle), None);
        assert_eq!(due(&mut patience, 100 + PATIENCE), Some(idle));
        assert_eq!(patience.left(idle), Some(RELIEF));
        patience.ran(idle, RELIEF - 1, 2 * PATIENCE);
        assert_eq!(due(&mut patience, 2 * PATIENCE), Some(idle), "some of it is left");
        assert_eq!(patience.left(idle), Some(1));
        patience.ran(idle, 5, 2 * PATIENCE);
        assert_eq!(due(&mut patience, 2 * PATIENCE), None);
        assert_eq!(patience.next(&line, Tier::NORMAL), 3 * PATIENCE);
        assert_eq!(due(&mut patience, 3 * PATIENCE), Some(idle));
        patience.sleeps(idle);
        assert_eq!(patience.left(idle), None, "who has no work has no relief");
        assert_eq!(patience.next(&line, idle), u64::MAX, "nothing is below");
    }

    #[test]
    fn realtime_work_that_has_just_come_is_not_held_up_and_later_the_lowest_is_helped_first() {
        let top = Tier::of(Band::Realtime, URGENT);
        let line = line(&[(top, 500), (Tier::NORMAL, 0), (Tier::FOCUS, 0)]);
        let mut patience = Patience::default();
        assert_eq!(patience.next(&line, top), 500 + PATIENCE);
        assert_eq!(patience.due(&line, top, 499 + PATIENCE), None);
        assert_eq!(patience.due(&line, top, 500 + PATIENCE), Some(Tier::NORMAL));
        patience.ran(Tier::NORMAL, RELIEF, 600 + PATIENCE);
        assert_eq!(patience.due(&line, top, 600 + PATIENCE), Some(Tier::FOCUS));
    }
}
