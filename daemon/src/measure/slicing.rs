//! What cutting dispatches into slices costs, against a daemon that does not cut.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::ratio;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use serde::Serialize;

use super::daemon::DaemonProcess;
use super::round_trips::can_compute;
use super::round_trips::open_guest;
use super::round_trips::user_round_trips;

/// Arithmetic that cannot be shortened, and one store: about 4 ns a turn and thread on a CPU.
const WORK: &str = "
    var<immediate> turns: u32;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(16) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = id.x + 1u;
        for (var i = 0u; i < turns; i++) { x = (x * 1664525u + 1013904223u) ^ (x >> 7u); }
        data[id.x] = x;
    }";
const TURNS: u32 = 2000;
const GROUPS: u32 = 60_000;
const THREADS: u64 = 16;
/// Groups of a dispatch that is shorter than any slice.
const SHORT_GROUPS: u32 = 64;
const SHORT_TURNS: u32 = 20;
/// How long nothing runs before a long dispatch: no engine polls then.
const SLEEP: Duration = Duration::from_millis(6);
/// How long a dispatch may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Pairs of long dispatches.
    pub pairs: usize,
    /// Short dispatches of each side, of each size.
    pub short: u64,
}

/// The two daemons of one profile.
#[derive(Debug)]
pub struct Settings {
    /// Its name.
    pub profile: String,
    /// How long a slice is to take.
    pub slice: Duration,
    /// Of a daemon that cuts.
    pub sliced: Vec<OsString>,
    /// Of one that does not.
    pub whole: Vec<OsString>,
}

/// What was measured of one profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProfileFigures {
    /// The profile.
    pub profile: String,
    /// How long a slice is to take.
    pub slice_us: u64,
    /// A long dispatch in slices.
    pub sliced_ns: Percentiles,
    /// The same in one piece, in turn with those in slices.
    pub whole_ns: Percentiles,
    /// Median of what the slices took in each pair, over what the whole took.
    pub ratio: f64,
    /// Round trip of a dispatch of one group, by a daemon that cuts.
    pub one_group_sliced_ns: Percentiles,
    /// By one that does not.
    pub one_group_whole_ns: Percentiles,
    /// Round trip of a dispatch of some groups that is shorter than a slice, by a daemon that cuts.
    pub short_sliced_ns: Percentiles,
    /// By one that does not.
    pub short_whole_ns: Percentiles,
}

/// All profiles.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlicingFigures {
    /// One after the other.
    pub profiles: Vec<ProfileFigures>,
}

impl fmt::Display for SlicingFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for figures in &self.profiles {
            let ProfileFigures { profile, slice_us, .. } = figures;
            writeln!(f, "profile {profile}, slices of {slice_us} us")?;
            writeln!(f, "long dispatch, sliced      {}", figures.sliced_ns)?;
            writeln!(f, "long dispatch, whole       {}", figures.whole_ns)?;
            writeln!(f, "sliced / whole             {:.4}, median of pairs", figures.ratio)?;
            for (what, sliced, whole) in [
                ("one group ", figures.one_group_sliced_ns, figures.one_group_whole_ns),
                ("64 groups ", figures.short_sliced_ns, figures.short_whole_ns),
            ] {
                writeln!(f, "{what}, cutting daemon  {sliced}")?;
                writeln!(f, "{what}, other daemon    {whole}   {:.3} x", ratio(sliced.p50, whole.p50))?;
            }
        }
        Ok(())
    }
}

/// A daemon with a guest that dispatches. Fields end in order: first who needs the next.
struct Side {
    queue: UserQueue,
    long: CommandBuffer,
    short: CommandBuffer,
    one: CommandBuffer,
    data: Buffer,
    _device: Device,
    _daemon: DaemonProcess,
}

impl Side {
    fn start(settings: &[OsString]) -> anyhow::Result<Self> {
        let daemon = DaemonProcess::start(settings)?;
        let device = open_guest(&daemon.socket())?;
        anyhow::ensure!(can_compute(&device), "no compute node, so nothing is dispatched");
        let kernel = device.create_kernel(&KernelSource::wgsl(WORK))?;
        let data = device.create_buffer(u64::from(GROUPS) * THREADS * 4)?;
        let queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        let dispatch = |groups: u32, turns: u32| -> anyhow::Result<CommandBuffer> {
            let mut commands = CommandBuffer::new();
            commands.dispatch(&kernel, [groups, 1, 1], &[data.binding(0)], &turns.to_ne_bytes())?;
            Ok(commands)
        };
        let (long, short) = (dispatch(GROUPS, TURNS)?, dispatch(SHORT_GROUPS, SHORT_TURNS)?);
        let one = dispatch(1, 1)?;
        Ok(Self { queue, long, short, one, data, _device: device, _daemon: daemon })
    }

    fn long(&mut self) -> anyhow::Result<Duration> {
        std::thread::sleep(SLEEP);
        let begun = Instant::now();
        self.queue.submit(&self.long)?.wait(Some(LIMIT))?;
        Ok(begun.elapsed())
    }

    fn contents(&self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(u64::from(GROUPS) * THREADS * 4)?];
        self.data.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

fn measure_profile(settings: &Settings, effort: Effort) -> anyhow::Result<ProfileFigures> {
    let mut sides = [Side::start(&settings.sliced)?, Side::start(&settings.whole)?];
    for side in &mut sides {
        side.long()?;
    }
    let mut long = [Vec::new(), Vec::new()];
    let mut ratios = Vec::with_capacity(effort.pairs);
    for pair in 0..effort.pairs {
        let mut times = [Duration::ZERO; 2];
        // Each goes first as often as the other.
        for index in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            times[index] = sides[index].long()?;
            long[index].push(times[index]);
        }
        ratios.push(times[0].as_secs_f64() / times[1].as_secs_f64());
    }
    anyhow::ensure!(sides[0].contents()? == sides[1].contents()?, "slices compute something else");
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().context("no pairs")?;
    // In turn, so that what else runs on the machine meets both.
    const TURNS: u64 = 20;
    let (mut one, mut short) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for turn in 0..TURNS {
        for index in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let Side { queue, one: commands, short: commands_of_short, .. } = &mut sides[index];
            std::thread::sleep(SLEEP);
            // The first finds the engine asleep.
            user_round_trips(queue, commands, 10)?;
            one[index].extend(user_round_trips(queue, commands, effort.short / TURNS)?);
            short[index].extend(user_round_trips(queue, commands_of_short, effort.short / TURNS)?);
        }
    }
    let [sliced_ns, whole_ns] = long.map(Percentiles::of);
    let [one_group_sliced_ns, one_group_whole_ns] = one.map(Percentiles::of);
    let [short_sliced_ns, short_whole_ns] = short.map(Percentiles::of);
    Ok(ProfileFigures {
        profile: settings.profile.clone(),
        slice_us: u64::try_from(settings.slice.as_micros())?,
        sliced_ns,
        whole_ns,
        ratio,
        one_group_sliced_ns,
        one_group_whole_ns,
        short_sliced_ns,
        short_whole_ns,
    })
}

/// Measures these profiles, each with two daemons of its own.
pub fn measure(profiles: &[Settings], effort: Effort) -> anyhow::Result<SlicingFigures> {
    let profiles = profiles.iter().map(|settings| measure_profile(settings, effort));
    Ok(SlicingFigures { profiles: profiles.collect::<anyhow::Result<_>>()? })
}
