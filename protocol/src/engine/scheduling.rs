//! Scheduling in the shared block: what the daemon says of contexts and bands, and what the engine says it did.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | [`URGENCY`] | engine | supervisor | before the grant word goes to WANT, and before the supervisor is signalled |
//! | [`REALTIME`] behind it | engine | supervisor | before the supervisor is signalled, where it is news |
//! | [`CONTENDED`], [`LATENCY_BOOSTS`] behind it | supervisor | engine | none: hints; a miss costs a wait until the next decision, or longer slices |
//! | [`PREEMPT_REQUEST`] | daemon | engine | after the submissions that it is about; none follows before the report |
//! | [`PREEMPT_REPORT`] | engine | daemon | after the results of all that it put back, and the word behind it |
//! | [`RESCHEDULED`] | daemon (or), engine (swap) | | after the properties that changed |
//! | [`properties`] | daemon | engine | before [`RESCHEDULED`] |
//! | [`BANDS`] | daemon | engine | before the watch sequence rises |
//! | [`used`] | engine | daemon | none: a count |
//! | log entries, [`LOG_COUNT`] | engine | daemon | entry first |
//! | [`SLICES`] and the three words behind it | engine | daemon | none: counts, and what the newest say, for metrics |
//!
//! An engine that ends loses what it had not reported; the next process begins with the same properties.

use core::time::Duration;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::block::MAX_CONTEXTS;

/// The most urgent of what the engine could run now ([`Urgency`]).
pub const URGENCY: u64 = 0xe80;
/// When realtime work last had the engine: nanoseconds of the monotonic clock, zero for never.
pub const REALTIME: u64 = URGENCY + 8;
/// How long more of it is likely to come after that. The engine signals the supervisor where there was none for half as long;
/// otherwise the supervisor looks by itself.
pub const REALTIME_LASTS: Duration = Duration::from_secs(1);
/// Not zero: others want the node, so an engine without work gives it back at once instead of sleeping with it.
pub const CONTENDED: u64 = 0xec0;
/// How often the engine was asked to yield for realtime work.
pub const LATENCY_BOOSTS: u64 = CONTENDED + 8;
/// Preemption fence id: counts the requests to put back all that is in the hardware queue (PRE-19).
pub const PREEMPT_REQUEST: u64 = 0xf00;
/// The last preemption fence id that the engine has acted on (PRE-20).
pub const PREEMPT_REPORT: u64 = 0xf40;
/// LastCompletedFenceId of that report (PRE-20).
pub const PREEMPT_LAST_COMPLETED: u64 = PREEMPT_REPORT + 8;
/// Slices of dispatches that were seen done, ever.
pub const SLICES: u64 = 0xf80;
/// Nanoseconds that they took, each from when it could begin.
pub const SLICE_NANOSECONDS: u64 = SLICES + 8;
/// Nanoseconds that the newest of them was to take.
pub const SLICE_TARGET: u64 = SLICES + 16;
/// Buffers of user-mode queues that were retired, ever.
pub const USER_SUBMISSIONS: u64 = SLICES + 24;

/// One bit a context: its properties have changed.
pub const RESCHEDULED: u64 = super::fences::END.next_multiple_of(64);
/// Words of [`RESCHEDULED`].
pub const RESCHEDULED_WORDS: u64 = MAX_CONTEXTS as u64 / 64;
/// [`Bands`].
pub const BANDS: u64 = RESCHEDULED + RESCHEDULED_WORDS * 8;
const PROPERTIES: u64 = BANDS + 64;
const PROPERTIES_BYTES: u64 = 32;
const USED: u64 = PROPERTIES + MAX_CONTEXTS as u64 * PROPERTIES_BYTES;
/// Entries written to the log, ever.
pub const LOG_COUNT: u64 = USED + MAX_CONTEXTS as u64 * 8;
const LOG: u64 = LOG_COUNT + 64;
/// Entries of the log; older ones are overwritten.
pub const LOG_ENTRIES: u64 = 4096;
/// Bytes of an entry.
pub const LOG_ENTRY_BYTES: u64 = 32;
/// One past the last byte.
pub const END: u64 = LOG + LOG_ENTRIES * LOG_ENTRY_BYTES;

