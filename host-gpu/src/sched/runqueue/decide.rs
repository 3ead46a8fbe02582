//! Which entity should have the engine, and for how long.

use std::time::Duration;

use super::entity::Entity;
use super::entity::Tier;
use super::entity::grace;
use super::entity::nanoseconds;
use super::entity::quantum;
use super::sort_keys::SortKeys;
use super::state::GroupRun;
use super::state::Runqueue;
use super::state::place;
use super::waiters::First;
use crate::sched::policy::Current;
use crate::sched::policy::Decision;
use crate::sched::policy::EntityId;

/// The running entity. Times are nanoseconds.
#[derive(Clone, Copy)]
struct Runner<'a> {
    id: EntityId,
    entity: &'a Entity,
    key: i128,
    /// Since when without a break.
    since: u64,
    /// Since when its group.
    group_since: u64,
}

/// An entity that may preempt the running one, and from when on.
#[derive(Clone, Copy)]
struct Claim {
    first: First,
    from: u64,
}

impl<K: SortKeys> Runqueue<K> {
    /// Decides, with everything up to date.
    pub(super) fn choose(&mut self, current: Option<Current>) -> Decision {
        let current =
            current.filter(|current| self.entities.get(&current.entity).is_some_and(Entity::is_runnable));
        let next = self.next_tier().and_then(|tier| Some((self.next_in(tier, current)?, tier)));
        let Some(((next, since), tier)) = next else {
            (self.chosen, self.group_run) = (None, None);
            return self.decision(None, u64::MAX);
        };
        self.chosen = current.is_none_or(|current| current.entity != next).then_some(next);
        let until = self.runner(next, since).map_or(u64::MAX, |runner| self.hold(&runner, tier));
        self.decision(Some(next), until)
    }

    /// The next entity of the tier that has its turn, and since when it has run.
    fn next_in(&mut self, tier: Tier, current: Option<Current>) -> Option<(EntityId, u64)> {
        let goes_on = match current {
            Some(current) => {
                self.group_run = self.group_run_of(current);
                Some((current.entity, nanoseconds(current.since).min(self.now)))
            }
            None if self.chosen.is_some_and(|chosen| self.is_eligible(chosen, tier)) => {
                return Some((self.chosen?, self.now));
            }
            None => {
                // A group goes on with another of its entities.
                let quantum = quantum(self.settings.bands[tier.band() as usize].process_quantum);
                self.group_run = self.group_run.filter(|run| run.since.saturating_add(quantum) > self.now);
                let sibling =
                    self.group_run.and_then(|group_run| self.waiters.first_of_group(tier, group_run.group));
                sibling.map(|sibling| (sibling.id, self.now))
            }
        };
        let Some((id, since)) = goes_on else {
            return Some((self.waiters.first(tier)?.id, self.now));
        };
        let claims = self.claims(&self.runner(id, since)?, tier).into_iter().flatten();
        let due = claims.filter(|claim| claim.from <= self.now);
        let claim = due.min_by_key(|claim| (claim.first.key, claim.first.id));
        Some(claim.map_or((id, since), |claim| (claim.first.id, self.now)))
    }

    /// Whether an entity may run in this tier.
    fn is_eligible(&self, id: EntityId, tier: Tier) -> bool {
        let entity = self.entities.get(&id).filter(|entity| entity.is_runnable() && entity.tier == tier);
        entity.is_some_and(|entity| self.waiters.first_above(place(entity)).is_none())
    }

    /// The tier that has its turn.
    fn next_tier(&mut self) -> Option<Tier> {
        let top = self.waiters.top()?;
        if let Some(tier) = self.starvation_guard.due(&self.waiters, top, self.now) {
            return Some(tier);
        }
        let due = top == Tier::FOCUS && self.share.is_due() && self.waiters.has(Tier::NORMAL);
        Some(if due { Tier::NORMAL } else { top })
    }

