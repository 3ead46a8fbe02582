//! How long urgent work waits for a dispatch that runs.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::node::clock;
use campanile_host_gpu::vulkan::request::IN_FLIGHT;
use serde::Serialize;

use super::guest::Busy;
use super::guest::LIMIT;
use super::guest::Load;
use super::guest::Work;
use super::guest::compute_engine;
use super::guest::wait_for_spares;
use super::settings::Settings;
use crate::measure::daemon::DaemonProcess;
use crate::measure::daemon::ScheduleProcess;
use crate::measure::guests::attach;
use crate::measure::guests::open_guest;

/// How long a dispatch that is in the way takes, alone.
const LONG: Duration = Duration::from_millis(500);
/// What the way from ring to packet may take beside slices.
const OVERHEAD: Duration = Duration::from_micros(200);
/// Between two urgent submissions: the shortest, and how much longer it may be. Some are longer than an engine polls.
const PAUSE: [u64; 2] = [1_000, 8_000];

/// Who runs when urgent work comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InTheWay {
    /// Nobody.
    Nobody,
    /// A dispatch of another vGPU.
    OtherVgpu,
    /// One of a vGPU of another daemon, by one schedule of both.
    OtherDaemon,
    /// One of another process of the same vGPU.
    SameVgpu,
    /// Both.
    Both,
}

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nobody => "nobody",
            Self::OtherVgpu => "another vGPU",
            Self::OtherDaemon => "another daemon",
            Self::SameVgpu => "the same vGPU",
            Self::Both => "both",
        })
    }
}

/// Samples of one way of submission, or of a bare wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Median and 99th percentile.
    #[serde(flatten)]
    pub percentiles: Percentiles,
    /// The longest.
    pub max: u64,
    /// 99th percentile of the median round: what it is when something else disturbs the machine in fewer than half of them.
    pub round_p99: u64,
    /// How many.
    pub samples: usize,
}

impl Latency {
    fn of(rounds: Vec<Vec<Duration>>) -> Self {
        let p99s =
            rounds.iter().map(|round| Duration::from_nanos(Percentiles::of(round.clone()).p99)).collect();
        let samples = rounds.concat();
        let max = samples.iter().max().map_or(0, |max| clock::nanoseconds(*max));
        let round_p99 = Percentiles::of(p99s).p50;
        Self { samples: samples.len(), max, round_p99, percentiles: Percentiles::of(samples) }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percentiles: Percentiles { p50, p99 }, max, round_p99, .. } = *self;
        let [p50, p99, max, round_p99] = [p50, p99, max, round_p99].map(|ns| ns / 1000);
        write!(f, "{p50:>8} {p99:>8} {max:>8} {round_p99:>9}")
    }
}

/// Urgent work against one kind of other work, in one profile; ring to first packet, nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencyFigures {
    /// The profile.
    pub profile: String,
    /// Who ran.
    pub in_the_way: InTheWay,
    /// Through a user-mode queue.
    pub user_ns: Latency,
    /// Through a kernel-mode queue.
    pub kernel_ns: Latency,
    /// A thread that sleeps on an eventfd, woken in turn with those: what the CPUs' scheduler does at this load.
    pub bare_wake_ns: Latency,
    /// What a slice took on average.
    pub slice_ns: u64,
    /// Slices in flight, at the most.
    pub in_flight: usize,
    /// Slices in flight, at the length of the profile, and 200 µs.
    pub bound_ns: u64,
}

impl fmt::Display for LatencyFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, in_the_way, .. } = self;
        let bound = self.bound_ns / 1000;
        let mut line = |what: &str, latency: &Latency| {
            writeln!(
                f,
                "{profile:<9} {in_the_way:<14} {what:<13} {latency} {bound:>8} {:>8}",
                latency.samples
            )
        };
        line("user mode", &self.user_ns)?;
        line("kernel mode", &self.kernel_ns)?;
        line("bare wake-up", &self.bare_wake_ns)
    }
}

