//! A process that is to serve as long as its vGPU is there: started again when it ends.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;

use super::notify::Notify;
use super::process::Process;
use crate::host::keeper::keep::hand_to;
use crate::service_manager::HAS_STORE;

/// How long a process is not started again when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// The shortest; twice as long each time that it ends soon.
    pub shortest: Duration,
    /// The longest; one that has served for so long begins with the shortest again.
    pub longest: Duration,
}

impl Pauses {
    /// Of one that serves one VM.
    pub const OF_ONE: Self = Self { shortest: Duration::from_secs(1), longest: Duration::from_secs(64) };
    /// Of one that all VMs wait for.
    pub const OF_ALL: Self = Self { shortest: Duration::from_millis(10), longest: Duration::from_secs(2) };
}

/// How long one may take to end when it was told to: daemons end their sessions.
const PATIENCE: Duration = Duration::from_secs(30);

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It was started, or found, and has not said yet that it serves.
    Starting,
    /// It has said so, then.
    Serving(Instant),
    /// It was told to end, and is killed then.
    Ending(Instant),
    /// It has ended, and is started again then.
    Pausing(Instant),
}

/// One that a process before this one has started.
#[derive(Debug)]
pub struct Found {
    /// Its process.
    pub process: Process,
    /// It serves.
    pub serves: bool,
    /// How long it may say nothing while it serves, where nothing else watches it.
    pub silence: Option<Duration>,
}

/// What becomes of one whose process has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// It was told to.
    Ended,
    /// It has never served; how it ended.
    Failed(String),
    /// It is started again after this time; how it ended.
    Pauses(Duration, String),
}

/// The process, and what it says.
#[derive(Debug)]
pub struct Service {
    command: Command,
    notify: Notify,
    process: Option<Process>,
    phase: Phase,
    has_served: bool,
    /// When it said something last, if it has said anything to this process.
    heard: Option<Instant>,
    /// How long it may say nothing while it serves, if it may not for ever.
    pub silence: Option<Duration>,
    /// The same of this process alone, and not of those that follow it.
    found_silence: Option<Duration>,
    pauses: Pauses,
    pause: Duration,
    /// How often it has ended that it was not to.
    pub ended: u64,
}

