//! A keeper, and how a daemon takes what its keeper has kept.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitStatus;
use rustix::process::getpid;
use rustix::process::getppid;
use rustix::process::kill_process;
use signal_hook::consts::SIGCHLD;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::pipe;

use super::process;
use super::process::HAS_KEEPER;
use super::process::LIMIT;
use super::store::Said;
use super::store::Store;
use crate::fd_store;
use crate::host::heartbeat;
use crate::host::upgrade::channel::Channel;
use crate::service_manager::HAS_STORE;

/// Daemons that may be killed within [`WITHIN`].
const MOST: usize = 5;
/// As systemd's StartLimitIntervalSec.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a daemon that serves may give no sign of life, where the environment does not say it (`WATCHDOG_USEC`).
const SILENCE: Duration = Duration::from_secs(30);
/// How long one may take until it serves: as systemd's DefaultTimeoutStartSec.
const START: Duration = Duration::from_secs(90);

/// Whether this process has a keeper.
pub fn is_kept() -> bool {
    env::var_os(HAS_KEEPER).is_some()
}

/// Takes what the keeper of this process has kept.
///
/// # Errors
/// Standard input is no channel to a keeper.
pub fn receive() -> io::Result<()> {
    let channel = Channel::of_stdin()?;
    let (names, files) = channel.receive::<Vec<String>>(LIMIT)?;
    if names.len() != files.len() {
        return Err(io::Error::other(format!(
            "the keeper names {} descriptors and sends {}",
            names.len(),
            files.len()
        )));
    }
    fd_store::deliver(names.into_iter().zip(files));
    Ok(())
}

/// What there is of a vGPU whose processes have ended, where what has started this keeper has it.
fn handed() -> io::Result<Vec<(String, OwnedFd)>> {
    if env::var_os(HAS_STORE).is_none() {
        return Ok(Vec::new());
    }
    let (names, files) = Channel::of_stdin()?.receive::<Vec<String>>(LIMIT)?;
    Ok(names.into_iter().zip(files).collect())
}

/// Hands a keeper what there is of its vGPU, over its standard input.
///
/// # Errors
/// It has ended, or does not read.
pub(crate) fn hand_to(keeper: UnixStream, stored: &BTreeMap<String, OwnedFd>) -> io::Result<()> {
    let names: Vec<&str> = stored.keys().map(String::as_str).collect();
    let files: Vec<BorrowedFd<'_>> = stored.values().map(AsFd::as_fd).collect();
    Channel::from(keeper).send(&names, &files, LIMIT)
}

/// Has this process end when its keeper is killed, until it serves: none is left that no keeper and no operator knows of. To be said
/// again after a change of user, which takes it back.
///
/// # Errors
/// The keeper has ended already, or the system refuses.
pub fn end_with_it() -> io::Result<()> {
    let Some(keeper) = env::var(HAS_KEEPER).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?)) else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() {
        Some(parent) if parent != keeper => Err(io::Error::other("the keeper of this process has ended")),
        _ => Ok(()),
    }
}

/// Has this process outlive its keeper from here on.
///
/// # Errors
/// The system refuses.
pub fn outlive() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// How a keeper ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// As its daemon did: its exit status.
    With(u8),
    /// The daemons are killed one after the other.
    GivenUp,
}

/// The daemon of a keeper.
#[derive(Debug)]
struct Daemon {
    pid: Pid,
    /// It has said that it serves.
    is_ready: bool,
    /// When it gave a sign of life last.
    alive: Instant,
}

impl Daemon {
    fn new(pid: Pid) -> Self {
        Self { pid, is_ready: false, alive: Instant::now() }
    }
}

