//! The sides in turn.

use std::ffi::OsString;
use std::time::Duration;

use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::median;
use campanile_host_gpu::vulkan::info::Kind;

use super::figures::GpuFigures;
use super::figures::WorkFigures;
use super::moves;
use super::native;
use super::native::Native;
use super::native::Place;
use super::through::APERTURE;
use super::through::Through;
use super::work;
use super::work::Side;
use super::work::Sizes;
use super::work::Work;

/// Campanile, the bare driver in its own memory, and in the host's.
const SIDES: usize = 3;
/// Launches of a side in a round.
const LAUNCHES: usize = 50;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds, each with every work on every side.
    pub rounds: u32,
    /// Smaller vectors and matrices.
    pub small: bool,
}

fn sizes(kind: Kind, effort: Effort) -> Sizes {
    match (kind, effort.small) {
        (Kind::Cpu, true) => Sizes { vector_bytes: 16 << 20, side: 256 },
        (Kind::Cpu, false) => Sizes { vector_bytes: 64 << 20, side: 512 },
        (_, true) => Sizes { vector_bytes: 64 << 20, side: 2048 },
        (_, false) => Sizes { vector_bytes: 128 << 20, side: 4096 },
    }
}

/// What one kind of work took, on each side, and the rounds' quotients.
#[derive(Default)]
struct Samples {
    times: [Vec<Duration>; SIDES],
    ratio: Vec<f64>,
    host_ratio: Vec<f64>,
}

impl Samples {
    fn add(&mut self, round: [Duration; SIDES]) {
        let [ours, device, host] = round.map(|time| time.as_secs_f64().max(f64::MIN_POSITIVE));
        self.ratio.push(device / ours);
        self.host_ratio.push(host / ours);
        for (all, time) in self.times.iter_mut().zip(round) {
            all.push(time);
        }
    }
}

/// Measures on the device that engines take with these settings of `campanile serve`; `name` is part of the device's name. `start` starts hosts
/// with the same.
///
/// # Errors
/// There is no device, a side computes wrongly, or the two compute on different devices.
pub fn measure(
    settings: &[OsString],
    start: &moves::Start<'_>,
    name: Option<&str>,
    effort: Effort,
) -> anyhow::Result<GpuFigures> {
    let driver = native::open(name)?;
    let info = driver.info().clone();
    let sizes = sizes(info.kind, effort);
    let moves = moves::measure(start, &driver, sizes.vector_bytes, APERTURE, effort.rounds)?;
    let host = Native::new(driver.secondary()?, Place::Host, sizes)?;
    let device = Native::new(driver, Place::Device, sizes)?;
    let through = Through::new(settings, &info.name, sizes)?;
    let mut sides: [Box<dyn Side>; SIDES] = [Box::new(through), Box::new(device), Box::new(host)];

    let mut works = Vec::new();
    for work in Work::ALL {
        works.push(measure_work(&mut sides, work, sizes, effort.rounds)?);
    }
    let mut launches = Samples::default();
    for round in 0..effort.rounds {
        let mut times = [const { Vec::new() }; SIDES];
        for index in order(round) {
            for _ in 0..LAUNCHES {
                times[index].push(sides[index].launch()?);
            }
        }
        launches.add(times.clone().map(middle));
        for (all, mut times) in launches.times.iter_mut().zip(times) {
            all.pop();
            all.append(&mut times);
        }
    }
    let launch_ratio = 1.0 / median(launches.ratio).max(f64::MIN_POSITIVE);
    let [launch_ns, native_launch_ns, _] = launches.times.map(Percentiles::of);
    let device = info.to_string();
    Ok(GpuFigures { device, sizes, works, launch_ns, native_launch_ns, launch_ratio, moves })
}

/// The sides, in the order in which they go in this round.
fn order(round: u32) -> [usize; SIDES] {
    match round % 3 {
        0 => [0, 1, 2],
        1 => [1, 2, 0],
        _ => [2, 0, 1],
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn measure_work(
    sides: &mut [Box<dyn Side>; SIDES],
    work: Work,
    sizes: Sizes,
    rounds: u32,
) -> anyhow::Result<WorkFigures> {
    let mut samples = Samples::default();
    // The first round touches memory and compiles.
    for round in 0..=rounds {
        let mut times = [Duration::ZERO; SIDES];
        for index in order(round) {
            times[index] = sides[index].run(work)?;
        }
        if round > 0 {
            samples.add(times);
        }
    }
    for side in sides.iter_mut() {
        work::check(side.as_mut(), sizes, work, rounds + 1)?;
    }
    let [campanile_ns, native_ns, native_host_ns] = samples.times.map(Percentiles::of);
    let rate = |taken: Percentiles| work::rate(sizes.amount(work), taken.p50);
    Ok(WorkFigures {
        work,
        campanile_ns,
        native_ns,
        native_host_ns,
        ratio: median(samples.ratio),
        host_ratio: median(samples.host_ratio),
        campanile_rate: rate(campanile_ns),
        native_rate: rate(native_ns),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Samples;
    use super::order;

    #[test]
    fn each_side_goes_first_as_often() {
        let firsts: Vec<usize> = (0..6).map(|round| order(round)[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_ratio_is_of_throughputs_so_twice_the_time_is_half_of_it() {
        let mut samples = Samples::default();
        samples.add([20, 10, 40].map(Duration::from_millis));
        assert_eq!((samples.ratio, samples.host_ratio), (vec![0.5], vec![2.0]));
    }
}
