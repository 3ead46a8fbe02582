//! What guests wait for when their daemon is replaced, and when it is killed.
//!
//! ```text
//!   upgrades   guests whose work never stops: the longest wait of each queue for one piece of it, upgrade by upgrade
//!   idle       64 VMs of one daemon that have nothing to do
//!   workers    the same of a process for each vGPU (`workers`)
//!   kills      from the kill until a device that was asked nothing of goes on, and, where an engine does not stop, until a device that is opened
//!              anew has done its first work; beside the bare start of a daemon
//! ```

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde::Serialize;
use serde_json::Value;

use super::cpu_time;
use super::daemon::DaemonProcess;
use super::upgrade_picture::History;
use super::workers;
use super::workers::IDLE_TIME;
use super::workers::IDLE_VMS;
use super::workers::Workers;

/// How long nothing is asked of a daemon before it is killed.
const QUIET: Duration = Duration::from_millis(100);

/// From one upgrade to the next: what queues wait for otherwise is seen, too.
const BETWEEN: Duration = Duration::from_millis(300);

/// How long anything may take before it counts as never.
const LIMIT: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Continuity {
    /// Upgrades, and kills.
    pub rounds: usize,
    /// From the execution of a daemon until it listens: what a kill costs at the least.
    pub daemon_start_ns: Percentiles,
    /// Longest wait of a user-mode queue for one empty buffer, in each upgrade.
    pub upgrade_user_mode_stall_ns: Percentiles,
    /// The same of a kernel-mode queue.
    pub upgrade_kernel_mode_stall_ns: Percentiles,
    /// The same of a user-mode queue whose work is a kernel: its engine opens a driver and has the kernel made again.
    pub upgrade_kernels_stall_ns: Percentiles,
    /// How long the devices stood still, by the predecessor's own account.
    pub upgrade_stood_still_ns: Percentiles,
    /// From the kill of a daemon that is asked nothing until a device has done an empty buffer that its guest submits to it then.
    pub kill_to_going_on_ns: Percentiles,
    /// From the kill until a guest that looks for it has learnt that its device is lost.
    pub kill_to_loss_ns: Percentiles,
    /// From the kill until a device that is opened anew has done an empty buffer.
    pub kill_to_new_device_ns: Percentiles,
    /// A daemon of many VMs, none of which has anything to do.
    pub idle: Idle,
    /// A process for each vGPU.
    pub workers: Workers,
    /// The waits of all upgrades, for a picture.
    #[serde(skip)]
    pub history: History,
}

/// What VMs cost that have a device open, and nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Idle {
    /// VMs of one daemon.
    pub vms: usize,
    /// CPU time of the daemon and its engines, in percent of one CPU.
    pub cpu_percent: f64,
    /// Resident memory of the daemon's process for each VM: what it has more than without them.
    pub resident_bytes_per_vm: u64,
}

impl fmt::Display for Continuity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "upgrades, and kills        {}", self.rounds)?;
        writeln!(f, "start of a daemon          {}", self.daemon_start_ns)?;
        writeln!(f, "upgrade: user-mode stall   {}", self.upgrade_user_mode_stall_ns)?;
        writeln!(f, "upgrade: kernel-mode stall {}", self.upgrade_kernel_mode_stall_ns)?;
        writeln!(f, "upgrade: with kernels      {}", self.upgrade_kernels_stall_ns)?;
        writeln!(f, "upgrade: stood still       {}", self.upgrade_stood_still_ns)?;
        writeln!(f, "kill to going on           {}", self.kill_to_going_on_ns)?;
        writeln!(f, "kill to loss               {}", self.kill_to_loss_ns)?;
        writeln!(f, "kill to a new device       {}", self.kill_to_new_device_ns)?;
        let Idle { vms, cpu_percent, resident_bytes_per_vm } = self.idle;
        writeln!(
            f,
            "{vms} idle VMs: {cpu_percent:.2} % of a CPU, and {} KiB of memory each",
            resident_bytes_per_vm >> 10
        )?;
        write!(f, "{}", self.workers)
    }
}

