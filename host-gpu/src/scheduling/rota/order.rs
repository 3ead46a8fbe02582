//! What makes one policy different from another.

use std::fmt::Debug;

use super::member::Member;
use super::member::Tier;

/// Gives members their keys: who of a tier comes first. Each tier has a clock, a key that never goes back: about that
/// of its first member.
pub trait Order: Debug + Default + Send + 'static {
    /// Name of the policy.
    const NAME: &'static str;
    /// Whether normal gets a share while focus has work (PRE-68).
    const NORMAL_SHARE: bool;

    /// The key of the tier's clock.
    fn clock(&self, tier: Tier) -> i128;

    /// The first of a tier has this key now.
    fn first_is(&mut self, tier: Tier, key: i128);

    /// Lowest key that a queue of a tier begins with when it takes its group's place in line.
    fn floor(&self, tier: Tier) -> i128;

    /// The key of a member that gets into line after `absent` nanoseconds out of it; it may have its old one, unless
    /// sleeping would be saved up.
    fn enters(&mut self, member: &mut Member, absent: u64) -> i128;

    /// The key of a member of this key (not that in `member`) that had the engine for `time` nanoseconds.
    fn ran(&mut self, member: &mut Member, key: i128, time: u64) -> i128;

    /// The key with the debt that it stands for bounded, by the tier's clock.
    fn bound(&self, member: &Member, key: i128) -> i128;

    /// How long, in nanoseconds, a member with `key` can run until one with `other` comes before it; 0: it does now.
    fn passes_in(&self, member: &Member, key: i128, other: i128) -> u64;
}
