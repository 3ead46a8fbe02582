//! What normal gets while focus would starve it (PRE-68).

use super::entity::quantum;
use crate::sched::parameters::Band;
use crate::sched::parameters::Settings;

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

#[cfg(test)]
mod tests {
    use super::MOST;
    use super::NormalShare;
    use crate::sched::parameters::Band;
    use crate::sched::parameters::Settings;

    const QUANTUM: u64 = 2_000_000;

    fn of(percent: u32) -> NormalShare {
        let mut share = NormalShare::none();
        share.set(&Settings { normal_share: percent, ..Settings::default() });
        share
    }

    #[test]
    fn pre_68_normal_has_a_turn_when_focus_has_saved_up_a_quantum_for_it() {
        let mut share = of(10);
        assert_eq!(share.turn_of_other_in(Band::Focus), Some(9 * QUANTUM));
        assert_eq!(share.turn_of_other_in(Band::Normal), None);
        share.focus_ran(9 * QUANTUM - 1);
        assert!(!share.is_due());
        assert_eq!(share.turn_of_other_in(Band::Focus), Some(1));
        let mut exact = share;
        exact.focus_ran(1);
        assert_eq!(exact.turn_of_other_in(Band::Normal), Some(QUANTUM));
        share.focus_ran(2);
        assert!(share.is_due());
        assert_eq!(share.turn_of_other_in(Band::Focus), None);
        assert_eq!(share.turn_of_other_in(Band::Normal), Some(QUANTUM + 1), "rounded up");
        share.normal_ran(QUANTUM, true);
        assert!(share.is_due(), "until all of it is spent");
        share.normal_ran(1, true);
        assert!(!share.is_due());
        assert_eq!(of(7).turn_of_other_in(Band::Focus), Some((QUANTUM * 93).div_ceil(7)));
        assert_eq!(of(Settings::MAX_NORMAL_SHARE + 9).percent, i128::from(Settings::MAX_NORMAL_SHARE));
    }

    #[test]
    fn pre_68_what_one_owes_the_other_is_bounded() {
        let mut share = of(10);
        share.focus_ran(u64::MAX / 2);
        assert_eq!(share.owed, MOST * 100);
        share.normal_sleeps();
        assert_eq!(share.owed, share.turn, "one turn at most is saved up");
        share.normal_ran(u64::MAX / 2, false);
        assert_eq!(share.owed, 0, "focus did not wait for it");
        share.normal_ran(u64::MAX / 2, true);
        assert_eq!(share.owed, -MOST * 100);
        share.normal_ran(1, false);
        assert_eq!(share.owed, -MOST * 100, "nor does that give anything back");
    }

    #[test]
    fn pre_69_what_is_owed_stays_owed_when_bands_are_set_up_anew_unless_normal_gets_nothing() {
        let mut share = of(10);
        share.focus_ran(QUANTUM);
        share.set(&Settings { normal_share: 20, ..Settings::default() });
        assert_eq!(share.owed, i128::from(QUANTUM) * 10);
        share.focus_ran(4 * QUANTUM);
        assert!(share.is_due());
        share.set(&Settings { normal_share: 0, ..Settings::default() });
        assert_eq!((share.owed, share.is_due()), (0, false));
        share.focus_ran(u64::MAX / 2);
        share.normal_ran(QUANTUM, true);
        assert_eq!((share.owed, share.turn_of_other_in(Band::Focus)), (0, None));
    }
}
