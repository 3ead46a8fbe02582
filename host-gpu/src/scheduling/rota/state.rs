//! What happens to members, apart from decisions.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::time::Duration;

use super::bucket::Bucket;
use super::line::Line;
use super::line::Place;
use super::member::Absence;
use super::member::Member;
use super::member::Past;
use super::member::Standing;
use super::member::Tier;
use super::member::nanoseconds;
use super::order::Order;
use super::patience::Patience;
use super::share::NormalShare;
use crate::scheduling::parameters::Band;
use crate::scheduling::parameters::Parameters;
use crate::scheduling::parameters::Settings;
use crate::scheduling::policy::Current;
use crate::scheduling::policy::Decision;
use crate::scheduling::policy::EntityId;
use crate::scheduling::policy::Policy;

/// What a group had, and left owing. Kept while it has members, and while something is owed.
#[derive(Debug, Default)]
struct Account {
    members: usize,
    /// Nanoseconds, by band (PRE-71).
    used: [u64; Band::ALL.len()],
}

/// A group's run of the engine, through any of its members.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stint {
    pub(super) group: u64,
    pub(super) since: u64,
}

/// A policy made of an [`Order`].
#[derive(Debug)]
pub struct Rota<O> {
    pub(super) order: O,
    pub(super) line: Line,
    pub(super) share: NormalShare,
    pub(super) patience: Patience,
    pub(super) settings: Settings,
    pub(super) stint: Option<Stint>,
    /// Whom the last decision gave the engine, until it has it: who stops meanwhile does not change that.
    pub(super) chosen: Option<EntityId>,
    /// Nanoseconds; never goes back.
    pub(super) now: u64,
    /// Who is at its cap, by when that ends.
    pub(super) resting: BTreeSet<(u64, EntityId)>,
    pub(super) members: HashMap<EntityId, Member>,
    accounts: HashMap<u64, Account>,
    /// What removed members owed: a group's next members begin with it, until the tier's clock has paid it.
    debts: HashMap<(Tier, u64), i128>,
    debts_by_key: BTreeSet<(Tier, i128, u64)>,
}

/// Most debts of removed members that are remembered.
const MOST_DEBTS: usize = 4096;

impl<O: Order> Default for Rota<O> {
    fn default() -> Self {
        let mut rota = Self {
            order: O::default(),
            line: Line::default(),
            share: NormalShare::none(),
            patience: Patience::default(),
            settings: Settings::default(),
            stint: None,
            chosen: None,
            now: 0,
            resting: BTreeSet::new(),
            members: HashMap::new(),
            accounts: HashMap::new(),
            debts: HashMap::new(),
            debts_by_key: BTreeSet::new(),
        };
        rota.set_bands(&Settings::default());
        rota
    }
}

pub(super) fn place(member: &Member) -> Place {
    Place { tier: member.tier, group: member.group, priority: member.priority }
}

impl<O: Order> Rota<O> {
    pub(super) fn pass_time(&mut self, now: Duration) {
        self.now = self.now.max(nanoseconds(now));
    }

    /// Lets those back into line whose rest is over.
    pub(super) fn end_rests(&mut self) {
        while let Some(&(until, entity)) = self.resting.first() {
            if until > self.now || until == u64::MAX {
                break;
            }
            self.resting.pop_first();
            let Some(mut member) = self.members.get(&entity).copied() else { continue };
            self.enter(entity, &mut member);
            self.members.insert(entity, member);
        }
    }

    /// Puts somebody with work into line, or to rest if it is at its cap.
    fn enter(&mut self, entity: EntityId, member: &mut Member) {
        if let Some(bucket) = &mut member.bucket {
            bucket.fill(self.now);
            if bucket.is_empty() {
                let until = bucket.filled_at().max(self.now.saturating_add(1));
                member.standing = Standing::Resting(until);
                self.resting.insert((until, entity));
                return;
            }
        }
        let key = self.order.enters(member, self.now.saturating_sub(member.absence.since));
        member.standing = Standing::InLine;
        member.since = self.now;
        member.key = self.line.insert(place(member), entity, key, self.now);
        self.first_changed(member.tier);
    }

