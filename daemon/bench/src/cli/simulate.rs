//! `campanile sim`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::ensure;
use campanile_host_gpu::sched::choice::Choice;
use clap::Args;

use crate::simulate::cost;
use crate::simulate::figures;
use crate::simulate::figures::Figures;
use crate::simulate::machine;
use crate::simulate::options::Options;
use crate::simulate::picture;

/// `campanile sim`.
#[derive(Debug, Args)]
pub struct SimArguments {
    /// Guests, each with a vGPU.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub guests: u32,
    /// Contexts of each guest.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub queues: u32,
    /// Virtual seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub seconds: u64,
    /// Scheduling policy, on both levels.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub policy: Choice,
    /// The same seed gives the same run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Longest slice of a dispatch, milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub slice_ms: u64,
    /// Slices that are with the engine at a time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub in_flight: u32,
    /// Print figures as JSON.
    #[arg(long)]
    pub json: bool,
    /// Draw shares and latencies into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Simulates, and fails if realtime work started later than the bound.
pub fn run(arguments: &SimArguments) -> anyhow::Result<()> {
    let options = Options {
        guests: usize::try_from(arguments.guests)?,
        queues: usize::try_from(arguments.queues)?,
        time: Duration::from_secs(arguments.seconds),
        policy: arguments.policy,
        seed: arguments.seed,
        slice: Duration::from_millis(arguments.slice_ms),
        in_flight: arguments.in_flight,
    };
    let (record, guests) = machine::run(&options);
    let entities = u64::from(arguments.guests) * u64::from(arguments.queues);
    let sizes = [entities, entities / 10, entities / 100].map(|size| size.max(1));
    let cost = sizes.map(|size| cost::measure(options.policy, size, options.seed)).to_vec();
    let figures = figures::sum_up(&options, &record, &guests, cost);
    if let Some(file) = &arguments.svg {
        let picture = picture::draw(&figures, &record, &guests);
        std::fs::write(file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print(&figures);
    }
    ensure!(figures.bound.starts > 0, "no realtime work started alone: simulate more guests, or longer");
    ensure!(figures.bound.is_kept(), "{} realtime starts were later than the bound", figures.bound.late);
    Ok(())
}

fn print(figures: &Figures) {
    let Figures { policy, guests, queues, seconds, seed, .. } = figures;
    println!("{policy}: {guests} guests with {queues} queues each, {seconds} s, seed {seed}\n");
    println!("vGPUs that always have work   Jain    fair share   furthest off   in one second");
    for class in &figures.weights {
        println!(
            "  weight {:>5}, {:>4} of them     {:.4}  {:>8.4} %   {:>8.2} %   {:>10.2} ms",
            class.weight,
            class.vgpus,
            class.jain,
            class.fair_percent,
            class.off_percent,
            class.off_in_a_second_ms
        );
    }
    println!("  contexts in them            {:.4}", figures.jain_of_contexts);
    if let Some(capped) = &figures.capped {
        let (vgpus, cap, most) = (capped.vgpus, capped.cap_percent, capped.most_percent);
        println!("  capped at {cap:.2} %, {vgpus} of them: the most that one had is {most:.4} %");
    }
    println!();
    println!("wake to start        count       median          99 %       longest");
    for latency in &figures.latencies {
        let spread = &latency.spread;
        println!(
            "  {:<12} {:>11} {:>9.2} ms {:>10.2} ms {:>10.2} ms",
            latency.band,
            spread.count,
            spread.p50_us / 1e3,
            spread.p99_us / 1e3,
            spread.max_us / 1e3
        );
    }
    let bound = &figures.bound;
    println!(
        "  bound {:.2} ms: {} of {} realtime starts with no other realtime work kept it, the longest took {:.2} ms\n",
        bound.bound_us / 1e3,
        bound.starts - bound.late,
        bound.starts,
        bound.longest_us / 1e3
    );
    println!(
        "switches: {:.0} a second between vGPUs, {:.0} between contexts; idle {:.1} %\n",
        figures.vgpu_switches_per_second, figures.context_switches_per_second, figures.idle_percent
    );
    println!("a report and its decision, with all contexts in one policy");
    for cost in &figures.cost {
        println!(
            "  {:>7} contexts   median {:>5} ns   99 % {:>6} ns",
            cost.entities, cost.median_ns, cost.p99_ns
        );
    }
}
