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
