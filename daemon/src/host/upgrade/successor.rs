//! The daemon that takes vGPUs over.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::channel::Channel;
use super::message::FORMAT;
use super::message::Handed;
use super::message::HandedVgpu;
use super::message::NamedSocket;
use super::message::OLDEST;
use super::message::Said;
use crate::frontend::vhost::handed::Handed as HandedConnection;
use crate::frontend::vhost::handed::Inherited;
use crate::host::error::HostError;
use crate::migration::handed::HandedDevice;
use crate::migration::pages::PageSet;
use crate::open_sockets;
use crate::open_sockets::OpenSocket;

/// Set in the environment of a successor: its standard input is the channel to its predecessor.
pub(in crate::host) const IS_SUCCESSOR: &str = "CAMPANILE_SUCCESSOR";
/// How long the predecessor may take: for as long as it waits itself.
const LIMIT: Duration = Duration::from_secs(60);
/// Pages that a memory may have: 256 TiB.
const MOST_PAGES: u64 = 1 << 36;

/// A vGPU on its way.
#[derive(Debug)]
struct Arrived {
    connection: HandedConnection,
    device: HandedDevice,
}

/// How a vGPU is told to go on, and what came of its device.
#[derive(Debug)]
struct Waiting {
    name: String,
    ready: Receiver<Result<(), String>>,
    go: Sender<()>,
}

/// The predecessor, as long as this daemon does not serve yet.
#[derive(Debug)]
pub struct Succession {
    channel: Channel,
    arrived: Mutex<BTreeMap<String, Arrived>>,
    waiting: Mutex<Vec<Waiting>>,
    /// What the operator has changed there.
    estate: Mutex<Changed>,
}

/// What the operator has changed while the predecessor served.
#[derive(Debug, Default)]
pub(in crate::host) struct Changed {
    /// vGPUs that were made, as the operator said.
    pub(in crate::host) made: Vec<String>,
    /// What was set, by vGPU.
    pub(in crate::host) set: Vec<(String, Vec<String>)>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &str) -> impl Fn(io::Error) -> HostError {
    move |error| HostError::Upgrade(format!("{what}: {error}"))
}

impl Succession {
    /// Greets the predecessor, if this process was started by one, and takes its sockets over.
    ///
    /// # Errors
    /// Standard input is no channel to a predecessor.
    pub fn begin() -> Result<Option<Self>, HostError> {
        if env::var_os(IS_SUCCESSOR).is_none() {
            return Ok(None);
        }
        let stream = io::stdin().as_fd().try_clone_to_owned().map_err(failed("standard input"))?;
        // Nothing that this process starts is to have it.
        let null = File::open("/dev/null").map_err(failed("/dev/null"))?;
        rustix::stdio::dup2_stdin(&null).map_err(|errno| failed("standard input")(errno.into()))?;
        let channel = Channel::from(UnixStream::from(stream));
        let this =
            Self { channel, arrived: Mutex::default(), waiting: Mutex::default(), estate: Mutex::default() };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        this.say(&Said::Hello { oldest: OLDEST, newest: FORMAT, version })?;
        let (said, files) = this.hear()?;
        let Handed::Sockets(named) = said else { return Err(unexpected(&said)) };
        if named.len() != files.len() {
            return Err(HostError::Upgrade(format!("{} sockets, {} descriptors", named.len(), files.len())));
        }
        let open = |(named, socket): (NamedSocket, OwnedFd)| OpenSocket {
            name: OsString::from_vec(named.name.0),
            socket,
            has_file: named.has_file,
        };
        open_sockets::inherit(named.into_iter().zip(files).map(open).collect());
        Ok(Some(this))
    }

    fn say(&self, said: &Said) -> Result<(), HostError> {
        self.channel.send(said, &[], LIMIT).map_err(failed("telling the predecessor"))
    }

    fn hear(&self) -> Result<(Handed, VecDeque<OwnedFd>), HostError> {
        self.channel.receive(LIMIT).map_err(failed("what the predecessor hands over"))
    }

    /// Tells the predecessor why this process cannot go on; it ends.
    pub fn fail(&self, why: &str) {
        if let Err(error) = self.say(&Said::Failed { why: why.to_owned() }) {
            log::warn!("{error}");
        }
    }

