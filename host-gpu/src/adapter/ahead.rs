//! Engine processes that open their drivers before it is known what they work on.
//!
//! ```text
//!   Ahead::start ── opens its driver ──▶ Opened ── waits ──┬─ launch, which opens the same: Start, with the memory ──▶ Started
//!                                                          └─ dropped, or the daemon ends: it ends
//! ```
//!
//! Nothing of a guest, and no memory, is theirs before they are launched; each is held as any process of its vGPU is.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::launcher::Launched;
use super::launcher::Launcher;
use super::launcher::Memory;
use super::launcher::Own;
use super::launcher::send_start;
use super::program::Program;
use crate::engine::channel::Channel;
use crate::engine::message::Response;
use crate::engine::message::Start;

/// One of them. It ends when it is dropped.
#[derive(Debug)]
pub struct Ahead {
    start: Start,
    /// None once it is an engine.
    launched: Option<Launched>,
}

impl Ahead {
    /// Starts a process that opens what `start` says.
    ///
    /// # Errors
    /// It cannot be started, or told.
    pub fn start(program: &Program, start: &Start) -> io::Result<Self> {
        let launched = program.spawn(start, &Default::default())?;
        Self::tell(launched, start)
    }

    fn tell(launched: Launched, start: &Start) -> io::Result<Self> {
        let start = Start { is_ahead: true, ..start.clone() };
        let tell = |channel: &Channel| channel.send(&start, &[], &[], false).map_err(io::Error::other);
        let launched = launched.told(tell)?;
        Ok(Self { start, launched: Some(launched) })
    }

    /// Its process, for people; 0 for none.
    pub fn id(&self) -> u32 {
        let instance = self.launched.as_ref().and_then(|launched| launched.instance.as_ref());
        instance.map_or(0, |instance| instance.id())
    }

    /// Waits until its driver is open.
    ///
    /// # Errors
    /// Why it is not: it says so, has ended, or takes longer.
    pub fn wait(&self, until: Instant) -> Result<(), String> {
        let Launched { instance, channel } = self.launched.as_ref().ok_or("it is an engine already")?;
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut ends = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        if poll(&mut ends, Some(&timeout)).is_ok_and(|ready| ready == 0) {
            return Err("it takes too long to open its driver".to_owned());
        }
        match channel.receive::<Response>(false).map(|received| received.map(|received| received.message)) {
            Ok(Some(Response::Opened)) => Ok(()),
            Ok(Some(Response::Refused { reason })) => Err(reason),
            Ok(other) => Err(format!("it says {other:?}, which it should not yet")),
            Err(error) => {
                Err(instance.as_ref().map_or_else(|| error.to_string(), |instance| instance.ending()))
            }
        }
    }

    /// It becomes an engine.
    fn begin(mut self, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<Launched> {
        let launched = self.launched.take().ok_or_else(|| io::Error::other("it is an engine already"))?;
        launched.told(|channel| send_start(channel, start, memory, own))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.launched.take().into_iter().for_each(Launched::discard);
    }
}

/// Launches engines from processes that have opened the same, as long as there are any.
#[derive(Debug)]
pub struct OpenedEngines {
    otherwise: Arc<dyn Launcher>,
    opened: Mutex<Vec<Ahead>>,
}

impl OpenedEngines {
    /// Processes that open their drivers, or have; `otherwise` starts what none of them can be.
    pub fn new(otherwise: Arc<dyn Launcher>, opened: Vec<Ahead>) -> Self {
        Self { otherwise, opened: Mutex::new(opened) }
    }

    /// Ends those that have become no engines. How many.
    pub fn end(&self) -> usize {
        let left = std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        left.len()
    }

    fn take(&self, start: &Start) -> Option<Ahead> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let at = opened.iter().position(|ahead| start.opens_as(&ahead.start))?;
        Some(opened.remove(at))
    }
}

