//! The starvation guard: a tier with work that got no engine time for a second, since tiers above it always had work, gets 2 ms.
//! So a wait for a fence that a context of a low tier has to signal is bounded (priority inversion).

use super::entity::Tier;
use super::waiters::Waiters;
use crate::sched::parameters::Band;

/// How long a tier with work goes without engine time until the guard steps in, nanoseconds.
pub const STARVED_AFTER: u64 = 1_000_000_000;
/// The engine time that it gets then, nanoseconds.
pub const GUARD_TIME: u64 = 2_000_000;

/// When each tier last had the engine. Times are nanoseconds.
#[derive(Debug)]
pub struct StarvationGuard {
    served: [u64; Tier::COUNT],
    /// What is left of its guard time.
    guard_time: [u64; Tier::COUNT],
}

impl Default for StarvationGuard {
    fn default() -> Self {
        Self { served: [0; Tier::COUNT], guard_time: [0; Tier::COUNT] }
    }
}

impl StarvationGuard {
    /// A tier had the engine for `time`, up to `now`.
    pub fn charge(&mut self, tier: Tier, time: u64, now: u64) {
        let guard_time = &mut self.guard_time[tier.place()];
        *guard_time = guard_time.saturating_sub(time);
        self.served[tier.place()] = now;
    }

    /// The tier below `top` whose guard time is due, or not used up.
    pub fn due(&mut self, waiters: &Waiters, top: Tier, now: u64) -> Option<Tier> {
        // Realtime work that has just come is not delayed by lower tiers.
        if top.band() == Band::Realtime && waiters.since(top).saturating_add(STARVED_AFTER) > now {
            return None;
        }
        let mut below = tiers_below(waiters, top);
        if let Some(tier) = below.find(|tier| self.guard_time[tier.place()] > 0) {
            return Some(tier);
        }
        let tier = tiers_below(waiters, top).find(|&tier| self.at(waiters, top, tier) <= now)?;
        self.guard_time[tier.place()] = GUARD_TIME;
        Some(tier)
    }

    /// When the first tier below `top` is due; `u64::MAX` without one.
    pub fn next(&self, waiters: &Waiters, top: Tier) -> u64 {
        tiers_below(waiters, top).map(|tier| self.at(waiters, top, tier)).min().unwrap_or(u64::MAX)
    }

    /// What is left of the guard time of a tier that has some.
    pub fn left(&self, tier: Tier) -> Option<u64> {
        let left = self.guard_time[tier.place()];
        (left > 0).then_some(left)
    }

    /// A tier has no work any more.
    pub fn sleeps(&mut self, tier: Tier) {
        self.guard_time[tier.place()] = 0;
    }

    fn at(&self, waiters: &Waiters, top: Tier, tier: Tier) -> u64 {
        let waits = self.served[tier.place()].max(waiters.since(tier));
        let waits = if top.band() == Band::Realtime { waits.max(waiters.since(top)) } else { waits };
        waits.saturating_add(STARVED_AFTER)
    }
}

fn tiers_below(waiters: &Waiters, top: Tier) -> impl Iterator<Item = Tier> + '_ {
    (0..top.place()).filter_map(Tier::at).filter(|&tier| waiters.has(tier))
}

#[cfg(test)]
mod tests {
    use super::GUARD_TIME;
    use super::STARVED_AFTER;
    use super::StarvationGuard;
    use super::Tier;
    use super::Waiters;
    use crate::sched::parameters::Band;
    use crate::sched::policy::EntityId;
    use crate::sched::runqueue::waiters::Place;

    const URGENT: u8 = 5;

    /// Tiers with work, each since then.
    fn waiters(tiers: &[(Tier, u64)]) -> Waiters {
        let mut waiters = Waiters::default();
        for (number, (tier, since)) in (0..).zip(tiers) {
            waiters.insert(Place { tier: *tier, group: number, priority: 0 }, EntityId(number), 0, *since);
        }
        waiters
    }

    #[test]
    fn a_tier_that_starved_gets_all_of_its_guard_time() {
        let idle = Tier::of(Band::Idle, 0);
        let waiters = waiters(&[(Tier::NORMAL, 0), (idle, 100)]);
        let mut starvation_guard = StarvationGuard::default();
        let due =
            |starvation_guard: &mut StarvationGuard, now| starvation_guard.due(&waiters, Tier::NORMAL, now);
        assert_eq!(starvation_guard.next(&waiters, Tier::NORMAL), 100 + STARVED_AFTER);
        assert_eq!(due(&mut starvation_guard, 99 + STARVED_AFTER), None);
        assert_eq!(starvation_guard.left(idle), None);
        assert_eq!(due(&mut starvation_guard, 100 + STARVED_AFTER), Some(idle));
        assert_eq!(starvation_guard.left(idle), Some(GUARD_TIME));
        starvation_guard.charge(idle, GUARD_TIME - 1, 2 * STARVED_AFTER);
        assert_eq!(due(&mut starvation_guard, 2 * STARVED_AFTER), Some(idle), "some of it is left");
        assert_eq!(starvation_guard.left(idle), Some(1));
        starvation_guard.charge(idle, 5, 2 * STARVED_AFTER);
        assert_eq!(due(&mut starvation_guard, 2 * STARVED_AFTER), None);
        assert_eq!(starvation_guard.next(&waiters, Tier::NORMAL), 3 * STARVED_AFTER);
        assert_eq!(due(&mut starvation_guard, 3 * STARVED_AFTER), Some(idle));
        starvation_guard.sleeps(idle);
        assert_eq!(starvation_guard.left(idle), None, "a tier without work has no guard time");
        assert_eq!(starvation_guard.next(&waiters, idle), u64::MAX, "nothing is below");
    }

    #[test]
    fn realtime_work_that_has_just_come_is_not_delayed_and_later_the_lowest_tier_comes_first() {
        let top = Tier::of(Band::Realtime, URGENT);
        let waiters = waiters(&[(top, 500), (Tier::NORMAL, 0), (Tier::FOCUS, 0)]);
        let mut starvation_guard = StarvationGuard::default();
        assert_eq!(starvation_guard.next(&waiters, top), 500 + STARVED_AFTER);
        assert_eq!(starvation_guard.due(&waiters, top, 499 + STARVED_AFTER), None);
        assert_eq!(starvation_guard.due(&waiters, top, 500 + STARVED_AFTER), Some(Tier::NORMAL));
        starvation_guard.charge(Tier::NORMAL, GUARD_TIME, 600 + STARVED_AFTER);
        assert_eq!(starvation_guard.due(&waiters, top, 600 + STARVED_AFTER), Some(Tier::FOCUS));
    }
}
