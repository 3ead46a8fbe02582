//! The daemon's side: a schedule that a broker keeps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::essential_thread;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_protocol::engine::block::context_report;
use campanile_protocol::engine::progress::Progress;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::pidfd_open;

use super::line::Line;
use super::message::ToBroker;
use super::message::ToDaemon;
use super::message::Tuning;
use super::message::VERSION;
use crate::sched::meter::Meters;
use crate::sched::record::Record;
use crate::sched::schedule::Participant;
use crate::sched::schedule::Schedule;
use crate::sched::share::Share;
use crate::sched::turns::EngineId;

/// How long the broker may take to answer a daemon that starts.
const WELCOME_LIMIT: Duration = Duration::from_secs(5);
/// Between two attempts to reach a broker that has gone.
const RETRY: Duration = Duration::from_millis(20);
/// The same, where a broker has refused the daemon.
const RETRY_REFUSED: Duration = Duration::from_secs(1);
/// How long the broker may take to read what a daemon says that comes back.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// A daemon that takes part in the schedule of a broker, until this is dropped.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// See [`super::devices::names`].
    devices: Vec<String>,
    state: Mutex<State>,
    /// Signalled to make a round, and to end.
    bell: Event,
    rounds: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// None while there is no broker.
    line: Option<Arc<Line>>,
    engines: BTreeMap<EngineId, Joined>,
    /// The last number of an engine.
    last: u64,
    /// Counts what was changed while there was no broker.
    changes: u64,
    /// Daemons that the broker has, as it said last.
    peers: u32,
    stop: bool,
}

#[derive(Debug)]
struct Joined {
    participant: Participant,
    vgpu: String,
    meters: Arc<Meters>,
    record: Arc<Record>,
    file: File,
    process: Option<OwnedFd>,
    /// The last fence of each context that it was asked to suspend.
    suspends: BTreeMap<u32, u64>,
}

impl Joined {
    fn add(&self, engine: EngineId, line: &Line) -> io::Result<()> {
        let Participant { at, handle, timeout, share, .. } = &self.participant;
        let message = ToBroker::Add {
            engine: engine.0,
            vgpu: self.vgpu.clone(),
            adapter: at.engine,
            is_copy: at.node == NodeKind::Copy,
            tuning: Tuning::new(*timeout, *share),
        };
        let mut files =
            vec![handle.file.as_fd(), handle.wake.as_fd(), handle.asks.as_fd(), self.file.as_fd()];
        files.extend(self.process.as_ref().map(AsFd::as_fd));
        line.send(&message, &files)
    }

    /// The suspends that it has not reported.
    fn unreported(&self) -> impl Iterator<Item = (u32, u64)> {
        let shared = &self.participant.handle.shared;
        let reported =
            |entry| shared.word(context_report(entry)).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
        let asked = self.suspends.iter().map(|(entry, fence)| (*entry, *fence));
        asked.filter(move |(entry, fence)| reported(*entry) < *fence)
    }
}

impl State {
    /// Says something to the broker that is there. One that does not read is as one that has gone: its line is closed, which wakes
    /// the thread.
    fn say(&mut self, message: &ToBroker) {
        self.tell(|line| line.send(message, &[]));
    }

    fn tell(&mut self, send: impl FnOnce(&Line) -> io::Result<()>) {
        let Some(line) = &self.line else {
            self.changes += 1;
            return;
        };
        if let Err(error) = send(line) {
            log::debug!("the broker of turns is not told: {error}");
            line.close();
            self.line = None;
        }
    }
}

impl Member {
    /// Takes part in the schedule of the broker that listens at `path`, with engines on these devices, in the order of linked
    /// adapters.
    ///
    /// # Errors
    /// No broker listens there, or it refuses this daemon; no thread or descriptor could be had.
    pub fn start(path: &Path, devices: Vec<String>) -> io::Result<Self> {
        let shared = Shared::new(path, devices)?;
        let line = shared.introduce()?;
        shared.lock().line = Some(Arc::new(line));
        Self::run(shared)
    }

    /// The same in place of a daemon that had VMs, which do not wait for a broker that has gone as well, or refuses this daemon: engines
    /// have no turn until one takes it.
    ///
    /// # Errors
    /// No thread or descriptor could be had.
    pub fn follow(path: &Path, devices: Vec<String>) -> io::Result<Self> {
        let shared = Shared::new(path, devices)?;
        match shared.introduce() {
            Ok(line) => shared.lock().line = Some(Arc::new(line)),
            Err(error) => {
                log::error!(
                    "{}: no broker of turns ({error}): engines have none until it is back",
                    path.display()
                );
            }
        }
        Self::run(shared)
    }

