//! `strict-priority`: tiers, priorities in a group, and round robin by quantum among equals. Weights and the share of
//! normal count for nothing; caps hold.

use super::runqueue::Runqueue;
use super::runqueue::entity::Entity;
use super::runqueue::entity::LONGEST;
use super::runqueue::entity::Tier;
use super::runqueue::sort_keys::SortKeys;

/// The policy `strict-priority`.
pub type StrictPriority = Runqueue<Rounds>;

/// Most rounds that an entity is skipped for, after it could not be stopped in time.
const MOST_ROUNDS: u64 = 10_000;
/// A round, in keys.
const ROUND: i128 = 1 << 64;

/// Keys are a round, and in that the order of arrival.
#[derive(Debug)]
pub struct Rounds {
    clocks: [i128; Tier::COUNT],
    arrivals: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { clocks: [0; Tier::COUNT], arrivals: 0 }
    }
}

fn round(key: i128) -> i128 {
    key.div_euclid(ROUND)
}

impl Rounds {
    fn last_of(&mut self, round: i128) -> i128 {
        self.arrivals = self.arrivals.wrapping_add(1);
        round.saturating_mul(ROUND).saturating_add(i128::from(self.arrivals))
    }
}

impl SortKeys for Rounds {
    const NAME: &'static str = "strict-priority";
    const NORMAL_SHARE: bool = false;

    fn clock(&self, tier: Tier) -> i128 {
        self.clocks[tier.place()]
    }

    fn advance_clock(&mut self, tier: Tier, key: i128) {
        let clock = &mut self.clocks[tier.place()];
        *clock = key.max(*clock);
    }

    fn floor(&self, tier: Tier) -> i128 {
        self.clock(tier)
    }

    fn key_on_enqueue(&mut self, entity: &mut Entity, _absent: u64) -> i128 {
        let current = round(self.clock(entity.tier));
        if round(entity.key) < current {
            entity.spent = 0;
        }
        self.last_of(current.max(round(entity.key)))
    }

    fn key_after(&mut self, entity: &mut Entity, key: i128, time: u64) -> i128 {
        entity.spent = entity.spent.saturating_add(time);
        let rounds = (entity.spent / entity.quantum).min(MOST_ROUNDS);
        if rounds == 0 {
            return key;
        }
        entity.spent %= entity.quantum;
        self.last_of(round(key).saturating_add(i128::from(rounds)))
    }

    fn bound_debt(&self, entity: &Entity, key: i128) -> i128 {
        let most = i128::from((LONGEST / entity.quantum).clamp(1, MOST_ROUNDS));
        key.min(self.clock(entity.tier).saturating_add(most * ROUND))
    }

    fn passes_in(&self, entity: &Entity, key: i128, other: i128) -> u64 {
        if other < key {
            return 0;
        }
        let rounds = u64::try_from(round(other) - round(key)).unwrap_or(u64::MAX).max(1);
        rounds.saturating_mul(entity.quantum).saturating_sub(entity.spent).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::ROUND;
    use super::Rounds;
    use crate::sched::parameters::Parameters;
    use crate::sched::runqueue::entity::Entity;
    use crate::sched::runqueue::sort_keys::SortKeys;

    #[test]
    fn one_that_missed_a_round_begins_the_next_with_a_whole_quantum() {
        let (mut keys, mut entity) = (Rounds::default(), Entity::new(&Parameters::default(), 0));
        entity.spent = 5;
        let key = keys.key_on_enqueue(&mut entity, 0);
        assert_eq!((key.div_euclid(ROUND), entity.spent), (0, 5), "it is still the same round");
        keys.advance_clock(entity.tier, ROUND + 3);
        let key = keys.key_on_enqueue(&mut entity, 0);
        assert_eq!((key.div_euclid(ROUND), entity.spent), (1, 0));
        entity.key = 2 * ROUND;
        entity.spent = 5;
        let key = keys.key_on_enqueue(&mut entity, 0);
        assert_eq!((key.div_euclid(ROUND), entity.spent), (2, 5), "it is ahead");
    }

    #[test]
    fn one_that_is_level_is_passed_after_a_round_and_one_that_is_before_at_once() {
        let (keys, mut entity) = (Rounds::default(), Entity::new(&Parameters::default(), 0));
        assert_eq!(keys.passes_in(&entity, ROUND + 7, ROUND + 6), 0);
        assert_eq!(keys.passes_in(&entity, 7, 7), entity.quantum);
        assert_eq!(keys.passes_in(&entity, 7, 3 * ROUND), 3 * entity.quantum);
        entity.spent = 100;
        assert_eq!(keys.passes_in(&entity, 7, 7), entity.quantum - 100);
    }
}
