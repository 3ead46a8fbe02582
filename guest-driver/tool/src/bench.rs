//! `campanile-guest bench`: doorbell and kernel, side by side.
//!
//! Both ways submit the same empty buffer to the copy node and wait until it is done. They take turns, so that
//! what else the machine does meets both.

use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use serde::Serialize;

use crate::args::BenchArguments;
use crate::percentiles::Percentiles;
use crate::percentiles::ratio;

/// What is measured.
#[derive(Debug, Serialize)]
struct Figures {
    /// Stores until the doorbell is rung.
    user_mode_submit_ns: Percentiles,
    /// From there back: until the fence is seen.
    user_mode_round_trip_ns: Percentiles,
    /// EXECBUFFER, until it returns.
    kernel_mode_submit_ns: Percentiles,
    /// Until its fence is signalled.
    kernel_mode_round_trip_ns: Percentiles,
    /// Medians of the round trips, kernel mode over user mode.
    user_mode_faster_by: f64,
    /// User-mode submissions for the next two figures.
    user_mode_submissions: u64,
    /// Commands sent to the device during them, other than reconnects.
    commands_during_user_mode: u64,
    /// Reconnects during them: the engine had gone to sleep.
    reconnects_during_user_mode: u64,
}

/// Samples of one way.
#[derive(Debug, Default)]
struct Samples {
    submit: Vec<Duration>,
    round_trip: Vec<Duration>,
}

impl Samples {
    fn of(&mut self, begun: Instant, submitted: Instant) {
        self.submit.push(submitted - begun);
        self.round_trip.push(begun.elapsed());
    }
}

fn user_mode(queue: &mut UserQueue, rounds: u64, samples: &mut Samples) -> anyhow::Result<()> {
    let empty = CommandBuffer::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let point = queue.submit(&empty)?;
        let submitted = Instant::now();
        point.spin()?;
        samples.of(begun, submitted);
    }
    Ok(())
}

fn kernel_mode(queue: &mut KernelQueue, rounds: u64, samples: &mut Samples) -> anyhow::Result<()> {
    let empty = CommandBuffer::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let ticket = queue.submit(&empty)?;
        let submitted = Instant::now();
        queue.wait(ticket, None)?;
        samples.of(begun, submitted);
    }
    Ok(())
}

fn measure(device: &Device, turns: u64) -> anyhow::Result<Figures> {
    let context = device.create_context(Node::Copy)?;
    let mut user_queue = context.create_user_queue(&QueueOptions::default())?;
    let mut kernel_queue = context.create_kernel_queue()?;
    let (mut user, mut kernel) = (Samples::default(), Samples::default());
    user_mode(&mut user_queue, 100, &mut Samples::default())?;
    for _ in 0..turns {
        user_mode(&mut user_queue, 500, &mut user)?;
        kernel_mode(&mut kernel_queue, 50, &mut kernel)?;
    }

    let submissions = turns * 1000;
    user_mode(&mut user_queue, 1, &mut Samples::default())?;
    let (reconnects, connecting) = (user_queue.reconnects(), user_queue.connect_commands());
    let commands = device.control_commands();
    user_mode(&mut user_queue, submissions, &mut Samples::default())?;
    let reconnects = user_queue.reconnects() - reconnects;
    let connecting = user_queue.connect_commands() - connecting;
    let commands = (device.control_commands() - commands).saturating_sub(connecting);

    let user_mode_round_trip_ns = Percentiles::of(user.round_trip);
    let kernel_mode_round_trip_ns = Percentiles::of(kernel.round_trip);
    Ok(Figures {
        user_mode_submit_ns: Percentiles::of(user.submit),
        user_mode_round_trip_ns,
        kernel_mode_submit_ns: Percentiles::of(kernel.submit),
        kernel_mode_round_trip_ns,
        user_mode_faster_by: ratio(kernel_mode_round_trip_ns.p50, user_mode_round_trip_ns.p50),
        user_mode_submissions: submissions,
        commands_during_user_mode: commands,
        reconnects_during_user_mode: reconnects,
    })
}

/// Nothing but user-mode submissions, between two lines of output.
fn steady(device: &Device, time: Duration) -> anyhow::Result<()> {
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    user_mode(&mut queue, 100, &mut Samples::default())?;
    println!("steady");
    let (begun, mut turns) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        user_mode(&mut queue, 100, &mut Samples::default())?;
        turns += 1;
    }
    println!("{} submissions, {} reconnects", turns * 100, queue.reconnects());
    Ok(())
}

/// Measures and prints.
pub fn run(device: &Device, arguments: &BenchArguments) -> anyhow::Result<()> {
    if let Some(seconds) = arguments.steady {
        return steady(device, Duration::from_secs(seconds));
    }
    let figures = measure(device, if arguments.quick { 10 } else { 100 })?;
    if arguments.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    println!("user mode, submit          {}", figures.user_mode_submit_ns);
    println!("user mode, round trip      {}", figures.user_mode_round_trip_ns);
    println!("kernel mode, submit        {}", figures.kernel_mode_submit_ns);
    println!("kernel mode, round trip    {}", figures.kernel_mode_round_trip_ns);
    println!("user mode is faster by     {:.1} x", figures.user_mode_faster_by);
    println!(
        "control messages           {} during {} submissions (and {} reconnects)",
        figures.commands_during_user_mode, figures.user_mode_submissions, figures.reconnects_during_user_mode
    );
    Ok(())
}
