//! Who stands in line: tiers, groups in each, priorities in a group, members by key.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::btree_map::OccupiedEntry;

use super::member::Tier;
use crate::scheduling::policy::EntityId;

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Tier.
    pub tier: Tier,
    /// Group.
    pub group: u64,
    /// In-process priority.
    pub priority: i8,
}

/// Who is first somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct First {
    /// Its key.
    pub key: i128,
    /// Who.
    pub entity: EntityId,
}

/// Members of one priority in one group of one tier.
#[derive(Debug)]
struct Queue {
    members: BTreeSet<(i128, EntityId)>,
    /// What is to be added to the keys in it: all move at once when the queue was not in line for long.
    shift: i128,
    since: u64,
}

#[derive(Debug, Default)]
struct Lane {
    queues: BTreeMap<i8, Queue>,
    /// Its key in the tier.
    key: Option<i128>,
}

#[derive(Debug, Default)]
struct Groups {
    by_key: BTreeSet<(i128, u64)>,
    since: u64,
}

/// The line. Times are nanoseconds.
#[derive(Debug)]
pub struct Line {
    tiers: Vec<Groups>,
    lanes: HashMap<(Tier, u64), Lane>,
    /// A bit each tier that has somebody.
    occupied: u64,
}

impl Default for Line {
    fn default() -> Self {
        let tiers = (0..Tier::COUNT).map(|_| Groups::default()).collect();
        Self { tiers, lanes: HashMap::new(), occupied: 0 }
    }
}

impl Line {
    /// The highest tier that has somebody.
    pub fn top(&self) -> Option<Tier> {
        let place = u64::BITS.checked_sub(self.occupied.leading_zeros() + 1)?;
        usize::try_from(place).ok().and_then(Tier::at)
    }

    /// Whether a tier has somebody.
    pub fn has(&self, tier: Tier) -> bool {
        self.occupied & (1 << tier.place()) != 0
    }

    /// Since when a tier has had somebody without a break.
    pub fn since(&self, tier: Tier) -> u64 {
        self.tiers[tier.place()].since
    }

    /// Who is first of a tier.
    pub fn first(&self, tier: Tier) -> Option<First> {
        let &(_, group) = self.tiers[tier.place()].by_key.first()?;
        self.first_of_group(tier, group)
    }

    /// Who is first of a group in a tier.
    pub fn first_of_group(&self, tier: Tier, group: u64) -> Option<First> {
        let lane = self.lanes.get(&(tier, group))?;
        let (_, queue) = lane.queues.last_key_value()?;
        queue.members.first().and_then(|&(_, entity)| Some(First { key: lane.key?, entity }))
    }

    /// Who is first of a tier in other groups than this.
    pub fn first_elsewhere(&self, tier: Tier, group: u64) -> Option<First> {
        let mut groups = self.tiers[tier.place()].by_key.iter();
        let &(_, other) = groups.by_ref().take(2).find(|&&(_, other)| other != group)?;
        self.first_of_group(tier, other)
    }

    /// Who is first beside this one in its queue.
    pub fn first_mate(&self, place: Place, entity: EntityId) -> Option<First> {
        let queue = self.lanes.get(&(place.tier, place.group))?.queues.get(&place.priority)?;
        let &(key, mate) = queue.members.iter().take(2).find(|&&(_, other)| other != entity)?;
        Some(First { key: key.saturating_add(queue.shift), entity: mate })
    }

    /// Who is first of a higher priority in this place's group, and since when that has had work.
    pub fn first_above(&self, place: Place) -> Option<(First, u64)> {
        let (priority, queue) = self.lanes.get(&(place.tier, place.group))?.queues.last_key_value()?;
        let &(key, entity) = queue.members.first().filter(|_| *priority > place.priority)?;
        Some((First { key: key.saturating_add(queue.shift), entity }, queue.since))
    }

    /// The key of somebody in line whose key in its queue is `local`.
    pub fn key(&self, place: Place, local: i128) -> i128 {
        let lane = self.lanes.get(&(place.tier, place.group));
        let queue = lane.and_then(|lane| lane.queues.get(&place.priority));
        local.saturating_add(queue.map_or(0, |queue| queue.shift))
    }

    /// Puts somebody in line, and returns its key in the queue.
    pub fn insert(&mut self, place: Place, entity: EntityId, key: i128, now: u64) -> i128 {
        let lane = self.lanes.entry((place.tier, place.group)).or_default();
        let empty = || Queue { members: BTreeSet::new(), shift: 0, since: now };
        let queue = lane.queues.entry(place.priority).or_insert_with(empty);
        let local = key.saturating_sub(queue.shift);
        queue.members.insert((local, entity));
        self.place_lane(place.tier, place.group, now);
        local
    }

    /// Takes somebody out, and returns its key. `local` is what `insert` or `replace` returned. A queue that takes the
    /// place of its own in line begins at `floor` at least.
    pub fn remove(&mut self, place: Place, entity: EntityId, local: i128, floor: i128) -> i128 {
        let key = self.key(place, local);
        let Some(lane) = self.lanes.get_mut(&(place.tier, place.group)) else { return key };
        if let Some(queue) = lane.queues.get_mut(&place.priority) {
            queue.members.remove(&(local, entity));
            if queue.members.is_empty() {
                lane.queues.remove(&place.priority);
                let next = lane.queues.last_entry().filter(|next| *next.key() < place.priority);
                if let Some(queue) = next.map(OccupiedEntry::into_mut)
                    && let Some(&(local, _)) = queue.members.first()
                {
                    let behind = floor.saturating_sub(local.saturating_add(queue.shift));
                    queue.shift = queue.shift.saturating_add(behind.max(0));
                }
            }
        }
        self.place_lane(place.tier, place.group, 0);
        key
    }

    /// Gives somebody in line another key, and returns that in the queue.
    pub fn replace(&mut self, place: Place, entity: EntityId, local: i128, key: i128) -> i128 {
        let Some(lane) = self.lanes.get_mut(&(place.tier, place.group)) else { return local };
        let Some(queue) = lane.queues.get_mut(&place.priority) else { return local };
        queue.members.remove(&(local, entity));
        let local = key.saturating_sub(queue.shift);
        queue.members.insert((local, entity));
        self.place_lane(place.tier, place.group, 0);
        local
    }

    /// Keeps a group's place in its tier that of its first member.
    fn place_lane(&mut self, tier: Tier, group: u64, now: u64) {
        let Some(lane) = self.lanes.get_mut(&(tier, group)) else { return };
        let groups = &mut self.tiers[tier.place()];
        let top = lane.queues.last_key_value().and_then(|(_, queue)| {
            queue.members.first().map(|&(local, _)| local.saturating_add(queue.shift))
        });
        if top.is_some() && top == lane.key {
            return;
        }
        let was_empty = groups.by_key.is_empty();
        if let Some(key) = std::mem::replace(&mut lane.key, top) {
            groups.by_key.remove(&(key, group));
        }
        match top {
            Some(key) => {
                groups.by_key.insert((key, group));
            }
            None => {
                self.lanes.remove(&(tier, group));
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
