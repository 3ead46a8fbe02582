//! Guests that keep a compute node busy, and what a daemon says of its engines.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::fence::FencePoint;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use serde_json::Value;

use crate::measure::daemon::DaemonProcess;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;

/// Arithmetic that cannot be shortened; each group counts itself in the first word.
const WORK: &str = "
    struct Data { groups: atomic<u32>, unused: u32, results: array<u32> }
    var<immediate> turns: u32;
    @group(0) @binding(0) var<storage, read_write> data: Data;
    @compute @workgroup_size(16) fn main(
        @builtin(global_invocation_id) id: vec3<u32>,
        @builtin(local_invocation_index) local: u32,
    ) {
        var x = id.x + 1u;
        for (var i = 0u; i < turns; i++) { x = (x * 1664525u + 1013904223u) ^ (x >> 7u); }
        data.results[id.x & 16383u] = x;
        if local == 0u { atomicAdd(&data.groups, 1u); }
    }";
const BYTES: u64 = 8 + 16384 * 4;
const TURNS: u32 = 2000;
/// Groups of the first dispatch that says how fast the machine is.
const FIRST_GROUPS: u32 = 1000;
/// Most groups of a dispatch: what every Vulkan device takes.
const MOST_GROUPS: u32 = 65_535;
/// A dispatch that took so long says how long others take.
const LONG_ENOUGH: Duration = Duration::from_millis(100);
/// How often a daemon is asked for what it does not say by itself.
const LOOK: Duration = Duration::from_millis(10);
/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Buffers that a guest has under way.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How long each is to take, alone; as short as can be without.
    pub each: Option<Duration>,
    /// How many at a time.
    pub at_a_time: usize,
}

/// What a guest dispatches.
#[derive(Debug)]
pub struct Work {
    kernel: Kernel,
    data: Arc<Buffer>,
}

impl Work {
    /// Makes kernel and buffer.
    pub fn new(device: &Device) -> anyhow::Result<Self> {
        let kernel = device.create_kernel(&KernelSource::wgsl(WORK))?;
        Ok(Self { kernel, data: Arc::new(device.create_buffer(BYTES)?) })
    }

    /// Adds a dispatch of so many groups of so many turns.
    pub fn dispatch(&self, commands: &mut CommandBuffer, groups: u32, turns: u32) -> anyhow::Result<()> {
        commands.dispatch(&self.kernel, [groups, 1, 1], &[self.data.binding(0)], &turns.to_ne_bytes())?;
        Ok(())
    }

    /// A dispatch that takes about `time` alone: found out by dispatching.
    pub fn long(&self, queue: &mut UserQueue, time: Duration) -> anyhow::Result<CommandBuffer> {
        let mut groups = FIRST_GROUPS;
        let (mut turns, mut took);
        loop {
            turns = TURNS;
            let mut commands = CommandBuffer::new();
            self.dispatch(&mut commands, groups, turns)?;
            let begun = Instant::now();
            queue.submit(&commands)?.wait(Some(LIMIT))?;
            took = begun.elapsed();
            if took >= LONG_ENOUGH || groups == MOST_GROUPS {
                break;
            }
            groups = (groups * 4).min(MOST_GROUPS);
        }
        let wanted = u64::from(groups) * u64::try_from(time.as_micros())?;
        let mut wanted = u32::try_from(wanted / u64::try_from(took.as_micros())?.max(1))?;
        while wanted > MOST_GROUPS {
            (wanted, turns) = (wanted / 2, turns * 2);
        }
        let mut commands = CommandBuffer::new();
        self.dispatch(&mut commands, wanted.max(1), turns)?;
        Ok(commands)
    }
}

/// A guest process that never lets its context run dry, until it is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    data: Arc<Buffer>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Busy {
    /// Begins on a device of a vGPU of `daemon`, whose node is free so far, or as good as free.
    pub fn start(daemon: &DaemonProcess, device: Device, load: Load) -> anyhow::Result<Self> {
        let work = Work::new(&device)?;
        wait_for_spares(daemon)?;
        let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        let commands = match load.each {
            Some(time) => work.long(&mut queue, time)?,
            None => {
                let mut commands = CommandBuffer::new();
                work.dispatch(&mut commands, 1, 1)?;
                commands
            }
        };
        let (stop, data) = (Arc::new(AtomicBool::new(false)), Arc::clone(&work.data));
        let its_stop = Arc::clone(&stop);
        let thread = thread::Builder::new().name("busy guest".to_owned()).spawn(move || {
            let (_device, _work) = (device, work);
            let mut window: VecDeque<FencePoint> = VecDeque::new();
            while !its_stop.load(Ordering::Acquire) {
                if window.len() == load.at_a_time
                    && let Some(oldest) = window.pop_front()
                {
                    oldest.wait(Some(LIMIT))?;
                }
                window.push_back(queue.submit(&commands)?);
            }
            for point in window {
                point.wait(Some(LIMIT))?;
            }
            Ok(())
        })?;
        Ok(Self { stop, data, thread: Some(thread) })
    }

    /// Groups that have run, modulo 2³².
    pub fn groups(&self) -> u32 {
        let word = self.data.memory().word32(0);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Waits until it runs.
    pub fn wait_until_it_runs(&self) -> anyhow::Result<()> {
        let (begun, before) = (Instant::now(), self.groups());
        while self.groups() == before {
            anyhow::ensure!(begun.elapsed() < LIMIT, "a busy guest gets nothing");
            thread::yield_now();
        }
        Ok(())
    }

    /// Ends when what is under way is done, and says what went wrong.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow::anyhow!("a busy guest panicked"))?
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::warn!("a busy guest: {error:#}");
        }
    }
}

/// What the daemon says of the compute engine of a vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineCounts {
    /// How long it has had its node, as it is charged for it.
    pub held: Duration,
    /// Slices.
    pub slices: u64,
    /// What they took.
    pub slices_time: Duration,
}

/// Asks the daemon at `control`.
pub fn compute_engine(daemon: &DaemonProcess, vgpu: usize) -> anyhow::Result<EngineCounts> {
    let control: &Path = &daemon.control();
    let status = client::ask(control, &Verb::Status)?;
    let engine = &status["vgpus"][vgpu]["session"]["engines"][0];
    let count = |name: &str| {
        engine[name].as_u64().ok_or_else(|| anyhow::anyhow!("the daemon does not say {name} of an engine"))
    };
    Ok(EngineCounts {
        held: Duration::from_nanos(count("held_ns")?),
        slices: count("slices")?,
        slices_time: Duration::from_nanos(count("slices_ns")?),
    })
}

/// Waits until no spare of the engines that have come up is starting: one that does takes the CPUs that all have in common
/// on a CPU driver, a quarter of a second long.
pub fn wait_for_spares(daemon: &DaemonProcess) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let control: &Path = &daemon.control();
    let is_starting = |vgpu: &Value| match vgpu["session"]["engines"].as_array() {
        Some(engines) => engines.iter().any(|engine| engine["spare"] == "starting"),
        // Too busy to say.
        None => vgpu["vm_connected"] == true,
    };
    loop {
        let status = client::ask(control, &Verb::Status)?;
        if !status["vgpus"].as_array().into_iter().flatten().any(is_starting) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "an engine's spare did not start within {LIMIT:?}");
        thread::sleep(LOOK);
    }
}
