//! What doorbells cost when there are many queues, and when there are too few doorbells.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context as _;
use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::median;
use campanile_guest::percentiles::ratio;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::device_page::MAX_QUEUES;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use serde::Serialize;

use super::daemon::DaemonProcess;
use super::guests::open_guest;
use super::guests::user_round_trips;

/// Turns of one queue alone and among many: machines change while they are measured.
const TURNS: u64 = 10;
/// Guest processes of the storm.
const STORM_PROCESSES: usize = 4;
/// Queues of each.
const STORM_QUEUES: usize = 16;

/// Settings of `campanile serve` for the daemons that this measures.
#[derive(Debug, Clone)]
pub struct Settings {
    /// 1,024 physical doorbells.
    pub many: Vec<OsString>,
    /// The global model.
    pub global: Vec<OsString>,
    /// One physical doorbell.
    pub one: Vec<OsString>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Round trips with one queue, and with many.
    pub round_trips: u64,
    /// Submissions that each find their doorbell taken away.
    pub retries: u64,
    /// Submissions of each queue of the storm.
    pub storm: u64,
}

/// One queue in use beside many that are connected and idle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ManyQueues {
    /// Queues connected in the second figure.
    pub queues: u32,
    /// User-mode round trip while no other queue is there.
    pub alone_ns: Percentiles,
    /// User-mode round trip with all of them connected.
    pub among_ns: Percentiles,
    /// Median of the turns' quotients of the two medians.
    pub ratio: f64,
}

/// Connects after RETRY: two queues that take one physical doorbell from each other at each submission.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Retries {
    /// Submissions.
    pub submissions: u64,
    /// Round trips over the control queue for each, from ring to ring.
    pub round_trips_mean: f64,
    /// The most that one took.
    pub round_trips_most: u64,
}

/// Many queues that fight over one physical doorbell, as fast as they can.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Storm {
    /// Queues, of several guest processes of one VM.
    pub queues: usize,
    /// Submissions, all of which were done in the end.
    pub submissions: u64,
    /// Connects for them.
    pub connects: u64,
    /// The most connects of others that one waited for.
    pub most_turns: u64,
    /// Seconds until the last was done.
    pub seconds: f64,
}

/// All of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DoorbellFigures {
    /// With a physical doorbell for each queue.
    pub dedicated: ManyQueues,
    /// With one cell for all.
    pub global: ManyQueues,
    /// See [`Retries`].
    pub retries: Retries,
    /// See [`Storm`].
    pub storm: Storm,
}

fn small_queue(context: &Context) -> anyhow::Result<UserQueue> {
    let options = QueueOptions { entries: 16, arena_bytes: 4096, ..QueueOptions::default() };
    Ok(context.create_user_queue(&options)?)
}

/// Round trips, after some of which nothing is kept: what is touched first is slow.
fn few_and_more(queue: &mut UserQueue, rounds: u64) -> anyhow::Result<Vec<Duration>> {
    let empty = CommandBuffer::new();
    user_round_trips(queue, &empty, rounds / 10)?;
    user_round_trips(queue, &empty, rounds)
}

fn many_queues(socket: &Path, rounds: u64) -> anyhow::Result<ManyQueues> {
    let device = open_guest(socket)?;
    let context = device.create_context(Node::Copy)?;
    let mut active = small_queue(&context)?;
    active.connect()?;
    let (mut alone, mut among, mut quotients) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let lonely = few_and_more(&mut active, rounds / TURNS)?;
        let mut idle = (1..MAX_QUEUES).map(|_| small_queue(&context)).collect::<anyhow::Result<Vec<_>>>()?;
        idle.iter_mut().try_for_each(UserQueue::connect)?;
        let crowded = few_and_more(&mut active, rounds / TURNS)?;
        let is_connected = |queue: &UserQueue| queue.status() == Some(DoorbellStatus::Connected);
        anyhow::ensure!(idle.iter().all(is_connected), "a queue lost its doorbell: the engine slept");
        let [one, other] = [&lonely, &crowded].map(|samples| Percentiles::of(samples.clone()).p50);
        quotients.push(ratio(other, one));
        alone.extend(lonely);
        among.extend(crowded);
    }
    let ([alone_ns, among_ns], ratio) = ([alone, among].map(Percentiles::of), median(quotients));
    Ok(ManyQueues { queues: MAX_QUEUES, alone_ns, among_ns, ratio })
}

