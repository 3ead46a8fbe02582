//! The broker: daemons that come and go, and their engines.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::ids::ContextIndex;
use campanile_protocol::engine::block::MAX_CONTEXTS;
use epoll::Events;

use super::daemon::Daemon;
use super::daemon::Orphan;
use super::daemon::Source;
use super::devices::Devices;
use super::line::Line;
use super::message::ToBroker;
use super::message::ToDaemon;
use super::message::VERSION;
use super::seat::Application;
use super::seat::Seat;
use super::settling::Settling;
use crate::caller::Caller;
use crate::listener::Listener;
use crate::poller::NO_EVENT;
use crate::poller::Poller;
use crate::sched::schedule::Schedule;
use crate::sched::thread::Supervisor;

/// Daemons that take part at a time.
const MAX_DAEMONS: usize = 256;
/// Engines of one daemon: 64 vGPUs with two nodes on each of four adapters.
const MAX_ENGINES_OF_DAEMON: usize = 512;
/// Characters of the name of a vGPU.
const MAX_NAME: usize = 64;
/// Messages of one daemon before another one is read.
const MESSAGES: usize = 16;
/// How long the Hello of a daemon may take after it has connected.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long no daemon is accepted after the system has refused a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const STOP: u64 = 1;

/// The broker's state, of one thread.
#[derive(Debug)]
pub(super) struct Server {
    listener: Listener,
    supervisor: Arc<Supervisor>,
    _stop: Arc<Event>,
    poller: Poller,
    next: u64,
    sources: BTreeMap<u64, Source>,
    daemons: BTreeMap<u64, Daemon>,
    /// By the tokens of their processes.
    orphans: BTreeMap<u64, Orphan>,
    devices: Devices,
    settling: Option<Settling>,
    /// When it accepts again.
    paused: Option<Instant>,
}