/// A daemon with a keeper, its VM, and what `campanile ctl` says of it.
struct Subject {
    daemon: DaemonProcess,
    vm: Arc<LoopbackVm>,
}

/// The answer of `campanile ctl` to this.
fn ctl(control: &Path, verb: &str) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["ctl", "--json", "--control"]).arg(control).arg(verb).output()?;
    anyhow::ensure!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a queue waited for at the longest, by the upgrade in which the wait ended, and how many pieces of work it has had done.
#[derive(Debug)]
struct Waits {
    longest: Mutex<Vec<Duration>>,
    /// When each ended, since the streams began, and how long it took: the longest of each millisecond.
    history: Mutex<Vec<(Duration, Duration)>>,
    done: AtomicUsize,
}

impl Waits {
    fn note(&self, round: usize, at: Duration, waited: Duration) {
        let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(longest) = longest.get_mut(round) {
            *longest = waited.max(*longest);
        }
        drop(longest);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        match history.last_mut().filter(|(last, _)| last.as_millis() == at.as_millis()) {
            Some(last) if last.1 >= waited => {}
            Some(last) => *last = (at, waited),
            None => history.push((at, waited)),
        }
        drop(history);
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a queue does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing, rung by doorbell.
    UserMode,
    /// Nothing, submitted.
    KernelMode,
    /// A kernel, rung by doorbell.
    Kernels,
}

impl Work {
    const ALL: [Self; 3] = [Self::UserMode, Self::KernelMode, Self::Kernels];
}

/// What one kernel stores.
const KERNEL: &str = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] = data[id.x] * 3u + 1u; }";
/// Bytes that it stores to.
const KERNEL_BYTES: u64 = 4096;

/// Counts up for ever: an engine that runs it does not stop at a boundary when its daemon is killed.
const ENDLESS: &str = "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
@compute @workgroup_size(1) fn main() { loop { data[1] = data[1] + 1u; if (data[0] == 77u) { break; } } }";

/// The queues, and the upgrade that is under way.
#[derive(Debug)]
struct Streams {
    waits: [Waits; 3],
    round: AtomicUsize,
    is_over: AtomicBool,
    begun: Instant,
}

impl Streams {
    fn new(rounds: usize) -> Self {
        let none = || Waits {
            longest: Mutex::new(vec![Duration::ZERO; rounds]),
            history: Mutex::default(),
            done: AtomicUsize::new(0),
        };
        let (round, is_over, begun) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
        Self { waits: [none(), none(), none()], round, is_over, begun }
    }

    /// Has a queue do one piece of work after the other, until it is over.
    fn run(&self, device: &Device, work: Work) -> anyhow::Result<()> {
        let waits = &self.waits[work as usize];
        let node = if work == Work::Kernels { Node::Compute } else { Node::Copy };
        let context = device.create_context(node)?;
        let mut commands = CommandBuffer::new();
        let buffer = device.create_buffer(KERNEL_BYTES)?;
        let _kernel = if work == Work::Kernels {
            let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
            commands.dispatch(&kernel, [1; 3], &[buffer.binding(0)], &[])?;
            Some(kernel)
        } else {
            None
        };
        let mut user = (work != Work::KernelMode)
            .then(|| context.create_user_queue(&QueueOptions::default()))
            .transpose()?;
        let mut kernel = context.create_kernel_queue()?;
        while !self.is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            if let Some(user) = &mut user {
                user.submit(&commands)?.wait(Some(LIMIT))?;
            } else {
                let ticket = kernel.submit(&commands)?;
                kernel.wait(ticket, Some(LIMIT))?;
            }
            waits.note(self.round.load(Ordering::Relaxed), self.begun.elapsed(), begun.elapsed());
        }
        Ok(())
    }

    /// Waits until each queue has begun and ended another piece of work.
    fn go_on(&self) -> anyhow::Result<()> {
        let done = || self.waits.each_ref().map(|waits| waits.done.load(Ordering::Relaxed));
        let (before, begun) = (done(), Instant::now());
        while done().iter().zip(before).any(|(now, before)| *now < before + 2) {
            anyhow::ensure!(begun.elapsed() < LIMIT, "work does not go on");
            thread::yield_now();
        }
        Ok(())
    }
}

