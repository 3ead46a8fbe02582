//! The daemon's processes from outside: found and lost, and the shared block of an engine looked into.

use std::fs;
use std::sync::atomic::Ordering;

use campanile_daemon::vgpu::control::orders::Order;
use campanile_daemon::vgpu::control::orders::Orders;
use campanile_host_gpu::memory::bits;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::block;
use campanile_protocol::engine::fences;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::handshake::power;
use rustix::process::Pid;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::Signal;
use rustix::process::prlimit;
use zerocopy::FromBytes;

use crate::signals::BLOCK;
use crate::signals::kill_at_rest;
use crate::signals::memfds;
use crate::signals::stat;
use crate::signals::try_signal;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// The engine processes of a daemon, but for those that are on their way out.
pub(crate) fn engines(daemon: &Daemon) -> Vec<u32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
        let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
    }
    found.retain(|&pid| is_there(pid));
    found
}

/// The engine processes of a session in this process, where other tests may have theirs.
pub(crate) fn engines_of(orders: &Orders) -> Vec<u32> {
    let described = orders.ask(Order::Describe, NEVER).unwrap();
    let engines = described["engines"].as_array().unwrap().iter();
    engines.filter_map(|engine| u32::try_from(engine["pid"].as_u64()?).ok()).collect()
}

/// The only engine process of a daemon, once others are gone.
pub(crate) fn engine(daemon: &Daemon) -> u32 {
    let mut there = engines(daemon);
    until("a single engine", || {
        there = engines(daemon);
        there.len() == 1
    });
    there[0]
}

/// Ends a daemon's engines, but for `spared`, until one is no longer replaced.
pub(crate) fn lose_engine(daemon: &Daemon, spared: &[u32], is_lost: impl Fn() -> bool) {
    until("an engine that is lost", || {
        for pid in engines(daemon).into_iter().filter(|pid| !spared.contains(pid)) {
            // It may be gone already.
            let _gone = try_signal(pid, Signal::KILL);
        }
        is_lost()
    });
}

/// Whether a process is there, and neither killed nor ended.
pub(crate) fn is_there(pid: u32) -> bool {
    let its_stat = stat(&format!("/proc/{pid}/stat"));
    // State and flags: zombie, dead, or on its way.
    let goes_on = its_stat.is_some_and(|stat| {
        !matches!(stat[0].as_str(), "Z" | "X") && stat[6].parse::<u32>().unwrap() & PF_EXITING == 0
    });
    goes_on && !is_killed(pid)
}

/// Flag of a process that has begun to end.
const PF_EXITING: u32 = 4;

/// Whether SIGKILL waits for a process to notice.
fn is_killed(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let (name, mask) = line.split_once(":\t")?;
        matches!(name, "SigPnd" | "ShdPnd").then(|| u64::from_str_radix(mask, 16).unwrap())
    });
    pending.into_iter().any(|mask| mask & (1 << (Signal::KILL.as_raw() - 1)) != 0)
}

/// Lets a process have the memory that it has, and no more.
pub(crate) fn allow_no_more_memory(pid: u32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let kib: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = Rlimit { current: Some(kib * 1024), maximum: Some(kib * 1024) };
    prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), Resource::Data, limit).unwrap();
}

/// Ends a daemon's only engine as a crash does that is nobody's fault. Gives the process that is no more.
pub(crate) fn kill_engine_at_rest(daemon: &Daemon) -> u32 {
    let pid = engine(daemon);
    kill_at_rest(pid);
    pid
}

/// The shared block of an engine, as the daemon has it open.
#[derive(Debug)]
pub(crate) struct EngineView {
    shared: Mapping,
}

