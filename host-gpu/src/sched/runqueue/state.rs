//! Events of entities: add, change, remove, wake, sleep, charge.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::time::Duration;

use super::bucket::Bucket;
use super::entity::Absence;
use super::entity::Entity;
use super::entity::Past;
use super::entity::RunState;
use super::entity::Tier;
use super::entity::nanoseconds;
use super::share::NormalShare;
use super::sort_keys::SortKeys;
use super::starvation_guard::StarvationGuard;
use super::waiters::Place;
use super::waiters::Waiters;
use crate::sched::parameters::Band;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::Settings;
use crate::sched::policy::Current;
use crate::sched::policy::Decision;
use crate::sched::policy::EntityId;
use crate::sched::policy::Policy;

/// The engine time of a group. Kept while it has entities.
#[derive(Debug, Default)]
struct Account {
    entities: usize,
    /// Nanoseconds, by band (PRE-71).
    used: [u64; Band::ALL.len()],
}

/// The time since which a group has had the engine without a break, with any of its entities.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRun {
    pub(super) group: u64,
    pub(super) since: u64,
}

/// A policy: a runqueue in the order of its [`SortKeys`].
#[derive(Debug)]
pub struct Runqueue<K> {
    pub(super) keys: K,
    pub(super) waiters: Waiters,
    pub(super) share: NormalShare,
    pub(super) starvation_guard: StarvationGuard,
    pub(super) settings: Settings,
    pub(super) group_run: Option<GroupRun>,
    /// The entity that the last decision gave the engine, until it is charged for it; another one that stops meanwhile does not
    /// change that.
    pub(super) chosen: Option<EntityId>,
    /// Nanoseconds; never goes back.
    pub(super) now: u64,
    /// Entities at their caps, by when that ends.
    pub(super) throttled: BTreeSet<(u64, EntityId)>,
    pub(super) entities: HashMap<EntityId, Entity>,
    accounts: HashMap<u64, Account>,
    /// What removed entities owed: the next entities of the group begin with it, until the tier's clock has passed it.
    debts: HashMap<(Tier, u64), i128>,
    debts_by_key: BTreeSet<(Tier, i128, u64)>,
}

/// Most debts of removed entities that are remembered.
const MOST_DEBTS: usize = 4096;

impl<K: SortKeys> Default for Runqueue<K> {
    fn default() -> Self {
        let mut runqueue = Self {
            keys: K::default(),
            waiters: Waiters::default(),
            share: NormalShare::none(),
            starvation_guard: StarvationGuard::default(),
            settings: Settings::default(),
            group_run: None,
            chosen: None,
            now: 0,
            throttled: BTreeSet::new(),
            entities: HashMap::new(),
            accounts: HashMap::new(),
            debts: HashMap::new(),
            debts_by_key: BTreeSet::new(),
        };
        runqueue.set_bands(&Settings::default());
        runqueue
    }
}

pub(super) fn place(entity: &Entity) -> Place {
    Place { tier: entity.tier, group: entity.group, priority: entity.priority }
}

impl<K: SortKeys> Runqueue<K> {
    pub(super) fn pass_time(&mut self, now: Duration) {
        self.now = self.now.max(nanoseconds(now));
    }

    /// Enqueues entities whose time at their caps is over.
    pub(super) fn unthrottle(&mut self) {
        while let Some(&(until, id)) = self.throttled.first() {
            if until > self.now || until == u64::MAX {
                break;
            }
            self.throttled.pop_first();
            let Some(mut entity) = self.entities.get(&id).copied() else { continue };
            self.enqueue(id, &mut entity);
            self.entities.insert(id, entity);
        }
    }

    /// Makes an entity with work runnable, or throttled if it is at its cap.
    fn enqueue(&mut self, id: EntityId, entity: &mut Entity) {
        if let Some(bucket) = &mut entity.bucket {
            bucket.fill(self.now);
            if bucket.is_empty() {
                let until = bucket.filled_at().max(self.now.saturating_add(1));
                entity.state = RunState::Throttled(until);
                self.throttled.insert((until, id));
                return;
            }
        }
        let key = self.keys.key_on_enqueue(entity, self.now.saturating_sub(entity.absence.since));
        entity.state = RunState::Runnable;
        entity.since = self.now;
        entity.key = self.waiters.insert(place(entity), id, key, self.now);
        self.first_changed(entity.tier);
    }

