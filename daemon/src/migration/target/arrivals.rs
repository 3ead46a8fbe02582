//! Everything that comes to this daemon.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_host_gpu::log_limit::inherit;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use serde_json::Value;
use serde_json::json;

use super::arriving::Arriving;
use super::bundle::Bundle;
use super::receive;
use super::registry::Registry;
use super::strangers::Address;
use super::strangers::displaced;
use super::visit::Accepted;
use super::visit::Visit;
use crate::intake::Intake;
use crate::migration::channel::address::Peer;
use crate::migration::channel::connect::Door;
use crate::migration::channel::connect::Visitor;
use crate::migration::channel::line::Line;
use crate::migration::channel::peer_name::Credentials;
use crate::migration::channel::stream::Stream;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::lock::locked;
use crate::migration::ownership::claimant::Claimant;
use crate::migration::settings::Timeouts;
use crate::migration::stage::Staged;

/// Lines that were told to end, and whose threads have not ended yet, before newcomers have to wait.
const MAX_LEAVING: usize = 64;
/// Pause after a failed accept.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// At most one line of log about lines that failed in this time.
const LOG_EVERY: Duration = Duration::from_secs(1);

struct Served {
    handle: Box<dyn Stream>,
    thread: JoinHandle<()>,
    address: Address,
    /// Its HELLO or JOIN was accepted.
    is_accepted: Arc<AtomicBool>,
    begun: Instant,
}

impl Served {
    fn is_stranger(&self) -> bool {
        !self.is_accepted.load(Ordering::Acquire)
    }
}

struct Shared {
    registry: Registry,
    accepted: Accepted,
    timeouts: Timeouts,
    failed: AtomicU64,
    told: Mutex<Option<Instant>>,
    /// How much may be logged for all that come.
    log: Arc<LogLimit>,
}

impl Shared {
    fn new(vgpus: Vec<Arc<Arriving>>, timeouts: Timeouts, intake: Arc<Intake>) -> Self {
        Self {
            registry: Registry::new(vgpus, intake),
            accepted: Accepted::default(),
            timeouts,
            failed: AtomicU64::new(0),
            told: Mutex::default(),
            log: LogLimit::new("migrations to here"),
        }
    }

    /// Serves a line to its end. `handle` is another handle of its socket.
    fn serve(
        &self,
        stream: Box<dyn Stream>,
        handle: Box<dyn Stream>,
        visit: &Visit,
    ) -> Result<(), MigrationError> {
        match Line::new(stream, self.timeouts.message) {
            Ok(line) => receive::serve(&self.registry, line, handle, visit, &self.timeouts),
            Err(error) => {
                // Other handles of it are still open.
                handle.shutdown();
                Err(error)
            }
        }
    }

    /// A line has failed: counted, and told, though not as often as a peer may like.
    fn tell(&self, error: &MigrationError) {
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        let mut told = locked(&self.told);
        if told.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *told = Some(Instant::now());
            log::warn!("a migration to here has ended: {error} ({failed} lines so far)");
        }
    }
}