impl EngineView {
    /// Of the daemon's only engine.
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let mut views = Self::all(daemon);
        assert_eq!(views.len(), 1);
        views.remove(0)
    }

    /// Of all engines.
    pub(crate) fn all(daemon: &Daemon) -> Vec<Self> {
        let blocks = memfds(daemon.pid(), BLOCK).into_iter();
        let map = |(_, file)| Mapping::new(file, 0, block::BLOCK_BYTES, Access::ReadWrite).unwrap();
        blocks.map(|block| Self { shared: map(block) }).collect()
    }

    fn load(&self, offset: u64) -> u64 {
        self.shared.word(offset).unwrap().load(Ordering::Acquire)
    }

    /// A physical doorbell.
    pub(crate) fn slot(&self, index: u32) -> DoorbellSlot {
        DoorbellSlot(self.load(block::doorbell(index)))
    }

    /// Page indices of the root page tables of all guest processes that the engine knows, by entry.
    pub(crate) fn roots(&self) -> Vec<u64> {
        let entries = (0..block::MAX_PROCESSES).filter(|index| self.load(block::process(*index)) != 0);
        entries.map(|index| self.load(block::process(index) + 8)).collect()
    }

    /// The physical doorbells in use, by index.
    pub(crate) fn slots_in_use(&self) -> Vec<u32> {
        (0..block::MAX_DOORBELLS).filter(|index| self.slot(*index).is_watching()).collect()
    }

    /// Counts changes of slots and tables.
    pub(crate) fn sequence(&self) -> u64 {
        self.load(block::WATCH_SEQUENCE)
    }

    /// Whether the engine has acted on every change of slots and tables.
    pub(crate) fn is_up_to_date(&self) -> bool {
        let sequence = self.sequence();
        self.load(block::WATCH_ACK) >= sequence
    }

    /// What it runs.
    pub(crate) fn progress(&self) -> Progress {
        Progress::from_word(self.load(block::PROGRESS))
    }

    /// When realtime work last had the engine; zero for never.
    pub(crate) fn realtime(&self) -> u64 {
        self.load(scheduling::REALTIME)
    }

    /// What it was told of bands.
    pub(crate) fn bands(&self) -> Bands {
        let mut bytes = [0; size_of::<Bands>()];
        self.shared.slice(scheduling::BANDS, bytes.len() as u64).unwrap().copy_to(&mut bytes);
        Bands::read_from_bytes(&bytes).unwrap()
    }

    /// The power word.
    pub(crate) fn power(&self) -> u64 {
        self.load(block::POWER)
    }

    /// MonitoredValue of a queue of the engine's table.
    pub(crate) fn monitored(&self, queue: u16) -> u64 {
        self.load(block::queue(u32::from(queue)) + block::QUEUE_MONITORED)
    }

    /// Whether the queue table has an entry at this place.
    pub(crate) fn has_queue(&self, queue: u16) -> bool {
        self.load(block::queue(u32::from(queue))) != 0
    }

    /// Whether the engine wants the daemon to look at a queue.
    pub(crate) fn asks_for_attention(&self) -> bool {
        (0..block::ATTENTION_WORDS).any(|index| self.load(block::ATTENTION + index * 8) != 0)
    }

    /// Reports in the engine's place that it hangs; the daemon sees it when it next looks.
    pub(crate) fn report_hung(&self) {
        self.shared.word(block::POWER).unwrap().store(power::HUNG, Ordering::Release);
    }

    /// The suspend fence that the engine has reported for a context entry.
    pub(crate) fn suspend_reported(&self, context: u32) -> u64 {
        self.load(block::context_report(context))
    }

    /// Reports a suspend fence in the engine's place; the daemon sees it when it next looks.
    pub(crate) fn report_suspend(&self, context: u32, fence: u64) {
        self.shared.word(block::context_report(context)).unwrap().store(fence, Ordering::Release);
        bits::raise(&self.shared, block::SUSPEND_REPORTS, context);
    }

    /// MonitoredValue of a native fence.
    pub(crate) fn monitored_fence(&self, index: u32) -> u64 {
        self.load(fences::monitored(index))
    }

    /// The global handle by which the engine knows a native fence; zero where it knows none.
    pub(crate) fn fence_handle(&self, index: u32) -> u64 {
        self.load(fences::handle(index))
    }

    /// Reports of signalled fences, ever.
    pub(crate) fn signalled_written(&self) -> u64 {
        self.load(fences::SIGNALLED_WRITTEN)
    }

    /// The count-th of them.
    pub(crate) fn signalled(&self, count: u64) -> u64 {
        self.load(fences::signalled(count))
    }

    /// Whether a report did not fit.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.load(fences::SIGNALLED_OVERFLOW) != 0
    }

    /// Says in the engine's place that a fence was signalled; the engine's next interrupt brings it to the daemon.
    pub(crate) fn say_signalled(&self, handle: u64) {
        let written = self.signalled_written();
        self.shared.word(fences::signalled(written)).unwrap().store(handle, Ordering::Release);
        self.shared.word(fences::SIGNALLED_WRITTEN).unwrap().store(written + 1, Ordering::Release);
    }

    /// Stores the value of a native fence as an engine does, and tells nobody.
    pub(crate) fn set_fence_value(&self, daemon: &Daemon, index: u32, value: u64) {
        let mut files = memfds(daemon.pid(), "campanile-fences");
        assert_eq!(files.len(), 1, "one VM, one file of fences");
        let at = u64::from(index) * PAGE_SIZE;
        let page = Mapping::new(files.remove(0).1, at, PAGE_SIZE, Access::ReadWrite).unwrap();
        page.word(0).unwrap().store(value, Ordering::Release);
    }
}