fn retries(socket: &Path, submissions: u64) -> anyhow::Result<Retries> {
    let device = open_guest(socket)?;
    let context = device.create_context(Node::Copy)?;
    let empty = CommandBuffer::new();
    let mut queues = [small_queue(&context)?, small_queue(&context)?];
    let (mut all, mut most) = (0, 0);
    for _ in 0..submissions {
        let before = device.control_commands();
        let [now, next] = &mut queues;
        now.submit(&empty)?.spin()?;
        let took = device.control_commands() - before;
        (all, most) = (all + took, most.max(took));
        std::mem::swap(now, next);
    }
    #[expect(clippy::cast_precision_loss, reason = "a mean of counts that are far below 2^52")]
    let round_trips_mean = all as f64 / submissions.max(1) as f64;
    Ok(Retries { submissions, round_trips_mean, round_trips_most: most })
}

fn storm(socket: &Path, each: u64) -> anyhow::Result<Storm> {
    let vm = LoopbackVm::connect(socket, &VmOptions::default()).context("attaching a guest")?;
    let mut queues = Vec::new();
    for _ in 0..STORM_PROCESSES {
        let context = Device::open(vm.open("campanile-storm")?)?.create_context(Node::Copy)?;
        for _ in 0..STORM_QUEUES {
            queues.push(small_queue(&context)?);
        }
    }
    let begun = Instant::now();
    let outcomes: Vec<anyhow::Result<(u64, u64)>> = std::thread::scope(|scope| {
        let fighters: Vec<_> = queues
            .iter_mut()
            .map(|queue| {
                scope.spawn(|| {
                    for _ in 0..each {
                        queue.submit(&CommandBuffer::new())?;
                        // More queues than CPUs: the others are to have a chance to fight.
                        std::thread::yield_now();
                    }
                    queue.last().wait(None)?;
                    Ok((queue.most_turns(), queue.reconnects()))
                })
            })
            .collect();
        let ended = fighters.into_iter().map(|fighter| fighter.join());
        ended.map(|outcome| outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("a queue panicked")))).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let (mut most_turns, mut connects) = (0, 0);
    for outcome in outcomes {
        let (turns, reconnects) = outcome?;
        most_turns = most_turns.max(turns);
        connects += reconnects;
    }
    let submissions = each * u64::try_from(queues.len())?;
    Ok(Storm { queues: queues.len(), submissions, connects, most_turns, seconds })
}

/// Measures, each with a daemon of its own.
pub fn measure(settings: &Settings, effort: Effort) -> anyhow::Result<DoorbellFigures> {
    let daemon = DaemonProcess::start(&settings.many)?;
    let dedicated = many_queues(&daemon.socket(), effort.round_trips)?;
    drop(daemon);
    let daemon = DaemonProcess::start(&settings.global)?;
    let global = many_queues(&daemon.socket(), effort.round_trips)?;
    drop(daemon);
    let daemon = DaemonProcess::start(&settings.one)?;
    let retries = retries(&daemon.socket(), effort.retries)?;
    drop(daemon);
    let daemon = DaemonProcess::start(&settings.one)?;
    let storm = storm(&daemon.socket(), effort.storm)?;
    Ok(DoorbellFigures { dedicated, global, retries, storm })
}

/// How long the engines of these daemons poll: their figures are not about sleep.
pub const SPIN: Duration = Duration::from_secs(600);

impl fmt::Display for DoorbellFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, many) in [("dedicated", self.dedicated), ("global", self.global)] {
            writeln!(f, "one queue alone            {}   {name} doorbells", many.alone_ns)?;
            writeln!(
                f,
                "  among {:4} connected     {}   {:.2} x alone",
                many.queues, many.among_ns, many.ratio
            )?;
        }
        let Retries { submissions, round_trips_mean, round_trips_most } = self.retries;
        writeln!(
            f,
            "connect after RETRY        {round_trips_mean:.2} control round trips, {round_trips_most} at the most, of {submissions}"
        )?;
        let Storm { queues, submissions, connects, most_turns, seconds } = self.storm;
        writeln!(
            f,
            "{queues} queues on 1 doorbell   {submissions} submissions, {connects} connects in {seconds:.2} s; none waited for more than {most_turns} others"
        )
    }
}
