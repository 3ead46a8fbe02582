//! `fair`: start-time fair queueing over engine time (MCDM-09, MCDM-10).
//!
//! Each member has a virtual time: the engine time that it had, over its weight. Of a tier, whoever is furthest behind
//! comes next. Groups get no share of their own; their members do, so a process cannot be starved by another's number of
//! contexts, nor gain from spreading its own.
//!
//! Debts and credits are bounded. Who could not be stopped gets ahead of the clock by [`DEBT`] at most. Who sleeps falls behind
//! it by [`CREDIT`]; but who was behind when it left the line, since others overran their turns, still is when it comes
//! back, by [`OWED`] at most, less the time it was away: to run dry for a moment is no reason to lose a turn.

use std::time::Duration;

use super::parameters::DEFAULT_WEIGHT;
use super::parameters::MAX_WEIGHT;
use super::rota::Rota;
use super::rota::member::Member;
use super::rota::member::Tier;
use super::rota::order::Order;

/// The policy.
pub type Fair = Rota<VirtualTime>;

/// What who sleeps saves up: engine time of its own that it may have at once.
pub const CREDIT: Duration = Duration::from_millis(2);
/// Most that is owed to who was behind when it left the line: a turn of somebody else, and the slices under way at its end.
/// More would give who never used its turns up one long turn.
pub const OWED: Duration = Duration::from_millis(10);
/// Most engine time that is held against somebody: longer than what an engine that cannot stop may take before it is
/// reset is not forgiven.
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

impl Order for VirtualTime {
    const NAME: &'static str = "fair";
    const NORMAL_SHARE: bool = true;

    fn clock(&self, tier: Tier) -> i128 {
        self.clocks[tier.place()]
    }

    fn first_is(&mut self, tier: Tier, key: i128) {
        let clock = &mut self.clocks[tier.place()];
        *clock = key.max(*clock);
    }

    fn floor(&self, tier: Tier) -> i128 {
        self.clock(tier).saturating_sub(virtual_time(CREDIT.as_nanos(), DEFAULT_WEIGHT))
    }

    fn enters(&mut self, member: &mut Member, absent: u64) -> i128 {
        let own = |time: u128| virtual_time(time, member.weight);
        let clock = self.clock(member.tier);
        // Who leaves and comes back at once was not away, though others may have left meanwhile, and moved the clock.
        let owed = if absent == 0 { clock.saturating_sub(member.key) } else { member.absence.owed };
        let left = owed.min(own(OWED.as_nanos())).saturating_sub(own(u128::from(absent)));
        member.key.max(clock.saturating_sub(left.max(own(CREDIT.as_nanos()))))
    }

    fn ran(&mut self, member: &mut Member, key: i128, time: u64) -> i128 {
        key.saturating_add(virtual_time(u128::from(time), member.weight).max(1))
    }

    fn bound(&self, member: &Member, key: i128) -> i128 {
        let debt = virtual_time(DEBT.as_nanos(), member.weight);
        key.min(self.clock(member.tier).saturating_add(debt))
    }

    fn passes_in(&self, member: &Member, key: i128, other: i128) -> u64 {
        if other < key {
            return 0;
        }
        let ahead = other.saturating_sub(key).saturating_add(1);
        let time = ahead.saturating_mul(i128::from(member.weight)) / SCALE;
        u64::try_from(time).unwrap_or(u64::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::VirtualTime;
    use crate::scheduling::parameters::Parameters;
    use crate::scheduling::rota::member::Member;
    use crate::scheduling::rota::order::Order;

    #[test]
    fn one_that_is_level_is_passed_in_a_moment_and_one_that_is_before_at_once() {
        let (order, member) = (VirtualTime::default(), Member::new(&Parameters::default(), 0));
        assert_eq!(order.passes_in(&member, 7, 6), 0);
        assert_eq!(order.passes_in(&member, 7, 7), 1);
        // A hundredth of the largest weight: a hundred of virtual time are one of the engine's.
        assert_eq!(order.passes_in(&member, 0, 99), 2);
    }
}
