//! What daemons and the broker say to each other, in CBOR.
//!
//! | from | message | descriptors beside it |
//! |---|---|---|
//! | daemon | [`ToBroker::Hello`], first and once | |
//! | daemon | [`ToBroker::Add`] | shared block, wake eventfd, eventfd of asks, record, and the process where there is one |
//! | daemon | [`ToBroker::Retune`], [`ToBroker::ExpectSuspend`], [`ToBroker::Remove`] | |
//! | broker | [`ToDaemon::Welcome`] or [`ToDaemon::Refused`], first and once | |
//! | broker | [`ToDaemon::Peers`], [`ToDaemon::Hang`] | |

use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::MAX_WEIGHT;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::handshake::grant::Breach;
use campanile_protocol::handshake::grant::Given;
use serde::Deserialize;
use serde::Serialize;

use crate::sched::alarm::Hang;
use crate::sched::share::Share;

/// The version of these messages; a broker serves daemons of its own version.
pub const VERSION: u32 = 1;

/// What a daemon says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBroker {
    /// Its version and devices.
    Hello {
        /// [`VERSION`] of the daemon.
        version: u32,
        /// The device of each linked adapter, see [`super::devices`].
        devices: Vec<String>,
        /// Daemons that the broker before had, as it said last, this one among them; 0 where there was none.
        peers: u32,
        /// Engines that it adds next.
        engines: u32,
    },
    /// An engine takes part.
    Add {
        /// The daemon's number for it, used once on this line.
        engine: u64,
        /// The vGPU that it belongs to, for the log.
        vgpu: String,
        /// Which linked adapter.
        adapter: u8,
        /// Whether it is the copy engine of that, and not the compute engine.
        is_copy: bool,
        /// What it gets.
        tuning: Tuning,
    },
    /// An engine gets something else from the next decision on.
    Retune {
        /// The engine.
        engine: u64,
        /// What it gets.
        tuning: Tuning,
    },
    /// An engine was asked to suspend a context, and has its timeout to report it (UMS-112).
    ExpectSuspend {
        /// The engine.
        engine: u64,
        /// The entry of the context.
        entry: u32,
        /// The fence that it is to report.
        fence: u64,
    },
    /// The process of an engine is gone.
    Remove {
        /// The engine.
        engine: u64,
    },
}

/// What the broker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// The daemon takes part.
    Welcome,
    /// It does not, and why.
    Refused {
        /// In words.
        why: String,
    },
    /// So many daemons take part by now.
    Peers {
        /// How many.
        count: u32,
    },
    /// An engine hangs.
    Hang {
        /// The engine.
        engine: u64,
        /// How.
        hang: HangReport,
        /// What it ran, as in its progress word.
        progress: u64,
    },
}

/// A timeout and a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Nanoseconds; never for none.
    pub timeout_ns: Option<u64>,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Thousandths, 1 to [`WHOLE_ENGINE`].
    pub cap: u32,
    /// The number of a [`Band`].
    pub highest_band: u32,
}

impl Tuning {
    /// Of an engine with this timeout and this share.
    pub fn new(timeout: Option<Duration>, share: Share) -> Self {
        let Share { weight, cap, highest_band } = share;
        let timeout_ns = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        Self { timeout_ns, weight, cap, highest_band: highest_band as u32 }
    }

    /// Timeout and share.
    ///
    /// # Errors
    /// A figure is out of its range; in words.
    pub fn get(self) -> Result<(Option<Duration>, Share), String> {
        let Self { timeout_ns, weight, cap, highest_band } = self;
        let band =
            Band::from_number(highest_band).ok_or_else(|| format!("there is no band {highest_band}"))?;
        if !(1..=MAX_WEIGHT).contains(&weight) || !(1..=WHOLE_ENGINE).contains(&cap) {
            return Err(format!("weight {weight} or cap {cap} is out of range"));
        }
        Ok((timeout_ns.map(Duration::from_nanos), Share { weight, cap, highest_band: band }))
    }
}

/// A [`Hang`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HangReport {
    /// [`Hang::NotYielded`].
    NotYielded,
    /// [`Hang::NoProgress`].
    NoProgress,
    /// [`Hang::NotSuspended`].
    NotSuspended,
    /// [`Hang::BrokenProtocol`].
    BrokenProtocol {
        /// The grant word.
        word: u64,
        /// What was given, as [`Given::word`].
        given: u64,
    },
}

impl From<Hang> for HangReport {
    fn from(hang: Hang) -> Self {
        match hang {
            Hang::NotYielded => Self::NotYielded,
            Hang::NoProgress => Self::NoProgress,
            Hang::NotSuspended => Self::NotSuspended,
            Hang::BrokenProtocol(Breach { word, given }) => {
                Self::BrokenProtocol { word, given: given.word() }
            }
        }
    }
}

impl From<HangReport> for Hang {
    fn from(report: HangReport) -> Self {
        match report {
            HangReport::NotYielded => Self::NotYielded,
            HangReport::NoProgress => Self::NoProgress,
            HangReport::NotSuspended => Self::NotSuspended,
            HangReport::BrokenProtocol { word, given } => {
                Self::BrokenProtocol(Breach { word, given: Given::adopt(given).unwrap_or_default() })
            }
        }
    }
}

impl ToDaemon {
    /// That an engine hangs.
    pub fn hang(engine: u64, hang: Hang, progress: Progress) -> Self {
        Self::Hang { engine, hang: hang.into(), progress: progress.word() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::sched::parameters::Band;
    use campanile_protocol::handshake::grant::Breach;
    use campanile_protocol::handshake::grant::Given;

    use super::Hang;
    use super::HangReport;
    use super::Share;
    use super::Tuning;

    #[test]
    fn hangs_and_shares_arrive_as_they_were() {
        let given = Given::adopt(0x702).unwrap();
        for hang in [
            Hang::NotYielded,
            Hang::NoProgress,
            Hang::NotSuspended,
            Hang::BrokenProtocol(Breach { word: 9, given }),
        ] {
            assert_eq!(Hang::from(HangReport::from(hang)), hang);
        }
        let share = Share { weight: 7, cap: 300, highest_band: Band::Focus };
        for timeout in [None, Some(Duration::from_millis(5))] {
            assert_eq!(Tuning::new(timeout, share).get(), Ok((timeout, share)));
        }
    }

    #[test]
    fn a_share_out_of_its_range_is_refused() {
        let fine = Tuning::new(None, Share::default());
        let wrong = [
            Tuning { weight: 0, ..fine },
            Tuning { weight: 10_001, ..fine },
            Tuning { cap: 0, ..fine },
            Tuning { cap: 1001, ..fine },
            Tuning { highest_band: 4, ..fine },
        ];
        for tuning in wrong {
            assert!(tuning.get().is_err(), "{tuning:?}");
        }
        assert!(fine.get().is_ok());
    }
}