    /// Makes an entity neither runnable nor throttled; its key is then absolute.
    fn dequeue(&mut self, id: EntityId, entity: &mut Entity) {
        match entity.state {
            RunState::Sleeping => {}
            RunState::Throttled(until) => {
                self.throttled.remove(&(until, id));
            }
            RunState::Runnable => {
                let floor = self.keys.floor(entity.tier);
                let has_waited_for_its_group = self.waiters.first_above(place(entity)).is_some();
                entity.key = self.waiters.remove(place(entity), id, entity.key, floor);
                if has_waited_for_its_group {
                    // Only entities of its own group kept it from running (PRE-64).
                    entity.key = entity.key.max(floor);
                }
                self.first_changed(entity.tier);
                let owed = self.keys.clock(entity.tier).saturating_sub(entity.key);
                entity.absence = Absence { since: self.now, owed };
                if !self.waiters.has(entity.tier) {
                    self.starvation_guard.sleeps(entity.tier);
                }
                if entity.tier == Tier::NORMAL && !self.waiters.has(Tier::NORMAL) {
                    self.share.normal_sleeps();
                }
            }
        }
        entity.state = RunState::Sleeping;
    }

    fn first_changed(&mut self, tier: Tier) {
        if let Some(first) = self.waiters.first(tier) {
            self.keys.advance_clock(tier, first.key);
        }
    }

    /// Keeps what an entity had, and owes, when its parameters change.
    fn carry_over(&mut self, new: &mut Entity, old: &Entity) {
        let ahead = old.key.saturating_sub(self.keys.clock(old.tier));
        if new.group != old.group {
            self.join_group(new, ahead);
            self.leave_group(old, false);
            return;
        }
        new.past = old.past;
        if new.tier == old.tier {
            (new.key, new.absence) = (self.keys.bound_debt(new, old.key), old.absence);
            return;
        }
        new.past[old.tier.band() as usize] =
            Some(Past { tier: old.tier, key: old.key, absence: old.absence });
        match new.past[new.tier.band() as usize].take() {
            Some(past) if past.tier == new.tier => {
                (new.key, new.absence) = (self.keys.bound_debt(new, past.key), past.absence);
            }
            _ if new.tier.band() == old.tier.band() => new.key = self.start(new, ahead),
            _ => new.key = self.start(new, 0),
        }
    }

    /// The key that an entity begins with in its tier: that of the clock, or what its group owes.
    fn start(&mut self, entity: &Entity, ahead: i128) -> i128 {
        let clock = self.keys.clock(entity.tier);
        self.forget_paid(entity.tier, clock);
        let owed = self.debts.get(&(entity.tier, entity.group)).copied().unwrap_or(clock);
        self.keys.bound_debt(entity, clock.saturating_add(ahead).max(owed))
    }

    /// Counts a new entity of a group, and sets its key.
    fn join_group(&mut self, entity: &mut Entity, ahead: i128) {
        entity.key = self.start(entity, ahead);
        self.accounts.entry(entity.group).or_default().entities += 1;
    }

    /// Counts an entity of a group less; its debts stay where `leaves_debts`.
    fn leave_group(&mut self, entity: &Entity, leaves_debts: bool) {
        if leaves_debts {
            let past = entity.past.iter().flatten().map(|past| (past.tier, past.key));
            for (tier, key) in past.chain([(entity.tier, entity.key)]) {
                self.leave_debt(tier, entity.group, key);
            }
        }
        if let Some(account) = self.accounts.get_mut(&entity.group) {
            account.entities -= 1;
            if account.entities == 0 {
                self.accounts.remove(&entity.group);
            }
        }
    }

    fn leave_debt(&mut self, tier: Tier, group: u64, key: i128) {
        let clock = self.keys.clock(tier);
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
            Band::Focus if self.waiters.has(Tier::NORMAL) => self.share.focus_ran(time),
            Band::Normal => self.share.normal_ran(time, self.waiters.has(Tier::FOCUS)),
            _ => {}
        }
    }
}