    fn run(shared: Shared) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let its = Arc::clone(&shared);
        let limit = LogLimit::new("turns");
        let thread = essential_thread::spawn("turns", move || limit.within(|| its.run()))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that hears the broker of turns panicked");
        }
    }
}

impl Shared {
    fn new(path: &Path, devices: Vec<String>) -> io::Result<Self> {
        let (state, bell) = (Mutex::default(), Event::new()?);
        Ok(Self { path: path.into(), devices, state, bell, rounds: AtomicU64::new(0) })
    }

    /// Says Hello to the broker, and waits until it is welcome.
    ///
    /// # Errors
    /// It is not, or none answers.
    fn introduce(&self) -> io::Result<Line> {
        let begun = Instant::now();
        let line = loop {
            match Line::connect(&self.path) {
                // Many daemons start at once.
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < WELCOME_LIMIT =>
                {
                    self.bell.wait(Some(RETRY));
                }
                connected => break connected?,
            }
        };
        line.send(&self.hello(0, 0), &[])?;
        loop {
            if !line.wait(PollFlags::IN, WELCOME_LIMIT) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "what listens there says nothing"));
            }
            match line.receive::<ToDaemon>()? {
                Some((ToDaemon::Welcome, _)) => {
                    log::info!("{}: turns are given by this broker", self.path.display());
                    return Ok(line);
                }
                Some((ToDaemon::Refused { why }, _)) => return Err(io::Error::other(why)),
                _ => {}
            }
        }
    }

    /// Held for short changes only, never while a thread waits.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hello(&self, peers: u32, engines: usize) -> ToBroker {
        let engines = u32::try_from(engines).unwrap_or(u32::MAX);
        ToBroker::Hello { version: VERSION, devices: self.devices.clone(), peers, engines }
    }

    fn run(&self) {
        let mut pause = None;
        loop {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let line = {
                let state = self.lock();
                if state.stop {
                    return;
                }
                state.line.clone()
            };
            let Some(line) = line else {
                pause = match self.come_back() {
                    Ok(()) => None,
                    Err(error) => {
                        log::debug!("{}: {error}", self.path.display());
                        Some(pause.unwrap_or(RETRY))
                    }
                };
                if let Some(pause) = pause {
                    self.bell.wait(Some(pause));
                }
                continue;
            };
            let mut fds = [PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&*line, PollFlags::IN)];
            if let Err(error) = poll(&mut fds, None) {
                log::debug!("waiting for the broker of turns: {error}");
            }
            self.bell.drain();
            match self.hear(&line) {
                Ok(()) => {}
                Err(Lost::Refused(why)) => {
                    log::error!("{}: the broker of turns refuses this daemon: {why}", self.path.display());
                    (pause, self.lock().line) = (Some(RETRY_REFUSED), None);
                    self.bell.wait(pause);
                }
                Err(Lost::Gone(why)) => {
                    let path = self.path.display();
                    log::warn!(
                        "{path}: the broker of turns has gone ({why}): engines keep what they have until it is back"
                    );
                    (pause, self.lock().line) = (None, None);
                }
            }
        }
    }

    /// Handles what the broker says.
    fn hear(&self, line: &Line) -> Result<(), Lost> {
        while let Some((message, _)) =
            line.receive::<ToDaemon>().map_err(|error| Lost::Gone(error.to_string()))?
        {
            match message {
                ToDaemon::Welcome => log::info!("{}: turns are given by this broker", self.path.display()),
                ToDaemon::Refused { why } => return Err(Lost::Refused(why)),
                ToDaemon::Peers { count } => self.lock().peers = count,
                ToDaemon::Hang { engine, hang, progress } => {
                    if let Some(joined) = self.lock().engines.get(&EngineId(engine)) {
                        joined.participant.alarm.raise(hang.into(), Progress::from_word(progress));
                    }
                }
            }
        }
        Ok(())
    }

    /// Tells a broker all that there is.
    ///
    /// # Errors
    /// There is none, it does not read, or something has changed meanwhile: it is to be tried again.
    fn come_back(&self) -> io::Result<()> {
        let line = Line::connect(&self.path)?;
        let (changes, hello) = {
            let state = self.lock();
            (state.changes, self.hello(state.peers, state.engines.len()))
        };
        line.send(&hello, &[])?;
        let mut told = Bound::Unbounded;
        loop {
            {
                let mut state = self.lock();
                if state.changes != changes {
                    return Err(io::Error::other("engines have come or gone meanwhile"));
                }
                let mut is_full = false;
                for (engine, joined) in state.engines.range((told, Bound::Unbounded)) {
                    match joined.add(*engine, &line) {
                        Ok(()) => told = Bound::Excluded(*engine),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            is_full = true;
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                }
                if !is_full {
                    state.line = Some(Arc::new(line));
                    let suspends = state.engines.iter().flat_map(|(engine, joined)| {
                        joined.unreported().map(|(entry, fence)| (engine.0, entry, fence))
                    });
                    for (engine, entry, fence) in suspends.collect::<Vec<_>>() {
                        state.say(&ToBroker::ExpectSuspend { engine, entry, fence });
                    }
                    return Ok(());
                }
            }
            if !line.wait(PollFlags::OUT, READ_LIMIT) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Why a line is of no use any more.
enum Lost {
    Refused(String),
    Gone(String),
}

impl Schedule for Member {
    fn add(&self, participant: Participant, meters: &Arc<Meters>) -> io::Result<EngineId> {
        let (record, file) = Record::new()?;
        let record = Arc::new(record);
        let pid = participant.handle.process.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let process = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()?;
        let vgpu = LogLimit::of_thread().map(|limit| limit.name().to_owned()).unwrap_or_default();
        meters.follow(participant.at, &participant.handle.shared, &record);
        let meters = Arc::clone(meters);
        let suspends = BTreeMap::new();
        let joined = Joined { participant, vgpu, meters, record, file, process, suspends };
        let mut state = self.shared.lock();
        state.last += 1;
        let id = EngineId(state.last);
        state.tell(|line| joined.add(id, line));
        state.engines.insert(id, joined);
        Ok(id)
    }

    fn keeps_node(&self, engine: EngineId) -> bool {
        self.shared.lock().engines.get(&engine).is_some_and(|joined| joined.record.keeps_node())
    }

    fn expect_suspend(&self, engine: EngineId, context: ContextIndex, fence: u64) {
        let (mut state, entry) = (self.shared.lock(), context.get());
        if let Some(joined) = state.engines.get_mut(&engine) {
            joined.suspends.insert(entry, fence);
            state.say(&ToBroker::ExpectSuspend { engine: engine.0, entry, fence });
        }
    }

    fn held(&self, engine: EngineId) -> Duration {
        let state = self.shared.lock();
        state.engines.get(&engine).map_or(Duration::ZERO, |joined| joined.record.times().held)
    }

    fn retune(&self, engine: EngineId, timeout: Option<Duration>, share: Share) {
        let mut state = self.shared.lock();
        if let Some(joined) = state.engines.get_mut(&engine) {
            (joined.participant.timeout, joined.participant.share) = (timeout, share);
            state.say(&ToBroker::Retune { engine: engine.0, tuning: Tuning::new(timeout, share) });
        }
    }

    fn remove(&self, engine: EngineId) {
        let mut state = self.shared.lock();
        if let Some(joined) = state.engines.remove(&engine) {
            joined.meters.engine_has_ended(joined.participant.at);
            state.say(&ToBroker::Remove { engine: engine.0 });
        }
    }

    fn pulse(&self) -> u64 {
        let rounds = self.shared.rounds.load(Ordering::Relaxed);
        self.shared.bell.signal();
        rounds
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::ids::ContextIndex;
    use campanile_protocol::engine::block::context_report;
    use rustix::event::PollFlags;

    use super::super::tests::world::Host;
    use super::super::tests::world::NEVER;
    use super::Line;
    use super::Member;
    use super::Schedule;
    use super::ToBroker;
    use super::ToDaemon;
    use super::Tuning;
    use crate::listener::Listener;
    use crate::sched::share::Share;
    use crate::sched::testing::participant;
    use crate::sched::turns::EngineId;

    /// A broker that says and reads what a test wants.
    struct Puppet(Listener);

    impl Puppet {
        fn new(host: &Host) -> Self {
            let listener = Listener::bind_packets_for_group(&host.path).unwrap();
            listener.socket.set_nonblocking(false).unwrap();
            Self(listener)
        }

        fn accept(&self) -> Line {
            Line::from(std::os::fd::OwnedFd::from(self.0.socket.accept().unwrap().0))
        }
    }

    /// What a member says next; none where it has closed the line.
    fn next(line: &Line) -> Option<ToBroker> {
        loop {
            assert!(line.wait(PollFlags::IN, NEVER), "it says nothing");
            match line.receive::<ToBroker>() {
                Ok(Some((message, _))) => return Some(message),
                Ok(None) => {}
                Err(_) => return None,
            }
        }
    }

    /// The number of each engine that is added next.
    fn added(line: &Line, count: u32) -> Vec<u64> {
        let engine = |_| match next(line) {
            Some(ToBroker::Add { engine, .. }) => engine,
            other => panic!("{other:?}"),
        };
        (0..count).map(engine).collect()
    }

    fn start(host: &Host, puppet: &Puppet) -> (Member, Line) {
        let path = host.path.clone();
        let starts = std::thread::spawn(move || Member::start(&path, vec!["gpu#0".to_owned()]).unwrap());
        let line = puppet.accept();
        line.send(&ToDaemon::Peers { count: 7 }, &[]).unwrap();
        line.send(&ToDaemon::Welcome, &[]).unwrap();
        assert!(matches!(next(&line), Some(ToBroker::Hello { peers: 0, engines: 0, .. })));
        (starts.join().unwrap(), line)
    }

    #[test]
    fn cont_11_a_member_that_comes_back_says_all_that_there_is_once_however_slowly_it_is_read() {
        let host = Host::new();
        let puppet = Puppet::new(&host);
        let (member, line) = start(&host, &puppet);
        let engine = participant(EngineAddress::new(0, NodeKind::Copy));
        // More than a socket takes that is not read.
        let ids: Vec<EngineId> = (0..600)
            .map(|_| {
                let id = member.add(engine.clone(), &Arc::default()).unwrap();
                assert_eq!(added(&line, 1), [id.0]);
                id
            })
            .collect();
        for (entry, fence) in [(5, 9), (6, 9)] {
            member.expect_suspend(ids[1], ContextIndex::new(entry), fence);
            let expected = ToBroker::ExpectSuspend { engine: ids[1].0, entry, fence };
            assert_eq!(next(&line), Some(expected));
        }
        engine.handle.shared.word(context_report(6)).unwrap().store(9, Ordering::Release);
        let share = Share { weight: 7, ..Share::default() };
        member.retune(ids[2], Some(Duration::from_millis(3)), share);
        let tuning = Tuning::new(Some(Duration::from_millis(3)), share);
        assert_eq!(next(&line), Some(ToBroker::Retune { engine: ids[2].0, tuning }));
        line.send(&ToDaemon::Peers { count: 3 }, &[]).unwrap();
        line.close();
        // While it waits to say more, an engine goes: what it has said is not true any more.
        let line = puppet.accept();
        assert!(matches!(next(&line), Some(ToBroker::Hello { peers: 3, engines: 600, .. })));
        member.remove(ids[0]);
        while next(&line).is_some() {}
        let line = puppet.accept();
        assert!(matches!(next(&line), Some(ToBroker::Hello { peers: 3, engines: 599, .. })));
        assert_eq!(added(&line, 1), [ids[1].0]);
        match next(&line) {
            Some(ToBroker::Add { engine, tuning: its, .. }) => assert_eq!((engine, its), (ids[2].0, tuning)),
            other => panic!("{other:?}"),
        }
        assert_eq!(added(&line, 597), ids[3..].iter().map(|id| id.0).collect::<Vec<_>>());
        let unreported = ToBroker::ExpectSuspend { engine: ids[1].0, entry: 5, fence: 9 };
        assert_eq!(next(&line), Some(unreported));
        member.remove(ids[4]);
        assert_eq!(next(&line), Some(ToBroker::Remove { engine: ids[4].0 }), "and nothing in between");
    }

    #[test]
    fn a_member_makes_rounds_and_one_that_is_refused_tries_again() {
        let host = Host::new();
        let puppet = Puppet::new(&host);
        let (member, line) = start(&host, &puppet);
        let before = member.pulse();
        super::super::tests::world::until(|| member.pulse() > before + 1, "it makes no rounds");
        line.send(&ToDaemon::Refused { why: "no more".to_owned() }, &[]).unwrap();
        assert_eq!(next(&line), None);
        let again = puppet.accept();
        assert!(matches!(next(&again), Some(ToBroker::Hello { engines: 0, .. })));
    }
}
