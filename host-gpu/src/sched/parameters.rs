//! What a policy is told of an entity, and of the bands.

use std::time::Duration;

/// Scheduling band (PRE-62). A higher one comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Band {
    /// Runs when no other band has work; never preempts.
    Idle = 0,
    /// What a context begins in.
    Normal = 1,
    /// What a user looks at; the operator grants it (PRE-65).
    Focus = 2,
    /// Before all others, by its level; the operator grants it (PRE-65).
    Realtime = 3,
}

impl Band {
    /// All, lowest first.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Normal, Self::Focus, Self::Realtime];

    /// From its number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Highest realtime level (PRE-63).
pub const MAX_LEVEL: u8 = 31;
/// In-process priorities go from minus this to this (PRE-64).
pub const MAX_PRIORITY: i8 = 7;
/// Weight of an entity that was given none.
pub const DEFAULT_WEIGHT: u32 = 100;
/// Largest weight; the smallest is 1.
pub const MAX_WEIGHT: u32 = 10_000;
/// A cap of all of an engine's time, in thousandths.
pub const WHOLE_ENGINE: u32 = 1000;

/// How an entity is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The group (guest process) that it belongs to. In-process priority orders those of one group only (PRE-64).
    pub group: u64,
    /// Its band.
    pub band: Band,
    /// Its level in [`Band::Realtime`], 0 to [`MAX_LEVEL`], higher first; elsewhere ignored (PRE-63).
    pub level: u8,
    /// In-process priority, minus to plus [`MAX_PRIORITY`], higher first.
    pub priority: i8,
    /// Its share beside others of its band, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Most of the engine's time that it gets, thousandths, 1 to [`WHOLE_ENGINE`].
    pub cap: u32,
    /// How long it runs on while others of its band wait (PRE-66).
    pub quantum: Duration,
    /// How long the running entity may go on when this one, of the same tier and priority and behind in its share, wakes (PRE-66).
    pub grace_same: Duration,
    /// The same where the running entity is of a lower tier or priority: usually the smallest (PRE-66).
    pub grace_lower: Duration,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            group: 0,
            band: Band::Normal,
            level: 0,
            priority: 0,
            weight: DEFAULT_WEIGHT,
            cap: WHOLE_ENGINE,
            quantum: Duration::from_millis(2),
            grace_same: Duration::from_micros(500),
            grace_lower: Duration::from_micros(100),
        }
    }
}

/// What holds for all of a band (PRE-67).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BandSettings {
    /// How long the running entity of a lower band may go on when this band wakes; ignored for [`Band::Idle`].
    pub grace: Duration,
    /// How long a group runs on while other groups of the band wait.
    pub process_quantum: Duration,
    /// How long a group that runs may go on when another of the band, behind in its share, wakes.
    pub process_grace: Duration,
}

/// Settings of all bands (PRE-67 to PRE-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// By band number.
    pub bands: [BandSettings; 4],
    /// Percent of the time of both that [`Band::Normal`] gets while [`Band::Focus`] has work, 0 to
    /// [`Self::MAX_NORMAL_SHARE`] (PRE-68).
    pub normal_share: u32,
}

impl Settings {
    /// Most that normal may be given (PRE-68).
    pub const MAX_NORMAL_SHARE: u32 = 50;
    /// What it gets otherwise (PRE-68).
    pub const DEFAULT_NORMAL_SHARE: u32 = 10;
}

impl Default for Settings {
    fn default() -> Self {
        let band = |grace| BandSettings {
            grace,
            process_quantum: Duration::from_millis(2),
            process_grace: Duration::from_micros(500),
        };
        let little = Duration::from_micros(100);
        Self {
            bands: [band(Duration::ZERO), band(little), band(little), band(Duration::ZERO)],
            normal_share: Self::DEFAULT_NORMAL_SHARE,
        }
    }
}
