//! What a process for each vGPU costs, and what the end of one costs the others.
//!
//! ```text
//!   starts   from `ctl vgpu add` until the new worker serves
//!   crowd    64 VMs that have nothing to do, each with a worker
//!   kills    the longest wait of the other VM's queue for one empty buffer, in a round in which a worker is killed, and in one in which none is
//! ```

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_daemon::operator::verb::VgpuVerb;
use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
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

/// How long anything may take before it counts as never.
const LIMIT: Duration = Duration::from_secs(60);
/// VMs that have nothing to do.
pub(super) const IDLE_VMS: usize = 64;
/// For how long they are looked at.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(3);
/// Of a round in which no worker is killed, and how long idle workers are looked at.
const QUIET: Duration = Duration::from_secs(1);
/// Rounds with a kill: a keeper gives up a worker that is killed more often within 10 s.
const MOST: usize = 5;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workers {
    /// Starts, and kills.
    pub rounds: usize,
    /// From the command until a new worker serves.
    pub start_ns: Percentiles,
    /// From the kill of a worker until the next one answers.
    pub replaced_ns: Percentiles,
    /// Longest wait of the other VM in a round without a kill.
    pub others_stall_quiet_ns: Percentiles,
    /// The same in one with a kill.
    pub others_stall_killed_ns: Percentiles,
    /// Of a worker with a VM that has nothing to do: memory of its own, and all that is resident, bytes.
    pub worker: Memory,
    /// Of its keeper.
    pub keeper: Memory,
    /// Of the process that has started them.
    pub supervisor: Memory,
    /// CPU time that that one takes while nothing is asked, in percent of one CPU.
    pub supervisor_cpu_percent: f64,
    /// Many workers.
    pub crowd: Crowd,
}

/// What the workers of VMs cost that have a device open, and nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Crowd {
    /// Workers.
    pub workers: usize,
    /// From the execution of the process that starts them until all serve.
    pub start_ns: u64,
    /// CPU time of that process, the schedule and the keepers, in percent of one CPU.
    pub supervisor_cpu_percent: f64,
    /// The same of all workers and their engines.
    pub workers_cpu_percent: f64,
    /// Memory of all workers, without their keepers and engines, that no other process has.
    pub private_bytes: u64,
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Pages that no other process has, bytes.
    pub private_bytes: u64,
    /// Those, and its pages of files that others have, too.
    pub resident_bytes: u64,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB of its own, {} KiB resident", self.private_bytes >> 10, self.resident_bytes >> 10)
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "starts, and kills          {}", self.rounds)?;
        writeln!(f, "start of a worker          {}", self.start_ns)?;
        writeln!(f, "kill to the next worker    {}", self.replaced_ns)?;
        writeln!(f, "others' stall, no kill     {}", self.others_stall_quiet_ns)?;
        writeln!(f, "others' stall, a kill      {}", self.others_stall_killed_ns)?;
        writeln!(f, "idle worker                {}", self.worker)?;
        writeln!(f, "its keeper                 {}", self.keeper)?;
        writeln!(f, "what started them          {}", self.supervisor)?;
        writeln!(f, "CPU of that, idle          {:.2} %", self.supervisor_cpu_percent)?;
        let Crowd { workers, start_ns, supervisor_cpu_percent, workers_cpu_percent, private_bytes } =
            self.crowd;
        let (start, mib) = (start_ns / 1_000_000, private_bytes >> 20);
        writeln!(
            f,
            "{workers} idle workers: started in {start} ms; {workers_cpu_percent:.2} % of a CPU, and \
             {supervisor_cpu_percent:.2} % for what started them; {mib} MiB of their own"
        )
    }
}

fn memory(pid: u64) -> anyhow::Result<Memory> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| -> anyhow::Result<u64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("smaps_rollup without {name}"))? << 10)
    };
    let private_bytes = field("Private_Clean")? + field("Private_Dirty")?;
    Ok(Memory { private_bytes, resident_bytes: field("Rss")? })
}

/// A process that answers for two workers, and what it says of them.
struct Subject(DaemonProcess);

impl Subject {
    fn ask(&self, verb: &Verb) -> anyhow::Result<Value> {
        Ok(client::ask(&self.0.control(), verb)?)
    }

    /// The processes of the first worker and of its keeper.
    fn first(&self) -> anyhow::Result<(u64, u64)> {
        let status = self.ask(&Verb::Status)?;
        let of = |field: &str| status["workers"][0][field].as_u64();
        of("pid").zip(of("keeper")).context("it has no worker")
    }

    /// How long it takes to make a vGPU.
    fn start(&self) -> anyhow::Result<Duration> {
        let socket = self.0.socket().with_file_name("new.sock");
        let spec = format!("name=new,socket={},vram=64M", socket.display());
        let begun = Instant::now();
        self.ask(&Verb::Vgpu(VgpuVerb::Add { spec }))?;
        let took = begun.elapsed();
        self.ask(&Verb::Vgpu(VgpuVerb::Remove { vgpu: "new".to_owned(), force: true }))?;
        Ok(took)
    }

    /// Kills the first worker; how long it takes until there is another.
    fn kill(&self) -> anyhow::Result<Duration> {
        let (before, _) = self.first()?;
        let pid = i32::try_from(before).ok().and_then(Pid::from_raw).context("a process with a number")?;
        let begun = Instant::now();
        kill_process(pid, Signal::KILL)?;
        // One that is not there yet has no number.
        while self.first().ok().is_none_or(|(now, _)| now == before) {
            anyhow::ensure!(begun.elapsed() < LIMIT, "no worker follows");
        }
        Ok(begun.elapsed())
    }
}