    /// Takes somebody out of line or rest; its key is then its own.
    fn leave(&mut self, entity: EntityId, member: &mut Member) {
        match member.standing {
            Standing::Asleep => {}
            Standing::Resting(until) => {
                self.resting.remove(&(until, entity));
            }
            Standing::InLine => {
                let floor = self.order.floor(member.tier);
                let has_waited_for_its_own = self.line.first_above(place(member)).is_some();
                member.key = self.line.remove(place(member), entity, member.key, floor);
                if has_waited_for_its_own {
                    // Nobody else kept it from running (PRE-64).
                    member.key = member.key.max(floor);
                }
                self.first_changed(member.tier);
                let owed = self.order.clock(member.tier).saturating_sub(member.key);
                member.absence = Absence { since: self.now, owed };
                if !self.line.has(member.tier) {
                    self.patience.sleeps(member.tier);
                }
                if member.tier == Tier::NORMAL && !self.line.has(Tier::NORMAL) {
                    self.share.normal_sleeps();
                }
            }
        }
        member.standing = Standing::Asleep;
    }

    fn first_changed(&mut self, tier: Tier) {
        if let Some(first) = self.line.first(tier) {
            self.order.first_is(tier, first.key);
        }
    }

    /// What somebody had, and owes, goes with it when it is scheduled otherwise.
    fn carry(&mut self, new: &mut Member, old: &Member) {
        let ahead = old.key.saturating_sub(self.order.clock(old.tier));
        if new.group != old.group {
            self.join(new, ahead);
            self.part(old, false);
            return;
        }
        new.past = old.past;
        if new.tier == old.tier {
            (new.key, new.absence) = (self.order.bound(new, old.key), old.absence);
            return;
        }
        new.past[old.tier.band() as usize] =
            Some(Past { tier: old.tier, key: old.key, absence: old.absence });
        match new.past[new.tier.band() as usize].take() {
            Some(past) if past.tier == new.tier => {
                (new.key, new.absence) = (self.order.bound(new, past.key), past.absence);
            }
            _ if new.tier.band() == old.tier.band() => new.key = self.start(new, ahead),
            _ => new.key = self.start(new, 0),
        }
    }

    /// The key that somebody begins with in its tier: that of the clock, or what its group owes.
    fn start(&mut self, member: &Member, ahead: i128) -> i128 {
        let clock = self.order.clock(member.tier);
        self.forget_paid(member.tier, clock);
        let owed = self.debts.get(&(member.tier, member.group)).copied().unwrap_or(clock);
        self.order.bound(member, clock.saturating_add(ahead).max(owed))
    }

    /// Somebody comes to a group.
    fn join(&mut self, member: &mut Member, ahead: i128) {
        member.key = self.start(member, ahead);
        self.accounts.entry(member.group).or_default().members += 1;
    }

    /// Somebody leaves its group.
    fn part(&mut self, member: &Member, leaves_debts: bool) {
        if leaves_debts {
            let past = member.past.iter().flatten().map(|past| (past.tier, past.key));
            for (tier, key) in past.chain([(member.tier, member.key)]) {
                self.leave_debt(tier, member.group, key);
            }
        }
        if let Some(account) = self.accounts.get_mut(&member.group) {
            account.members -= 1;
            if account.members == 0 {
                self.accounts.remove(&member.group);
            }
        }
    }

    fn leave_debt(&mut self, tier: Tier, group: u64, key: i128) {
        let clock = self.order.clock(tier);
        self.forget_paid(tier, clock);
        let known = self.debts.get(&(tier, group)).copied();
        if key <= known.unwrap_or(clock) {
            return;
        }
        if let Some(known) = known {
            self.debts_by_key.remove(&(tier, known, group));
        }
        self.debts.insert((tier, group), key);
        self.debts_by_key.insert((tier, key, group));
        if self.debts.len() > MOST_DEBTS
            && let Some((tier, _, group)) = self.debts_by_key.pop_first()
        {
            self.debts.remove(&(tier, group));
        }
    }