/// The door, and what came through it. Dropping it ends every line; what runs goes on.
pub struct Arrivals {
    shared: Arc<Shared>,
    address: Option<Peer>,
    stop: Arc<AtomicBool>,
    bell: Event,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Arrivals {
    /// Takes what comes through `door` for these vGPUs, as long as `intake` is open.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn serve(
        door: Door,
        vgpus: Vec<Arc<Arriving>>,
        timeouts: Timeouts,
        intake: Arc<Intake>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(vgpus, timeouts, intake));
        let (stop, bell) = (Arc::new(AtomicBool::new(false)), Event::new()?);
        let (its_shared, its_stop, its_bell) = (Arc::clone(&shared), Arc::clone(&stop), bell.try_clone()?);
        let address = door.address();
        let run = move || {
            let log = Arc::clone(&its_shared.log);
            log.within(|| accept(&door, &its_shared, &its_bell, &its_stop));
        };
        let thread = essential_thread::spawn("migrate-door", run)?;
        Ok(Self { shared, address, stop, bell, thread: Some(thread) })
    }

    /// Takes what [`Arrivals::serve_line`] is given for these vGPUs: there is no door.
    ///
    /// # Errors
    /// A descriptor cannot be had.
    pub fn without_door(vgpus: Vec<Arc<Arriving>>, timeouts: Timeouts) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(vgpus, timeouts, Arc::default()));
        let (stop, bell) = (Arc::new(AtomicBool::new(false)), Event::new()?);
        Ok(Self { shared, address: None, stop, bell, thread: None })
    }

    /// Serves a line to its end on the calling thread, as those that come through the door are on threads of their own.
    /// `handle` is another handle of its socket.
    ///
    /// # Errors
    /// Why it ended, if not as it should. Nothing is left of its bundle then, unless that runs.
    pub fn serve_line(&self, stream: Box<dyn Stream>, handle: Box<dyn Stream>) -> Result<(), MigrationError> {
        let visit =
            Visit::new(Credentials::None, Arc::new(AtomicBool::new(false)), self.shared.accepted.clone());
        self.shared.serve(stream, handle, &visit)
    }

    /// Where others reach it.
    pub fn address(&self) -> Option<&Peer> {
        self.address.as_ref()
    }

    /// Takes a complete bundle for a session of `vgpu`, once.
    ///
    /// # Errors
    /// There is none of that name for that vGPU, or it is not complete, taken, or dropped.
    pub fn claim(&self, vgpu: &str, bundle: BundleId) -> Result<Claim, MigrationError> {
        let none = || MigrationError::State(format!("there is no bundle {bundle} of vGPU {vgpu} here"));
        let bundle = self.shared.registry.find(vgpu, bundle).ok_or_else(none)?;
        let stage = bundle.claim()?;
        // Where the rest fails, the claim is dropped, and so is the bundle.
        let mut claim = Claim { bundle, timeouts: self.shared.timeouts.answer, memories: None };
        claim.memories = Some(stage.memories()?);
        Ok(claim)
    }

    /// Takes what comes for this vGPU, too.
    pub fn add(&self, vgpu: Arc<Arriving>) {
        self.shared.registry.add(vgpu);
    }

    /// Takes nothing more for this vGPU; what is on its way to it is dropped.
    pub fn forget(&self, vgpu: &str) {
        for bundle in self.shared.registry.forget(vgpu) {
            bundle.drop_for(&"the vGPU was removed");
        }
    }

    /// Whether anything is on its way to this vGPU.
    pub fn awaits(&self, vgpu: &str) -> bool {
        self.shared.registry.awaits(vgpu)
    }

    /// What is here, for people and scripts.
    pub fn describe(&self) -> Value {
        json!({
            "listens": self.address.as_ref().map(Peer::to_string),
            "bundles": self.shared.registry.describe(),
            "log_lines_left_out": self.shared.log.left_out(),
            "failed_lines": self.shared.failed.load(Ordering::Relaxed),
        })
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that takes migrations panicked");
        }
    }
}

/// A bundle that a session has. Dropping it before [`Claim::start`] has succeeded drops the bundle (LM-39).
pub struct Claim {
    bundle: Arc<Bundle>,
    timeouts: Duration,
    memories: Option<[Staged; 2]>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim").field("bundle", &self.bundle.id).finish_non_exhaustive()
    }
}

impl Claim {
    /// The memories, once.
    pub fn take_memories(&mut self) -> Option<[Staged; 2]> {
        self.memories.take()
    }

    /// What was compiled for it before it was here, once. No process writes to that any more.
    pub fn take_code(&self) -> Option<File> {
        self.bundle.compiles.end()
    }

    /// The guest's rings begin: whether it may run here. Waits for the source's word, where it has not come yet.
    ///
    /// # Errors
    /// It runs at the source again, or that cannot be known: it must not run here.
    pub fn start(&self) -> Result<(), MigrationError> {
        self.bundle.start(self.timeouts)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _none = self.bundle.step("its session is gone", Claimant::forget);
        self.bundle.bell.signal();
    }
}