impl Subject {
    fn pid(&self) -> anyhow::Result<Pid> {
        let status = ctl(&self.daemon.control(), "status")?;
        let pid = status["daemon"]["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        pid.context("the daemon says no number of its process")
    }

    /// The longest waits of each queue in each upgrade, and how long devices stood still; and all of them.
    fn upgrade(&self, rounds: usize) -> anyhow::Result<([Vec<Duration>; 4], History)> {
        let open = || anyhow::Ok(Device::open(self.vm.open("stream")?)?);
        let devices = [open()?, open()?, open()?];
        let streams = Streams::new(rounds);
        let (mut stood, mut upgrades) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
        thread::scope(|scope| {
            let run = |(device, work)| {
                let streams = &streams;
                scope.spawn(move || streams.run(device, work))
            };
            let threads: Vec<_> = devices.iter().zip(Work::ALL).map(run).collect();
            let upgraded = (0..rounds).try_for_each(|round| {
                streams.go_on()?;
                thread::sleep(BETWEEN);
                streams.round.store(round, Ordering::Relaxed);
                let begun = streams.begun.elapsed();
                let done = ctl(&self.daemon.control(), "upgrade")?;
                upgrades.push((begun, streams.begun.elapsed()));
                streams.go_on()?;
                stood.push(Duration::from_millis(done["stood_still_ms"].as_u64().unwrap_or(u64::MAX)));
                anyhow::Ok(())
            });
            streams.is_over.store(true, Ordering::Relaxed);
            let ended = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a stream panicked")))
            };
            upgraded.and(threads.into_iter().try_for_each(ended))
        })?;
        let taken = |of: Waits| {
            let history = of.history.into_inner().unwrap_or_else(PoisonError::into_inner);
            (of.longest.into_inner().unwrap_or_else(PoisonError::into_inner), history)
        };
        let [(user, first), (kernel, second), (kernels, third)] = streams.waits.map(taken);
        Ok(([user, kernel, kernels, stood], History { waits: [first, second, third], upgrades }))
    }

    /// Kills the daemon of a device that it is asked nothing of; when work that is submitted to that then is done.
    fn kill_quiet(&self) -> anyhow::Result<Duration> {
        let device = Device::open(self.vm.open("quiet")?)?;
        let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
        queue.submit(&CommandBuffer::new())?.wait(Some(LIMIT))?;
        let before = self.pid()?;
        // What was asked is over by then.
        thread::sleep(QUIET);
        let begun = Instant::now();
        kill_process(before, Signal::KILL)?;
        queue
            .submit(&CommandBuffer::new())?
            .wait(Some(LIMIT))
            .context("a device that was asked nothing of")?;
        Ok(begun.elapsed())
    }

    /// Kills the daemon of a device whose engine runs a kernel that never ends, so that it is lost; when its guest has learnt that, and when it
    /// works again.
    fn kill(&self) -> anyhow::Result<(Duration, Duration)> {
        let device = Device::open(self.vm.open("lost")?)?;
        let data = device.create_buffer(KERNEL_BYTES)?;
        let kernel = device.create_kernel(&KernelSource::wgsl(ENDLESS))?;
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [1; 3], &[data.binding(0)], &[])?;
        let mut occupied =
            device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        occupied.submit(&commands)?;
        let (mut count, begun) = ([0; 4], Instant::now());
        while count == [0; 4] {
            anyhow::ensure!(begun.elapsed() < LIMIT, "a kernel does not begin");
            data.read(4, &mut count)?;
        }
        let before = self.pid()?;
        let begun = Instant::now();
        kill_process(before, Signal::KILL)?;
        while device.check().is_ok() {
            anyhow::ensure!(begun.elapsed() < LIMIT, "no device is lost");
            thread::yield_now();
        }
        let lost = begun.elapsed();
        let new = Device::open(self.vm.open("new")?)?;
        let mut queue = new.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
        queue.submit(&CommandBuffer::new())?.wait(Some(LIMIT))?;
        Ok((lost, begun.elapsed()))
    }
}

