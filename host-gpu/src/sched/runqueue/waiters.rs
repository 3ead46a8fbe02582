//! The runnable entities: tiers, groups in each, priorities in a group, entities by key.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::btree_map::OccupiedEntry;

use super::entity::Tier;
use crate::sched::policy::EntityId;

/// Which queue an entity is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its tier.
    pub tier: Tier,
    /// Its group.
    pub group: u64,
    /// Its in-process priority.
    pub priority: i8,
}

/// The entity with the lowest key of a tier, group or queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct First {
    /// Its key.
    pub key: i128,
    /// The entity.
    pub id: EntityId,
}

/// Entities of one priority in one group of one tier.
#[derive(Debug)]
struct Queue {
    entities: BTreeSet<(i128, EntityId)>,
    /// Is added to the keys in it: all move at once when the queue becomes the highest priority of its group.
    shift: i128,
    since: u64,
}

#[derive(Debug, Default)]
struct GroupQueues {
    queues: BTreeMap<i8, Queue>,
    /// Its key in the tier.
    key: Option<i128>,
}

#[derive(Debug, Default)]
struct TierGroups {
    by_key: BTreeSet<(i128, u64)>,
    since: u64,
}

/// See the module. Times are nanoseconds.
#[derive(Debug)]
pub struct Waiters {
    tiers: Vec<TierGroups>,
    group_queues: HashMap<(Tier, u64), GroupQueues>,
    /// One bit a tier: set while it has runnable entities.
    occupied: u64,
}

impl Default for Waiters {
    fn default() -> Self {
        let tiers = (0..Tier::COUNT).map(|_| TierGroups::default()).collect();
        Self { tiers, group_queues: HashMap::new(), occupied: 0 }
    }
}

impl Waiters {
    /// The highest tier with runnable entities.
    pub fn top(&self) -> Option<Tier> {
        let place = u64::BITS.checked_sub(self.occupied.leading_zeros() + 1)?;
        usize::try_from(place).ok().and_then(Tier::at)
    }

    /// Whether a tier has runnable entities.
    pub fn has(&self, tier: Tier) -> bool {
        self.occupied & (1 << tier.place()) != 0
    }

    /// Since when a tier has had runnable entities without a break.
    pub fn since(&self, tier: Tier) -> u64 {
        self.tiers[tier.place()].since
    }

    /// The first entity of a tier.
    pub fn first(&self, tier: Tier) -> Option<First> {
        let &(_, group) = self.tiers[tier.place()].by_key.first()?;
        self.first_of_group(tier, group)
    }

    /// The first entity of a group in a tier.
    pub fn first_of_group(&self, tier: Tier, group: u64) -> Option<First> {
        let of_group = self.group_queues.get(&(tier, group))?;
        let (_, queue) = of_group.queues.last_key_value()?;
        queue.entities.first().and_then(|&(_, id)| Some(First { key: of_group.key?, id }))
    }

    /// The first entity of a tier in other groups than this.
    pub fn first_elsewhere(&self, tier: Tier, group: u64) -> Option<First> {
        let mut groups = self.tiers[tier.place()].by_key.iter();
        let &(_, other) = groups.by_ref().take(2).find(|&&(_, other)| other != group)?;
        self.first_of_group(tier, other)
    }

    /// The first entity of the same queue beside this one.
    pub fn first_sibling(&self, place: Place, id: EntityId) -> Option<First> {
        let queue = self.group_queues.get(&(place.tier, place.group))?.queues.get(&place.priority)?;
        let &(key, sibling) = queue.entities.iter().take(2).find(|&&(_, other)| other != id)?;
        Some(First { key: key.saturating_add(queue.shift), id: sibling })
    }