impl Launcher for OpenedEngines {
    fn launch(&self, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<Launched> {
        if let Some(ahead) = self.take(start) {
            match ahead.begin(start, memory, own) {
                Ok(launched) => return Ok(launched),
                Err(error) => log::warn!("an engine process that was opened ahead is of no use: {error}"),
            }
        }
        self.otherwise.launch(start, memory, own)
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::named_profile::GpuProfile;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::time::Instant;

    use super::Ahead;
    use super::OpenedEngines;
    use crate::adapter::launcher::Launched;
    use crate::adapter::launcher::Memory;
    use crate::adapter::process::EngineProcess;
    use crate::adapter::stand_in::StandIn;
    use crate::dirty::method::Method;
    use crate::engine::channel::Channel;
    use crate::engine::channel::ChannelError;
    use crate::engine::message::Local;
    use crate::engine::message::NodeKind;
    use crate::engine::message::Response;
    use crate::engine::message::START_DESCRIPTORS;
    use crate::engine::message::Start;
    use crate::memory::vram::create_memfd;

    const LONG: Duration = Duration::from_secs(60);

    fn start(node: NodeKind) -> Start {
        Start {
            node,
            vram_bytes: 4096,
            table_bytes: 4096,
            spin_microseconds: 1,
            slice_microseconds: 2000,
            sandbox: true,
            policy: "fair".to_owned(),
            vulkan_device: None,
            profile: GpuProfile::Host,
            tracking: Method::Off,
            local: Local::Host,
            code_mib: 0,
            is_realtime: false,
            is_ahead: false,
        }
    }

    /// One that the test is: what it was told, and how it answers.
    fn ahead(node: NodeKind) -> (Ahead, Channel) {
        let (channel, theirs) = Channel::pair().unwrap();
        let ahead = Ahead::tell(Launched { instance: None, channel }, &start(node)).unwrap();
        let received = theirs.receive::<Start>(true).unwrap().unwrap();
        assert!(received.message.is_ahead && received.descriptors.is_empty());
        (ahead, theirs)
    }

    fn spawn(launcher: &OpenedEngines, start: &Start) -> EngineProcess {
        let files = ["vram", "tables", "fences"].map(|name| create_memfd(name, 4096).unwrap());
        let [vram, tables, fences] = &files;
        let memory = Memory { vram, tables, fences, local: None, code: None, tracker: None };
        EngineProcess::spawn(launcher, start, memory).unwrap()
    }

    /// What an engine is told that begins.
    fn told(theirs: &Channel) -> Start {
        let received = theirs.receive::<Start>(true).unwrap().unwrap();
        assert_eq!(received.descriptors.len(), START_DESCRIPTORS);
        received.message
    }

    #[test]
    fn a_process_is_open_when_it_says_so_and_else_there_is_a_reason() {
        let wait = |says: Option<Response>| {
            let (ahead, theirs) = ahead(NodeKind::Copy);
            says.iter().for_each(|response| theirs.send(response, &[], &[], false).unwrap());
            if says.is_none() {
                drop(theirs);
            }
            ahead.wait(Instant::now() + LONG)
        };
        assert_eq!(wait(Some(Response::Opened)), Ok(()));
        assert_eq!(
            wait(Some(Response::Refused { reason: "no driver".to_owned() })),
            Err("no driver".to_owned())
        );
        let early = Response::Started { device: "cpu".to_owned(), is_cpu: true, vram: 0, profile: None };
        assert!(wait(Some(early)).unwrap_err().contains("which it should not yet"));
        assert!(wait(None).unwrap_err().contains("closed"));
        let (silent, _theirs) = ahead(NodeKind::Copy);
        assert_eq!(silent.wait(Instant::now()), Err("it takes too long to open its driver".to_owned()));
    }

    #[test]
    fn an_engine_is_launched_from_what_has_opened_the_same_once_and_the_rest_ends() {
        let (stand_in, others) = mpsc::channel();
        let [compute, copy, spare] = [NodeKind::Compute, NodeKind::Copy, NodeKind::Copy].map(ahead);
        let opened = OpenedEngines::new(Arc::new(StandIn(stand_in)), vec![compute.0, copy.0, spare.0]);
        let mut engines = Vec::new();
        for node in [NodeKind::Copy, NodeKind::Compute] {
            engines.push(spawn(&opened, &start(node)));
        }
        assert_eq!(told(&copy.1), start(NodeKind::Copy));
        assert_eq!(told(&compute.1), start(NodeKind::Compute));
        assert!(others.try_recv().is_err());
        // None has opened that.
        engines.push(spawn(&opened, &Start { sandbox: false, ..start(NodeKind::Copy) }));
        engines.push(spawn(&opened, &start(NodeKind::Compute)));
        for sandbox in [false, true] {
            assert_eq!(told(&others.recv().unwrap()).sandbox, sandbox);
        }
        assert_eq!(opened.end(), 1);
        assert!(matches!(spare.1.receive::<Start>(true), Err(ChannelError::Closed)));
        assert_eq!(opened.end(), 0);
        // One that has ended by itself is of no use.
        let (dead, theirs) = ahead(NodeKind::Copy);
        drop(theirs);
        let (stand_in, others) = mpsc::channel();
        let opened = OpenedEngines::new(Arc::new(StandIn(stand_in)), vec![dead]);
        engines.push(spawn(&opened, &start(NodeKind::Copy)));
        assert_eq!(told(&others.recv().unwrap()), start(NodeKind::Copy));
    }

    #[test]
    fn what_decides_what_a_process_opens_is_the_same_in_what_it_becomes() {
        let ahead = start(NodeKind::Compute);
        let same = Start {
            vram_bytes: 1,
            table_bytes: 2,
            spin_microseconds: 3,
            slice_microseconds: 4,
            ..ahead.clone()
        };
        let same = Start { policy: "strict-priority".to_owned(), tracking: Method::BoundRanges, ..same };
        assert!(same.opens_as(&ahead));
        let others = [
            Start { node: NodeKind::Copy, ..ahead.clone() },
            Start { slice_microseconds: 0, ..ahead.clone() },
            Start { sandbox: false, ..ahead.clone() },
            Start { vulkan_device: Some("other".to_owned()), ..ahead.clone() },
            Start { profile: GpuProfile::Campanile1, ..ahead.clone() },
            Start { tracking: Method::WriteProtect, ..ahead.clone() },
            Start { local: Local::Device(Default::default()), ..ahead.clone() },
            Start { code_mib: 1, ..ahead.clone() },
            Start { is_realtime: true, ..ahead.clone() },
        ];
        for other in others {
            assert!(!other.opens_as(&ahead), "{other:?}");
        }
    }
}