/// Resident memory of a process, bytes.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("a status file without VmRSS")? << 10)
}

/// So many VMs of one daemon open a device each, and have nothing to do.
fn idle(settings: &[OsString], vms: usize) -> anyhow::Result<Idle> {
    let daemon = DaemonProcess::with_vgpus(&vec![""; vms], settings)?;
    let before = resident(daemon.pid())?;
    let connect = |vgpu| {
        let vm = LoopbackVm::connect(daemon.socket_of(vgpu), &VmOptions::default())?;
        Ok(Device::open(vm.open("idle")?)?)
    };
    let devices: Vec<Device> = (0..vms).map(connect).collect::<anyhow::Result<_>>()?;
    // What they began has ended by then.
    thread::sleep(IDLE_TIME);
    let (used, begun) = (cpu_time::used(daemon.pid())?, Instant::now());
    thread::sleep(IDLE_TIME);
    let used = cpu_time::used(daemon.pid())?.saturating_sub(used);
    let cpu_percent = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let more = resident(daemon.pid())?.saturating_sub(before);
    drop(devices);
    Ok(Idle { vms, cpu_percent, resident_bytes_per_vm: more / vms.max(1) as u64 })
}

/// Replaces a daemon with these settings under two streams of work so often, and kills it so often: at most 5 times, since its keeper gives
/// up one that is killed more often within 10 s.
///
/// # Errors
/// A daemon did not go on.
pub fn measure(settings: &[OsString], rounds: usize) -> anyhow::Result<Continuity> {
    let mut starts = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        let _ends = DaemonProcess::start(settings)?;
        starts.push(begun.elapsed());
    }
    let kept: Vec<OsString> = settings.iter().cloned().chain([OsString::from("--respawn")]).collect();
    let daemon = DaemonProcess::start(&kept)?;
    let vm = LoopbackVm::connect(daemon.socket(), &VmOptions::default()).context("attaching a guest")?;
    let subject = Subject { daemon, vm };
    let ([user, kernel, kernels, stood], history) = subject.upgrade(rounds)?;
    let mut going_on = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        going_on.push(subject.kill_quiet()?);
    }
    // A keeper of its own: it gives up a daemon that is killed more than 5 times within 10 s.
    drop(subject);
    let daemon = DaemonProcess::start(&kept)?;
    let vm = LoopbackVm::connect(daemon.socket(), &VmOptions::default()).context("attaching a guest")?;
    let subject = Subject { daemon, vm };
    let (mut losses, mut again) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        let (lost, works) = subject.kill()?;
        losses.push(lost);
        again.push(works);
    }
    Ok(Continuity {
        rounds,
        daemon_start_ns: Percentiles::of(starts),
        upgrade_user_mode_stall_ns: Percentiles::of(user),
        upgrade_kernel_mode_stall_ns: Percentiles::of(kernel),
        upgrade_kernels_stall_ns: Percentiles::of(kernels),
        upgrade_stood_still_ns: Percentiles::of(stood),
        kill_to_going_on_ns: Percentiles::of(going_on),
        kill_to_loss_ns: Percentiles::of(losses),
        kill_to_new_device_ns: Percentiles::of(again),
        idle: idle(settings, IDLE_VMS)?,
        workers: workers::measure(settings, rounds)?,
        history,
    })
}
