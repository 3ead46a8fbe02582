//! Upgrades as a picture: how long each queue waited for each piece of its work, while the daemon was replaced under it.

use std::time::Duration;

use crate::simulate::svg::Anchor;
use crate::simulate::svg::Svg;

const INK: &str = "#33414e";
const GREY: &str = "#7a8794";
const FAINT: &str = "#e3e8ed";
const UPGRADE: &str = "#fdf0e7";
const COLOURS: [&str; 3] = ["#1d4ed8", "#15803d", "#7c3aed"];
const NAMES: [&str; 3] = ["user mode, empty", "kernel mode, empty", "user mode, a kernel"];
const LEFT: f64 = 170.0;
const WIDTH: f64 = 690.0;
const TOP: f64 = 84.0;
/// Pixels of a row, and of what it has for waits.
const ROW: f64 = 120.0;
const PLOT: f64 = 96.0;
/// Waits that the axis begins and ends with, in decades of microseconds: 10 µs, 1 s.
const DECADES: (f64, f64) = (1.0, 6.0);
/// Points of a row; each shows the longest wait of its part of the time.
const POINTS: usize = 690;

/// What queues waited for, and when the daemon was replaced. Times are since the streams began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Of each queue: when a piece of work was done, and how long that took.
    pub waits: [Vec<(Duration, Duration)>; 3],
    /// From the order until the successor served.
    pub upgrades: Vec<(Duration, Duration)>,
}

impl History {
    fn end(&self) -> f64 {
        let ends = self.waits.iter().filter_map(|waits| waits.last());
        ends.map(|(at, _)| at.as_secs_f64()).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// The longest wait of a queue.
    fn longest(&self, queue: usize) -> Duration {
        self.waits[queue].iter().map(|(_, waited)| *waited).max().unwrap_or_default()
    }
}

/// The height of a wait above the foot of its row.
fn height(waited: Duration) -> f64 {
    let (first, last) = DECADES;
    let decades = (waited.as_secs_f64() * 1e6).max(1.0).log10().clamp(first, last);
    (decades - first) / (last - first) * PLOT
}

/// The longest wait of each part of the time, as points of a line.
fn line(waits: &[(Duration, Duration)], foot: f64, end: f64) -> Vec<(f64, f64)> {
    let mut longest = vec![None::<Duration>; POINTS];
    for (at, waited) in waits {
        // A wait fills all of its time: nothing else was done then.
        let from = (at.saturating_sub(*waited).as_secs_f64() / end * POINTS as f64).floor();
        let to = at.as_secs_f64() / end * POINTS as f64;
        for (place, slot) in longest.iter_mut().enumerate() {
            if (from..=to).contains(&(place as f64)) {
                *slot = (*slot).max(Some(*waited));
            }
        }
    }
    let x = |slot: usize| LEFT + slot as f64 / POINTS as f64 * WIDTH;
    let point = |(slot, waited): (usize, Option<Duration>)| Some((x(slot), foot - height(waited?)));
    longest.into_iter().enumerate().filter_map(point).collect()
}

/// Draws it: a row for each queue.
pub fn draw(history: &History) -> String {
    let end = history.end();
    let x = |at: Duration| LEFT + (at.as_secs_f64() / end).min(1.0) * WIDTH;
    let title = format!("{} upgrades of the daemon under work", history.upgrades.len());
    let mut svg = Svg::new(960, 480, &title);
    svg.text((24.0, 34.0), Anchor::Start, INK, 18, &title);
    svg.text(
        (24.0, 58.0),
        Anchor::Start,
        GREY,
        12,
        "longest wait of each queue for one piece of work, logarithmic",
    );
    for (begun, served) in &history.upgrades {
        let (from, to) = (x(*begun), x(*served).max(x(*begun) + 1.0));
        let middle = f64::midpoint(from, to);
        svg.line((middle, TOP), (middle, TOP + 3.0 * ROW - 16.0), UPGRADE, to - from);
    }
    for (queue, (name, colour)) in NAMES.iter().zip(COLOURS).enumerate() {
        let foot = TOP + queue as f64 * ROW + PLOT;
        for (waited, label) in [(10, "10 µs"), (1_000, "1 ms"), (100_000, "100 ms")] {
            let y = foot - height(Duration::from_micros(waited));
            svg.line((LEFT, y), (LEFT + WIDTH, y), FAINT, 1.0);
            svg.text((LEFT + WIDTH + 8.0, y + 4.0), Anchor::Start, GREY, 11, label);
        }
        svg.polyline(&line(&history.waits[queue], foot, end), colour, 1.2);
        svg.text((LEFT - 12.0, foot - PLOT / 2.0), Anchor::End, INK, 13, name);
        let most = format!("longest {:.1} ms", history.longest(queue).as_secs_f64() * 1e3);
        svg.text((LEFT - 12.0, foot - PLOT / 2.0 + 18.0), Anchor::End, colour, 12, &most);
    }
    let foot = TOP + 3.0 * ROW + 8.0;
    svg.text((LEFT, foot), Anchor::Start, GREY, 12, "0 s");
    svg.text((LEFT + WIDTH, foot), Anchor::End, GREY, 12, &format!("{end:.1} s"));
    svg.text(
        (LEFT + WIDTH / 2.0, foot),
        Anchor::Middle,
        GREY,
        12,
        "shaded: from the operator's order until the successor serves",
    );
    svg.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::History;
    use super::draw;
    use super::height;
    use super::line;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn each_queue_has_a_row_with_its_longest_wait_and_each_upgrade_is_shaded() {
        let waits =
            |longest: u32| vec![(10 * MILLISECOND, MILLISECOND), (1000 * MILLISECOND, longest * MILLISECOND)];
        let upgrades = vec![(100 * MILLISECOND, 300 * MILLISECOND), (500 * MILLISECOND, 600 * MILLISECOND)];
        let text = draw(&History { waits: [waits(17), waits(18), waits(26)], upgrades });
        for said in ["2 upgrades", "longest 17.0 ms", "longest 18.0 ms", "longest 26.0 ms", "1.0 s"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        // Where the second one lies, of which it is a tenth of all.
        assert!(
            text.contains(r##"x1="549.5" y1="84.0" x2="549.5""##) && text.contains(r##"stroke-width="69"##),
            "{text}"
        );
    }

    #[test]
    fn a_wait_is_as_high_as_its_logarithm_over_all_the_time_that_it_took() {
        let waits = [(500 * MILLISECOND, MILLISECOND), (1000 * MILLISECOND, 500 * MILLISECOND)];
        let points = line(&waits, 100.0, 1.0);
        let at = |wanted: Duration| {
            points.iter().filter(|(_, y)| (100.0 - y - height(wanted)).abs() < 1e-9).count()
        };
        assert_eq!((at(MILLISECOND), at(500 * MILLISECOND)), (1, 345), "{points:?}");
        let heights = [10, 100, 1000].map(|micros| height(Duration::from_micros(micros)));
        assert!(heights[0].abs() < 1e-9 && (heights[2] - 2.0 * heights[1]).abs() < 1e-9, "{heights:?}");
    }
}