/// A keeper.
#[derive(Debug)]
struct Keeper {
    /// The one that the daemon executes: a successor may be of another, and a file that is replaced keeps its path.
    program: PathBuf,
    line: Vec<OsString>,
    store: Store,
    daemon: Daemon,
    /// A daemon has served: what that one has stored is for the ones that follow.
    has_served: bool,
    killed: Killed,
    /// It was told to end.
    is_ending: bool,
    /// How long the daemon may give no sign of life.
    silence: Duration,
}

/// Keeps a daemon with this command line, until it ends by itself, or is told to.
///
/// # Errors
/// A daemon cannot be started, or the system refused something.
pub fn run(line: Vec<OsString>) -> io::Result<Ended> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = |signal| {
        let (own, its) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        pipe::register(signal, its)?;
        Ok::<_, io::Error>(own)
    };
    let (children, terminate, interrupt) = (signals(SIGCHLD)?, signals(SIGTERM)?, signals(SIGINT)?);
    let mut store = Store::open()?;
    let handed = handed()?;
    // What the one before has stored is for the ones that follow, also where the first of them fails.
    let has_served = !handed.is_empty();
    store.begin_with(handed);
    let silence = heartbeat::silence().unwrap_or(SILENCE);
    let program = env::current_exe()?;
    let daemon = Daemon::new(process::spawn(&program, &line, &store, silence)?);
    let killed = Killed::default();
    let mut keeper = Keeper { program, line, store, daemon, has_served, killed, is_ending: false, silence };
    loop {
        let owed = keeper.store.pass_down();
        let fds = [keeper.store.socket(), children.as_fd(), terminate.as_fd(), interrupt.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = owed.map_or(keeper.timeout(), |owed| owed.min(keeper.timeout()));
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let [told, ended, terminated, interrupted] = fds.map(|fd| !fd.revents().is_empty());
        // First: what a daemon said before it was killed counts.
        if told || ended {
            keeper.listen()?;
        }
        if terminated || interrupted {
            let of = if terminated { &terminate } else { &interrupt };
            process::drain(of);
            keeper.is_ending = true;
            // It may have ended by itself.
            let _gone = kill_process(keeper.daemon.pid, Signal::TERM);
        }
        if ended {
            process::drain(&children);
            if let Some(ended) = keeper.reap(&children)? {
                return Ok(ended);
            }
        }
        if keeper.timeout().is_zero() {
            if keeper.daemon.is_ready {
                let silence = keeper.silence.as_secs_f32();
                log::error!("keeper: the daemon has given no sign of life for {silence} s: killed");
            } else {
                log::error!("keeper: the daemon does not serve after {} s: killed", START.as_secs());
            }
            keeper.daemon.alive = Instant::now();
            let _gone = kill_process(keeper.daemon.pid, Signal::KILL);
        }
    }
}

impl Keeper {
    /// How long the next sign of life may take, or it may take until it serves.
    fn timeout(&self) -> Duration {
        let most = if self.daemon.is_ready { self.silence } else { START };
        most.saturating_sub(self.daemon.alive.elapsed())
    }

    /// Takes what the daemon says.
    fn listen(&mut self) -> io::Result<()> {
        let daemon = self.daemon.pid;
        // The successor of an upgrade is a child of the daemon before it.
        let may_speak = |pid: Pid| pid == daemon || process::parent(pid) == Some(daemon);
        while let Some(said) = self.store.hear(may_speak)? {
            match said {
                Said::Ready => {
                    (self.daemon.is_ready, self.daemon.alive) = (true, Instant::now());
                    self.has_served = true;
                }
                Said::Alive => self.daemon.alive = Instant::now(),
                // The daemon says so of its child, which is this process's when the daemon has ended, and of no other process.
                Said::Main(pid)
                    if ![Some(self.daemon.pid), Some(getpid())].contains(&process::parent(pid)) =>
                {
                    log::warn!("keeper: process {pid:?} is no child of the daemon, and does not follow it");
                }
                Said::Main(pid) => match process::program(pid) {
                    Ok(program) => {
                        log::info!("keeper: the daemon is process {pid:?} from here on");
                        (self.daemon.pid, self.program) = (pid, program);
                    }
                    Err(error) => log::warn!("keeper: process {pid:?} does not follow the daemon: {error}"),
                },
                Said::Kept | Said::Other => {}
            }
        }
        Ok(())
    }

