//! `fair`: start-time fair queueing over engine time (MCDM-09, MCDM-10).
//!
//! Each entity has a virtual time: the engine time that it had, over its weight. Of a tier, the entity with the lowest virtual
//! time is next. Groups get no share of their own; their entities do, so a process cannot be starved by another's number of
//! contexts, nor gain from spreading its own.
//!
//! Debts and credits are bounded. An entity that could not be stopped gets ahead of the tier's clock by [`DEBT`] at most. An
//! entity that sleeps falls behind it by [`CREDIT`] at most. If it was behind when it was dequeued, since others overran their
//! turns, it still is when it is enqueued again, by [`OWED`] at most, less the time between: a queue that drains for a moment
//! keeps its claim.

use std::time::Duration;

use super::parameters::DEFAULT_WEIGHT;
use super::parameters::MAX_WEIGHT;
use super::runqueue::Runqueue;
use super::runqueue::entity::Entity;
use super::runqueue::entity::Tier;
use super::runqueue::sort_keys::SortKeys;

/// The policy `fair`.
pub type Fair = Runqueue<VirtualTime>;

/// Most that an entity saves up while it sleeps: engine time that it may have at once.
pub const CREDIT: Duration = Duration::from_millis(2);
/// Most that is owed to an entity that was behind when it was dequeued: a turn of another entity, and the slices in flight at
/// its end. More would give an entity that never used its turns up one long turn.
pub const OWED: Duration = Duration::from_millis(10);
/// Most engine time that is held against an entity: about what an engine that cannot stop may take before it is reset.
pub const DEBT: Duration = Duration::from_secs(2);

/// Virtual nanoseconds in a nanosecond at the weight 1.
const SCALE: i128 = MAX_WEIGHT as i128;

/// Keys are virtual times: nanoseconds × [`SCALE`] / weight.
#[derive(Debug)]
pub struct VirtualTime {
    clocks: [i128; Tier::COUNT],
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self { clocks: [0; Tier::COUNT] }
    }
}

fn virtual_time(time: u128, weight: u32) -> i128 {
    i128::try_from(time).unwrap_or(i128::MAX).saturating_mul(SCALE) / i128::from(weight.max(1))
}

impl SortKeys for VirtualTime {
    const NAME: &'static str = "fair";
    const NORMAL_SHARE: bool = true;

    fn clock(&self, tier: Tier) -> i128 {
        self.clocks[tier.place()]
    }

    fn advance_clock(&mut self, tier: Tier, key: i128) {
        let clock = &mut self.clocks[tier.place()];
        *clock = key.max(*clock);
    }

    fn floor(&self, tier: Tier) -> i128 {
        self.clock(tier).saturating_sub(virtual_time(CREDIT.as_nanos(), DEFAULT_WEIGHT))
    }

    fn key_on_enqueue(&mut self, entity: &mut Entity, absent: u64) -> i128 {
        let own = |time: u128| virtual_time(time, entity.weight);
        let clock = self.clock(entity.tier);
        // An entity that is enqueued again at once was not absent, though others may have been dequeued meanwhile, and moved the clock.
        let owed = if absent == 0 { clock.saturating_sub(entity.key) } else { entity.absence.owed };
        let left = owed.min(own(OWED.as_nanos())).saturating_sub(own(u128::from(absent)));
        entity.key.max(clock.saturating_sub(left.max(own(CREDIT.as_nanos()))))
    }

    fn key_after(&mut self, entity: &mut Entity, key: i128, time: u64) -> i128 {
        key.saturating_add(virtual_time(u128::from(time), entity.weight).max(1))
    }

    fn bound_debt(&self, entity: &Entity, key: i128) -> i128 {
        let debt = virtual_time(DEBT.as_nanos(), entity.weight);
        key.min(self.clock(entity.tier).saturating_add(debt))
    }

    fn passes_in(&self, entity: &Entity, key: i128, other: i128) -> u64 {
        if other < key {
            return 0;
        }
        let ahead = other.saturating_sub(key).saturating_add(1);
        let time = ahead.saturating_mul(i128::from(entity.weight)) / SCALE;
        u64::try_from(time).unwrap_or(u64::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::VirtualTime;
    use crate::sched::parameters::Parameters;
    use crate::sched::runqueue::entity::Entity;
    use crate::sched::runqueue::sort_keys::SortKeys;

    #[test]
    fn one_that_is_level_is_passed_in_a_moment_and_one_that_is_before_at_once() {
        let (keys, entity) = (VirtualTime::default(), Entity::new(&Parameters::default(), 0));
        assert_eq!(keys.passes_in(&entity, 7, 6), 0);
        assert_eq!(keys.passes_in(&entity, 7, 7), 1);
        // A hundredth of the largest weight: a hundred of virtual time are one of the engine's.
        assert_eq!(keys.passes_in(&entity, 0, 99), 2);
    }
}