/// Where the properties of context entry `index` lie.
pub const fn properties(index: u32) -> u64 {
    PROPERTIES + index as u64 * PROPERTIES_BYTES
}

/// Where the engine time of context entry `index` lies: nanoseconds, ever.
pub const fn used(index: u32) -> u64 {
    USED + index as u64 * 8
}

/// Where the `count`-th log entry lies, counted from zero.
pub const fn log_entry(count: u64) -> u64 {
    LOG + count % LOG_ENTRIES * LOG_ENTRY_BYTES
}

/// How a context is scheduled, as the engine is told (PRE-62 to PRE-66).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ContextProperties {
    /// Another one each time the entry is used for another context.
    pub generation: u32,
    /// The guest process: in-process priority orders the contexts of one (PRE-64).
    pub group: u32,
    /// Band, 0 to 3 (PRE-62).
    pub band: u8,
    /// Realtime level, 0 to 31 (PRE-63).
    pub level: u8,
    /// In-process priority, -7 to 7 (PRE-64).
    pub priority: i8,
    /// Zero.
    pub reserved: u8,
    /// Share beside others of its band.
    pub weight: u32,
    /// Quantum, 100 ns units (PRE-66).
    pub quantum: u32,
    /// Grace period against same priority, 100 ns units (PRE-66).
    pub grace_same: u32,
    /// Grace period against lower priority, 100 ns units (PRE-66).
    pub grace_lower: u32,
    /// Zero.
    pub reserved_too: u32,
}

const _: () = assert!(size_of::<ContextProperties>() as u64 == PROPERTIES_BYTES);

/// What holds for one band, 100 ns units (PRE-67).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BandProperties {
    /// Grace period of a lower band that runs when this one wakes.
    pub grace: u32,
    /// Process quantum.
    pub process_quantum: u32,
    /// Process grace period.
    pub process_grace: u32,
}

/// What holds for all bands (PRE-67 to PRE-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bands {
    /// By band number.
    pub bands: [BandProperties; 4],
    /// Percent that NORMAL gets while FOCUS has work (PRE-68).
    pub normal_share: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Bands>() <= 64);

/// One stretch of time that a context had the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogEntry {
    /// Begin, nanoseconds of the monotonic clock.
    pub begin: u64,
    /// End.
    pub end: u64,
    /// Context entry.
    pub context: u32,
    /// Its generation.
    pub generation: u32,
    /// Its band.
    pub band: u32,
    /// 1 where it ran on and was put aside, 0 where it had no more to run.
    pub was_preempted: u32,
}

const _: () = assert!(size_of::<LogEntry>() as u64 == LOG_ENTRY_BYTES);

/// How urgent an engine's most urgent work is: band, then level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Urgency {
    /// Band, 0 to 3.
    pub band: u8,
    /// Realtime level.
    pub level: u8,
}

impl Urgency {
    /// As a word.
    pub const fn word(self) -> u64 {
        (self.band as u64) << 8 | self.level as u64
    }

    /// Decodes any word; what cannot be is the highest that can.
    pub const fn from_word(word: u64) -> Self {
        let [level, band, ..] = word.to_le_bytes();
        Self { band: if band > 3 { 3 } else { band }, level: if level > 31 { 31 } else { level } }
    }
}

#[cfg(test)]
mod tests {
    use super::Urgency;

    #[test]
    fn pre_62_pre_63_an_urgency_is_a_band_and_a_level_whatever_the_word() {
        for band in 0..4 {
            for level in 0..32 {
                let urgency = Urgency { band, level };
                assert_eq!(Urgency::from_word(urgency.word()), urgency);
            }
        }
        assert_eq!(Urgency::from_word(u64::MAX), Urgency { band: 3, level: 31 });
    }
}
