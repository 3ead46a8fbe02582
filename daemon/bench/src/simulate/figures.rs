//! What a run shows, in numbers.

use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;
use serde::Serialize;

use super::cost::Cost;
use super::guest::Guest;
use super::load::Kind;
use super::load::kind;
use super::machine::Record;
use super::options::Options;
use super::spread::Spread;

/// From wake to start, in one band.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// The band.
    pub band: &'static str,
    /// How long.
    #[serde(flatten)]
    pub spread: Spread,
}

/// vGPUs of one weight that always had normal work.
#[derive(Debug, Clone, Serialize)]
pub struct WeightClass {
    /// Their weight.
    pub weight: u32,
    /// How many.
    pub vgpus: usize,
    /// Jain's index of the time that they had: 1 for equal shares, 1/n if one had all.
    pub jain: f64,
    /// Their fair share of the engine, percent.
    pub fair_percent: f64,
    /// Furthest off the fair share over the whole run, percent of it.
    pub off_percent: f64,
    /// Furthest off it in one second, milliseconds of the engine.
    pub off_in_a_second_ms: f64,
}

/// vGPUs that always have work, and a cap below their fair share.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Capped {
    /// How many.
    pub vgpus: usize,
    /// Their cap, percent of the engine.
    pub cap_percent: f64,
    /// What the one with the most had.
    pub most_percent: f64,
}

/// Whether realtime work started within the bound (PRE-05).
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bound {
    /// Slices in flight × longest slice, microseconds.
    pub bound_us: f64,
    /// Starts of realtime work while no other realtime work waited or ran.
    pub starts: usize,
    /// Those that were later than the bound.
    pub late: usize,
    /// The longest wait of them.
    pub longest_us: f64,
}

impl Bound {
    /// Whether all kept it, and there were any.
    pub fn is_kept(&self) -> bool {
        self.late == 0 && self.starts > 0
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Policy.
    pub policy: &'static str,
    /// Guests.
    pub guests: usize,
    /// Contexts of each.
    pub queues: usize,
    /// Virtual seconds.
    pub seconds: f64,
    /// Seed.
    pub seed: u64,
    /// Fairness between vGPUs.
    pub weights: Vec<WeightClass>,
    /// Those with a cap, if there are any.
    pub capped: Option<Capped>,
    /// Mean of Jain's index over the contexts of each busy guest, which are equals.
    pub jain_of_contexts: f64,
    /// From wake to start.
    pub latencies: Vec<Latency>,
    /// The bound.
    pub bound: Bound,
    /// Changes of the vGPU, a second.
    pub vgpu_switches_per_second: f64,
    /// Changes of the context, a second.
    pub context_switches_per_second: f64,
    /// Time without anything to run, percent.
    pub idle_percent: f64,
    /// What an event costs with all contexts in one policy, and with fewer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cost: Vec<Cost>,
}

/// Name of a band.
pub fn name(band: Band) -> &'static str {
    match band {
        Band::Idle => "idle",
        Band::Normal => "normal",
        Band::Focus => "focus",
        Band::Realtime => "realtime",
    }
}

/// Jain's index.
fn jain(times: &[f64]) -> f64 {
    let sum: f64 = times.iter().sum();
    let squares: f64 = times.iter().map(|time| time * time).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (squares * times.len() as f64) }
}

/// Time of each vGPU over the whole run, seconds.
pub fn times(guests: &[Guest]) -> Vec<f64> {
    let time =
        |guest: &Guest| guest.contexts.iter().map(|context| context.had).sum::<Duration>().as_secs_f64();
    guests.iter().map(time).collect()
}

/// Guests that always have normal work, and nothing else.
pub fn busy(guests: &[Guest]) -> impl Iterator<Item = (usize, u32)> + '_ {
    let all = guests.iter().enumerate().filter(|(number, _)| kind(*number) == Kind::Busy);
    all.map(|(number, guest)| (number, guest.parameters.weight))
}

