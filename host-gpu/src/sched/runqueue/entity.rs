//! One entity of a runqueue.

use std::time::Duration;

use super::bucket::Bucket;
use crate::sched::parameters::Band;
use crate::sched::parameters::MAX_LEVEL;
use crate::sched::parameters::MAX_PRIORITY;
use crate::sched::parameters::MAX_WEIGHT;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::WHOLE_ENGINE;

/// Shortest quantum: a shorter one would be spent on switching.
pub const SHORTEST_QUANTUM: u64 = 100_000;
/// Longest quantum and grace period.
pub const LONGEST: u64 = 10_000_000_000;

/// A time as nanoseconds; what does not fit (584 years) is as long as fits.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A quantum in nanoseconds, within bounds.
pub fn quantum(time: Duration) -> u64 {
    nanoseconds(time).clamp(SHORTEST_QUANTUM, LONGEST)
}

/// A grace period in nanoseconds, within bounds.
pub fn grace(time: Duration) -> u64 {
    nanoseconds(time).min(LONGEST)
}

/// A tier: idle, normal, focus, or a level of realtime. Higher comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tier(u8);

impl Tier {
    /// How many there are.
    pub const COUNT: usize = Band::Realtime as usize + MAX_LEVEL as usize + 1;
    /// That of [`Band::Normal`].
    pub const NORMAL: Self = Self(Band::Normal as u8);
    /// That of [`Band::Focus`].
    pub const FOCUS: Self = Self(Band::Focus as u8);

    /// That of a band, and of a level in it (PRE-63).
    pub fn of(band: Band, level: u8) -> Self {
        let level = if band == Band::Realtime { level.min(MAX_LEVEL) } else { 0 };
        Self(band as u8 + level)
    }

    /// By its place.
    pub fn at(place: usize) -> Option<Self> {
        u8::try_from(place).ok().filter(|_| place < Self::COUNT).map(Self)
    }

    /// Its place, below [`Self::COUNT`].
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    /// Its band.
    pub fn band(self) -> Band {
        Band::from_number(u32::from(self.0)).unwrap_or(Band::Realtime)
    }
}

/// Whether an entity can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// No work.
    Sleeping,
    /// Work, and among the waiters.
    Runnable,
    /// Work, but at its cap until then (nanoseconds).
    Throttled(u64),
}

/// How an entity left a tier.
#[derive(Debug, Clone, Copy)]
pub struct Past {
    /// The tier.
    pub tier: Tier,
    /// Its key then.
    pub key: i128,
    /// Its last absence from that tier's waiters.
    pub absence: Absence,
}

/// The time between a dequeue and the next enqueue.
#[derive(Debug, Clone, Copy)]
pub struct Absence {
    /// Since when (nanoseconds).
    pub since: u64,
    /// How far its key was behind the tier's clock after the dequeue.
    pub owed: i128,
}

/// An entity. Times are nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Entity {
    /// Its group.
    pub group: u64,
    /// Its tier.
    pub tier: Tier,
    /// In-process priority.
    pub priority: i8,
    /// Weight, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Cap, 1 to [`WHOLE_ENGINE`].
    pub cap: u32,
    /// How long it runs on while others of its group wait.
    pub quantum: u64,
    /// Grace of the running entity of the same tier and priority when this one wakes.
    pub grace_same: u64,
    /// The same for a lower tier or priority.
    pub grace_lower: u64,
    /// Its key; while it is runnable, relative to the shift of its queue.
    pub key: i128,
    /// How it left tiers of other bands, by band: it owes the same when it comes back.
    pub past: [Option<Past>; Band::ALL.len()],
    /// Engine time since its key last advanced by a whole quantum; for policies that count quanta.
    pub spent: u64,
    /// Whether it can run.
    pub state: RunState,
    /// Since when it has been runnable, if it is.
    pub since: u64,
    /// Its last absence from the waiters: the present one, if it is not runnable.
    pub absence: Absence,
    /// When it came into its tier.
    pub moved: u64,
    /// Its cap's bucket.
    pub bucket: Option<Bucket>,
}

impl Entity {
    /// Asleep, at `now`; parameters are brought into their ranges.
    pub fn new(parameters: &Parameters, now: u64) -> Self {
        let cap = parameters.cap.clamp(1, WHOLE_ENGINE);
        Self {
            group: parameters.group,
            tier: Tier::of(parameters.band, parameters.level),
            priority: parameters.priority.clamp(-MAX_PRIORITY, MAX_PRIORITY),
            weight: parameters.weight.clamp(1, MAX_WEIGHT),
            cap,
            quantum: quantum(parameters.quantum),
            grace_same: grace(parameters.grace_same),
            grace_lower: grace(parameters.grace_lower),
            key: 0,
            past: [None; Band::ALL.len()],
            spent: 0,
            state: RunState::Sleeping,
            since: now,
            absence: Absence { since: now, owed: 0 },
            moved: now,
            bucket: Bucket::new(cap, now),
        }
    }

    /// Whether it has work, and may run.
    pub fn is_runnable(&self) -> bool {
        self.state == RunState::Runnable
    }
}

#[cfg(test)]
mod tests {
    use super::Tier;
    use crate::sched::parameters::Band;
    use crate::sched::parameters::MAX_LEVEL;

    #[test]
    fn pre_62_pre_63_tiers_are_the_bands_and_the_levels_of_the_highest() {
        let of =
            [(Band::Idle, 9), (Band::Normal, 9), (Band::Focus, 9)].map(|(band, level)| Tier::of(band, level));
        assert_eq!(of.map(Tier::place), [0, 1, 2]);
        assert_eq!(Tier::of(Band::Realtime, 0).place(), 3);
        let top = Tier::of(Band::Realtime, u8::MAX);
        assert_eq!((top.place(), top), (Tier::COUNT - 1, Tier::of(Band::Realtime, MAX_LEVEL)));
        assert_eq!(Tier::COUNT, 35);
        for place in 0..Tier::COUNT {
            assert_eq!(Tier::at(place).map(Tier::place), Some(place));
        }
        assert_eq!(Tier::at(Tier::COUNT), None);
    }
}
