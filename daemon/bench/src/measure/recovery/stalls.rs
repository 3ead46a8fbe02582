//! How long innocents at work stand still beside hangs, and beside as much work that does not hang.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use serde::Serialize;

use super::guilty::Guilty;
use super::guilty::LIMIT;
use crate::measure::cpu_time;
use crate::measure::daemon::DaemonProcess;

/// The other work ends, and begins again, so often a timeout.
const PIECES: u32 = 10;
/// How long an innocent is watched after a hang, and after other work: the next spare is started meanwhile.
const AFTER: Duration = Duration::from_millis(300);
/// A small piece of work for the compute node.
const SQUARES: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = id.x * id.x;
    }";

/// An innocent's longest stalls, one a hang, or one a run of other work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stall {
    /// Beside hangs: what goes beyond the timeout is what recovery costs.
    pub beside_hangs_ns: Percentiles,
    /// The longest of them, nanoseconds.
    pub longest_beside_hangs_ns: u64,
    /// Beside as much work for as long, which does not hang.
    pub beside_work_ns: Percentiles,
    /// The longest of them, nanoseconds.
    pub longest_beside_work_ns: u64,
    /// CPU time of the daemons and their engines for each hang, the reset and the start of the next process included,
    /// milliseconds, mean.
    pub hang_cpu_ms: u64,
    /// The same for each run of other work, after which one engine process more was started and ended.
    pub work_cpu_ms: u64,
}

/// Of every kind of innocent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stalls {
    /// Hangs, and runs of other work, beside each.
    pub runs: usize,
    /// A process of the same VM on the same node: the same engine process.
    pub same_engine: Stall,
    /// Another VM on the same node.
    pub other_vm: Stall,
    /// A process of the same VM on the copy node.
    pub other_node: Stall,
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("same engine", &self.same_engine),
            ("other VM", &self.other_vm),
            ("other node", &self.other_node),
        ];
        writeln!(
            f,
            "longest stalls             one for each of {} hangs, and of as many runs of other work",
            self.runs
        )?;
        kinds.iter().try_for_each(|(name, stall)| {
            writeln!(
                f,
                "{name:<26} {}, {:>9} ns longest, {} ms of CPU; beside work {}, {:>9} ns longest, {} ms of CPU",
                stall.beside_hangs_ns,
                stall.longest_beside_hangs_ns,
                stall.hang_cpu_ms,
                stall.beside_work_ns,
                stall.longest_beside_work_ns,
                stall.work_cpu_ms
            )
        })
    }
}

/// What an innocent and who watches it share.
#[derive(Debug, Default)]
struct Watch {
    /// Set when either is at its end.
    over: AtomicBool,
    rounds: AtomicU64,
    /// The longest round since it was taken, nanoseconds.
    longest: AtomicU64,
}

impl Watch {
    /// Waits until a round has begun and ended since the call.
    fn see_a_round(&self) -> anyhow::Result<()> {
        let (begun, before) = (Instant::now(), self.rounds.load(Ordering::Relaxed));
        while self.rounds.load(Ordering::Relaxed) < before + 2 {
            anyhow::ensure!(!self.over.load(Ordering::Relaxed), "the innocent process ended");
            anyhow::ensure!(begun.elapsed() < LIMIT, "the innocent process gets nothing done");
            thread::yield_now();
        }
        Ok(())
    }

    /// The longest round while `during` went on.
    fn longest(&self, during: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
        self.see_a_round()?;
        self.longest.store(0, Ordering::Relaxed);
        during()?;
        self.see_a_round()?;
        Ok(Duration::from_nanos(self.longest.load(Ordering::Relaxed)))
    }
}

/// The innocent: one round trip after the other.
fn work(vm: &Arc<LoopbackVm>, node: Node, watch: &Watch) -> anyhow::Result<()> {
    let device = Device::open(vm.open("innocent")?)?;
    let kernel =
        (node == Node::Compute).then(|| device.create_kernel(&KernelSource::wgsl(SQUARES))).transpose()?;
    let data = device.create_buffer(4096)?;
    let mut queue = device.create_context(node)?.create_user_queue(&QueueOptions::default())?;
    let mut commands = CommandBuffer::new();
    match &kernel {
        Some(kernel) => commands.dispatch(kernel, [16, 1, 1], &[data.binding(0)], &[])?,
        None => commands.fill(data.va(), data.size(), 7)?,
    };
    while !watch.over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        queue.submit(&commands)?.wait(Some(LIMIT))?;
        let round = u64::try_from(begun.elapsed().as_nanos())?;
        watch.longest.fetch_max(round, Ordering::Relaxed);
        watch.rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Where hangs happen, and where the processes are started and ended that make other work as dear.
struct Scene<'a> {
    daemon: &'a DaemonProcess,
    vm: Arc<LoopbackVm>,
    without_spares: &'a DaemonProcess,
    timeout: Duration,
}

