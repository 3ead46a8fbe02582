//! The daemon that takes vGPUs over.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use campanile_host_gpu::memory::local::Passport;

use super::channel::Channel;
use super::inheritance::Arrived;
use super::inheritance::Inheritance;
use super::inheritance::Waiting;
use super::message::Changes;
use super::message::FORMAT;
use super::message::Handed;
use super::message::HandedEngines;
use super::message::HandedLocal;
use super::message::HandedVgpu;
use super::message::NamedSocket;
use super::message::OLDEST;
use super::message::Said;
use crate::frontend::vhost::handed::Handed as HandedConnection;
use crate::host::error::HostError;
use crate::migration::handed::Becomes;
use crate::migration::handed::HandedDevice;
use crate::migration::handed::Interrupted;
use crate::migration::pages::PageSet;
use crate::open_sockets;
use crate::open_sockets::OpenSocket;
use crate::vgpu::engines::kept_code::KeptFile;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;

/// Set in the environment of a successor: its standard input is the channel to its predecessor.
pub(in crate::host) const IS_SUCCESSOR: &str = "CAMPANILE_SUCCESSOR";
/// How long the predecessor may take: for as long as it waits itself.
const LIMIT: Duration = Duration::from_secs(60);
/// Pages that a memory may have: 256 TiB.
const MOST_PAGES: u64 = 1 << 36;

/// The predecessor, as long as this daemon does not serve yet.
#[derive(Debug)]
pub struct Succession {
    channel: Channel,
    /// Its vGPUs.
    inheritance: Arc<Inheritance>,
    /// What the operator has changed there.
    estate: Mutex<Changes>,
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
        let channel = Channel::of_stdin().map_err(failed("standard input"))?;
        let this = Self { channel, inheritance: Arc::default(), estate: Mutex::default() };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        this.say(&Said::Hello { oldest: OLDEST, newest: FORMAT, version, opens_ahead: true })?;
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

    /// Says that this daemon could serve, and waits for all that it is to go on with. `open` opens engines meanwhile, and says their processes.
    ///
    /// # Errors
    /// The predecessor goes on itself, or what it says cannot be used.
    pub(in crate::host) fn receive(
        &self,
        open: impl Fn(Vec<HandedEngines>, &Inheritance) -> Vec<u32>,
    ) -> Result<(), HostError> {
        self.say(&Said::Prepared)?;
        let (said, _) = loop {
            let (said, files) = self.hear()?;
            match said {
                Handed::Engines(engines) => {
                    let processes = open(engines, &self.inheritance);
                    self.say(&Said::Opened { processes })?;
                }
                Handed::Local(local) => self.take_local(local, files)?,
                said => break (said, files),
            }
        };
        let Handed::Estate { changes, vgpus } = said else { return Err(unexpected(&said)) };
        *locked(&self.estate) = changes;
        for _ in 0..vgpus {
            let (said, mut files) = self.hear()?;
            let Handed::Vgpu(vgpu) = said else { return Err(unexpected(&said)) };
            let HandedVgpu { name, shell, state, code, written } = *vgpu;
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
            let mut kept = Vec::with_capacity(code.len());
            for engine in code.into_iter().rev() {
                let missing =
                    || HostError::Upgrade(format!("vGPU {name}: a descriptor is missing: compiled code"));
                let file = files.pop_back().ok_or_else(missing)?;
                kept.push(KeptFile { engine, file: file.into() });
            }
            let (state, interrupted) = (Becomes::Whole(state.0), Interrupted::default());
            let device = HandedDevice { state, interrupted, files: memories, written, code: kept };
            let connection = HandedConnection { stream, shell, files };
            self.inheritance.add(name, Arrived { connection, device, ledger: None });
        }
        Ok(())
    }

    fn take_local(&self, local: HandedLocal, mut files: VecDeque<OwnedFd>) -> Result<(), HostError> {
        let HandedLocal { vgpu, length, type_index, uuids, is_new } = local;
        let missing = || HostError::Upgrade(format!("vGPU {vgpu}: a descriptor is missing: local memory"));
        let descriptor = files.pop_front().ok_or_else(missing)?;
        let local = DeviceLocal::handed(descriptor, Passport { length, type_index, uuids }, is_new);
        if let Some(why) = local.objection() {
            return Err(HostError::Upgrade(format!("vGPU {vgpu}: local memory: {why}")));
        }
        self.inheritance.add_local(vgpu, local);
        Ok(())
    }

    /// The vGPUs that it hands over.
    pub(in crate::host) fn inheritance(&self) -> &Arc<Inheritance> {
        &self.inheritance
    }

    /// What the operator has changed there, once.
    pub(in crate::host) fn changed(&self) -> Changes {
        std::mem::take(&mut *locked(&self.estate))
    }