/// The longest wait of a queue since it was looked at last.
#[derive(Debug, Default)]
struct Longest(Mutex<Duration>, AtomicBool);

impl Longest {
    fn take(&self) -> Duration {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has a queue do one empty buffer after the other until it is over.
    fn run(&self, device: &Device) -> anyhow::Result<()> {
        let context = device.create_context(Node::Copy)?;
        let mut queue = context.create_user_queue(&QueueOptions::default())?;
        while !self.1.load(Ordering::Relaxed) {
            let begun = Instant::now();
            queue.submit(&CommandBuffer::new())?.wait(Some(LIMIT))?;
            let mut longest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *longest = begun.elapsed().max(*longest);
        }
        Ok(())
    }
}

/// Processes that have these settings, with workers in this folder.
fn with_workers(settings: &[OsString], folder: &Path, vgpus: usize) -> anyhow::Result<Subject> {
    let own = [OsString::from("--workers"), folder.join("workers").into_os_string()];
    let settings: Vec<OsString> = settings.iter().cloned().chain(own).collect();
    Ok(Subject(DaemonProcess::with_vgpus(&vec![""; vgpus], &settings)?))
}

fn crowd(settings: &[OsString]) -> anyhow::Result<Crowd> {
    let folder = tempfile::tempdir().context("making a folder for workers")?;
    let begun = Instant::now();
    let subject = with_workers(settings, folder.path(), IDLE_VMS)?;
    let start_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let connect = |vgpu| {
        let vm = LoopbackVm::connect(subject.0.socket_of(vgpu), &VmOptions::default())?;
        Ok(Device::open(vm.open("idle")?)?)
    };
    let devices: Vec<Device> = (0..IDLE_VMS).map(connect).collect::<anyhow::Result<_>>()?;
    let status = subject.ask(&Verb::Status)?;
    let all = status["workers"].as_array().context("it has no workers")?.iter();
    let pids: Vec<u32> = all.filter_map(|worker| u32::try_from(worker["pid"].as_u64()?).ok()).collect();
    anyhow::ensure!(pids.len() == IDLE_VMS, "{} of {IDLE_VMS} workers serve", pids.len());
    let used = || {
        let workers: Duration = pids.iter().map(|pid| cpu_time::used(*pid)).sum::<anyhow::Result<_>>()?;
        anyhow::Ok((cpu_time::used(subject.0.pid())?, workers))
    };
    // What they began has ended by then.
    thread::sleep(IDLE_TIME);
    let (before, begun) = (used()?, Instant::now());
    thread::sleep(IDLE_TIME);
    let (after, elapsed) = (used()?, begun.elapsed());
    let percent =
        |before, after: Duration| after.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    let own = pids.iter().map(|pid| Ok(memory((*pid).into())?.private_bytes));
    let private_bytes = own.sum::<anyhow::Result<u64>>()?;
    drop(devices);
    Ok(Crowd {
        workers: pids.len(),
        start_ns,
        supervisor_cpu_percent: percent(before.0, after.0),
        workers_cpu_percent: percent(before.1, after.1),
        private_bytes,
    })
}

/// Measures workers of a process with these settings; 5 kills at the most.
///
/// # Errors
/// Something did not go on.
pub fn measure(settings: &[OsString], rounds: usize) -> anyhow::Result<Workers> {
    let rounds = rounds.min(MOST);
    let crowd = crowd(settings)?;
    let folder = tempfile::tempdir().context("making a folder for workers")?;
    let subject = with_workers(settings, folder.path(), 2)?;
    let starts = (0..rounds).map(|_| subject.start()).collect::<anyhow::Result<Vec<_>>>()?;
    let connect = |vgpu| {
        LoopbackVm::connect(subject.0.socket_of(vgpu), &VmOptions::default()).context("attaching a guest")
    };
    let vms = [connect(0)?, connect(1)?];
    let [_idle, other] = [Device::open(vms[0].open("idle")?)?, Device::open(vms[1].open("stream")?)?];
    let (used, begun) = (cpu_time::used(subject.0.pid())?, Instant::now());
    thread::sleep(QUIET);
    let used = cpu_time::used(subject.0.pid())?.saturating_sub(used);
    let supervisor_cpu_percent = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let (worker, keeper) = subject.first()?;
    let (worker, keeper, supervisor) = (memory(worker)?, memory(keeper)?, memory(subject.0.pid().into())?);
    let longest = Longest::default();
    let [mut quiet, mut killed, mut replaced] = [const { Vec::new() }; 3];
    thread::scope(|scope| {
        let stream = scope.spawn(|| longest.run(&other));
        let rounds = (0..rounds).try_for_each(|_| {
            let _before = longest.take();
            thread::sleep(QUIET);
            quiet.push(longest.take());
            let begun = Instant::now();
            replaced.push(subject.kill()?);
            thread::sleep(QUIET.saturating_sub(begun.elapsed()));
            killed.push(longest.take());
            anyhow::Ok(())
        });
        longest.1.store(true, Ordering::Relaxed);
        rounds.and(stream.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the stream panicked"))))
    })?;
    Ok(Workers {
        rounds,
        start_ns: Percentiles::of(starts),
        replaced_ns: Percentiles::of(replaced),
        others_stall_quiet_ns: Percentiles::of(quiet),
        others_stall_killed_ns: Percentiles::of(killed),
        worker,
        keeper,
        supervisor,
        supervisor_cpu_percent,
        crowd,
    })
}