impl<K: SortKeys> Policy for Runqueue<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn set_bands(&mut self, settings: &Settings) {
        self.settings = *settings;
        if K::NORMAL_SHARE {
            self.share.set(settings);
        }
    }

    fn add(&mut self, id: EntityId, parameters: Parameters, now: Duration) {
        self.pass_time(now);
        if self.entities.contains_key(&id) {
            self.change(id, parameters, now);
            return;
        }
        let mut entity = Entity::new(&parameters, self.now);
        self.join_group(&mut entity, 0);
        self.entities.insert(id, entity);
    }

    fn change(&mut self, id: EntityId, parameters: Parameters, now: Duration) {
        self.pass_time(now);
        let Some(mut old) = self.entities.get(&id).copied() else { return };
        let had_work = old.state != RunState::Sleeping;
        let since = old.since;
        self.dequeue(id, &mut old);
        let mut new = Entity::new(&parameters, self.now);
        new.spent = old.spent;
        if new.tier == old.tier {
            new.moved = old.moved;
        }
        if new.cap == old.cap {
            new.bucket = old.bucket;
        } else if let (Some(bucket), Some(older)) = (new.bucket, old.bucket) {
            new.bucket = Some(Bucket::inherit(bucket, &older));
        }
        self.carry_over(&mut new, &old);
        if had_work {
            self.enqueue(id, &mut new);
            if (new.tier, new.group, new.priority) == (old.tier, old.group, old.priority) {
                new.since = since;
            }
        }
        self.entities.insert(id, new);
    }

    fn remove(&mut self, id: EntityId) {
        let Some(mut entity) = self.entities.remove(&id) else { return };
        self.dequeue(id, &mut entity);
        self.leave_group(&entity, true);
    }

    fn wake(&mut self, id: EntityId, now: Duration) {
        self.pass_time(now);
        let Some(mut entity) = self.entities.get(&id).copied() else { return };
        if entity.state == RunState::Sleeping {
            self.enqueue(id, &mut entity);
            self.entities.insert(id, entity);
        }
    }

    fn sleep(&mut self, id: EntityId, now: Duration) {
        self.pass_time(now);
        let Some(mut entity) = self.entities.get(&id).copied() else { return };
        if entity.state != RunState::Sleeping {
            self.dequeue(id, &mut entity);
            self.entities.insert(id, entity);
        }
    }

    fn charge(&mut self, id: EntityId, time: Duration, now: Duration) {
        self.pass_time(now);
        let time = nanoseconds(time);
        let Some(mut entity) = self.entities.get(&id).copied() else { return };
        if time == 0 {
            return;
        }
        self.chosen = self.chosen.filter(|chosen| *chosen != id);
        self.account_bands(entity.tier.band(), time);
        self.starvation_guard.charge(entity.tier, time, self.now);
        if let Some(account) = self.accounts.get_mut(&entity.group) {
            let used = &mut account.used[entity.tier.band() as usize];
            *used = used.saturating_add(time);
        }
        if entity.is_runnable() {
            let key = self.waiters.key(place(&entity), entity.key);
            let key = self.keys.key_after(&mut entity, key, time);
            entity.key = self.waiters.replace(place(&entity), id, entity.key, key);
            self.first_changed(entity.tier);
            let bound = self.keys.bound_debt(&entity, key);
            if bound != key {
                entity.key = self.waiters.replace(place(&entity), id, entity.key, bound);
                self.first_changed(entity.tier);
            }
        } else {
            let old = entity.key;
            let key = self.keys.key_after(&mut entity, old, time);
            entity.key = self.keys.bound_debt(&entity, key);
        }
        if let Some(bucket) = &mut entity.bucket {
            bucket.spend(time, self.now);
            if bucket.is_empty() && entity.state != RunState::Sleeping {
                self.dequeue(id, &mut entity);
                self.enqueue(id, &mut entity);
            }
        }
        self.entities.insert(id, entity);
    }

    fn decide(&mut self, current: Option<Current>, now: Duration) -> Decision {
        self.pass_time(now);
        self.unthrottle();
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
    use super::SortKeys;
    use crate::sched::fair::DEBT;
    use crate::sched::fair::Fair;
    use crate::sched::parameters::Band;
    use crate::sched::parameters::Parameters;
    use crate::sched::policy::EntityId;
    use crate::sched::policy::Policy;
    use crate::sched::runqueue::entity::RunState;
    use crate::sched::runqueue::entity::Tier;

    const ONE: EntityId = EntityId(1);
    const TWO: EntityId = EntityId(2);
    const THREE: EntityId = EntityId(3);
    /// Virtual nanoseconds of a nanosecond at the default weight.
    const SCALE: i128 = 100;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn of(band: Band, level: u8) -> Parameters {
        Parameters { band, level, ..Parameters::default() }
    }

    fn awake(entities: &[(EntityId, Parameters)]) -> Fair {
        let mut fair = Fair::default();
        for (id, parameters) in entities {
            fair.add(*id, *parameters, ms(0));
            fair.wake(*id, ms(0));
        }
        fair
    }

    #[test]
    fn pre_71_the_time_of_a_group_is_counted_until_its_last_entity_is_gone() {
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
    fn debts_of_removed_entities_are_bounded_and_forgotten_when_they_are_paid() {
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
    fn an_entity_that_owes_nothing_leaves_no_debt() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0))]);
        fair.add(TWO, of(Band::Normal, 0), ms(0));
        fair.remove(TWO);
        assert_eq!((fair.debts.len(), fair.debts_by_key.len()), (0, 0), "its key is that of the clock");
    }

    #[test]
    fn pre_64_what_waited_behind_its_own_group_alone_saves_no_time_up_and_what_waited_for_others_does() {
        let member = |group, priority| Parameters { group, priority, ..of(Band::Normal, 0) };
        let mut fair = awake(&[(ONE, member(7, 0)), (TWO, member(7, 1)), (THREE, member(8, 0))]);
        for id in [TWO, THREE] {
            fair.charge(id, ms(20), ms(20));
        }
        let clock = 20_000_000 * SCALE;
        assert_eq!(fair.keys.clock(Tier::NORMAL), clock);
        fair.sleep(ONE, ms(20));
        assert_eq!(fair.entities[&ONE].key, fair.keys.floor(Tier::NORMAL), "its group had its turns");
        let mut fair = awake(&[(ONE, member(7, 0)), (THREE, member(8, 0))]);
        fair.charge(THREE, ms(20), ms(20));
        for _ in 0..2 {
            fair.sleep(ONE, ms(20));
            fair.wake(ONE, ms(20));
        }
        fair.sleep(ONE, ms(20));
        let key = fair.entities[&ONE].key;
        assert!(key < fair.keys.floor(Tier::NORMAL), "{key}: another group had the engine");
    }

    #[test]
    fn an_entity_whose_parameters_change_keeps_what_it_owes_in_that_band() {
        let mut fair = awake(&[(ONE, of(Band::Realtime, 1)), (TWO, of(Band::Realtime, 1))]);
        fair.charge(ONE, ms(1), ms(1));
        let key = |fair: &Fair| fair.entities[&ONE].key;
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
    fn the_time_at_which_an_entity_came_to_its_tier_changes_with_the_tier_only() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0))]);
        fair.change(ONE, Parameters { weight: 7, ..of(Band::Normal, 0) }, ms(5));
        assert_eq!((fair.entities[&ONE].moved, fair.entities[&ONE].since), (0, 0));
        fair.change(ONE, of(Band::Focus, 0), ms(6));
        assert_eq!((fair.entities[&ONE].moved, fair.entities[&ONE].since), (6_000_000, 6_000_000));
    }

    #[test]
    fn the_chosen_entity_is_remembered_until_it_had_the_engine() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0)), (TWO, of(Band::Normal, 0))]);
        assert_eq!(fair.decide(None, ms(0)).next, Some(ONE));
        fair.charge(TWO, ms(1), ms(1));
        assert_eq!(fair.chosen, Some(ONE));
        fair.charge(ONE, ms(1), ms(2));
        assert_eq!(fair.chosen, None);
    }

    #[test]
    fn no_more_is_held_against_an_entity_than_the_longest_debt() {
        let mut fair = awake(&[(ONE, of(Band::Normal, 0)), (TWO, of(Band::Normal, 0))]);
        fair.charge(ONE, 3 * DEBT, 3 * DEBT);
        let debt = i128::try_from(DEBT.as_nanos()).unwrap() * SCALE;
        assert_eq!(fair.entities[&ONE].key, fair.keys.clock(Tier::NORMAL) + debt);
        fair.sleep(TWO, 3 * DEBT);
        fair.charge(TWO, 3 * DEBT, 3 * DEBT);
        assert_eq!(fair.entities[&TWO].key, fair.keys.clock(Tier::NORMAL) + debt, "asleep or not");
    }

    #[test]
    fn an_entity_at_its_cap_is_throttled_if_it_has_work() {
        let capped = Parameters { cap: 500, ..Parameters::default() };
        let mut fair = awake(&[(ONE, capped), (TWO, capped), (THREE, capped)]);
        fair.sleep(TWO, ms(0));
        for id in [ONE, TWO] {
            fair.charge(id, ms(500), ms(1));
        }
        fair.charge(THREE, ms(1), ms(1));
        assert!(matches!(fair.entities[&ONE].state, RunState::Throttled(_)));
        assert_eq!(fair.entities[&TWO].state, RunState::Sleeping);
        assert_eq!(fair.entities[&THREE].state, RunState::Runnable, "it has not used it up");
        assert_eq!(fair.throttled.len(), 1);
    }

    #[test]
    fn guard_time_ends_when_the_last_entity_of_its_tier_sleeps() {
        let idle = Tier::of(Band::Idle, 0);
        let mut fair =
            awake(&[(ONE, of(Band::Idle, 0)), (TWO, of(Band::Idle, 0)), (THREE, of(Band::Normal, 0))]);
        assert_eq!(fair.decide(None, ms(1500)).next, Some(ONE), "idle got nothing for long");
        fair.sleep(ONE, ms(1500));
        assert!(fair.starvation_guard.left(idle).is_some());
        fair.sleep(TWO, ms(1500));
        assert_eq!(fair.starvation_guard.left(idle), None);
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