/// Samples of one round.
#[derive(Debug, Default)]
pub struct Round {
    user: Vec<Duration>,
    kernel: Vec<Duration>,
    bare: Vec<Duration>,
    slices: u64,
    slices_time: Duration,
}

/// A guest whose work cannot wait. Fields end in order: first who needs the next.
struct Urgent {
    user: UserQueue,
    kernel: KernelQueue,
    commands: CommandBuffer,
    time: Buffer,
    _contexts: [Context; 2],
    _work: Work,
    _device: Device,
}

impl Urgent {
    fn start(device: Device) -> anyhow::Result<Self> {
        let work = Work::new(&device)?;
        let time = device.create_buffer(4096)?;
        let context = || -> anyhow::Result<Context> {
            let context = device.create_context(Node::Compute)?;
            context.set_scheduling(&Properties { band: Band::Realtime(0), ..Properties::default() })?;
            Ok(context)
        };
        let contexts = [context()?, context()?];
        let user = contexts[0].create_user_queue(&QueueOptions::default())?;
        let kernel = contexts[1].create_kernel_queue()?;
        let mut commands = CommandBuffer::new();
        commands.timestamp(time.va())?;
        work.dispatch(&mut commands, 1, 1)?;
        Ok(Self { user, kernel, commands, time, _contexts: contexts, _work: work, _device: device })
    }

    /// The first packet stores the time.
    fn since(&self, begun: Duration) -> anyhow::Result<Duration> {
        let word = self.time.memory().word(0).map_or(0, |word| word.load(Ordering::Acquire));
        let waited = Duration::from_nanos(word).checked_sub(begun);
        waited.ok_or_else(|| anyhow::anyhow!("the first packet ran before it was submitted"))
    }

    fn ring(&mut self) -> anyhow::Result<Duration> {
        let begun = clock::monotonic();
        self.user.submit(&self.commands)?.wait(Some(LIMIT))?;
        self.since(begun)
    }

    fn submit(&mut self) -> anyhow::Result<Duration> {
        let begun = clock::monotonic();
        let ticket = self.kernel.submit(&self.commands)?;
        self.kernel.wait(ticket, Some(LIMIT))?;
        self.since(begun)
    }
}

/// A thread that sleeps until it is woken, and says when that was. It ends with its event's last user.
struct Sleeper {
    event: Arc<Event>,
    woken: Receiver<Duration>,
}

