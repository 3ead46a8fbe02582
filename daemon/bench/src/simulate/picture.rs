//! A run as a picture: the time of each busy vGPU beside its fair share, and how long work waited to start.

use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;

use super::figures;
use super::figures::Figures;
use super::figures::name;
use super::guest::Guest;
use super::machine::Record;
use super::svg::Anchor;
use super::svg::Svg;

const INK: &str = "#33414e";
const GREY: &str = "#7a8794";
const GRID: &str = "#e3e8ed";
const LEFT: f64 = 80.0;
const RIGHT: f64 = 920.0;
/// Points of a curve.
const POINTS: usize = 200;

/// A diagram's field: where it lies, and what its edges mean.
struct Field {
    top: f64,
    bottom: f64,
    x: (f64, f64),
    y: (f64, f64),
}

impl Field {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let along = (x - self.x.0) / (self.x.1 - self.x.0);
        let up = (y - self.y.0) / (self.y.1 - self.y.0);
        (LEFT + along * (RIGHT - LEFT), self.bottom - up * (self.bottom - self.top))
    }

    fn level(&self, svg: &mut Svg, y: f64, label: &str) {
        svg.line(self.at(self.x.0, y), self.at(self.x.1, y), GRID, 1.0);
        let (x, y) = self.at(self.x.0, y);
        svg.text((x - 8.0, y + 4.0), Anchor::End, GREY, 12, label);
    }
}

fn colour(band: Band) -> &'static str {
    match band {
        Band::Realtime => "#c2410c",
        Band::Focus => "#0f766e",
        Band::Normal => "#1d4ed8",
        Band::Idle => GREY,
    }
}

/// Draws it.
pub fn draw(figures: &Figures, record: &Record, guests: &[Guest]) -> String {
    let title = format!(
        "{}: {} guests with {} queues each, {} s",
        figures.policy, figures.guests, figures.queues, figures.seconds
    );
    let mut svg = Svg::new(960, 720, &title);
    svg.text((LEFT, 36.0), Anchor::Start, INK, 18, &title);
    shares(&mut svg, figures, guests);
    latencies(&mut svg, figures, record);
    svg.finish()
}

/// A round step that gives at most six levels up to `most`.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|part| part * power).find(|step| most / step <= 6.0).unwrap_or(most)
}

fn shares(svg: &mut Svg, figures: &Figures, guests: &[Guest]) {
    let times = figures::times(guests);
    let percent = |number: usize| times[number] / figures.seconds * 100.0;
    let mut busy: Vec<(u32, usize)> =
        figures::busy(guests).map(|(number, weight)| (weight, number)).collect();
    busy.sort_unstable();
    let most = busy.iter().map(|(_, number)| percent(*number)).fold(0.0, f64::max) * 1.15;
    let most = if most > 0.0 { most } else { 1.0 };
    let field = Field { top: 84.0, bottom: 350.0, x: (0.0, busy.len().max(1) as f64), y: (0.0, most) };
    svg.text(
        (LEFT, 66.0),
        Anchor::Start,
        INK,
        14,
        "Share of the engine of each vGPU that always has work, percent",
    );
    let step = step(most);
    for level in (0..=6).map(|count| f64::from(count) * step).filter(|level| *level <= most) {
        field.level(svg, level, &format!("{}", (level * 1e6).round() / 1e6));
    }
    for (place, (_, number)) in (0u32..).zip(&busy) {
        svg.dot(field.at(f64::from(place) + 0.5, percent(*number)), 2.5, colour(Band::Normal));
    }
    let mut begin = 0.0;
    for class in &figures.weights {
        let end = begin + class.vgpus as f64;
        svg.line(field.at(begin, class.fair_percent), field.at(end, class.fair_percent), "#c2410c", 1.5);
        let (x, _) = field.at(f64::midpoint(begin, end), 0.0);
        let label = format!("weight {}: off {:.1} %", class.weight, class.off_percent);
        svg.text((x, field.bottom + 20.0), Anchor::Middle, INK, 12, &label);
        begin = end;
    }
    svg.text((RIGHT, 66.0), Anchor::End, "#c2410c", 12, "line: the fair share");
}

fn latencies(svg: &mut Svg, figures: &Figures, record: &Record) {
    // Powers of ten of microseconds.
    let longest = figures.latencies.iter().map(|latency| latency.spread.max_us).fold(1e4, f64::max);
    let field = Field { top: 440.0, bottom: 660.0, x: (0.0, longest.log10().ceil()), y: (0.0, 100.0) };
    svg.text(
        (LEFT, 412.0),
        Anchor::Start,
        INK,
        14,
        "From wake to start: percent that had started after that time",
    );
    for level in [0.0, 25.0, 50.0, 75.0, 100.0] {
        field.level(svg, level, &level.to_string());
    }
    let names = ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "1000 s"];
    for (power, label) in (0u32..).zip(names).take_while(|(power, _)| f64::from(*power) <= field.x.1) {
        let (x, y) = field.at(f64::from(power), 0.0);
        svg.line((x, y), (x, field.top), GRID, 1.0);
        svg.text((x, y + 20.0), Anchor::Middle, GREY, 12, label);
    }
    let bound = figures.bound.bound_us.max(1.0).log10();
    svg.line(field.at(bound, 0.0), field.at(bound, 100.0), INK, 1.5);
    let (x, y) = field.at(bound, 100.0);
    svg.text((x, y - 6.0), Anchor::Middle, INK, 12, "bound");
    let mut legend = RIGHT;
    for band in Band::ALL {
        let starts = record.starts.iter().filter(|start| start.band == band);
        let mut waits: Vec<Duration> = starts.map(|start| start.waited).collect();
        if waits.is_empty() {
            continue;
        }
        waits.sort_unstable();
        let points: Vec<(f64, f64)> = (0..=POINTS).map(|point| curve_point(&field, &waits, point)).collect();
        svg.polyline(&points, colour(band), 2.0);
        svg.text((legend, 412.0), Anchor::End, colour(band), 13, name(band));
        legend -= 80.0;
    }
}

fn curve_point(field: &Field, waits: &[Duration], point: usize) -> (f64, f64) {
    let at = waits[((waits.len() - 1) * point / POINTS).min(waits.len() - 1)];
    let micros = (at.as_secs_f64() * 1e6).max(1.0);
    field.at(micros.log10(), point as f64 / POINTS as f64 * 100.0)
}
