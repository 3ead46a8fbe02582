//! Who should have the engine, and for how long.

use std::time::Duration;

use super::line::First;
use super::member::Member;
use super::member::Tier;
use super::member::grace;
use super::member::nanoseconds;
use super::member::quantum;
use super::order::Order;
use super::state::Rota;
use super::state::Stint;
use super::state::place;
use crate::scheduling::policy::Current;
use crate::scheduling::policy::Decision;
use crate::scheduling::policy::EntityId;

/// Who runs, as decisions need it. Times are nanoseconds.
#[derive(Clone, Copy)]
struct Runner<'a> {
    entity: EntityId,
    member: &'a Member,
    key: i128,
    /// Since when without a break.
    since: u64,
    /// Since when its group.
    group_since: u64,
}

/// Someone who may take the engine from who runs, and when.
#[derive(Clone, Copy)]
struct Claim {
    first: First,
    from: u64,
}

impl<O: Order> Rota<O> {
    /// Decides, with everything up to date.
    pub(super) fn choose(&mut self, current: Option<Current>) -> Decision {
        let current =
            current.filter(|current| self.members.get(&current.entity).is_some_and(Member::in_line));
        let next = self.next_tier().and_then(|tier| Some((self.next_in(tier, current)?, tier)));
        let Some(((next, since), tier)) = next else {
            (self.chosen, self.stint) = (None, None);
            return self.decision(None, u64::MAX);
        };
        self.chosen = current.is_none_or(|current| current.entity != next).then_some(next);
        let until = self.runner(next, since).map_or(u64::MAX, |runner| self.hold(&runner, tier));
        self.decision(Some(next), until)
    }

    /// Who comes next in the tier whose turn it is, and since when it has run.
    fn next_in(&mut self, tier: Tier, current: Option<Current>) -> Option<(EntityId, u64)> {
        let goes_on = match current {
            Some(current) => {
                self.stint = self.stint_of(current);
                Some((current.entity, nanoseconds(current.since).min(self.now)))
            }
            None if self.chosen.is_some_and(|chosen| self.is_eligible(chosen, tier)) => {
                return Some((self.chosen?, self.now));
            }
            None => {
                // A group goes on through another of its members.
                let quantum = quantum(self.settings.bands[tier.band() as usize].process_quantum);
                self.stint = self.stint.filter(|stint| stint.since.saturating_add(quantum) > self.now);
                let mate = self.stint.and_then(|stint| self.line.first_of_group(tier, stint.group));
                mate.map(|mate| (mate.entity, self.now))
            }
        };
        let Some((entity, since)) = goes_on else {
            return Some((self.line.first(tier)?.entity, self.now));
        };
        let claims = self.claims(&self.runner(entity, since)?, tier).into_iter().flatten();
        let due = claims.filter(|claim| claim.from <= self.now);
        let claim = due.min_by_key(|claim| (claim.first.key, claim.first.entity));
        Some(claim.map_or((entity, since), |claim| (claim.first.entity, self.now)))
    }

    /// Whether somebody may run in this tier.
    fn is_eligible(&self, entity: EntityId, tier: Tier) -> bool {
        let member = self.members.get(&entity).filter(|member| member.in_line() && member.tier == tier);
        member.is_some_and(|member| self.line.first_above(place(member)).is_none())
    }

    /// The tier whose turn it is.
    fn next_tier(&mut self) -> Option<Tier> {
        let top = self.line.top()?;
        if let Some(tier) = self.patience.due(&self.line, top, self.now) {
            return Some(tier);
        }
        let due = top == Tier::FOCUS && self.share.is_due() && self.line.has(Tier::NORMAL);
        Some(if due { Tier::NORMAL } else { top })
    }

    /// The run of the group that `current` belongs to.
    fn stint_of(&self, current: Current) -> Option<Stint> {
        let group = self.members.get(&current.entity)?.group;
        let since = nanoseconds(current.since).min(self.now);
        let known = self.stint.filter(|stint| stint.group == group && stint.since <= since);
        Some(known.unwrap_or(Stint { group, since }))
    }