    fn forget_paid(&mut self, tier: Tier, clock: i128) {
        loop {
            let paid =
                self.debts_by_key.range((tier, i128::MIN, 0)..=(tier, clock, u64::MAX)).next().copied();
            let Some(paid) = paid else { break };
            self.debts_by_key.remove(&paid);
            self.debts.remove(&(tier, paid.2));
        }
    }

    fn account_bands(&mut self, band: Band, time: u64) {
        match band {
            Band::Focus if self.line.has(Tier::NORMAL) => self.share.focus_ran(time),
            Band::Normal => self.share.normal_ran(time, self.line.has(Tier::FOCUS)),
            _ => {}
        }
    }
}

impl<O: Order> Policy for Rota<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn set_bands(&mut self, settings: &Settings) {
        self.settings = *settings;
        if O::NORMAL_SHARE {
            self.share.set(settings);
        }
    }

    fn add(&mut self, entity: EntityId, parameters: Parameters, now: Duration) {
        self.pass_time(now);
        if self.members.contains_key(&entity) {
            self.change(entity, parameters, now);
            return;
        }
        let mut member = Member::new(&parameters, self.now);
        self.join(&mut member, 0);
        self.members.insert(entity, member);
    }

    fn change(&mut self, entity: EntityId, parameters: Parameters, now: Duration) {
        self.pass_time(now);
        let Some(mut old) = self.members.get(&entity).copied() else { return };
        let had_work = old.standing != Standing::Asleep;
        let since = old.since;
        self.leave(entity, &mut old);
        let mut new = Member::new(&parameters, self.now);
        new.spent = old.spent;
        if new.tier == old.tier {
            new.moved = old.moved;
        }
        if new.cap == old.cap {
            new.bucket = old.bucket;
        } else if let (Some(bucket), Some(older)) = (new.bucket, old.bucket) {
            new.bucket = Some(Bucket::inherit(bucket, &older));
        }
        self.carry(&mut new, &old);
        if had_work {
            self.enter(entity, &mut new);
            if (new.tier, new.group, new.priority) == (old.tier, old.group, old.priority) {
                new.since = since;
            }
        }
        self.members.insert(entity, new);
    }

    fn remove(&mut self, entity: EntityId) {
        let Some(mut member) = self.members.remove(&entity) else { return };
        self.leave(entity, &mut member);
        self.part(&member, true);
    }

    fn wake(&mut self, entity: EntityId, now: Duration) {
        self.pass_time(now);
        let Some(mut member) = self.members.get(&entity).copied() else { return };
        if member.standing == Standing::Asleep {
            self.enter(entity, &mut member);
            self.members.insert(entity, member);
        }
    }

    fn sleep(&mut self, entity: EntityId, now: Duration) {
        self.pass_time(now);
        let Some(mut member) = self.members.get(&entity).copied() else { return };
        if member.standing != Standing::Asleep {
            self.leave(entity, &mut member);
            self.members.insert(entity, member);
        }
    }

    fn charge(&mut self, entity: EntityId, time: Duration, now: Duration) {
        self.pass_time(now);
        let time = nanoseconds(time);
        let Some(mut member) = self.members.get(&entity).copied() else { return };
        if time == 0 {
            return;
        }
        self.chosen = self.chosen.filter(|chosen| *chosen != entity);
        self.account_bands(member.tier.band(), time);
        self.patience.ran(member.tier, time, self.now);
        if let Some(account) = self.accounts.get_mut(&member.group) {
            let used = &mut account.used[member.tier.band() as usize];
            *used = used.saturating_add(time);
        }
        if member.in_line() {
            let key = self.line.key(place(&member), member.key);
            let key = self.order.ran(&mut member, key, time);
            member.key = self.line.replace(place(&member), entity, member.key, key);
            self.first_changed(member.tier);
            let bound = self.order.bound(&member, key);
            if bound != key {
                member.key = self.line.replace(place(&member), entity, member.key, bound);
                self.first_changed(member.tier);
            }
        } else {
            let old = member.key;
            let key = self.order.ran(&mut member, old, time);
            member.key = self.order.bound(&member, key);
        }
        if let Some(bucket) = &mut member.bucket {
            bucket.spend(time, self.now);
            if bucket.is_empty() && member.standing != Standing::Asleep {
                self.leave(entity, &mut member);
                self.enter(entity, &mut member);
            }
        }
        self.members.insert(entity, member);
    }

    fn decide(&mut self, current: Option<Current>, now: Duration) -> Decision {
        self.pass_time(now);
        self.end_rests();
        self.choose(current)
    }

    fn used(&self, group: u64, band: Band) -> Duration {
        let used = self.accounts.get(&group).map_or(0, |account| account.used[band as usize]);
        Duration::from_nanos(used)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::MOST_DEBTS;
    use super::Order;
    use crate::scheduling::fair::DEBT;
    use crate::scheduling::fair::Fair;
    use crate::scheduling::parameters::Band;
    use crate::scheduling::parameters::Parameters;
    use crate::scheduling::policy::EntityId;
    use crate::scheduling::policy::Policy;
    use crate::scheduling::rota::member::Standing;
    use crate::scheduling::rota::member::Tier;

    const ONE: EntityId = EntityId(1);
    const TWO: EntityId = EntityId(2);
    const THREE: EntityId = EntityId(3);
    /// Virtual nanoseconds of one at the usual weight.
    const SCALE: i128 = 100;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn of(band: Band, level: u8) -> Parameters {
        Parameters { band, level, ..Parameters::default() }
    }

    fn awake(members: &[(EntityId, Parameters)]) -> Fair {
        let mut fair = Fair::default();
        for (entity, parameters) in members {
            fair.add(*entity, *parameters, ms(0));
            fair.wake(*entity, ms(0));
        }
        fair
    }

    #[test]
    fn pre_71_what_a_group_had_is_counted_until_its_last_member_is_gone() {
        let group = |group| Parameters { group, ..Parameters::default() };
        let mut fair = awake(&[(ONE, group(7)), (TWO, group(7)), (THREE, group(8))]);
        fair.charge(ONE, ms(3), ms(3));
        fair.charge(TWO, ms(4), ms(7));
        fair.remove(ONE);
        assert_eq!(fair.used(7, Band::Normal), ms(7));
        fair.remove(TWO);
        assert_eq!((fair.used(7, Band::Normal), fair.accounts.len()), (ms(0), 1));
    }

    #[test]
    fn debts_of_those_that_are_gone_are_few_and_forgotten_when_they_are_paid() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0))]);
        for group in 0..MOST_DEBTS as u64 + 10 {
            let parameters = Parameters { group: 100 + group, ..Parameters::default() };
            fair.add(TWO, parameters, ms(0));
            fair.charge(TWO, ms(1), ms(0));
            fair.remove(TWO);
        }
        assert_eq!((fair.debts.len(), fair.debts_by_key.len()), (MOST_DEBTS, MOST_DEBTS));
        // The clock goes on past all of them.
        fair.charge(ONE, ms(2), ms(2));
        fair.add(THREE, of(Band::Normal, 0), ms(2));
        assert_eq!((fair.debts.len(), fair.debts_by_key.len()), (0, 0));
    }

    #[test]
    fn one_that_is_scheduled_otherwise_takes_along_what_it_owes_in_that_band() {
        let mut fair = awake(&[(ONE, of(Band::Realtime, 1)), (TWO, of(Band::Realtime, 1))]);
        fair.charge(ONE, ms(1), ms(1));
        let key = |fair: &Fair| fair.members[&ONE].key;
        assert_eq!(key(&fair), 1_000_000 * SCALE);
        fair.sleep(ONE, ms(1));
        fair.change(ONE, of(Band::Realtime, 2), ms(1));
        assert_eq!(key(&fair), 1_000_000 * SCALE, "another level of the band: it is as far ahead");
        fair.change(ONE, of(Band::Normal, 0), ms(1));
        assert_eq!(key(&fair), 0, "another band: nothing is known of it there");
        fair.change(ONE, of(Band::Realtime, 2), ms(1));
        assert_eq!(key(&fair), 1_000_000 * SCALE, "as it left");
        fair.change(ONE, of(Band::Normal, 0), ms(1));
        fair.change(ONE, of(Band::Realtime, 3), ms(1));
        assert_eq!(key(&fair), 0, "it left another level");
    }

    #[test]
    fn when_one_came_to_its_tier_changes_with_the_tier_only() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0))]);
        fair.change(ONE, Parameters { weight: 7, ..of(Band::Normal, 0) }, ms(5));
        assert_eq!((fair.members[&ONE].moved, fair.members[&ONE].since), (0, 0));
        fair.change(ONE, of(Band::Focus, 0), ms(6));
        assert_eq!((fair.members[&ONE].moved, fair.members[&ONE].since), (6_000_000, 6_000_000));
    }

    #[test]
    fn whom_a_decision_chose_is_remembered_until_it_had_the_engine() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0)), (TWO, of(Band::Normal, 0))]);
        assert_eq!(fair.decide(None, ms(0)).next, Some(ONE));
        fair.charge(TWO, ms(1), ms(1));
        assert_eq!(fair.chosen, Some(ONE));
        fair.charge(ONE, ms(1), ms(2));
        assert_eq!(fair.chosen, None);
    }

    #[test]
    fn no_more_is_held_against_one_than_the_longest_debt() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0)), (TWO, of(Band::Normal, 0))]);
        fair.charge(ONE, 3 * DEBT, 3 * DEBT);
        let debt = i128::try_from(DEBT.as_nanos()).unwrap() * SCALE;
        assert_eq!(fair.members[&ONE].key, fair.order.clock(Tier::NORMAL) + debt);
        fair.sleep(TWO, 3 * DEBT);
        fair.charge(TWO, 3 * DEBT, 3 * DEBT);
        assert_eq!(fair.members[&TWO].key, fair.order.clock(Tier::NORMAL) + debt, "asleep or not");
    }

    #[test]
    fn one_at_its_cap_rests_if_it_has_work() {
        let capped = Parameters { cap: 500, ..Parameters::default() };
        let mut fair = awake(&[(ONE, capped), (TWO, capped), (THREE, capped)]);
        fair.sleep(TWO, ms(0));
        for entity in [ONE, TWO] {
            fair.charge(entity, ms(500), ms(1));
        }
        fair.charge(THREE, ms(1), ms(1));
        assert!(matches!(fair.members[&ONE].standing, Standing::Resting(_)));
        assert_eq!(fair.members[&TWO].standing, Standing::Asleep);
        assert_eq!(fair.members[&THREE].standing, Standing::InLine, "it has not used it up");
        assert_eq!(fair.resting.len(), 1);
    }

    #[test]
    fn a_relief_ends_when_the_last_of_its_tier_sleeps() {
        let idle = Tier::of(Band::Idle, 0);
        let mut fair =
            awake(&[(ONE, of(Band::Idle, 0)), (TWO, of(Band::Idle, 0)), (THREE, of(Band::Normal, 0))]);
        assert_eq!(fair.decide(None, ms(1500)).next, Some(ONE), "idle got nothing for long");
        fair.sleep(ONE, ms(1500));
        assert!(fair.patience.left(idle).is_some());
        fair.sleep(TWO, ms(1500));
        assert_eq!(fair.patience.left(idle), None);
    }

    #[test]
    fn pre_68_focus_saves_up_for_normal_only_while_that_waits_and_one_turn_past_its_sleep() {
        let normal = of(Band::Normal, 0);
        let mut fair = awake(&[(ONE, of(Band::Focus, 0)), (TWO, normal), (THREE, normal)]);
        let rest = |fair: &Fair| fair.share.turn_of_other_in(Band::Normal);
        fair.charge(ONE, ms(100), ms(100));
        let saved = rest(&fair);
        assert!(saved.is_some_and(|time| time > 10_000_000), "{saved:?}");
        fair.sleep(TWO, ms(100));
        assert_eq!(rest(&fair), saved, "another one waits");
        fair.sleep(THREE, ms(100));
        assert_eq!(rest(&fair), Some(2_000_000), "one turn");
        let mut fair = awake(&[(ONE, of(Band::Focus, 0))]);
        fair.charge(ONE, ms(1000), ms(1000));
        fair.wake(ONE, ms(1000));
        assert_eq!(fair.share.turn_of_other_in(Band::Normal), None, "nothing waited");
    }
}