    /// Says that this daemon could serve, and waits for all that it is to go on with.
    ///
    /// # Errors
    /// The predecessor goes on itself, or what it says cannot be used.
    pub(in crate::host) fn receive(&self) -> Result<(), HostError> {
        self.say(&Said::Prepared)?;
        let (said, _) = self.hear()?;
        let Handed::Estate { made, set, vgpus } = said else { return Err(unexpected(&said)) };
        *locked(&self.estate) = Changed { made, set };
        for _ in 0..vgpus {
            let (said, mut files) = self.hear()?;
            let Handed::Vgpu(vgpu) = said else { return Err(unexpected(&said)) };
            let HandedVgpu { name, shell, state, written } = *vgpu;
            let mut next = |what: &str| {
                let missing = || HostError::Upgrade(format!("vGPU {name}: a descriptor is missing: {what}"));
                files.pop_front().ok_or_else(missing)
            };
            let stream = UnixStream::from(next("connection")?);
            let memories = [File::from(next("video memory")?), File::from(next("evicted memory")?)];
            let written = written.map(|(pages, runs)| {
                let mut set = PageSet::none(pages.min(MOST_PAGES));
                runs.into_iter().for_each(|(start, end)| set.insert(start..end));
                set
            });
            let device = HandedDevice { state: state.0, files: memories, written };
            let connection = HandedConnection { stream, shell, files };
            locked(&self.arrived).insert(name, Arrived { connection, device });
        }
        Ok(())
    }

    /// What the operator has changed there, once.
    pub(in crate::host) fn changed(&self) -> Changed {
        std::mem::take(&mut *locked(&self.estate))
    }

    /// Takes the device and the connection of a vGPU that a VM has.
    pub(in crate::host) fn take(&self, name: &str) -> Option<(HandedDevice, Inherited)> {
        let Arrived { connection, device } = locked(&self.arrived).remove(name)?;
        let (ready, its_ready) = mpsc::channel();
        let (go, its_go) = mpsc::channel();
        locked(&self.waiting).push(Waiting { name: name.to_owned(), ready: its_ready, go });
        Some((device, Inherited { handed: connection, ready, go: its_go }))
    }

    /// All vGPUs are there: waits for their devices, and for the predecessor to leave them. They go on.
    ///
    /// # Errors
    /// A device is not as it was, a vGPU that a VM has is none of this daemon's, or the predecessor goes on itself.
    pub(in crate::host) fn complete(&self) -> Result<(), HostError> {
        if let Some(name) = locked(&self.arrived).keys().next() {
            return Err(HostError::Upgrade(format!(
                "vGPU {name} has a VM, and is not in the configuration any more; put it back, or remove it first"
            )));
        }
        let waiting = std::mem::take(&mut *locked(&self.waiting));
        for Waiting { name, ready, .. } in &waiting {
            let gone = || "its thread has ended".to_owned();
            let restored = ready.recv_timeout(LIMIT).map_err(|_| gone()).and_then(|restored| restored);
            restored.map_err(|why| HostError::Upgrade(format!("vGPU {name}: {why}")))?;
        }
        self.say(&Said::Restored)?;
        let (said, _) = self.hear()?;
        if said != Handed::Go {
            return Err(unexpected(&said));
        }
        open_sockets::settle();
        for Waiting { go, .. } in &waiting {
            let _goes_on = go.send(());
        }
        let resumed = |Waiting { name, ready, .. }: Waiting| {
            let gone = || "its thread has ended".to_owned();
            let resumed = ready.recv_timeout(LIMIT).map_err(|_| gone()).and_then(|resumed| resumed);
            Some((name, resumed.err()?))
        };
        let lost: Vec<(String, String)> = waiting.into_iter().filter_map(resumed).collect();
        // The predecessor may have ended meanwhile.
        if let Err(error) = self.say(&Said::Serving { lost }) {
            log::warn!("{error}");
        }
        Ok(())
    }
}

fn unexpected(handed: &Handed) -> HostError {
    HostError::Upgrade(format!("the predecessor says {handed:?}, which it should not now"))
}