impl Server {
    pub(super) fn new(
        listener: Listener,
        supervisor: Arc<Supervisor>,
        stop: &Arc<Event>,
        now: Instant,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&listener.socket, LISTENER, Events::EPOLLIN)?;
        poller.add(&**stop, STOP, Events::EPOLLIN)?;
        Ok(Self {
            listener,
            supervisor,
            _stop: Arc::clone(stop),
            poller,
            next: STOP,
            sources: BTreeMap::new(),
            daemons: BTreeMap::new(),
            orphans: BTreeMap::new(),
            devices: Devices::default(),
            settling: Some(Settling::new(now)),
            paused: None,
        })
    }

    /// Serves until `stop` is signalled.
    pub(super) fn run(mut self) {
        loop {
            let now = Instant::now();
            let limit = self.due(now).map(|due| due.saturating_duration_since(now));
            let mut room = [NO_EVENT; 32];
            let tokens: Vec<u64> = match self.poller.wait(&mut room, limit) {
                Ok(tokens) => tokens.collect(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The service manager starts another one.
                Err(error) => {
                    log::error!("the broker cannot wait for daemons: {error}; this process ends");
                    std::process::exit(essential_thread::EXIT_STATUS);
                }
            };
            let now = Instant::now();
            for token in tokens {
                match (token, self.sources.get(&token).copied()) {
                    (STOP, _) => return,
                    (LISTENER, _) => self.accept(now),
                    (_, Some(Source::Daemon)) => self.read(token, now),
                    (_, Some(Source::Alarm { daemon, engine })) => self.report(daemon, engine, now),
                    (_, Some(Source::Process)) => self.bury(token),
                    // It left while this batch was handled.
                    (_, None) => {}
                }
            }
            self.look(now);
        }
    }

    /// When to look at the time again, after `now`.
    fn due(&self, now: Instant) -> Option<Instant> {
        let seats = self.daemons.values().flat_map(|daemon| daemon.seats.values());
        let overdue = seats.filter_map(|(seat, _)| seat.due());
        let hellos = self.daemons.values().filter_map(|daemon| daemon.hello_by);
        let orphans = self.orphans.values().map(|orphan| orphan.until);
        let settled = self.settling.iter().map(|settling| settling.due(now));
        overdue.chain(hellos).chain(orphans).chain(settled).chain(self.paused).min()
    }

    /// Does what it is time for.
    fn look(&mut self, now: Instant) {
        if self.paused.take_if(|until| *until <= now).is_some()
            && let Err(error) = self.poller.add(&self.listener.socket, LISTENER, Events::EPOLLIN)
        {
            log::error!("the broker cannot accept daemons any more: {error}");
        }
        let late = |daemon: &Daemon| daemon.hello_by.is_some_and(|by| by <= now);
        for daemon in keys(&self.daemons, late) {
            self.part(daemon, "its Hello has not come", now);
        }
        for token in keys(&self.orphans, |orphan| orphan.until <= now) {
            if let Some(orphan) = self.orphans.get(&token) {
                log::error!(
                    "{}: its daemon has gone, and its process has not ended: others get its node now",
                    orphan.name
                );
            }
            self.bury(token);
        }
        for daemon in keys(&self.daemons, |_| true) {
            self.expel_overstayed(daemon, now);
        }
        self.settle(now);
    }

    /// Begins to give turns, once all engines are known that may have nodes.
    fn settle(&mut self, now: Instant) {
        let is_whole = self.daemons.values().all(Daemon::is_whole);
        let count = self.daemons.len();
        if self.settling.take_if(|settling| settling.is_over(now, count, is_whole)).is_some() {
            self.supervisor.hold_back(false);
        }
    }

    fn token(&mut self, source: Source) -> u64 {
        self.next += 1;
        self.sources.insert(self.next, source);
        self.next
    }

    fn accept(&mut self, now: Instant) {
        let stream = match self.listener.socket.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return;
            }
            Err(error) => {
                log::error!("a daemon cannot be accepted: {error}");
                if self.poller.delete(&self.listener.socket).is_ok() {
                    self.paused = Some(now + PAUSE);
                }
                return;
            }
        };
        let name = Caller::of(&stream).map_or_else(|error| error.to_string(), |caller| caller.to_string());
        let line = Line::from(OwnedFd::from(stream));
        if self.daemons.len() >= MAX_DAEMONS {
            refuse(&line, &format!("{MAX_DAEMONS} daemons take part, and more may not"));
            return;
        }
        let token = self.token(Source::Daemon);
        if let Err(error) = self.poller.add(&line, token, Events::EPOLLIN) {
            log::error!("a daemon cannot be listened to: {error}");
            self.sources.remove(&token);
            return;
        }
        self.daemons.insert(token, Daemon::new(line, name, now + HELLO_LIMIT));
    }

    fn read(&mut self, key: u64, now: Instant) {
        for _ in 0..MESSAGES {
            let Some(daemon) = self.daemons.get(&key) else { return };
            let said = match daemon.line.receive::<ToBroker>() {
                Ok(None) => return,
                Ok(Some((message, files))) => self.hear(key, message, files),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = said {
                if let Some(daemon) = self.daemons.get(&key) {
                    refuse(&daemon.line, &why);
                }
                return self.part(key, &why, now);
            }
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// A daemon of good faith says no such thing; in words.
    fn hear(&mut self, key: u64, message: ToBroker, files: Vec<OwnedFd>) -> Result<(), String> {
        let count = self.daemons.len();
        let Some(daemon) = self.daemons.get_mut(&key) else { return Ok(()) };
        if !matches!(message, ToBroker::Add { .. }) && !files.is_empty() {
            return Err(format!("{} descriptors beside a message without any", files.len()));
        }
        if daemon.hello_by.is_some() != matches!(message, ToBroker::Hello { .. }) {
            return Err("Hello is the first message, and comes once".to_owned());
        }
        match message {
            ToBroker::Hello { version, devices, peers, engines } => {
                if version != VERSION {
                    return Err(format!("the daemon speaks version {version}, and the broker {VERSION}"));
                }
                daemon.numbers = self.devices.take(&devices)?;
                log::info!("{}: takes part, on {}", daemon.name, devices.join(", ").escape_debug());
                (daemon.hello_by, daemon.devices, daemon.missing) = (None, devices, engines);
                daemon.line.send(&ToDaemon::Welcome, &[]).map_err(|error| error.to_string())?;
                if let Some(settling) = &mut self.settling {
                    let peers = usize::try_from(peers).unwrap_or(MAX_DAEMONS).min(MAX_DAEMONS);
                    settling.expect(peers);
                }
                self.tell_count(count);
                Ok(())
            }
            ToBroker::Add { engine, vgpu, adapter, is_copy, tuning } => {
                if daemon.seats.len() >= MAX_ENGINES_OF_DAEMON {
                    return Err(format!("more than {MAX_ENGINES_OF_DAEMON} engines"));
                }
                let device = daemon.numbers.get(usize::from(adapter));
                let device =
                    *device.ok_or_else(|| format!("an engine of adapter {adapter}, which it has not"))?;
                let vgpu = vgpu.escape_debug().take(MAX_NAME).collect();
                if daemon.seats.contains_key(&engine) {
                    return Err(format!("a second engine {engine}"));
                }
                daemon.missing = daemon.missing.saturating_sub(1);
                let application = Application { vgpu, device, is_copy, tuning, files };
                let seat = Seat::take(application, &self.supervisor)?;
                self.seat(key, engine, seat)
            }
            ToBroker::Retune { engine, tuning } => match daemon.seats.get_mut(&engine) {
                Some((seat, _)) => seat.retune(tuning, &self.supervisor),
                None => Ok(()),
            },
            ToBroker::ExpectSuspend { engine, entry, fence } => {
                if entry >= MAX_CONTEXTS {
                    return Err(format!("a suspend of context {entry}, of {MAX_CONTEXTS}"));
                }
                if let Some((seat, _)) = daemon.seats.get(&engine) {
                    self.supervisor.expect_suspend(seat.id, ContextIndex::new(entry), fence);
                }
                Ok(())
            }
            ToBroker::Remove { engine } => {
                self.unseat(key, engine);
                Ok(())
            }
        }
    }

    fn seat(&mut self, daemon: u64, engine: u64, seat: Seat) -> Result<(), String> {
        let token = self.token(Source::Alarm { daemon, engine });
        let watched = self.poller.add(&*seat.alarm, token, Events::EPOLLIN);
        if let Some(daemon) = self.daemons.get_mut(&daemon) {
            daemon.seats.insert(engine, (seat, token));
        }
        watched.map_err(|error| format!("its alarm cannot be listened to: {error}"))
    }

    /// An engine takes part no more, and its process is gone or not waited for. One that was expelled has none.
    fn unseat(&mut self, daemon: u64, engine: u64) {
        let daemon = self.daemons.get_mut(&daemon);
        if let Some((seat, token)) = daemon.and_then(|daemon| daemon.seats.remove(&engine)) {
            self.unwatch(token, &*seat.alarm);
            self.supervisor.remove(seat.id);
        }
    }

    fn unwatch(&mut self, token: u64, descriptor: impl AsFd) {
        self.sources.remove(&token);
        if let Err(error) = self.poller.delete(descriptor) {
            log::debug!("a descriptor of the broker was not watched: {error}");
        }
    }

    /// Tells a daemon what its engine's alarm says.
    fn report(&mut self, key: u64, engine: u64, now: Instant) {
        let Some(daemon) = self.daemons.get_mut(&key) else { return };
        let Some((seat, _)) = daemon.seats.get_mut(&engine) else { return };
        let Some((hang, progress)) = seat.hang(now) else { return };
        if let Err(error) = daemon.line.send(&ToDaemon::hang(engine, hang, progress), &[]) {
            self.part(key, &format!("it cannot be told of a hang: {error}"), now);
        }
    }

    /// Takes the node from engines that their daemon was told of, and has not ended.
    fn expel_overstayed(&mut self, key: u64, now: Instant) {
        let Some(daemon) = self.daemons.get_mut(&key) else { return };
        let supervisor = &self.supervisor;
        let overstayed = daemon.seats.iter_mut().filter_map(|(engine, (seat, _))| {
            seat.is_overstayed(now, supervisor).then(|| (*engine, seat.to_string(), seat.breach()))
        });
        let overstayed: Vec<_> = overstayed.collect();
        for (engine, name, (hang, progress)) in overstayed {
            log::error!("{name}: it hangs, and its daemon has not ended it: others get its node now");
            self.unseat(key, engine);
            let Some(daemon) = self.daemons.get(&key) else { return };
            if let Err(error) = daemon.line.send(&ToDaemon::hang(engine, hang, progress), &[]) {
                return self.part(key, &format!("it cannot be told of a hang: {error}"), now);
            }
        }
    }

    /// A daemon takes part no more. Its engines end with it, each at a time of its own.
    fn part(&mut self, key: u64, why: &str, now: Instant) {
        let Some(daemon) = self.daemons.remove(&key) else { return };
        self.unwatch(key, &daemon.line);
        log::info!("{}: takes part no more, with {} engines: {why}", daemon.name, daemon.seats.len());
        self.devices.leave(&daemon.devices);
        for (mut seat, token) in daemon.seats.into_values() {
            self.unwatch(token, &*seat.alarm);
            let process = seat.process.take();
            let token = self.token(Source::Process);
            match process.map(|process| (self.poller.add(&process, token, Events::EPOLLIN), process)) {
                Some((Ok(()), process)) => {
                    let (id, name, until) = (seat.id, seat.to_string(), now + seat.end_limit());
                    self.orphans.insert(token, Orphan { id, name, process, until });
                }
                // There is none, or it is no process.
                Some((Err(_), _)) | None => {
                    self.sources.remove(&token);
                    self.supervisor.remove(seat.id);
                }
            }
        }
        self.tell_count(self.daemons.len());
    }

    /// The process of an engine has ended, or is waited for no longer.
    fn bury(&mut self, token: u64) {
        if let Some(orphan) = self.orphans.remove(&token) {
            self.unwatch(token, &orphan.process);
            self.supervisor.remove(orphan.id);
        }
    }

    /// Tells all daemons how many there are. One that does not read has a count of before.
    fn tell_count(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        for daemon in self.daemons.values().filter(|daemon| daemon.hello_by.is_none()) {
            if let Err(error) = daemon.line.send(&ToDaemon::Peers { count }, &[]) {
                log::debug!("a daemon is not told how many there are: {error}");
            }
        }
    }
}

fn refuse(line: &Line, why: &str) {
    if let Err(error) = line.send(&ToDaemon::Refused { why: why.to_owned() }, &[]) {
        log::debug!("a daemon is not told why it is refused: {error}");
    }
}

fn keys<T>(map: &BTreeMap<u64, T>, of: impl Fn(&T) -> bool) -> Vec<u64> {
    map.iter().filter(|(_, value)| of(value)).map(|(key, _)| *key).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_host_gpu::event::Event;
    use campanile_protocol::engine::block::GRANT;
    use campanile_protocol::handshake::grant;
    use campanile_protocol::handshake::grant::Phase;

    use super::super::message::HangReport;
    use super::super::message::ToBroker;
    use super::super::message::ToDaemon;
    use super::super::message::Tuning;
    use super::super::seat::RESET_LIMIT;
    use super::super::settling::SETTLES;
    use super::super::settling::SETTLES_AT_MOST;
    use super::super::tests::puppet::Puppet;
    use super::super::tests::puppet::add;
    use super::super::tests::world::Host;
    use super::super::tests::world::NEVER;
    use super::HELLO_LIMIT;
    use super::Server;
    use crate::listener::Listener;
    use crate::sched::share::Share;

    fn server(host: &Host, begun: Instant) -> Server {
        let listener = Listener::bind_packets_for_group(&host.path).unwrap();
        let supervisor = Host::supervisor();
        supervisor.hold_back(true);
        Server::new(listener, supervisor, &Arc::new(Event::new().unwrap()), begun).unwrap()
    }

    /// Takes a daemon in, and reads all that it has said.
    fn hear(server: &mut Server, now: Instant) {
        server.accept(now);
        for key in super::keys(&server.daemons, |_| true) {
            server.read(key, now);
        }
    }

    #[test]
    fn cont_11_turns_are_given_when_all_daemons_are_back_with_their_engines_and_at_the_latest_after_2_s() {
        let (host, begun) = (Host::new(), Instant::now());
        let mut server = server(&host, begun);
        let settles = |server: &mut Server, after: Duration| {
            server.look(begun + after);
            server.settling.is_some()
        };
        assert!(settles(&mut server, SETTLES / 2));
        assert_eq!(server.due(begun), Some(begun + SETTLES));
        let [first, second] = [Puppet::new(&host), Puppet::new(&host)];
        first.greets(2, 1);
        hear(&mut server, begun);
        assert!(settles(&mut server, SETTLES), "another one is missing, and an engine");
        assert_eq!(server.due(begun + SETTLES), Some(begun + SETTLES_AT_MOST));
        second.greets(0, 0);
        hear(&mut server, begun);
        assert!(settles(&mut server, SETTLES), "an engine of the first is missing");
        first.adds(1);
        hear(&mut server, begun);
        assert!(!settles(&mut server, SETTLES));
        assert_eq!(server.due(begun + SETTLES), None);

        let host = Host::new();
        let mut server = self::server(&host, begun);
        let alone = Puppet::new(&host);
        alone.greets(3, 0);
        hear(&mut server, begun);
        assert!(settles(&mut server, SETTLES_AT_MOST - Duration::from_millis(1)));
        assert!(!settles(&mut server, SETTLES_AT_MOST), "those that are missing may have ended");
    }

    #[test]
    fn cont_20_an_engine_that_hangs_and_that_its_daemon_does_not_end_loses_its_node_to_others() {
        let (host, begun) = (Host::new(), Instant::now());
        let mut server = server(&host, begun);
        let [hangs, waits] = [Puppet::new(&host), Puppet::new(&host)];
        let tuning = Tuning::new(Some(Duration::from_millis(50)), Share::default());
        for puppet in [&hangs, &waits] {
            let word = puppet.handle.shared.word(GRANT).unwrap();
            assert_eq!(grant::take_turn(word), grant::Turn::Ask);
            puppet.greets(0, 1);
            puppet.adds(1);
            puppet.says(&ToBroker::Retune { engine: 1, tuning });
            hear(&mut server, begun);
            server.look(begun + SETTLES);
            puppet.handle.asks.signal();
            if std::ptr::eq(puppet, &raw const hangs) {
                assert!(puppet.handle.wake.wait(Some(NEVER)), "it gets its node");
            }
        }
        // Its alarm, and what its daemon is told.
        let (key, seat) =
            server.daemons.iter().next().map(|(key, daemon)| (*key, &daemon.seats[&1].0)).unwrap();
        let limit = rustix::event::Timespec::try_from(NEVER).unwrap();
        let mut fds = [rustix::event::PollFd::new(&*seat.alarm, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1));
        server.report(key, 1, begun);
        let hang = |message| if let ToDaemon::Hang { hang, .. } = message { Some(hang) } else { None };
        assert!(matches!(hangs.hears(hang), Some(HangReport::NotYielded | HangReport::NoProgress)));
        assert_eq!(server.due(begun + SETTLES), Some(begun + RESET_LIMIT));
        server.look(begun + RESET_LIMIT - Duration::from_millis(1));
        assert_eq!(server.daemons[&key].seats.len(), 1, "it has time");
        server.look(begun + RESET_LIMIT);
        assert!(waits.handle.wake.wait(Some(NEVER)), "the other one gets the node");
        assert!(
            matches!(hangs.hears(hang), Some(HangReport::BrokenProtocol { .. })),
            "its daemon is to end it"
        );
        let word = grant::Grant::from_word(
            hangs.handle.shared.word(GRANT).unwrap().load(std::sync::atomic::Ordering::Acquire),
        );
        assert_eq!(word.phase, Phase::Revoking);
        hangs.says(&ToBroker::Remove { engine: 1 });
        server.read(key, begun);
        assert!(server.daemons.contains_key(&key), "it may say so");
    }

    #[test]
    fn cont_20_a_daemon_whose_hello_does_not_come_is_not_waited_for() {
        let (host, begun) = (Host::new(), Instant::now());
        let mut server = server(&host, begun);
        let [mute, speaks] = [Puppet::new(&host), Puppet::new(&host)];
        hear(&mut server, begun);
        hear(&mut server, begun);
        speaks.greets(0, 0);
        hear(&mut server, begun);
        server.look(begun + HELLO_LIMIT - Duration::from_millis(1));
        assert_eq!(server.daemons.len(), 2);
        let count = |message| if let ToDaemon::Peers { count } = message { Some(count) } else { None };
        assert_eq!(speaks.hears(count), Some(2));
        server.look(begun + HELLO_LIMIT);
        assert_eq!((server.daemons.len(), speaks.hears(count)), (1, Some(1)));
        assert!(mute.hears(Some).is_none(), "its line is closed");
        assert_eq!(server.paused, None, "that no daemon comes is no fault");
        speaks.says(&add(1));
        hear(&mut server, begun);
        assert!(server.daemons.is_empty(), "an engine without descriptors");
        assert!(server.sources.is_empty(), "something is listened to that has gone: {:?}", server.sources);
    }
}
