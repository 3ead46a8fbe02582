//! `strict-priority`: tiers, priorities in a group, and round robin by quantum among equals. Weights and the share of
//! normal count for nothing; caps hold.

use super::rota::Rota;
use super::rota::member::LONGEST;
use super::rota::member::Member;
use super::rota::member::Tier;
use super::rota::order::Order;

/// The policy.
pub type StrictPriority = Rota<Rounds>;

/// Most rounds that somebody is out for, after it could not be stopped in time.
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

impl Order for Rounds {
    const NAME: &'static str = "strict-priority";
    const NORMAL_SHARE: bool = false;

    fn clock(&self, tier: Tier) -> i128 {
        self.clocks[tier.place()]
    }

    fn first_is(&mut self, tier: Tier, key: i128) {
        let clock = &mut self.clocks[tier.place()];
        *clock = key.max(*clock);
    }

    fn floor(&self, tier: Tier) -> i128 {
        self.clock(tier)
    }

    fn enters(&mut self, member: &mut Member, _absent: u64) -> i128 {
        let current = round(self.clock(member.tier));
        if round(member.key) < current {
            member.spent = 0;
        }
        self.last_of(current.max(round(member.key)))
    }

    fn ran(&mut self, member: &mut Member, key: i128, time: u64) -> i128 {
        member.spent = member.spent.saturating_add(time);
        let rounds = (member.spent / member.quantum).min(MOST_ROUNDS);
        if rounds == 0 {
            return key;
        }
        member.spent %= member.quantum;
        self.last_of(round(key).saturating_add(i128::from(rounds)))
    }

    fn bound(&self, member: &Member, key: i128) -> i128 {
        let most = i128::from((LONGEST / member.quantum).clamp(1, MOST_ROUNDS));
        key.min(self.clock(member.tier).saturating_add(most * ROUND))
    }

    fn passes_in(&self, member: &Member, key: i128, other: i128) -> u64 {
        if other < key {
            return 0;
        }
        let rounds = u64::try_from(round(other) - round(key)).unwrap_or(u64::MAX).max(1);
        rounds.saturating_mul(member.quantum).saturating_sub(member.spent).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::ROUND;
    use super::Rounds;
    use crate::scheduling::parameters::Parameters;
    use crate::scheduling::rota::member::Member;
    use crate::scheduling::rota::order::Order;

    #[test]
    fn one_that_missed_a_round_begins_the_next_with_a_whole_quantum() {
        let (mut order, mut member) = (Rounds::default(), Member::new(&Parameters::default(), 0));
        member.spent = 5;
        let key = order.enters(&mut member, 0);
        assert_eq!((key.div_euclid(ROUND), member.spent), (0, 5), "it is still the same round");
        order.first_is(member.tier, ROUND + 3);
        let key = order.enters(&mut member, 0);
        assert_eq!((key.div_euclid(ROUND), member.spent), (1, 0));
        member.key = 2 * ROUND;
        member.spent = 5;
        let key = order.enters(&mut member, 0);
        assert_eq!((key.div_euclid(ROUND), member.spent), (2, 5), "it is ahead");
    }

    #[test]
    fn one_that_is_level_is_passed_after_a_round_and_one_that_is_before_at_once() {
        let (order, mut member) = (Rounds::default(), Member::new(&Parameters::default(), 0));
        assert_eq!(order.passes_in(&member, ROUND + 7, ROUND + 6), 0);
        assert_eq!(order.passes_in(&member, 7, 7), member.quantum);
        assert_eq!(order.passes_in(&member, 7, 3 * ROUND), 3 * member.quantum);
        member.spent = 100;
        assert_eq!(order.passes_in(&member, 7, 7), member.quantum - 100);
    }
}
