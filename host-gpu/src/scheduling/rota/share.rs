//! What normal gets while focus would starve it (PRE-68).

use super::member::quantum;
use crate::scheduling::parameters::Band;
use crate::scheduling::parameters::Settings;

/// Most that one band owes the other, as engine time in nanoseconds.
const MOST: i128 = 1_000_000_000;
/// Longest turn of normal, nanoseconds.
const LONGEST_TURN: u64 = 10_000_000;

/// Turns between focus and normal while both have work.
///
/// Focus saves up for normal while normal waits; when that is enough for a quantum, normal has its turn until it is
/// spent.
#[derive(Debug, Clone, Copy)]
pub struct NormalShare {
    percent: i128,
    /// What normal must be owed before its turn begins; percent × ns.
    turn: i128,
    /// What normal is owed; percent × ns.
    owed: i128,
    due: bool,
}

impl NormalShare {
    /// With no percent: focus always comes first.
    pub fn none() -> Self {
        Self { percent: 0, turn: 1, owed: 0, due: false }
    }

    /// Sets it up; what is owed stays owed.
    pub fn set(&mut self, settings: &Settings) {
        let turn = quantum(settings.bands[Band::Normal as usize].process_quantum).min(LONGEST_TURN);
        self.percent = i128::from(settings.normal_share.min(Settings::MAX_NORMAL_SHARE));
        self.turn = i128::from(turn) * (100 - self.percent);
        if self.percent == 0 {
            self.owed = 0;
        }
        self.judge();
    }

    /// Whether normal comes before focus.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Focus had the engine for `time`, and normal waited.
    pub fn focus_ran(&mut self, time: u64) {
        self.owed = (self.owed + i128::from(time) * self.percent).min(MOST * 100);
        self.judge();
    }

    /// Normal had the engine for `time`; `waited`: focus waited for it, and has that time to its credit.
    pub fn normal_ran(&mut self, time: u64, waited: bool) {
        if self.percent == 0 {
            return;
        }
        let floor = if waited { -MOST * 100 } else { self.owed.min(0) };
        self.owed = (self.owed - i128::from(time) * (100 - self.percent)).max(floor);
        self.judge();
    }

    /// Normal has no more work: it saves up one turn at most.
    pub fn normal_sleeps(&mut self) {
        self.owed = self.owed.min(self.turn);
    }

    /// How long `band` can run until the other one's turn comes; None: for ever.
    pub fn turn_of_other_in(&self, band: Band) -> Option<u64> {
        let time = match band {
            Band::Focus if self.percent > 0 && !self.due => {
                (self.turn - self.owed + self.percent - 1).div_euclid(self.percent)
            }
            Band::Normal if self.due => (self.owed + 99 - self.percent).div_euclid(100 - self.percent),
            _ => return None,
        };
        Some(u64::try_from(time).unwrap_or(0))
    }

    fn judge(&mut self) {
        if self.owed <= 0 {
            self.due = false;
        } else if self.owed >= self.turn {
            self.due = true;
        }
    }
}
