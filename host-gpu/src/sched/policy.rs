//! The interface of scheduling policies.

use std::fmt::Debug;
use std::time::Duration;

use super::parameters::Band;
use super::parameters::Parameters;
use super::parameters::Settings;

/// Something that has work for one engine: a vGPU, or a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(pub u64);

/// The entity that has the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// Its id.
    pub entity: EntityId,
    /// Since when, without a break; on the clock of the policy.
    pub since: Duration,
}

/// Which entity should have the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// The entity; the one that has it already, if that may go on. None: no entity has work, or all that have are at
    /// their caps.
    pub next: Option<EntityId>,
    /// When to decide again at the latest, if nothing is reported before; later than the time of the decision. None:
    /// not before something is.
    pub until: Option<Duration>,
}

/// A policy: state and time in, decisions out. No clock, no I/O. Times are since one beginning and never go back.
///
/// What is reported of entities that it does not know changes nothing. Parameters out of range are brought into it.
pub trait Policy: Debug + Send {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// Sets the bands up (PRE-67); in force from the next decision on (PRE-69).
    fn set_bands(&mut self, settings: &Settings);

    /// An entity takes part; asleep.
    fn add(&mut self, entity: EntityId, parameters: Parameters, now: Duration);

    /// It is scheduled otherwise from the next decision on (PRE-69).
    fn change(&mut self, entity: EntityId, parameters: Parameters, now: Duration);

    /// It is gone.
    fn remove(&mut self, entity: EntityId);

    /// It has work. Nothing new where it had some.
    fn wake(&mut self, entity: EntityId, now: Duration);

    /// It has none, or only what waits (PRE-57). Nothing new where it had none.
    fn sleep(&mut self, entity: EntityId, now: Duration);

    /// It had the engine for `time`, up to `now`, beyond what was charged before.
    fn charge(&mut self, entity: EntityId, time: Duration, now: Duration);

    /// Which entity should have the engine, given which one has it, charged up to `now`. An entity that sleeps, or is not
    /// known, has it no more.
    fn decide(&mut self, current: Option<Current>, now: Duration) -> Decision;

    /// Time that a group has had in a band (PRE-71).
    fn used(&self, group: u64, band: Band) -> Duration;
}