    /// Waits for what has ended. How this process ends, if it does.
    fn reap(&mut self, children: &UnixStream) -> io::Result<Option<Ended>> {
        while let Some((pid, status)) = process::ended()? {
            if pid == self.daemon.pid {
                return self.outlive(status, children);
            }
        }
        Ok(None)
    }

    /// The daemon has ended: another goes on, unless it was to end.
    fn outlive(&mut self, status: WaitStatus, children: &UnixStream) -> io::Result<Option<Ended>> {
        let code = status.exit_status().map(|code| u8::try_from(code).unwrap_or(u8::MAX));
        process::end_children(children)?;
        let served = self.daemon.is_ready;
        let end = End { code, served, has_served: self.has_served, was_told: self.is_ending };
        let how = process::describe(status);
        match self.killed.note(end, Instant::now()) {
            Some(Ended::GivenUp) => {
                let within = WITHIN.as_secs();
                log::error!(
                    "keeper: the daemon has ended {MOST} times within {within} s, now {how}: given up"
                );
                return Ok(Some(Ended::GivenUp));
            }
            Some(ended) => return Ok(Some(ended)),
            None => {}
        }
        let pid = process::spawn(&self.program, &self.line, &self.store, self.silence)?;
        log::error!(
            "keeper: the daemon has ended, {how}; process {pid:?} goes on with {} descriptors",
            self.store.len()
        );
        self.daemon = Daemon::new(pid);
        Ok(None)
    }
}

/// The end of a daemon.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Its exit status; none of one that was killed.
    code: Option<u8>,
    /// It had said that it serves.
    served: bool,
    /// It, or one before it.
    has_served: bool,
    /// It was told to end.
    was_told: bool,
}

/// When daemons ended that were to go on.
#[derive(Debug, Default)]
struct Killed {
    ends: VecDeque<Instant>,
    /// Those in a row that never served.
    in_vain: usize,
}

