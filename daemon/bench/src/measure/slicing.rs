//! What cutting dispatches into slices costs, against a daemon that does not cut.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;
use std::time::Instant;

use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::median;
use campanile_guest::percentiles::ratio;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use serde::Serialize;

use super::daemon::DaemonProcess;
use super::guests::can_compute;
use super::guests::open_guest;
use super::guests::user_round_trips;

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
/// Groups of a long dispatch, which takes 0.1 s or so: many slices, and on a noisy machine some meet no noise.
const GROUPS: u32 = 20_000;
const THREADS: u64 = 16;
/// Groups of a dispatch that is shorter than any slice.
const SHORT_GROUPS: u32 = 64;
const SHORT_TURNS: u32 = 20;
/// Turns of each side with short dispatches in a round.
const SHORT_TURNS_EACH: usize = 10;
/// How long nothing runs before a long dispatch: no engine polls then.
const SLEEP: Duration = Duration::from_millis(6);
/// How long a dispatch may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds, each with new daemons.
    pub rounds: usize,
    /// Pairs of long dispatches in a round.
    pub pairs: usize,
    /// Short dispatches of each size, in each of the turns of a round.
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
    /// The fastest in slices over the fastest in one piece: what is left when nothing else runs on the machine.
    pub best_ratio: f64,
    /// Round trip of a dispatch of one group, by a daemon that cuts.
    pub one_group_sliced_ns: Percentiles,
    /// By one that does not.
    pub one_group_whole_ns: Percentiles,
    /// Median of the rounds' quotients of the two.
    pub one_group_ratio: f64,
    /// Round trip of a dispatch of some groups that is shorter than a slice, by a daemon that cuts.
    pub short_sliced_ns: Percentiles,
    /// By one that does not.
    pub short_whole_ns: Percentiles,
    /// Median of the rounds' quotients of the two.
    pub short_ratio: f64,
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
            let ProfileFigures { ratio, best_ratio, .. } = figures;
            writeln!(
                f,
                "sliced / whole             {ratio:.4} median of pairs, {best_ratio:.4} best over best"
            )?;
            let ProfileFigures { one_group_sliced_ns, short_sliced_ns, one_group_ratio, short_ratio, .. } =
                figures;
            writeln!(f, "one group, cutting daemon  {one_group_sliced_ns}")?;
            writeln!(
                f,
                "one group, other daemon    {}   {one_group_ratio:.3} x",
                figures.one_group_whole_ns
            )?;
            writeln!(f, "64 groups, cutting daemon  {short_sliced_ns}")?;
            writeln!(f, "64 groups, other daemon    {}   {short_ratio:.3} x", figures.short_whole_ns)?;
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
    _kernel: Kernel,
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
        Ok(Self { queue, long, short, one, data, _kernel: kernel, _device: device, _daemon: daemon })
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

/// What one side, sliced or whole, took.
#[derive(Default)]
struct Samples {
    long: Vec<Duration>,
    one: Vec<Duration>,
    short: Vec<Duration>,
}

/// Quotients of the two sides.
#[derive(Default)]
struct Quotients {
    long: Vec<f64>,
    one: Vec<f64>,
    short: Vec<f64>,
}

/// Both sides, in the order in which they go first in this round or pair.
fn order(count: usize) -> [usize; 2] {
    if count.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// One round, with daemons of its own: where threads happen to run does not change while they live.
fn measure_round(
    settings: &Settings,
    round: usize,
    effort: Effort,
    samples: &mut [Samples; 2],
    quotients: &mut Quotients,
) -> anyhow::Result<()> {
    let arguments = [&settings.sliced, &settings.whole];
    let [first, second] = order(round);
    let (one, other) = (Side::start(arguments[first])?, Side::start(arguments[second])?);
    let mut sides = if first == 0 { [one, other] } else { [other, one] };
    for side in &mut sides {
        side.long()?;
    }
    for pair in 0..effort.pairs {
        let mut times = [Duration::ZERO; 2];
        for index in order(pair) {
            times[index] = sides[index].long()?;
            samples[index].long.push(times[index]);
        }
        quotients.long.push(times[0].as_secs_f64() / times[1].as_secs_f64());
    }
    anyhow::ensure!(sides[0].contents()? == sides[1].contents()?, "slices compute something else");
    let mut round = [Samples::default(), Samples::default()];
    for turn in 0..SHORT_TURNS_EACH {
        for index in order(turn) {
            let Side { queue, one, short, .. } = &mut sides[index];
            std::thread::sleep(SLEEP);
            // The first finds the engine asleep.
            user_round_trips(queue, one, 10)?;
            round[index].one.extend(user_round_trips(queue, one, effort.short)?);
            round[index].short.extend(user_round_trips(queue, short, effort.short)?);
        }
    }
    let quotient = |of: fn(&Samples) -> &Vec<Duration>| {
        let [sliced, whole] = [0, 1].map(|index: usize| Percentiles::of(of(&round[index]).clone()));
        ratio(sliced.p50, whole.p50)
    };
    quotients.one.push(quotient(|samples| &samples.one));
    quotients.short.push(quotient(|samples| &samples.short));
    for (all, mut samples) in samples.iter_mut().zip(round) {
        all.one.append(&mut samples.one);
        all.short.append(&mut samples.short);
    }
    Ok(())
}

fn measure_profile(settings: &Settings, effort: Effort) -> anyhow::Result<ProfileFigures> {
    let (mut samples, mut quotients) = (<[Samples; 2]>::default(), Quotients::default());
    for round in 0..effort.rounds {
        measure_round(settings, round, effort, &mut samples, &mut quotients)?;
    }
    let [sliced, whole] = samples;
    let best = |samples: &Samples| samples.long.iter().min().map_or(0.0, Duration::as_secs_f64);
    let best_ratio = best(&sliced) / best(&whole);
    Ok(ProfileFigures {
        profile: settings.profile.clone(),
        slice_us: u64::try_from(settings.slice.as_micros())?,
        sliced_ns: Percentiles::of(sliced.long),
        whole_ns: Percentiles::of(whole.long),
        ratio: median(quotients.long),
        best_ratio,
        one_group_sliced_ns: Percentiles::of(sliced.one),
        one_group_whole_ns: Percentiles::of(whole.one),
        one_group_ratio: median(quotients.one),
        short_sliced_ns: Percentiles::of(sliced.short),
        short_whole_ns: Percentiles::of(whole.short),
        short_ratio: median(quotients.short),
    })
}

/// Measures these profiles, each with two daemons of its own.
pub fn measure(profiles: &[Settings], effort: Effort) -> anyhow::Result<SlicingFigures> {
    let profiles = profiles.iter().map(|settings| measure_profile(settings, effort));
    Ok(SlicingFigures { profiles: profiles.collect::<anyhow::Result<_>>()? })
}
