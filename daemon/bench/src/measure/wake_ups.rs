//! Wake-ups: of an engine in F1, beside those of bare processes.
//!
//! ```text
//!   bare          guest ──eventfd──▶ process                                       what waking one process takes
//!   two in a row  guest ──eventfd──▶ process ──eventfd──▶ process                  … and waking an engine
//!   engine        guest ──virtqueue─▶ vGPU thread ──eventfd──▶ engine ──▶ fence
//! ```
//!
//! They take turns in one run, have slept for as long, and are waited for by the same thread, which polls.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::ratio;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use rustix::thread::CpuSet;
use rustix::thread::sched_getaffinity;
use rustix::thread::sched_setaffinity;
use serde::Serialize;

use super::daemon::DaemonProcess;
use super::guests::open_guest;
use super::guests::user_queue;
use super::peer::Peer;

/// How long an engine, and a bare process, has nothing to do before it is woken: longer than an engine polls.
const SLEEP: Duration = Duration::from_millis(6);
/// How long an engine may take to fall asleep.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long who sleeps takes to wake up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WakeUps {
    /// An engine asleep (F1): first ring to progress fence, with the reconnect.
    pub f1_wake_ns: Percentiles,
    /// A process asleep on an eventfd: signal to the word that it stores.
    pub bare_wake_ns: Percentiles,
    /// Two such processes, of which the first signals to the second: what an engine, which the daemon has to wake, cannot
    /// be faster than.
    pub two_bare_wakes_ns: Percentiles,
}

impl fmt::Display for WakeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bare wake-up               {}", self.bare_wake_ns)?;
        let two = ratio(self.two_bare_wakes_ns.p50, self.bare_wake_ns.p50);
        writeln!(f, "two of them in a row       {}   {two:.1} x bare", self.two_bare_wakes_ns)?;
        let wake = ratio(self.f1_wake_ns.p50, self.bare_wake_ns.p50);
        writeln!(f, "wake-up of an engine       {}   {wake:.1} x bare", self.f1_wake_ns)
    }
}

/// From wherever this thread may run: `peer` is woken, and wakes `next`.
pub fn measure(queue: &mut UserQueue, peer: &Peer, next: &Peer, rounds: u64) -> anyhow::Result<WakeUps> {
    let empty = CommandBuffer::new();
    let (mut engine, mut bare, mut two_bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        std::thread::sleep(SLEEP);
        let waiting = Instant::now();
        while queue.status() != Some(DoorbellStatus::DisconnectedRetry) {
            anyhow::ensure!(waiting.elapsed() < TIMEOUT, "the engine does not go to sleep");
            std::thread::sleep(SLEEP);
        }
        let begun = Instant::now();
        queue.submit(&empty)?.spin()?;
        engine.push(begun.elapsed());
        std::thread::sleep(SLEEP);
        bare.push(peer.wake(round)?);
        std::thread::sleep(SLEEP);
        two_bare.push(peer.wake_through(next, round)?);
    }
    let [f1_wake_ns, bare_wake_ns, two_bare_wakes_ns] = [engine, bare, two_bare].map(Percentiles::of);
    Ok(WakeUps { f1_wake_ns, bare_wake_ns, two_bare_wakes_ns })
}

/// With the guest on a CPU of its own, and a daemon with these settings and the bare processes on the others, as where
/// VMMs pin their vCPUs: nobody is woken on the CPU of the guest, which polls. None where there is one CPU.
pub fn measure_apart(settings: &[OsString], rounds: u64) -> anyhow::Result<Option<WakeUps>> {
    let Some(places) = Places::find()? else { return Ok(None) };
    places.stay(&places.others)?;
    let daemon = DaemonProcess::start(settings)?;
    let next = Peer::sleeping(None)?;
    let peer = Peer::sleeping(Some(&next))?;
    places.stay(&places.guest)?;
    let device = open_guest(&daemon.socket())?;
    let mut queue = user_queue(&device, Node::Copy)?;
    queue.connect()?;
    measure(&mut queue, &peer, &next, rounds).map(Some)
}

/// Where this thread and its children may run; as before when it goes.
struct Places {
    before: CpuSet,
    guest: CpuSet,
    others: CpuSet,
}

impl Places {
    fn find() -> anyhow::Result<Option<Self>> {
        let before = sched_getaffinity(None).context("asking for the CPUs of this process")?;
        // The first has most of a machine's interrupts.
        let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| before.is_set(*cpu)) else { return Ok(None) };
        let (mut guest, mut others) = (CpuSet::new(), before);
        guest.set(last);
        others.unset(last);
        Ok((others.count() > 0).then_some(Self { before, guest, others }))
    }

    fn stay(&self, on: &CpuSet) -> anyhow::Result<()> {
        sched_setaffinity(None, on).context("choosing CPUs")
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Err(error) = self.stay(&self.before) {
            log::warn!("{error:#}");
        }
    }
}