impl Service {
    /// One that is there, or that this command starts; what it says comes to `notify`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn begin(
        (mut command, pauses): (Command, Pauses),
        mut notify: Notify,
        found: Option<Found>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        if found.as_ref().is_some_and(|found| found.silence.is_some()) {
            // What it has kept since does not come here.
            notify.forget();
        }
        // One that was found has its time from now on.
        let heard = found.is_some().then_some(now);
        let Found { process, serves, silence } = match found {
            Some(found) => found,
            None => Found { process: start(&mut command, &notify)?, serves: false, silence: None },
        };
        Ok(Self {
            command,
            notify,
            process: Some(process),
            phase: if serves { Phase::Serving(now) } else { Phase::Starting },
            has_served: serves,
            heard,
            silence: None,
            found_silence: silence,
            pauses,
            pause: pauses.shortest,
            ended: 0,
        })
    }

    /// What is readable when it says something, and when it has ended.
    pub fn watched(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.notify.as_fd(), self.process.as_ref().map(AsFd::as_fd))
    }

    /// Its process, if there is one.
    pub fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(Process::pid)
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Takes what it has said; whether it serves since.
    pub fn hear(&mut self, now: Instant) -> bool {
        let serves = self.notify.serves();
        if serves {
            self.heard = Some(now);
        }
        let begins = serves && self.phase == Phase::Starting;
        if begins {
            (self.phase, self.has_served) = (Phase::Serving(now), true);
        }
        begins
    }

    /// Nothing that was kept of it is for another process.
    pub fn clear(&mut self) {
        self.notify.clear();
    }

    /// Another process is it from here on, which was found. What it has told of itself is for the one after it, and nothing else.
    pub fn adopt(&mut self, found: Found, now: Instant) {
        let process = found.process.pid();
        self.process = Some(found.process);
        self.phase = if found.serves { Phase::Serving(now) } else { Phase::Starting };
        self.has_served = true;
        (self.heard, self.found_silence) = (Some(now), found.silence);
        if self.found_silence.is_some() {
            self.notify.forget_all_but_of(process);
        }
    }

    /// It is started again when it ends, though it has never served.
    pub fn persist(&mut self) {
        self.has_served = true;
    }

    /// Tells it to end; it is killed where that takes too long. Whether it has ended already.
    pub fn end(&mut self, now: Instant) -> bool {
        self.phase = Phase::Ending(now + PATIENCE);
        if let Some(process) = &self.process {
            process.signal(Signal::TERM);
        }
        self.process.is_none()
    }

    /// Whether its process has ended, and was not waited for.
    pub fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(Process::has_ended)
    }

    /// Waits for its process, which has ended.
    pub fn reap(&mut self, now: Instant) -> Fate {
        let (how, by_itself) = self.process.take().map_or((String::new(), false), Process::reap);
        if by_itself {
            // It gave up what it kept, or had nothing.
            self.notify.clear();
        }
        self.settle(how, now)
    }

    fn settle(&mut self, how: String, now: Instant) -> Fate {
        match self.phase {
            Phase::Ending(_) => return Fate::Ended,
            _ if !self.has_served => return Fate::Failed(how),
            Phase::Serving(since) if now.saturating_duration_since(since) >= self.pauses.longest => {
                self.pause = self.pauses.shortest;
            }
            _ => {}
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(self.pauses.longest);
        self.phase = Phase::Pausing(now + pause);
        self.ended += 1;
        Fate::Pauses(pause, how)
    }

    /// Kills it where it has said nothing for too long, or takes too long to end; whether it has.
    pub fn kill_late(&mut self, now: Instant) -> bool {
        let is_late = self.killed_by().is_some_and(|by| by <= now);
        if let (true, Some(process)) = (is_late, &self.process) {
            process.signal(Signal::KILL);
            self.heard = None;
            if let Phase::Ending(by) = &mut self.phase {
                *by = now + PATIENCE;
            }
        }
        is_late
    }

    fn killed_by(&self) -> Option<Instant> {
        match self.phase {
            Phase::Ending(by) => Some(by),
            Phase::Serving(_) => Some(self.heard? + self.silence.or(self.found_silence)?),
            Phase::Starting | Phase::Pausing(_) => None,
        }
    }

    /// When something is to be done without anything being heard: it is started again, or killed.
    pub fn due(&self) -> Option<Instant> {
        self.starts_by().or_else(|| self.killed_by())
    }

    /// When it is to be started again, if it is.
    fn starts_by(&self) -> Option<Instant> {
        match self.phase {
            Phase::Pausing(until) => Some(until),
            _ => None,
        }
    }

    /// Starts it again, if that is due; whether it is tried.
    pub fn start_again(&mut self, now: Instant) -> Option<Fate> {
        self.starts_by().filter(|due| *due <= now)?;
        match start(&mut self.command, &self.notify) {
            Ok(process) => {
                (self.process, self.phase, self.heard) = (Some(process), Phase::Starting, None);
                self.found_silence = None;
                None
            }
            Err(error) => Some(self.settle(error.to_string(), now)),
        }
    }
}

