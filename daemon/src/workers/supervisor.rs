//! What starts the schedule and the workers, starts them again when they end, and ends them with itself.
//!
//! ```text
//!   start: schedule serves ──▶ all workers of the configuration serve ──▶ the operator is answered
//!   a keeper ends: pause ──▶ started again          the keeper that a process before this one has started: goes on
//!   SIGTERM, SIGINT: all workers end ──▶ the schedule ends ──▶ this process ends
//!   killed: all go on; the next process finds them
//! ```

use std::io;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::pipe;

use super::board::Board;
use super::found::found;
use super::found::found_schedule;
use super::notify::Notify;
use super::orders::Inbox;
use super::orders::Order;
use super::orders::Outcome;
use super::plan::Plan;
use super::plan::silence;
use super::service::Fate;
use super::service::Found;
use super::service::Pauses;
use super::service::Phase;
use super::service::Service;
use super::worker;
use super::worker::Worker;
use crate::fd_store;
use crate::host::heartbeat;
use crate::ledger::read;
use crate::service_manager;

/// A vGPU, and the words in which the operator has made it, if he has.
pub type Spec = (String, Option<String>);

/// How it ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// All have ended.
    All,
    /// Workers go on; this program is to be executed in place of this process.
    Replaced(PathBuf),
}

/// All of it.
#[derive(Debug)]
pub struct Supervisor {
    plan: Plan,
    board: Arc<Board>,
    inbox: Inbox,
    signals: UnixStream,
    schedule: Option<Service>,
    workers: Vec<Worker>,
    /// The program of an upgrade.
    program: Option<PathBuf>,
    is_ending: bool,
    /// Workers that a process before this one has started, or their VMs, go on, whatever becomes of the others.
    has_found: bool,
    /// How often it gives a sign of life, where something waits for that.
    beat: Option<Duration>,
}

impl Supervisor {
    /// Starts the schedule, and then the workers of these vGPUs; returns when all serve. Workers that are `kept` from a process before
    /// this one go on, those of no vGPU here, too, and then the others are not waited for.
    ///
    /// # Errors
    /// One does not serve, or a signal came: then none is left that was started here.
    pub fn start(
        plan: Plan,
        (vgpus, kept): (Vec<Spec>, Vec<String>),
        board: Arc<Board>,
        inbox: Inbox,
    ) -> io::Result<Self> {
        let (signals, its) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        pipe::register(SIGTERM, its.try_clone()?)?;
        pipe::register(SIGINT, its)?;
        let beat =
            heartbeat::silence().filter(|_| service_manager::socket().is_some()).map(|silence| silence / 4);
        let mut new = Self {
            plan,
            board,
            inbox,
            signals,
            schedule: None,
            workers: Vec::new(),
            program: None,
            is_ending: false,
            has_found: !kept.is_empty() || fd_store::has(read::CONNECTION),
            beat,
        };
        match new.begin_all(vgpus, kept) {
            Ok(()) => Ok(new),
            Err(error) if new.is_ending => {
                new.end()?;
                Err(error)
            }
            Err(error) => {
                new.abandon()?;
                Err(error)
            }
        }
    }

    fn begin_all(&mut self, vgpus: Vec<Spec>, kept: Vec<String>) -> io::Result<()> {
        self.schedule = self.begin_schedule()?;
        if let Some(schedule) = self.schedule.as_mut().filter(|_| self.has_found) {
            schedule.persist();
        }
        while self.schedule.as_ref().is_some_and(|schedule| schedule.phase() == Phase::Starting) {
            self.turn()?;
        }
        if self.has_found {
            let strangers = kept.into_iter().filter(|name| !vgpus.iter().any(|(vgpu, _)| vgpu == name));
            let strangers: Vec<Spec> = strangers.map(|name| (name, None)).collect();
            for (vgpu, _) in &strangers {
                log::warn!("vGPU {vgpu}: it has a worker, and is not in the configuration; a reload ends it");
            }
            for (vgpu, made) in vgpus.into_iter().chain(strangers) {
                self.begin_worker(vgpu, made.as_deref())?.service.persist();
            }
            return Ok(());
        }
        // The first one asks the machine what it can do, and the others know it then.
        let mut vgpus = vgpus.into_iter();
        for some in [vgpus.by_ref().take(1).collect::<Vec<_>>(), vgpus.collect()] {
            for (vgpu, made) in some {
                self.begin_worker(vgpu, made.as_deref())?;
            }
            while self.workers.iter().any(|worker| worker.service.phase() == Phase::Starting) {
                self.turn()?;
            }
        }
        Ok(())
    }