impl Sleeper {
    fn start() -> anyhow::Result<Self> {
        let event = Arc::new(Event::new()?);
        let (times, woken) = mpsc::channel();
        let its_event = Arc::clone(&event);
        thread::Builder::new().name("sleeper".to_owned()).spawn(move || {
            loop {
                its_event.wait(None);
                if times.send(clock::monotonic()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { event, woken })
    }

    fn wake(&self) -> anyhow::Result<Duration> {
        let begun = clock::monotonic();
        self.event.signal();
        Ok(self.woken.recv_timeout(LIMIT)?.saturating_sub(begun))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Nobody hears it any more, so it ends.
        let (_, nobody) = mpsc::channel();
        self.woken = nobody;
        self.event.signal();
    }
}

/// The daemon of the urgent guest, with that of the one in the way where this is another daemon's.
fn start_daemons(
    settings: &[OsString],
    in_the_way: InTheWay,
) -> anyhow::Result<(DaemonProcess, Option<(DaemonProcess, ScheduleProcess)>)> {
    let vgpus = ["", "bands=realtime"];
    if in_the_way != InTheWay::OtherDaemon {
        return Ok((DaemonProcess::with_vgpus(&vgpus, settings)?, None));
    }
    let schedule = ScheduleProcess::start()?;
    let settings = [settings, &["--schedule".into(), schedule.socket().into()]].concat();
    let other = DaemonProcess::with_vgpus(&vgpus[..1], &settings)?;
    Ok((DaemonProcess::with_vgpus(&vgpus, &settings)?, Some((other, schedule))))
}

/// One round, with a daemon of its own: both ways and a bare wake-up in turn.
pub fn measure(settings: &[OsString], in_the_way: InTheWay, count: u64) -> anyhow::Result<Round> {
    let (daemon, other) = start_daemons(settings, in_the_way)?;
    let load = Load { each: Some(LONG), at_a_time: 2 };
    // A vGPU is one VM, and two of its processes share its connection.
    let vm = attach(&daemon.socket_of(1))?;
    let open = |name: &str| anyhow::Ok(Device::open(vm.open(name)?)?);
    let mut busy = Vec::new();
    if matches!(in_the_way, InTheWay::OtherVgpu | InTheWay::Both) {
        busy.push((&daemon, 0, Busy::start(&daemon, open_guest(&daemon.socket_of(0))?, load)?));
    }
    if let Some((other, _)) = &other {
        busy.push((other, 0, Busy::start(other, open_guest(&other.socket())?, load)?));
    }
    if matches!(in_the_way, InTheWay::SameVgpu | InTheWay::Both) {
        busy.push((&daemon, 1, Busy::start(&daemon, open("busy")?, load)?));
    }
    let mut urgent = Urgent::start(open("urgent")?)?;
    let sleeper = Sleeper::start()?;
    wait_for_spares(&daemon)?;
    // The first of each finds engines that start, and ways that nobody has gone.
    for _ in 0..3 {
        urgent.ring()?;
        urgent.submit()?;
    }
    let slices =
        || busy.iter().map(|(daemon, vgpu, _)| compute_engine(daemon, *vgpu)).collect::<Result<Vec<_>, _>>();
    let before = slices()?;
    let mut number: u64 = 1;
    let mut pause = || {
        // Any sequence will do that is in no step with slices.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_micros(PAUSE[0] + (number >> 33) % PAUSE[1]));
    };
    let mut round = Round::default();
    for _ in 0..count {
        pause();
        round.user.push(urgent.ring()?);
        pause();
        round.kernel.push(urgent.submit()?);
        pause();
        round.bare.push(sleeper.wake()?);
    }
    for (after, before) in slices()?.into_iter().zip(before) {
        round.slices += after.slices - before.slices;
        round.slices_time += after.slices_time - before.slices_time;
    }
    busy.into_iter().try_for_each(|(_, _, busy)| busy.stop())?;
    Ok(round)
}

/// What some rounds come to.
pub fn figures(settings: &Settings, in_the_way: InTheWay, rounds: &[Round]) -> LatencyFigures {
    let in_flight = settings.slice * u32::try_from(IN_FLIGHT).unwrap_or(u32::MAX);
    let slices: u64 = rounds.iter().map(|round| round.slices).sum();
    let slices_time: Duration = rounds.iter().map(|round| round.slices_time).sum();
    let slice = slices_time / u32::try_from(slices).unwrap_or(u32::MAX).max(1);
    let each = |of: fn(&Round) -> &Vec<Duration>| {
        Latency::of(rounds.iter().map(|round| of(round).clone()).collect())
    };
    LatencyFigures {
        profile: settings.profile.clone(),
        in_the_way,
        user_ns: each(|round| &round.user),
        kernel_ns: each(|round| &round.kernel),
        bare_wake_ns: each(|round| &round.bare),
        slice_ns: clock::nanoseconds(slice),
        in_flight: IN_FLIGHT,
        bound_ns: clock::nanoseconds(in_flight + OVERHEAD),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Latency;

    #[test]
    fn a_disturbed_round_does_not_change_the_median_one() {
        let round = |slowest: u64| -> Vec<_> {
            (1..=100).map(|ms| Duration::from_millis(if ms < 99 { ms } else { slowest })).collect()
        };
        let latency = Latency::of(vec![round(500), round(99), round(99)]);
        assert_eq!((latency.samples, latency.max), (300, 500_000_000));
        assert_eq!((latency.round_p99, latency.percentiles.p99), (99_000_000, 99_000_000));
        // Two of three are more than can be left out.
        assert_eq!(Latency::of(vec![round(500), round(500), round(99)]).round_p99, 500_000_000);
    }
}
