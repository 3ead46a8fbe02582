//! The measurements.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::fence::FencePoint;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;

use super::cpu_time;
use super::doorbells;
use super::figures::Figures;
use super::guests::can_compute;
use super::guests::open_guest;
use super::guests::user_queue;
use super::guests::user_round_trips;
use super::peer::Peer;
use super::wake_ups;

/// Submissions under way while pipelining: fewer than the ring has entries.
const WINDOW: usize = 128;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    polled: u64,
    blocking: u64,
    submissions: u64,
    dispatches: u64,
    /// Of an engine, and of bare processes.
    pub wake_ups: u64,
    idle: Option<Duration>,
    /// Of the figures about many doorbells and few.
    pub doorbells: doorbells::Effort,
}

impl Effort {
    /// For figures to report.
    pub const FULL: Self = Self {
        polled: 200_000,
        blocking: 20_000,
        submissions: 100_000,
        dispatches: 2_000,
        wake_ups: 300,
        idle: Some(Duration::from_secs(3)),
        doorbells: doorbells::Effort { round_trips: 200_000, retries: 10_000, storm: 200 },
    };
    /// For a first look.
    pub const QUICK: Self = Self {
        polled: 20_000,
        blocking: 2_000,
        submissions: 20_000,
        dispatches: 200,
        wake_ups: 40,
        idle: None,
        doorbells: doorbells::Effort { round_trips: 20_000, retries: 1_000, storm: 20 },
    };
}

fn kernel_round_trips(device: &Device, rounds: u64) -> anyhow::Result<Vec<Duration>> {
    let mut queue = device.create_context(Node::Copy)?.create_kernel_queue()?;
    let empty = CommandBuffer::new();
    let mut samples = Vec::with_capacity(usize::try_from(rounds)?);
    for _ in 0..rounds {
        let begun = Instant::now();
        let ticket = queue.submit(&empty)?;
        queue.wait(ticket, None)?;
        samples.push(begun.elapsed());
    }
    Ok(samples)
}

fn dispatch_round_trips(device: &Device, rounds: u64) -> anyhow::Result<Vec<Duration>> {
    let kernel = device.create_kernel(&KernelSource::wgsl(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
         @compute @workgroup_size(1) fn main() { data[0] += 1u; }",
    ))?;
    let buffer = device.create_buffer(4096)?;
    let mut queue = user_queue(device, Node::Compute)?;
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1, 1, 1], &[buffer.binding(0)], &[])?;
    let samples = user_round_trips(&mut queue, &commands, rounds)?;
    let mut count = [0; 4];
    buffer.read(0, &mut count)?;
    anyhow::ensure!(u64::from(u32::from_le_bytes(count)) == rounds, "a dispatch was lost or ran twice");
    Ok(samples)
}

/// Measures against the daemon at `socket`, process `pid`.
pub fn measure(socket: &Path, pid: u32, effort: Effort) -> anyhow::Result<Figures> {
    let device = open_guest(socket)?;
    let empty = CommandBuffer::new();

    let next = Peer::sleeping(None)?;
    let peer = Peer::start(Some(&next))?;
    let pingpong_ns = Percentiles::of(peer.cache_line(effort.polled)?);
    let mut queue = user_queue(&device, Node::Copy)?;
    queue.connect()?;
    let um_rtt_ns = Percentiles::of(user_round_trips(&mut queue, &empty, effort.polled)?);

    let eventfd_rtt_ns = Percentiles::of(peer.eventfd(effort.blocking)?);
    let wake_ups = wake_ups::measure(&mut queue, &peer, &next, effort.wake_ups)?;
    drop((peer, next));
    let km_rtt_ns = Percentiles::of(kernel_round_trips(&device, effort.blocking)?);

    let (commands_before, reconnects_before) = (device.control_commands(), queue.reconnects());
    let begun = Instant::now();
    let mut window = VecDeque::new();
    for _ in 0..effort.submissions {
        // Polls where the ring would be full: a wait that sleeps would send a message.
        if window.len() == WINDOW {
            window.pop_front().map_or(Ok(()), |oldest: FencePoint| oldest.spin())?;
        }
        window.push_back(queue.submit(&empty)?);
    }
    window.pop_back().map_or(Ok(()), |last| last.spin())?;
    let elapsed = begun.elapsed();
    let reconnects_during_um = queue.reconnects() - reconnects_before;
    let control_messages_during_um = device.control_commands() - commands_before - reconnects_during_um;
    let nanoseconds = u64::try_from(elapsed.as_nanos())?.max(1);

    let um_dispatch_ns = if can_compute(&device) {
        Some(Percentiles::of(dispatch_round_trips(&device, effort.dispatches)?))
    } else {
        None
    };
    let idle_cpu_percent = effort.idle.map(|idle| idle_use(pid, idle)).transpose()?;
    let compute = if can_compute(&device) { "available" } else { "none" };
    Ok(Figures {
        pingpong_ns,
        um_rtt_ns,
        km_rtt_ns,
        wake_ups,
        eventfd_rtt_ns,
        um_per_s: effort.submissions.saturating_mul(1_000_000_000) / nanoseconds,
        um_submissions: effort.submissions,
        control_messages_during_um,
        reconnects_during_um,
        um_dispatch_ns,
        idle_cpu_percent,
        compute: compute.to_owned(),
    })
}

/// CPU use in percent of a core, from one second after now, over `over`.
fn idle_use(pid: u32, over: Duration) -> anyhow::Result<f64> {
    std::thread::sleep(Duration::from_secs(1));
    let (before, begun) = (cpu_time::used(pid)?, Instant::now());
    std::thread::sleep(over);
    let used = cpu_time::used(pid)?.saturating_sub(before);
    Ok(100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64())
}