    /// All vGPUs are there: waits for their devices, and for the predecessor to leave them. They go on.
    ///
    /// # Errors
    /// A device is not as it was, a vGPU that a VM has is none of this daemon's, or the predecessor goes on itself.
    pub(in crate::host) fn complete(&self) -> Result<(), HostError> {
        if let Some(name) = self.inheritance.unclaimed() {
            return Err(HostError::Upgrade(format!(
                "vGPU {name} has a VM, and is not in the configuration any more; put it back, or remove it first"
            )));
        }
        let waiting = self.inheritance.waiting();
        for vgpu in &waiting {
            vgpu.wait().map_err(|why| HostError::Upgrade(format!("vGPU {}: {why}", vgpu.name)))?;
        }
        self.inheritance.end_opened();
        self.say(&Said::Restored)?;
        let (said, _) = self.hear()?;
        if said != Handed::Go {
            return Err(unexpected(&said));
        }
        open_sockets::settle();
        waiting.iter().for_each(Waiting::go);
        let lost: Vec<(String, String)> =
            waiting.into_iter().filter_map(|vgpu| Some((vgpu.name.clone(), vgpu.wait().err()?))).collect();
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::Mutex;

    use campanile_host_gpu::memory::vram::create_memfd;
    use ciborium::Value;

    use super::Changes;
    use super::Channel;
    use super::Handed;
    use super::HandedLocal;
    use super::HandedVgpu;
    use super::LIMIT;
    use super::OLDEST;
    use super::Succession;
    use crate::frontend::vhost::handed::HandedShell;
    use crate::frontend::vhost::saved::SavedRing;
    use crate::frontend::vhost::saved::SavedShell;
    use crate::migration::handed::Becomes;
    use crate::migration::state;
    use crate::vgpu::state::saved::bytes::Bytes;

    fn golden(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
    }

    /// What a daemon of format 1 handed over: the operator's changes, and a vGPU with a state of version 1.
    fn handed() -> [Handed; 2] {
        let made = vec!["name=made,socket=/run/made,vram=64M".to_owned()];
        let set = vec![("a".to_owned(), vec!["weight=300".to_owned()])];
        let shell = HandedShell {
            shell: SavedShell {
                features: 0x1_4000_0003,
                config: vec![7, 8],
                smallest_answer: 24,
                rings: vec![SavedRing { position: 5, was_used: true, ..SavedRing::default() }],
            },
            protocol: 0xa40b,
            has_asked: true,
            is_greeted: true,
            window: Some(true),
            has_back_channel: false,
            regions: Vec::new(),
            rings: Vec::new(),
        };
        let (state, written) = (Bytes(golden("state-1.campanile")), [(32, vec![(1, 3)]), (16, Vec::new())]);
        let vgpu = HandedVgpu { name: "a".to_owned(), shell, state, code: Vec::new(), written };
        let changes = Changes { made, set, is_drained: false };
        [Handed::Estate { changes, vgpus: 1 }, Handed::Vgpu(Box::new(vgpu))]
    }

    /// Files of messages of format 1, which are never written anew.
    const FILES: [&str; 2] = ["handed-1-estate.cbor", "handed-1-vgpu.cbor"];

    #[test]
    fn cont_07_what_a_daemon_of_the_format_before_hands_over_arrives_whole() {
        assert_eq!(OLDEST, 1, "else it is refused");
        let (own, its) = UnixStream::pair().unwrap();
        let (succession, predecessor) = (
            Succession { channel: own.into(), inheritance: Arc::default(), estate: Mutex::default() },
            Channel::from(its),
        );
        let [estate, vgpu] =
            FILES.map(|name| ciborium::from_reader::<Value, _>(golden(name).as_slice()).unwrap());
        let (stream, _front_end) = UnixStream::pair().unwrap();
        let [vram, evicted] = [32, 16].map(|pages| create_memfd("test", pages << 12).unwrap());
        let inode = |file: &File| file.metadata().unwrap().ino();
        let inodes = [&vram, &evicted].map(inode);
        predecessor.send(&estate, &[], LIMIT).unwrap();
        predecessor.send(&vgpu, &[stream.as_fd(), vram.as_fd(), evicted.as_fd()], LIMIT).unwrap();
        succession.receive(|_, _| Vec::new()).unwrap();
        let [Handed::Estate { changes, .. }, Handed::Vgpu(expected)] = handed() else { unreachable!() };
        assert_eq!(succession.changed(), changes);
        assert!(succession.inheritance.is_whole("a"));
        let taken = succession.inheritance.take("a").unwrap();
        assert_eq!(taken.connection.handed.shell, expected.shell);
        let Becomes::Whole(state) = &taken.device.state else { panic!("it has no state") };
        assert_eq!(state::decode(state).unwrap(), state::decode(&expected.state.0).unwrap());
        assert_eq!(taken.device.files.each_ref().map(inode), inodes);
        let written = taken.device.written.map(|set| (set.pages(), set.count()));
        assert_eq!(written, [(32, 2), (16, 0)]);
    }

    #[test]
    fn cont_02_local_memory_that_is_shorter_than_the_predecessor_says_is_not_taken_over() {
        let handed = |length| {
            let (own, its) = UnixStream::pair().unwrap();
            let (succession, predecessor) = (
                Succession { channel: own.into(), inheritance: Arc::default(), estate: Mutex::default() },
                Channel::from(its),
            );
            let (vgpu, uuids) = ("a".to_owned(), [[0; 16]; 2]);
            let local = Handed::Local(HandedLocal { vgpu, length, type_index: 0, uuids, is_new: true });
            let file = create_memfd("opaque", 0x4000).unwrap();
            predecessor.send(&local, &[file.as_fd()], LIMIT).unwrap();
            let estate = Handed::Estate { changes: Changes::default(), vgpus: 0 };
            predecessor.send(&estate, &[], LIMIT).unwrap();
            let received = succession.receive(|_, _| Vec::new());
            received.map(|()| succession.inheritance.take_local("a").is_some())
        };
        assert!(handed(0x4000).unwrap());
        let why = handed(0x4001).unwrap_err().to_string();
        assert!(why.contains("vGPU a: local memory: its file has 16384 bytes"), "{why}");
    }

    #[test]
    fn cont_07_messages_of_the_format_before_are_what_they_were() {
        for (name, handed) in FILES.into_iter().zip(handed()) {
            assert_eq!(
                ciborium::from_reader::<Handed, _>(golden(name).as_slice()).unwrap(),
                handed,
                "{name}"
            );
        }
    }
}