/// Starts a process, with what is kept of the one before.
fn start(command: &mut Command, notify: &Notify) -> io::Result<Process> {
    if notify.kept().is_empty() {
        return Process::start(command);
    }
    let (own, its) = UnixStream::pair()?;
    let process = Process::start(command.env(HAS_STORE, "1").stdin(OwnedFd::from(its)));
    // So that its end is seen; the next one may have nothing to go on with.
    command.env_remove(HAS_STORE).stdin(Stdio::null());
    let process = process?;
    if let Err(error) = hand_to(own, notify.kept()) {
        // Why it has ended is seen when it is waited for.
        log::warn!("process {}: what it goes on with: {error}", process.pid().as_raw_nonzero());
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;
    use std::time::Instant;

    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::poll;
    use tempfile::TempDir;

    use super::Fate;
    use super::Found;
    use super::Notify;
    use super::PATIENCE;
    use super::Pauses;
    use super::Phase;
    use super::Process;
    use super::Service;
    use crate::service_manager::connect;

    const PAUSE: Duration = Pauses::OF_ONE.shortest;
    const LONGEST: Duration = Pauses::OF_ONE.longest;

    fn service(script: &str) -> (Service, TempDir) {
        with(Pauses::OF_ONE, script)
    }

    fn with(pauses: Pauses, script: &str) -> (Service, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let notify = Notify::open(&folder.path().join("notify")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (Service::begin((command, pauses), notify, None).unwrap(), folder)
    }

    fn say(folder: &Path, words: &str) {
        connect(folder.join("notify").as_os_str()).unwrap().send(words.as_bytes()).unwrap();
    }

    /// Waits until its process has ended.
    fn wait(service: &Service) {
        let (_, process) = service.watched();
        poll(&mut [PollFd::from_borrowed_fd(process.unwrap(), PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn one_that_serves_and_ends_is_started_again_after_pauses_that_grow_up_to_a_limit() {
        for pauses in [Pauses::OF_ONE, Pauses::OF_ALL] {
            let (mut service, folder) = with(pauses, "exit 3");
            let mut now = Instant::now();
            let mut expected = pauses.shortest;
            for round in 1..=10 {
                say(folder.path(), "READY=1");
                assert!(service.hear(now) && !service.hear(now));
                assert_eq!(service.phase(), Phase::Serving(now));
                wait(&service);
                assert_eq!(service.reap(now), Fate::Pauses(expected, "exit status 3".to_owned()));
                assert_eq!((service.ended, service.pid()), (round, None));
                assert_eq!(service.due(), Some(now + expected));
                assert!(service.start_again(now).is_none() && service.pid().is_none(), "it is too early");
                now += expected;
                assert!(service.start_again(now).is_none() && service.pid().is_some());
                assert_eq!((service.phase(), service.due()), (Phase::Starting, None));
                expected = (2 * expected).min(pauses.longest);
            }
            assert_eq!(expected, pauses.longest);
            say(folder.path(), "WATCHDOG=1");
            assert!(service.hear(now), "a sign of life says it, too");
            wait(&service);
            let Fate::Pauses(pause, _) = service.reap(now + pauses.longest) else { panic!("{service:?}") };
            assert_eq!(pause, pauses.shortest, "it has served for long");
        }
        assert!(Pauses::OF_ALL.longest < Duration::from_secs(5), "all VMs wait for it");
    }

    #[test]
    fn one_that_has_never_served_fails_and_one_that_was_told_to_end_has_ended() {
        let (mut failed, _folder) = service("exit 4");
        wait(&failed);
        assert_eq!(failed.reap(Instant::now()), Fate::Failed("exit status 4".to_owned()));
        let (mut told, folder) = service("trap '' TERM; exec sleep 1000");
        say(folder.path(), "READY=1");
        let now = Instant::now();
        assert!(told.hear(now));
        assert!(!told.end(now) && !told.kill_late(now));
        assert_eq!(told.due(), Some(now + PATIENCE));
        say(folder.path(), "READY=1");
        assert!(!told.hear(now), "it is to end");
        assert!(told.kill_late(now + PATIENCE), "it does not end");
        assert_eq!(told.due(), Some(now + 2 * PATIENCE));
        wait(&told);
        assert_eq!(told.reap(Instant::now()), Fate::Ended);
        assert!(told.end(now), "it has ended already");
        let (mut other, _folder) = service("exit 0");
        other.persist();
        wait(&other);
        assert!(matches!(other.reap(now), Fate::Pauses(PAUSE, _)), "it is tried again");
    }

    #[test]
    fn one_that_was_found_and_serves_is_killed_when_it_is_silent_for_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let notify = Notify::open(&folder.path().join("notify")).unwrap();
        let process = Process::start(Command::new("sleep").arg("1000")).unwrap();
        let found = Found { process, serves: true, silence: None };
        let mut service =
            Service::begin((Command::new("/no/such/program"), Pauses::OF_ONE), notify, Some(found)).unwrap();
        let begun = Instant::now();
        assert_eq!(service.due(), None, "nothing is said of how long");
        service.silence = Some(PAUSE);
        assert!(service.due().is_some_and(|due| due <= begun + PAUSE), "it has been found then");
        say(folder.path(), "WATCHDOG=1");
        let now = begun + LONGEST;
        assert!(!service.hear(now) && !service.kill_late(now));
        assert_eq!(service.due(), Some(now + PAUSE));
        assert!(service.kill_late(now + PAUSE));
        wait(&service);
        let Fate::Pauses(_, how) = service.reap(now) else { panic!("{service:?}") };
        assert!(how.starts_with("signal 9"), "{how}");
    }

    #[test]
    fn one_that_pauses_is_another_process_when_that_was_found() {
        let (mut service, folder) = service("exit 1");
        say(folder.path(), "READY=1");
        let now = Instant::now();
        assert!(service.hear(now));
        wait(&service);
        assert!(service.has_ended());
        assert!(matches!(service.reap(now), Fate::Pauses(..)));
        assert!(!service.has_ended(), "it was waited for");
        for (serves, silence) in [(true, None), (false, None), (true, Some(PAUSE))] {
            let process = Process::start(Command::new("sleep").arg("1000")).unwrap();
            let pid = process.pid();
            service.adopt(Found { process, serves, silence }, now);
            let phase = if serves { Phase::Serving(now) } else { Phase::Starting };
            assert_eq!((service.pid(), service.phase(), service.has_ended()), (Some(pid), phase, false));
            assert_eq!(service.due(), silence.map(|silence| now + silence));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            wait(&service);
            assert!(service.has_ended() && matches!(service.reap(now), Fate::Pauses(..)));
        }
        assert!(service.start_again(now + LONGEST).is_none());
        say(folder.path(), "READY=1");
        assert!(
            service.hear(now) && service.due().is_none(),
            "those that follow have something that hears them"
        );
    }

    #[test]
    fn cont_22_one_that_is_killed_hands_what_is_kept_to_the_next_and_one_that_gives_up_to_none() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, mut vmm) = UnixStream::pair().unwrap();
        let kept = BTreeMap::from([("campanile.a.connection".to_owned(), connection.into())]);
        let notify = Notify::open(&folder.path().join("notify")).unwrap().keeping("a", kept);
        let mut command = Command::new("sh");
        // Which of them have something to go on with, and how: one line each, and then one is killed, and one gives up.
        let started = folder.path().join("started");
        let script =
            "echo \"${CAMPANILE_STORED:-0}\" >>\"$0\"; [ $(wc -l <\"$0\") -gt 1 ] && exit 3; kill -KILL $$";
        command.args(["-c", script]).arg(&started);
        let mut service = Service::begin((command, Pauses::OF_ONE), notify, None).unwrap();
        service.persist();
        let mut now = Instant::now();
        for kept in [1, 0] {
            wait(&service);
            let Fate::Pauses(pause, _) = service.reap(now) else { panic!("{service:?}") };
            assert_eq!(service.notify.kept().len(), kept);
            now += pause;
            assert!(service.start_again(now).is_none());
        }
        assert_eq!(vmm.read(&mut [0]).unwrap(), 0, "the connection is closed");
        wait(&service);
        assert_eq!(std::fs::read_to_string(started).unwrap(), "1\n1\n0\n");
    }

    #[test]
    fn one_that_cannot_be_started_again_pauses_for_longer() {
        let (mut service, folder) = service("exit 0");
        say(folder.path(), "READY=1");
        let now = Instant::now();
        assert!(service.hear(now));
        wait(&service);
        assert!(matches!(service.reap(now), Fate::Pauses(PAUSE, _)));
        service.command = Command::new("/no/such/program");
        let Some(Fate::Pauses(pause, why)) = service.start_again(now + PAUSE) else { panic!("{service:?}") };
        assert_eq!(pause, Duration::from_secs(2));
        assert!(why.contains("No such file"), "{why}");
    }
}