    /// The first entity of the highest priority of this place's group, where that is above its own, and since when that priority
    /// has had work.
    pub fn first_above(&self, place: Place) -> Option<(First, u64)> {
        let (priority, queue) = self.group_queues.get(&(place.tier, place.group))?.queues.last_key_value()?;
        let &(key, id) = queue.entities.first().filter(|_| *priority > place.priority)?;
        Some((First { key: key.saturating_add(queue.shift), id }, queue.since))
    }

    /// The key of a runnable entity whose key in its queue is `local`.
    pub fn key(&self, place: Place, local: i128) -> i128 {
        let of_group = self.group_queues.get(&(place.tier, place.group));
        let queue = of_group.and_then(|of_group| of_group.queues.get(&place.priority));
        local.saturating_add(queue.map_or(0, |queue| queue.shift))
    }

    /// Inserts an entity, and returns its key in the queue.
    pub fn insert(&mut self, place: Place, id: EntityId, key: i128, now: u64) -> i128 {
        let of_group = self.group_queues.entry((place.tier, place.group)).or_default();
        let empty = || Queue { entities: BTreeSet::new(), shift: 0, since: now };
        let queue = of_group.queues.entry(place.priority).or_insert_with(empty);
        let local = key.saturating_sub(queue.shift);
        queue.entities.insert((local, id));
        self.update_group_key(place.tier, place.group, now);
        local
    }

    /// Removes an entity, and returns its key. `local` is what `insert` or `replace` returned. A queue that becomes the highest
    /// priority of its group by this begins at `floor` at least.
    pub fn remove(&mut self, place: Place, id: EntityId, local: i128, floor: i128) -> i128 {
        let key = self.key(place, local);
        let Some(of_group) = self.group_queues.get_mut(&(place.tier, place.group)) else { return key };
        if let Some(queue) = of_group.queues.get_mut(&place.priority) {
            queue.entities.remove(&(local, id));
            if queue.entities.is_empty() {
                of_group.queues.remove(&place.priority);
                let next = of_group.queues.last_entry().filter(|next| *next.key() < place.priority);
                if let Some(queue) = next.map(OccupiedEntry::into_mut)
                    && let Some(&(local, _)) = queue.entities.first()
                {
                    let behind = floor.saturating_sub(local.saturating_add(queue.shift));
                    queue.shift = queue.shift.saturating_add(behind.max(0));
                }
            }
        }
        self.update_group_key(place.tier, place.group, 0);
        key
    }

    /// Gives a runnable entity another key, and returns that in the queue.
    pub fn replace(&mut self, place: Place, id: EntityId, local: i128, key: i128) -> i128 {
        let Some(of_group) = self.group_queues.get_mut(&(place.tier, place.group)) else { return local };
        let Some(queue) = of_group.queues.get_mut(&place.priority) else { return local };
        queue.entities.remove(&(local, id));
        let local = key.saturating_sub(queue.shift);
        queue.entities.insert((local, id));
        self.update_group_key(place.tier, place.group, 0);
        local
    }

    /// Makes the key of a group in its tier that of its first entity.
    fn update_group_key(&mut self, tier: Tier, group: u64, now: u64) {
        let Some(of_group) = self.group_queues.get_mut(&(tier, group)) else { return };
        let groups = &mut self.tiers[tier.place()];
        let top = of_group.queues.last_key_value().and_then(|(_, queue)| {
            queue.entities.first().map(|&(local, _)| local.saturating_add(queue.shift))
        });
        if top.is_some() && top == of_group.key {
            return;
        }
        let was_empty = groups.by_key.is_empty();
        if let Some(key) = std::mem::replace(&mut of_group.key, top) {
            groups.by_key.remove(&(key, group));
        }
        match top {
            Some(key) => {
                groups.by_key.insert((key, group));
            }
            None => {
                self.group_queues.remove(&(tier, group));
            }
        }
        if groups.by_key.is_empty() {
            self.occupied &= !(1 << tier.place());
        } else if was_empty {
            self.occupied |= 1 << tier.place();
            groups.since = now;
        }
    }
}