    /// The run of the group that `current` belongs to.
    fn group_run_of(&self, current: Current) -> Option<GroupRun> {
        let group = self.entities.get(&current.entity)?.group;
        let since = nanoseconds(current.since).min(self.now);
        let known = self.group_run.filter(|run| run.group == group && run.since <= since);
        Some(known.unwrap_or(GroupRun { group, since }))
    }

    fn runner(&self, id: EntityId, since: u64) -> Option<Runner<'_>> {
        let entity = self.entities.get(&id)?;
        let group_run = self.group_run.filter(|run| run.group == entity.group);
        let key = self.waiters.key(place(entity), entity.key);
        Some(Runner { id, entity, key, since, group_since: group_run.map_or(since, |run| run.since) })
    }

    /// Until when the running entity goes on if nothing happens.
    fn hold(&self, runner: &Runner<'_>, tier: Tier) -> u64 {
        let mut until = u64::MAX;
        for claim in self.claims(runner, tier).into_iter().flatten() {
            until = until.min(claim.from);
        }
        let guard = self.starvation_guard.left(runner.entity.tier).map(|left| self.now.saturating_add(left));
        let next = self.waiters.top().map(|top| self.starvation_guard.next(&self.waiters, top));
        until = guard.or(next).map_or(until, |change| until.min(change));
        if let Some(bucket) = &runner.entity.bucket {
            until = until.min(self.now.saturating_add(bucket.lasts()));
        }
        if self.waiters.has(Tier::NORMAL)
            && self.waiters.has(Tier::FOCUS)
            && let Some(time) = self.share.turn_of_other_in(runner.entity.tier.band())
        {
            until = until.min(self.now.saturating_add(time));
        }
        until
    }

    /// The entities that may preempt the running one, and when: where another tier comes before its own, the first of that one; else
    /// the first of a higher priority of its group, of its own queue, and of another group.
    fn claims(&self, runner: &Runner<'_>, tier: Tier) -> [Option<Claim>; 3] {
        if tier != runner.entity.tier {
            return [self.claim_of_tier(runner, tier), None, None];
        }
        let from_above = self.waiters.first_above(place(runner.entity)).and_then(|(first, since)| {
            let from = since.max(runner.since).saturating_add(self.entities.get(&first.id)?.grace_lower);
            Some(Claim { first: self.waiters.first(tier)?, from })
        });
        let settings = &self.settings.bands[tier.band() as usize];
        let sibling = self.waiters.first_sibling(place(runner.entity), runner.id).and_then(|first| {
            let grace = self.entities.get(&first.id)?.grace_same;
            let end = runner.since.saturating_add(runner.entity.quantum);
            Some(self.claim_of_equal(runner, first, runner.since, end, grace))
        });
        let elsewhere = self.waiters.first_elsewhere(tier, runner.entity.group).map(|first| {
            let quantum = quantum(settings.process_quantum);
            // An entity that its group has just gone on with has some time too.
            let least = runner.since.saturating_add(quantum.min(runner.entity.quantum));
            let end = runner.group_since.saturating_add(quantum).max(least);
            self.claim_of_equal(runner, first, runner.group_since, end, grace(settings.process_grace))
        });
        [from_above, sibling, elsewhere]
    }

    /// The claim of a tier that comes before that of the running entity (PRE-66, PRE-67).
    fn claim_of_tier(&self, runner: &Runner<'_>, tier: Tier) -> Option<Claim> {
        let first = self.waiters.first(tier)?;
        let waits_since = self.waiters.since(tier).max(runner.since);
        let from = if tier < runner.entity.tier {
            // Its share or its guard time is due: the running entity has had its own.
            self.now
        } else if tier.band() == runner.entity.tier.band() {
            waits_since.saturating_add(self.entities.get(&first.id)?.grace_lower)
        } else {
            waits_since.saturating_add(grace(self.settings.bands[tier.band() as usize].grace))
        };
        Some(Claim { first, from })
    }

    /// The claim of an entity of the same tier and priority: it may preempt when the running one is no longer before it, and has had
    /// its quantum or, if the other woke meanwhile, its grace.
    fn claim_of_equal(&self, runner: &Runner<'_>, first: First, since: u64, end: u64, grace: u64) -> Claim {
        let woke = self.entities.get(&first.id).map_or(0, |entity| entity.since);
        let end = if woke > since { end.min(woke.saturating_add(grace)) } else { end };
        // An entity that got the engine for work of another tier has no quantum in this one.
        let end = if runner.entity.moved > runner.since { self.now } else { end };
        let passes = self.keys.passes_in(runner.entity, runner.key, first.key);
        let from = if passes == 0 { end } else { end.max(self.now.saturating_add(passes)) };
        Claim { first, from }
    }

    fn decision(&self, next: Option<EntityId>, until: u64) -> Decision {
        let rest = self.throttled.first().map_or(u64::MAX, |&(until, _)| until);
        let until = until.min(rest).max(self.now.saturating_add(1));
        Decision { next, until: (until < u64::MAX).then(|| Duration::from_nanos(until)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::sched::fair::Fair;
    use crate::sched::parameters::Band;
    use crate::sched::parameters::Parameters;
    use crate::sched::policy::Current;
    use crate::sched::policy::EntityId;
    use crate::sched::policy::Policy;

    const FIRST: EntityId = EntityId(1);
    const SIBLING: EntityId = EntityId(2);
    const OTHER: EntityId = EntityId(3);

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Entities of the groups and bands that are given, all runnable from the beginning.
    fn awake(entities: &[(EntityId, u64, Band)]) -> Fair {
        let mut fair = Fair::default();
        for (id, group, band) in entities {
            fair.add(*id, Parameters { group: *group, band: *band, ..Parameters::default() }, us(0));
            fair.wake(*id, us(0));
        }
        fair
    }

    #[test]
    fn pre_66_one_that_waits_from_the_start_gets_its_turn_after_a_quantum_and_not_after_a_grace() {
        let mut fair = awake(&[(FIRST, 1, Band::Normal), (OTHER, 2, Band::Normal)]);
        let current = Some(Current { entity: FIRST, since: us(0) });
        fair.charge(FIRST, us(1999), us(1999));
        let decision = fair.decide(current, us(1999));
        assert_eq!((decision.next, decision.until), (Some(FIRST), Some(us(2000))));
        fair.charge(FIRST, us(1), us(2000));
        assert_eq!(fair.decide(current, us(2000)).next, Some(OTHER));
    }

    #[test]
    fn pre_67_a_group_goes_on_with_another_entity_until_its_quantum_ends() {
        for (slept, next) in [(1999, SIBLING), (2000, OTHER)] {
            let mut fair =
                awake(&[(FIRST, 1, Band::Normal), (SIBLING, 1, Band::Normal), (OTHER, 2, Band::Normal)]);
            // The sibling comes after the other group.
            fair.charge(SIBLING, us(100), us(0));
            fair.charge(FIRST, us(1000), us(1000));
            let current = Some(Current { entity: FIRST, since: us(0) });
            assert_eq!(fair.decide(current, us(1000)).next, Some(FIRST));
            fair.charge(FIRST, us(slept - 1000), us(slept));
            fair.sleep(FIRST, us(slept));
            assert_eq!(fair.decide(None, us(slept)).next, Some(next), "{slept} us");
        }
    }

    #[test]
    fn pre_68_a_share_that_is_due_waits_for_no_grace() {
        let mut fair = awake(&[(FIRST, 1, Band::Focus), (OTHER, 2, Band::Normal)]);
        fair.charge(FIRST, us(18_000), us(18_000));
        let just_now = Some(Current { entity: FIRST, since: us(18_000) });
        assert_eq!(fair.decide(just_now, us(18_000)).next, Some(OTHER));
    }
}