    /// Looks after them until it ends.
    ///
    /// # Errors
    /// The system refused something without which it cannot go on; workers do.
    pub fn run(mut self) -> io::Result<Ended> {
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(program)) => return Ok(Ended::Replaced(program)),
                Err(_signal) if self.is_ending => {
                    self.end()?;
                    return Ok(Ended::All);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends what was started, but not what a process before this one has started.
    ///
    /// # Errors
    /// The system refused something.
    pub fn abandon(mut self) -> io::Result<()> {
        if self.has_found { Ok(()) } else { self.end() }
    }

    /// Ends all, workers first, and waits for that.
    fn end(&mut self) -> io::Result<()> {
        self.is_ending = true;
        let now = Instant::now();
        self.workers.retain_mut(|worker| !worker.service.end(now));
        while !self.workers.is_empty() {
            self.turn_while_ending()?;
        }
        self.end_schedule()?;
        // As long as this is there.
        self.plan.folder.set_drained(false)
    }

    fn end_schedule(&mut self) -> io::Result<()> {
        if self.schedule.as_mut().is_some_and(|schedule| !schedule.end(Instant::now())) {
            while self.schedule.is_some() {
                self.turn_while_ending()?;
            }
        }
        Ok(())
    }

    /// As [`Self::turn`], where another signal, and a service that fails, change nothing.
    fn turn_while_ending(&mut self) -> io::Result<()> {
        match self.turn() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::Other) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Waits for something to happen, and sees to it. The program that is to take the place of this one, once it is time.
    ///
    /// # Errors
    /// A signal has come, one has never served, or the system refuses to wait.
    fn turn(&mut self) -> io::Result<Option<PathBuf>> {
        let [told, ordered] = self.wait()?;
        self.is_ending |= told;
        let now = Instant::now();
        if self.beat.is_some() {
            service_manager::say_alive();
        }
        self.look_after_schedule(now)?;
        self.look_after_workers(now)?;
        if told {
            drain(&self.signals);
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it was told to end"));
        }
        if ordered {
            self.inbox.clear();
            while let Some((order, outcome)) = self.inbox.next() {
                if let Some(program) = self.carry_out(order, outcome) {
                    self.end_schedule()?;
                    // A signal may have come meanwhile.
                    self.is_ending |= self.wait_for(Some(Duration::ZERO))?[0];
                    if self.is_ending {
                        return Err(io::Error::new(io::ErrorKind::Interrupted, "it was told to end"));
                    }
                    return Ok(Some(program));
                }
            }
        }
        Ok(None)
    }

    /// Waits until a signal or an order has come, or something else is to be seen to.
    fn wait(&self) -> io::Result<[bool; 2]> {
        self.wait_for(None)
    }

    /// The same, for so long at the most. Whether a signal, and an order, has come.
    fn wait_for(&self, most: Option<Duration>) -> io::Result<[bool; 2]> {
        let services = || self.schedule.iter().chain(self.workers.iter().map(|worker| &worker.service));
        let mut fds = vec![self.signals.as_fd(), self.inbox.as_fd()];
        for service in services() {
            let (notify, process) = service.watched();
            fds.extend([Some(notify), process].into_iter().flatten());
        }
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let due = services().filter_map(Service::due).min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        let limit = due
            .into_iter()
            .chain(self.beat)
            .chain(most)
            .min()
            .and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok([0, 1].map(|at| !fds[at].revents().is_empty()))
    }

    fn look_after_schedule(&mut self, now: Instant) -> io::Result<()> {
        let Some(schedule) = &mut self.schedule else { return Ok(()) };
        let fate = look_after(schedule, now);
        match fate {
            None => {}
            Some(Fate::Ended) => self.schedule = None,
            // What tells this process may tell the others, too.
            Some(Fate::Pauses(..)) if self.is_ending => self.schedule = None,
            Some(Fate::Failed(how)) => {
                // One that a process before this one has started just now has the lock.
                if let Some(found) = found_schedule(&self.plan.folder)? {
                    schedule.adopt(found, now);
                    return Ok(());
                }
                self.schedule = None;
                return Err(io::Error::other(format!("the schedule has ended before it served, {how}")));
            }
            Some(Fate::Pauses(pause, how)) => {
                let pause = pause.as_millis();
                log::error!(
                    "the schedule has ended, {how}; it is started again in {pause} ms, and engines keep what they have until then"
                );
            }
        }
        Ok(())
    }

    fn look_after_workers(&mut self, now: Instant) -> io::Result<()> {
        let (mut gone, mut failed) = (Vec::new(), None);
        let folder = &self.plan.folder;
        for (at, worker) in self.workers.iter_mut().enumerate() {
            let before = (worker.service.phase(), worker.service.pid());
            let vgpu = worker.vgpu.clone();
            let fate = look_after(&mut worker.service, now);
            // A keeper that was killed leaves its worker, and one that a process before this one has started has the lock.
            let left = if fate.is_some() { found(folder, &vgpu)? } else { None };
            match (fate, left) {
                (None, _) => {}
                (Some(fate), Some(left)) => {
                    worker.service.adopt(left, now);
                    match fate {
                        Fate::Pauses(_, how) | Fate::Failed(how) if !self.is_ending => log::error!(
                            "vGPU {vgpu}: the keeper of its worker has ended, {how}; the worker goes on"
                        ),
                        _ => drop(worker.service.end(now)),
                    }
                }
                (Some(Fate::Ended), None) => gone.push((at, Ok(()))),
                (Some(Fate::Pauses(..)), None) if self.is_ending => gone.push((at, Ok(()))),
                (Some(Fate::Failed(how)), None) => {
                    let why = format!("vGPU {vgpu}: its worker has ended before it served, {how}");
                    log::error!("{why}");
                    if worker.outcomes.is_empty() {
                        failed = Some(why.clone());
                    }
                    gone.push((at, Err(why)));
                }
                (Some(Fate::Pauses(pause, how)), None) => {
                    let pause = pause.as_secs();
                    log::error!(
                        "vGPU {vgpu}: the keeper of its worker has ended, {how}; it is started again in {pause} s"
                    );
                }
            }
            let serves = matches!(worker.service.phase(), Phase::Serving(_));
            if before != (worker.service.phase(), worker.service.pid()) {
                worker.show(&self.board);
                if serves && folder.is_drained() {
                    worker::drain(folder.control(&vgpu));
                }
            }
            if serves {
                worker.tell(&Ok(()));
            }
        }
        for (at, outcome) in gone.into_iter().rev() {
            self.let_go(at, &outcome);
        }
        match failed.filter(|_| !self.has_found) {
            Some(why) => Err(io::Error::other(why)),
            None => Ok(()),
        }
    }

    /// Nothing of a worker stays. Those that wait for that are told last: they look at what there is.
    fn let_go(&mut self, at: usize, outcome: &Result<(), String>) {
        let mut worker = self.workers.remove(at);
        worker.service.clear();
        self.board.remove(&worker.vgpu);
        self.plan.folder.forget(&worker.vgpu);
        worker.tell(outcome);
    }

    /// Does what was ordered, or begins it. The program that is to take the place of this one, if it is time.
    fn carry_out(&mut self, order: Order, outcome: Outcome) -> Option<PathBuf> {
        let done = |outcome: Outcome, what| {
            // It may have waited for too long.
            let _gone = outcome.send(what);
        };
        match order {
            Order::Begin { .. } | Order::Replace { .. } if self.is_ending => {
                done(outcome, Err("this process is about to end".to_owned()));
            }
            Order::Begin { vgpu: name, made } => match self.begin_worker(name.clone(), made.as_deref()) {
                Ok(worker) => match worker.service.phase() {
                    // It was ordered before, and has taken too long.
                    Phase::Serving(_) => done(outcome, Ok(())),
                    Phase::Ending(_) => done(outcome, Err("one of this name is about to end".to_owned())),
                    Phase::Starting | Phase::Pausing(_) => worker.outcomes.push(outcome),
                },
                Err(error) => {
                    self.plan.folder.forget(&name);
                    done(outcome, Err(error.to_string()));
                }
            },
            Order::End { vgpu } => match self.workers.iter().position(|worker| worker.vgpu == vgpu) {
                None => done(outcome, Ok(())),
                Some(at) => {
                    self.workers[at].outcomes.push(outcome);
                    if self.workers[at].service.end(Instant::now()) {
                        self.let_go(at, &Ok(()));
                    }
                }
            },
            Order::Replace { program } => {
                // Workers have been upgraded to it, where there are any.
                let is_ours = !self.workers.is_empty() || says_its_version(&program);
                let why =
                    || format!("{}: it is no campanile, by what it says with --version", program.display());
                done(outcome, if is_ours { Ok(()) } else { Err(why()) });
                self.program = is_ours.then_some(program);
            }
            Order::Answered => {
                done(outcome, Ok(()));
                return self.program.take();
            }
        }
        None
    }

    fn begin_schedule(&self) -> io::Result<Option<Service>> {
        let Some(command) = self.plan.schedule() else { return Ok(None) };
        let folder = &self.plan.folder;
        let found = found_schedule(folder)?;
        if let Some(Found { process, .. }) = &found {
            let path = folder.schedule();
            log::info!("{}: process {} gives turns already", path.display(), process.pid().as_raw_nonzero());
        }
        let notify = Notify::open(&folder.schedule_notify())?;
        let mut service = Service::begin((command, Pauses::OF_ALL), notify, found)?;
        service.silence = Some(silence());
        Ok(Some(service))
    }

    fn begin_worker(&mut self, vgpu: String, made: Option<&str>) -> io::Result<&mut Worker> {
        // One that was ordered before, and has taken too long, may be there.
        if let Some(at) = self.workers.iter().position(|worker| worker.vgpu == vgpu) {
            return Ok(&mut self.workers[at]);
        }
        let folder = &self.plan.folder;
        if let Some(spec) = made {
            folder.note_made(&vgpu, spec)?;
        }
        let command = self.plan.worker(&vgpu, made);
        let found = found(folder, &vgpu)?;
        if let Some(found) = &found {
            log::info!(
                "vGPU {vgpu}: it has a worker already, with process {}",
                found.process.pid().as_raw_nonzero()
            );
        }
        self.has_found |= found.is_some();
        // What processes before this one have kept with the service manager.
        let stored = fd_store::take_named(&vgpu);
        let notify = Notify::open(&folder.notify(&vgpu))?.keeping(&vgpu, stored);
        let service = Service::begin((command, Pauses::OF_ONE), notify, found)?;
        let worker = Worker { vgpu, service, outcomes: Vec::new() };
        worker.show(&self.board);
        self.workers.push(worker);
        self.workers.last_mut().ok_or_else(|| io::Error::other("it is there"))
    }
}

/// Whether a program says what it is as this one does.
fn says_its_version(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    said.is_ok_and(|said| said.status.success() && said.stdout.starts_with(b"campanile "))
}

/// Sees to one: takes what it says, waits for it, or starts it again. What has become of it, if it has ended.
fn look_after(service: &mut Service, now: Instant) -> Option<Fate> {
    service.hear(now);
    if service.has_ended() {
        return Some(service.reap(now));
    }
    if service.kill_late(now) {
        log::error!("process {:?} gives no sign of life, or does not end: killed", service.pid());
    }
    service.start_again(now)
}

/// Takes what has come of signals.
fn drain(mut signals: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!(signals.read(&mut bytes), Ok(1..)) {}
}