impl Scene<'_> {
    fn hang(&self) -> anyhow::Result<()> {
        Guilty::start(&self.vm)?.lose()?;
        thread::sleep(AFTER);
        Ok(())
    }

    /// As much work that does not hang, and then an engine process that starts and ends.
    fn work(&self) -> anyhow::Result<()> {
        Guilty::start(&self.vm)?.behave(self.timeout, self.timeout / PIECES)?;
        let begun = Instant::now();
        let vm = LoopbackVm::connect(self.without_spares.socket(), &VmOptions::default())?;
        Guilty::start(&vm)?.behave(Duration::ZERO, Duration::ZERO)?;
        drop(vm);
        thread::sleep(AFTER.saturating_sub(begun.elapsed()));
        Ok(())
    }

    /// What an innocent stands still at most `during` something, and what that costs both daemons.
    fn watched(
        &self,
        watch: &Watch,
        during: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<(Duration, Duration)> {
        let daemons = [self.daemon.pid(), self.without_spares.pid()];
        let used = || daemons.iter().map(|&pid| cpu_time::used_by_all(pid)).sum::<anyhow::Result<Duration>>();
        let before = used()?;
        let stall = watch.longest(during)?;
        Ok((stall, used()?.saturating_sub(before)))
    }

    /// Hangs and other work in turn, while an innocent is watched.
    fn beside(&self, watch: &Watch, runs: usize) -> anyhow::Result<Stall> {
        let (mut hangs, mut others) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        for _ in 0..runs {
            hangs.push(self.watched(watch, || self.hang())?);
            others.push(self.watched(watch, || self.work())?);
        }
        let (beside_hangs_ns, longest_beside_hangs_ns, hang_cpu_ms) = summary(&hangs)?;
        let (beside_work_ns, longest_beside_work_ns, work_cpu_ms) = summary(&others)?;
        Ok(Stall {
            beside_hangs_ns,
            longest_beside_hangs_ns,
            beside_work_ns,
            longest_beside_work_ns,
            hang_cpu_ms,
            work_cpu_ms,
        })
    }
}

/// Of stalls and CPU times: the spread and the longest of the former, nanoseconds; the mean of the latter, milliseconds.
fn summary(runs: &[(Duration, Duration)]) -> anyhow::Result<(Percentiles, u64, u64)> {
    let longest = runs.iter().map(|(stall, _)| stall.as_nanos()).max().unwrap_or(0);
    let cpu: Duration = runs.iter().map(|(_, cpu)| cpu).sum();
    let mean = cpu.as_millis() / runs.len().max(1) as u128;
    let stalls = Percentiles::of(runs.iter().map(|(stall, _)| *stall).collect());
    Ok((stalls, u64::try_from(longest)?, u64::try_from(mean)?))
}

/// Hangs the compute node of the daemon's first vGPU, beside innocents there and on the second.
pub fn measure(
    daemon: &DaemonProcess,
    without_spares: &DaemonProcess,
    timeout: Duration,
    runs: usize,
) -> anyhow::Result<Stalls> {
    let vm = LoopbackVm::connect(daemon.socket(), &VmOptions::default())?;
    let other = LoopbackVm::connect(daemon.socket_of(1), &VmOptions::default())?;
    let scene = Scene { daemon, vm: Arc::clone(&vm), without_spares, timeout };
    let of = |innocent: &Arc<LoopbackVm>, node: Node| -> anyhow::Result<Stall> {
        let watch = Watch::default();
        thread::scope(|scope| {
            let works = scope.spawn(|| {
                let ended = work(innocent, node, &watch);
                watch.over.store(true, Ordering::Relaxed);
                ended
            });
            let stall = scene.beside(&watch, runs);
            watch.over.store(true, Ordering::Relaxed);
            // What ended the innocent says more than that it ended.
            works.join().map_err(|_| anyhow::anyhow!("the innocent process panicked"))??;
            stall
        })
    };
    Ok(Stalls {
        runs,
        same_engine: of(&vm, Node::Compute)?,
        other_vm: of(&other, Node::Compute)?,
        other_node: of(&vm, Node::Copy)?,
    })
}
