//! The part of a runqueue in which policies differ: the order of the entities of a tier.

use std::fmt::Debug;

use super::entity::Entity;
use super::entity::Tier;

/// Computes sort keys: the entity with the lowest key of a tier is next. Each tier has a clock, a key that never goes back: about
/// that of its first entity.
pub trait SortKeys: Debug + Default + Send + 'static {
    /// Name of the policy.
    const NAME: &'static str;
    /// Whether normal gets a share while focus has work (PRE-68).
    const NORMAL_SHARE: bool;

    /// The key of the tier's clock.
    fn clock(&self, tier: Tier) -> i128;

    /// The first entity of a tier has this key now.
    fn advance_clock(&mut self, tier: Tier, key: i128);

    /// Lowest key that a queue begins with when it becomes the highest priority of its group.
    fn floor(&self, tier: Tier) -> i128;

    /// The key of an entity that is enqueued `absent` nanoseconds after it was dequeued: its old one, unless that would save up
    /// the time asleep.
    fn key_on_enqueue(&mut self, entity: &mut Entity, absent: u64) -> i128;

    /// The key of an entity of this key (not that in `entity`) after it had the engine for `time` nanoseconds.
    fn key_after(&mut self, entity: &mut Entity, key: i128, time: u64) -> i128;

    /// The key, no further ahead of the tier's clock than the largest debt.
    fn bound_debt(&self, entity: &Entity, key: i128) -> i128;

    /// How long, in nanoseconds, an entity with `key` can run until one with `other` is before it; 0: it is now.
    fn passes_in(&self, entity: &Entity, key: i128, other: i128) -> u64;
}