    fn runner(&self, entity: EntityId, since: u64) -> Option<Runner<'_>> {
        let member = self.members.get(&entity)?;
        let stint = self.stint.filter(|stint| stint.group == member.group);
        let key = self.line.key(place(member), member.key);
        Some(Runner { entity, member, key, since, group_since: stint.map_or(since, |stint| stint.since) })
    }

    /// How long who runs goes on if nothing happens.
    fn hold(&self, runner: &Runner<'_>, tier: Tier) -> u64 {
        let mut until = u64::MAX;
        for claim in self.claims(runner, tier).into_iter().flatten() {
            until = until.min(claim.from);
        }
        let relief = self.patience.left(runner.member.tier).map(|left| self.now.saturating_add(left));
        let next = self.line.top().map(|top| self.patience.next(&self.line, top));
        until = relief.or(next).map_or(until, |change| until.min(change));
        if let Some(bucket) = &runner.member.bucket {
            until = until.min(self.now.saturating_add(bucket.lasts()));
        }
        if self.line.has(Tier::NORMAL)
            && self.line.has(Tier::FOCUS)
            && let Some(time) = self.share.turn_of_other_in(runner.member.tier.band())
        {
            until = until.min(self.now.saturating_add(time));
        }
        until
    }

    /// Who may take the engine from who runs, and when: where a tier comes before its own, that one; else one from above
    /// in its group, a mate, and one of another group.
    fn claims(&self, runner: &Runner<'_>, tier: Tier) -> [Option<Claim>; 3] {
        if tier != runner.member.tier {
            return [self.claim_of_tier(runner, tier), None, None];
        }
        let from_above = self.line.first_above(place(runner.member)).and_then(|(first, since)| {
            let from = since.max(runner.since).saturating_add(self.members.get(&first.entity)?.grace_lower);
            Some(Claim { first: self.line.first(tier)?, from })
        });
        let settings = &self.settings.bands[tier.band() as usize];
        let mate = self.line.first_mate(place(runner.member), runner.entity).and_then(|first| {
            let grace = self.members.get(&first.entity)?.grace_same;
            let end = runner.since.saturating_add(runner.member.quantum);
            Some(self.claim_of_equal(runner, first, runner.since, end, grace))
        });
        let elsewhere = self.line.first_elsewhere(tier, runner.member.group).map(|first| {
            let quantum = quantum(settings.process_quantum);
            // One that only just took over in its group has some time too.
            let least = runner.since.saturating_add(quantum.min(runner.member.quantum));
            let end = runner.group_since.saturating_add(quantum).max(least);
            self.claim_of_equal(runner, first, runner.group_since, end, grace(settings.process_grace))
        });
        [from_above, mate, elsewhere]
    }

    /// A tier that comes before that of who runs (PRE-66, PRE-67).
    fn claim_of_tier(&self, runner: &Runner<'_>, tier: Tier) -> Option<Claim> {
        let first = self.line.first(tier)?;
        let waits_since = self.line.since(tier).max(runner.since);
        let from = if tier < runner.member.tier {
            // Its share is due, or it got nothing for long: who runs has had its own.
            self.now
        } else if tier.band() == runner.member.tier.band() {
            waits_since.saturating_add(self.members.get(&first.entity)?.grace_lower)
        } else {
            waits_since.saturating_add(grace(self.settings.bands[tier.band() as usize].grace))
        };
        Some(Claim { first, from })
    }

    /// One of the same standing: when who runs is no more before it, and has had its quantum or, if the other woke
    /// meanwhile, its grace.
    fn claim_of_equal(&self, runner: &Runner<'_>, first: First, since: u64, end: u64, grace: u64) -> Claim {
        let woke = self.members.get(&first.entity).map_or(0, |member| member.since);
        let end = if woke > since { end.min(woke.saturating_add(grace)) } else { end };
        // Who got the engine for work of another tier has no quantum in this one.
        let end = if runner.member.moved > runner.since { self.now } else { end };
        let passes = self.order.passes_in(runner.member, runner.key, first.key);
        let from = if passes == 0 { end } else { end.max(self.now.saturating_add(passes)) };
        Claim { first, from }
    }

    fn decision(&self, next: Option<EntityId>, until: u64) -> Decision {
        let rest = self.resting.first().map_or(u64::MAX, |&(until, _)| until);
        let until = until.min(rest).max(self.now.saturating_add(1));
        Decision { next, until: (until < u64::MAX).then(|| Duration::from_nanos(until)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::scheduling::fair::Fair;
    use crate::scheduling::parameters::Band;
    use crate::scheduling::parameters::Parameters;
    use crate::scheduling::policy::Current;
    use crate::scheduling::policy::EntityId;
    use crate::scheduling::policy::Policy;

    const FIRST: EntityId = EntityId(1);
    const MATE: EntityId = EntityId(2);
    const OTHER: EntityId = EntityId(3);

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Members of the groups and bands that are given, all with work from the beginning.
    fn awake(members: &[(EntityId, u64, Band)]) -> Fair {
        let mut fair = Fair::default();
        for (entity, group, band) in members {
            fair.add(*entity, Parameters { group: *group, band: *band, ..Parameters::default() }, us(0));
            fair.wake(*entity, us(0));
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
    fn pre_67_a_group_goes_on_through_another_member_until_its_quantum_ends() {
        for (slept, next) in [(1999, MATE), (2000, OTHER)] {
            let mut fair =
                awake(&[(FIRST, 1, Band::Normal), (MATE, 1, Band::Normal), (OTHER, 2, Band::Normal)]);
            // The mate is behind the other group.
            fair.charge(MATE, us(100), us(0));
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
