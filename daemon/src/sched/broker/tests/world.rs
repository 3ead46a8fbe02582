//! A host with a broker, daemons and engines without processes.

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::sched::choice::Choice;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use tempfile::TempDir;

use super::super::member::Member;
use super::super::serve::Broker;
use crate::listener::Listener;
use crate::sched::alarm::Alarm;
use crate::sched::alarm::Sighting;
use crate::sched::awake::Awake;
use crate::sched::meter::Meters;
use crate::sched::schedule::Participant;
use crate::sched::schedule::Schedule;
use crate::sched::testing::participant;
use crate::sched::thread::Supervisor;
use crate::sched::turns::EngineId;

pub(in crate::sched::broker) const NEVER: Duration = Duration::from_secs(60);
pub(in crate::sched::broker) const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);
pub(in crate::sched::broker) const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);

/// A host with a socket at which a broker may serve.
pub(in crate::sched::broker) struct Host {
    _folder: TempDir,
    pub(in crate::sched::broker) path: PathBuf,
}

impl Host {
    pub(in crate::sched::broker) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schedule");
        Self { _folder: folder, path }
    }

    pub(in crate::sched::broker) fn supervisor() -> Arc<Supervisor> {
        Arc::new(Supervisor::start(Choice::default(), 10, Awake::off()).unwrap())
    }

    pub(in crate::sched::broker) fn broker(&self) -> Broker {
        Broker::serve(Listener::bind_packets_for_group(&self.path).unwrap(), Self::supervisor()).unwrap()
    }

    pub(in crate::sched::broker) fn member(&self, devices: &[&str]) -> Member {
        Member::start(&self.path, devices.iter().map(|name| (*name).to_owned()).collect()).unwrap()
    }
}

/// An engine of a daemon.
pub(in crate::sched::broker) struct Engine {
    pub(in crate::sched::broker) id: EngineId,
    pub(in crate::sched::broker) handle: GrantHandle,
    pub(in crate::sched::broker) alarm: Arc<Alarm>,
    pub(in crate::sched::broker) meters: Arc<Meters>,
}

impl Engine {
    pub(in crate::sched::broker) fn of(member: &Member, participant: Participant) -> Self {
        let (handle, alarm) = (participant.handle.clone(), Arc::clone(&participant.alarm));
        let meters = Arc::default();
        let id = member.add(participant, &meters).unwrap();
        Self { id, handle, alarm, meters }
    }

    pub(in crate::sched::broker) fn at(member: &Member, at: EngineAddress) -> Self {
        Self::of(member, participant(at))
    }

    pub(in crate::sched::broker) fn word(&self) -> Grant {
        Grant::from_word(self.handle.shared.word(GRANT).unwrap().load(Ordering::Acquire))
    }

    /// Asks for its node, as an engine does.
    pub(in crate::sched::broker) fn ask(&self) {
        assert_eq!(grant::take_turn(self.handle.shared.word(GRANT).unwrap()), grant::Turn::Ask);
        self.handle.asks.signal();
    }

    /// Waits until its word has this phase: each step of the broker's wakes it.
    pub(in crate::sched::broker) fn until(&self, phase: Phase) {
        while self.word().phase != phase {
            assert!(self.handle.wake.wait(Some(NEVER)), "{:?} and not {phase:?}", self.word());
        }
    }

    /// Asks for its node, and gets it.
    pub(in crate::sched::broker) fn gets_node(&self) {
        self.ask();
        self.until(Phase::Granted);
    }

    pub(in crate::sched::broker) fn gives_node_back(&self) {
        assert!(grant::release(self.handle.shared.word(GRANT).unwrap()));
        self.handle.asks.signal();
    }

    pub(in crate::sched::broker) fn alarmed(&self) -> Sighting {
        let limit = Timespec::try_from(NEVER).unwrap();
        assert_eq!(
            poll(&mut [PollFd::new(&*self.alarm, PollFlags::IN)], Some(&limit)),
            Ok(1),
            "never raised"
        );
        self.alarm.take().unwrap()
    }
}

pub(in crate::sched::broker) fn until(mut holds: impl FnMut() -> bool, what: &str) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "{what}");
        thread::yield_now();
    }
}

/// A process that stands for that of an engine. It ends when this is dropped.
pub(in crate::sched::broker) struct Process(pub(in crate::sched::broker) Child);

impl Process {
    pub(in crate::sched::broker) fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    pub(in crate::sched::broker) fn participant(
        &self,
        at: EngineAddress,
        timeout: Option<Duration>,
    ) -> Participant {
        let engine = participant(at);
        let handle = GrantHandle { process: Some(self.0.id()), ..engine.handle };
        Participant { handle, timeout, ..engine }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