/// Sums a run up.
pub fn sum_up(options: &Options, record: &Record, guests: &[Guest], cost: Vec<Cost>) -> Figures {
    let seconds = options.time.as_secs_f64();
    let latencies = Band::ALL.iter().rev().filter_map(|&band| {
        let starts = record.starts.iter().filter(|start| start.band == band);
        let spread = Spread::of(&mut starts.map(|start| start.waited).collect::<Vec<_>>())?;
        Some(Latency { band: name(band), spread })
    });
    let per_context = busy(guests).map(|(number, _)| {
        let times: Vec<f64> =
            guests[number].contexts.iter().map(|context| context.had.as_secs_f64()).collect();
        jain(&times)
    });
    let per_context: Vec<f64> = per_context.collect();
    Figures {
        policy: options.policy.name(),
        guests: options.guests,
        queues: options.queues,
        seconds,
        seed: options.seed,
        weights: weights(options, record, guests),
        capped: capped(options, guests),
        jain_of_contexts: per_context.iter().sum::<f64>() / per_context.len().max(1) as f64,
        latencies: latencies.collect(),
        bound: bound(options, record),
        vgpu_switches_per_second: record.switches.0 as f64 / seconds,
        context_switches_per_second: record.switches.1 as f64 / seconds,
        idle_percent: record.idle.as_secs_f64() / seconds * 100.0,
        cost,
    }
}

fn capped(options: &Options, guests: &[Guest]) -> Option<Capped> {
    let percent: Vec<f64> =
        times(guests).iter().map(|time| time / options.time.as_secs_f64() * 100.0).collect();
    let all: Vec<usize> = (0..guests.len()).filter(|number| kind(*number) == Kind::Capped).collect();
    let cap = guests.get(*all.first()?)?.parameters.cap;
    Some(Capped {
        vgpus: all.len(),
        cap_percent: f64::from(cap) / f64::from(WHOLE_ENGINE) * 100.0,
        most_percent: all.iter().map(|number| percent[*number]).fold(0.0, f64::max),
    })
}

fn bound(options: &Options, record: &Record) -> Bound {
    let starts = record.starts.iter().filter(|start| start.band == Band::Realtime && start.alone);
    let waits: Vec<Duration> = starts.map(|start| start.waited).collect();
    let late = waits.iter().filter(|waited| **waited > options.bound()).count();
    let longest = waits.iter().max().copied().unwrap_or_default();
    Bound {
        bound_us: options.bound().as_secs_f64() * 1e6,
        starts: waits.len(),
        late,
        longest_us: longest.as_secs_f64() * 1e6,
    }
}

/// A fair share is that of all that busy vGPUs had together, by weight.
fn weights(options: &Options, record: &Record, guests: &[Guest]) -> Vec<WeightClass> {
    let all: Vec<(usize, u32)> = busy(guests).collect();
    let heft = all.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>().max(1.0);
    let times = times(guests);
    let whole: f64 = all.iter().map(|(number, _)| times[*number]).sum();
    let mut classes: Vec<u32> = all.iter().map(|(_, weight)| *weight).collect();
    classes.sort_unstable();
    classes.dedup();
    let class = |weight: u32| {
        let members: Vec<usize> =
            all.iter().filter(|(_, other)| *other == weight).map(|(number, _)| *number).collect();
        let own: Vec<f64> = members.iter().map(|number| times[*number]).collect();
        let share = f64::from(weight) / heft;
        let off = own.iter().map(|time| (time / (whole * share) - 1.0).abs()).fold(0.0, f64::max);
        // The last second may be a part of one; the first has the beginning in it.
        let seconds =
            record.seconds.iter().take(usize::try_from(options.time.as_secs()).unwrap_or(usize::MAX));
        let in_a_second = seconds.map(|second| {
            let whole: f64 = all.iter().map(|(number, _)| second[*number].as_secs_f64()).sum();
            members
                .iter()
                .map(|number| (second[*number].as_secs_f64() - whole * share).abs())
                .fold(0.0, f64::max)
        });
        WeightClass {
            weight,
            vgpus: members.len(),
            jain: jain(&own),
            fair_percent: whole * share / options.time.as_secs_f64() * 100.0,
            off_percent: off * 100.0,
            off_in_a_second_ms: in_a_second.fold(0.0, f64::max) * 1e3,
        }
    };
    classes.into_iter().map(class).collect()
}
