//! How two vGPUs share a compute node that both always have work for.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use campanile_guest::percentiles::median;
use serde::Serialize;

use super::guest::Busy;
use super::guest::Load;
use super::guest::compute_engine;
use crate::measure::daemon::DaemonProcess;
use crate::measure::guests::open_guest;

/// What is measured at a time.
const WINDOW: Duration = Duration::from_secs(1);
/// Turns settle before the first window.
const SETTLE: Duration = Duration::from_millis(300);

/// Two guests.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// For people.
    pub name: &'static str,
    /// What stands in `--vgpu` of each.
    pub vgpus: [&'static str; 2],
    /// What each does.
    pub loads: [Load; 2],
    /// Percent of the node that is due to the first.
    pub due: f64,
}

/// Shares of the first guest, percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Share {
    /// Median of the windows.
    pub median: f64,
    /// The one furthest from what is due.
    pub furthest: f64,
    /// How far that is, in percent of what is due to the guest that got less.
    pub deviation: f64,
}

impl Share {
    fn of(shares: Vec<f64>, due: f64) -> Self {
        let distance = |share: f64| {
            // Who got less than its due.
            if share < due { (due - share) / due } else { (share - due) / (100.0 - due) }
        };
        let furthest =
            shares.iter().copied().max_by(|one, other| distance(*one).total_cmp(&distance(*other)));
        let furthest = furthest.unwrap_or(due);
        Self { median: median(shares), furthest, deviation: 100.0 * distance(furthest) }
    }
}

/// What one case came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareFigures {
    /// Its name.
    pub case: &'static str,
    /// Percent that is due to the first guest.
    pub due: f64,
    /// Windows of one second.
    pub windows: usize,
    /// Of the time that the node was held, as the supervisor charges it.
    pub held: Share,
    /// Of the thread groups that ran, as guests count them; absent where groups differ.
    pub groups: Option<Share>,
}

impl fmt::Display for ShareFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, due, windows, held, groups } = self;
        let mut line = |what: &str, share: &Share| {
            let Share { median, furthest, deviation } = share;
            writeln!(
                f,
                "{case:<34} {what:<12} {due:>5.1} {median:>7.2} {furthest:>9.2} {deviation:>8.2} % {windows:>8}"
            )
        };
        line("time held", held)?;
        groups.iter().try_for_each(|share| line("groups", share))
    }
}

/// Shares of the windows of some rounds.
#[derive(Debug, Default)]
pub struct Windows {
    held: Vec<f64>,
    groups: Vec<f64>,
}

/// Percent that the first of two is of both.
fn percent(counts: [u64; 2]) -> f64 {
    let as_float = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let [one, other] = counts.map(as_float);
    if one + other == 0.0 { 0.0 } else { 100.0 * one / (one + other) }
}

/// Measures so many windows, with a daemon of its own.
pub fn measure(
    case: &Case,
    settings: &[OsString],
    windows: usize,
    found: &mut Windows,
) -> anyhow::Result<()> {
    let daemon = DaemonProcess::with_vgpus(&case.vgpus, settings)?;
    let start = |index: usize| Busy::start(&daemon, open_guest(&daemon.socket_of(index))?, case.loads[index]);
    // The first has all of the node for a moment; how long the dispatches of the second take was found out beside that.
    let second = start(1)?;
    let first = start(0)?;
    let guests = [&first, &second];
    guests.iter().try_for_each(|guest| guest.wait_until_it_runs())?;
    std::thread::sleep(SETTLE);
    let sample = || -> anyhow::Result<[(u64, u32); 2]> {
        let of = |index: usize| -> anyhow::Result<(u64, u32)> {
            let held = u64::try_from(compute_engine(&daemon, index)?.held.as_micros())?;
            Ok((held, guests[index].groups()))
        };
        Ok([of(0)?, of(1)?])
    };
    let mut before = sample()?;
    for _ in 0..windows {
        std::thread::sleep(WINDOW);
        let now = sample()?;
        let each = [0, 1].map(|index: usize| {
            let (held, groups) = now[index];
            (held - before[index].0, u64::from(groups.wrapping_sub(before[index].1)))
        });
        before = now;
        found.held.push(percent(each.map(|it| it.0)));
        found.groups.push(percent(each.map(|it| it.1)));
    }
    first.stop()?;
    second.stop()
}

/// What the windows of a case come to.
pub fn figures(case: &Case, windows: Windows) -> ShareFigures {
    let Windows { held, groups } = windows;
    let are_alike = case.loads[0].each == case.loads[1].each;
    ShareFigures {
        case: case.name,
        due: case.due,
        windows: held.len(),
        held: Share::of(held, case.due),
        groups: are_alike.then(|| Share::of(groups, case.due)),
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn the_deviation_is_of_what_was_due_to_whoever_got_less() {
        let share = Share::of(vec![75.0, 76.0, 73.5], 75.0);
        // One percent point more than 75 is 4 % of the other's 25; 1.5 less is 2 % of its own.
        assert_eq!((share.median, share.furthest, share.deviation), (75.0, 76.0, 4.0));
    }
}