/// The lines that came through a door.
#[derive(Default)]
struct Lines {
    /// In the order in which they came.
    served: Vec<Served>,
    /// Those that were told to end.
    leaving: Vec<Served>,
}

impl Lines {
    fn forget_those_that_ended(&mut self) {
        self.served.retain(|line| !line.thread.is_finished());
        self.leaving.retain(|line| !line.thread.is_finished());
    }

    /// Ends the lines of strangers that are older than `limit`. Returns how long the next one has left.
    fn end_late_strangers(&mut self, limit: Duration) -> Option<Duration> {
        let is_late = |line: &mut Served| line.is_stranger() && line.begun.elapsed() >= limit;
        let late: Vec<_> = self.served.extract_if(.., is_late).collect();
        late.into_iter().for_each(|line| self.end(line));
        let left = self.served.iter().filter(|line| line.is_stranger());
        left.map(|line| limit.saturating_sub(line.begun.elapsed())).min()
    }

    /// Whether there is room for one from `address` now.
    fn make_room(&mut self, address: Address) -> bool {
        let strangers: Vec<usize> =
            (0..self.served.len()).filter(|index| self.served[*index].is_stranger()).collect();
        let addresses: Vec<_> = strangers.iter().map(|index| self.served[*index].address).collect();
        if let Some(oldest) = displaced(&addresses, address) {
            let line = self.served.remove(strangers[oldest]);
            self.end(line);
        }
        self.leaving.len() < MAX_LEAVING
    }

    /// Its reads and writes fail from here on, so that its thread ends.
    fn end(&mut self, line: Served) {
        line.handle.shutdown();
        self.leaving.push(line);
    }
}

fn accept(door: &Door, shared: &Arc<Shared>, bell: &Event, stop: &AtomicBool) {
    let mut lines = Lines::default();
    while !stop.load(Ordering::Acquire) {
        lines.forget_those_that_ended();
        let left = lines.end_late_strangers(shared.timeouts.message);
        match door.accept() {
            Ok(visitor) if !lines.make_room(visitor.address()) => {
                shared.tell(&MigrationError::State("too many lines".to_owned()));
            }
            Ok(visitor) => match begin(visitor, shared) {
                Ok(line) => lines.served.push(line),
                Err(error) => shared.tell(&MigrationError::Line(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(door, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
                let left = left.and_then(|left| Timespec::try_from(left).ok());
                let _interrupted = poll(&mut fds, left.as_ref());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                shared.tell(&MigrationError::Line(error));
                let _interrupted = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&PAUSE));
            }
        }
    }
    for bundle in shared.registry.all() {
        bundle.drop_for(&"this daemon ends");
    }
    for line in lines.served.into_iter().chain(lines.leaving) {
        line.handle.shutdown();
        if line.thread.join().is_err() {
            log::error!("the thread of a migration line panicked");
        }
    }
}

fn begin(visitor: Visitor, shared: &Arc<Shared>) -> io::Result<Served> {
    let (handle, its_handle, address) = (visitor.handle()?, visitor.handle()?, visitor.address());
    let is_accepted = Arc::new(AtomicBool::new(false));
    let its_word = Arc::clone(&is_accepted);
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name("migrate-line".to_owned()).spawn(inherit(move || {
        let outcome = match visitor.admit(shared.timeouts.message) {
            Ok((stream, credentials)) => {
                let visit = Visit::new(credentials, its_word, shared.accepted.clone());
                shared.serve(stream, its_handle, &visit)
            }
            Err(error) => {
                // Other handles of it are still open.
                its_handle.shutdown();
                Err(error)
            }
        };
        if let Err(error) = outcome {
            shared.tell(&error);
        }
    }))?;
    Ok(Served { handle, thread, address, is_accepted, begun: Instant::now() })
}