impl Killed {
    /// A daemon has ended `now`. How its keeper ends; not at all, where another follows.
    fn note(&mut self, end: End, now: Instant) -> Option<Ended> {
        let End { code, served, has_served, was_told } = end;
        if was_told || code == Some(0) {
            return Some(Ended::With(code.unwrap_or(0)));
        }
        if let Some(code) = code.filter(|_| !has_served) {
            return Some(Ended::With(code));
        }
        self.in_vain = if served { 0 } else { self.in_vain + 1 };
        if self.in_vain > MOST {
            // What the operator may learn of it is how the last one ended.
            return Some(code.map_or(Ended::GivenUp, Ended::With));
        }
        self.ends.push_back(now);
        self.ends.retain(|at| now.duration_since(*at) < WITHIN);
        (self.ends.len() > MOST).then_some(Ended::GivenUp)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;
    use std::time::Instant;

    use rustix::process::Pid;
    use rustix::process::getpid;

    use super::Daemon;
    use super::End;
    use super::Ended;
    use super::Keeper;
    use super::Killed;
    use super::MOST;
    use super::START;
    use super::Store;
    use super::WITHIN;
    use crate::service_manager;

    const KILLED: End = End { code: None, served: true, has_served: true, was_told: false };

    #[test]
    fn cont_17_a_daemon_is_followed_by_another_unless_it_never_served_ended_well_or_was_told_to_end() {
        let cases = [
            (KILLED, None),
            (End { served: false, has_served: false, ..KILLED }, None),
            (End { code: Some(3), ..KILLED }, None),
            // One that follows, and cannot begin.
            (End { code: Some(3), served: false, ..KILLED }, None),
            (End { code: Some(3), served: false, has_served: false, ..KILLED }, Some(Ended::With(3))),
            (End { code: Some(0), ..KILLED }, Some(Ended::With(0))),
            (End { was_told: true, ..KILLED }, Some(Ended::With(0))),
            (End { code: Some(3), was_told: true, ..KILLED }, Some(Ended::With(3))),
        ];
        for (end, expected) in cases {
            assert_eq!(Killed::default().note(end, Instant::now()), expected, "{end:?}");
        }
    }

    #[test]
    fn daemons_that_follow_and_cannot_begin_are_given_up_however_long_each_takes_for_that() {
        let (mut killed, mut now) = (Killed::default(), Instant::now());
        let fails = End { code: Some(3), served: false, ..KILLED };
        for _ in 0..2 {
            for _ in 0..MOST {
                assert_eq!(killed.note(fails, now), None);
                now += 2 * WITHIN;
            }
            assert_eq!(killed.note(KILLED, now), None, "one that served in between");
            now += 2 * WITHIN;
        }
        for _ in 0..MOST {
            assert_eq!(killed.note(fails, now), None);
            now += 2 * WITHIN;
        }
        assert_eq!(killed.note(fails, now), Some(Ended::With(3)));
    }

    #[test]
    fn daemons_that_are_killed_over_and_over_are_given_up_and_those_that_are_now_and_then_are_not() {
        let (mut killed, mut now) = (Killed::default(), Instant::now());
        for _ in 0..3 * MOST {
            assert_eq!(killed.note(KILLED, now), None);
            now += WITHIN / u32::try_from(MOST).unwrap();
        }
        now += WITHIN;
        for _ in 0..MOST {
            assert_eq!(killed.note(KILLED, now), None);
        }
        assert_eq!(killed.note(KILLED, now), Some(Ended::GivenUp));
    }

    #[test]
    fn cont_10_a_daemon_has_its_time_anew_with_each_sign_of_life_which_no_other_process_can_give_for_it() {
        let silence = Duration::from_secs(30);
        let mut keeper = Keeper {
            program: PathBuf::new(),
            line: Vec::new(),
            store: Store::open().unwrap(),
            daemon: Daemon::new(getpid()),
            has_served: false,
            killed: Killed::default(),
            is_ending: false,
            silence,
        };
        let socket = service_manager::connect(keeper.store.address().as_ref()).unwrap();
        let say = |keeper: &mut Keeper, words: &str| {
            keeper.daemon.alive = Instant::now().checked_sub(silence).unwrap();
            socket.send(words.as_bytes()).unwrap();
            keeper.listen().unwrap();
            !keeper.timeout().is_zero()
        };
        assert!(keeper.timeout() > silence && keeper.timeout() <= START, "it does not serve yet");
        assert!(say(&mut keeper, "READY=1"));
        assert!(keeper.has_served);
        assert!(!say(&mut keeper, "STATUS=well"));
        assert!(say(&mut keeper, "WATCHDOG=1"));
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        say(&mut keeper, &format!("MAINPID={}", other.id()));
        assert_eq!(keeper.daemon.pid, Pid::from_child(&other));
        assert!(keeper.program.ends_with("sleep") || keeper.program.ends_with("coreutils"), "{keeper:?}");
        assert!(!say(&mut keeper, "WATCHDOG=1"), "that is the daemon from here on");
        say(&mut keeper, "MAINPID=1");
        assert_eq!(keeper.daemon.pid, Pid::from_child(&other), "that is no child of it");
        other.kill().unwrap();
        other.wait().unwrap();
        // One that follows does not serve yet, and has its time for that.
        keeper.daemon = Daemon::new(getpid());
        let left = keeper.timeout();
        assert!(left > silence && left <= START, "{left:?}");
        keeper.daemon.alive = Instant::now().checked_sub(START).unwrap();
        assert!(keeper.timeout().is_zero());
    }
}
