//! The descriptors that a keeper keeps, and the socket at which it hears of them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::net::sockopt::set_socket_passcred;
use rustix::process::Pid;

use crate::fd_store;
use crate::sd_notify;
use crate::sd_notify::Datagram;
use crate::sd_notify::Message;
use crate::service_manager::STORE_BEHIND;

/// Descriptors kept at the most; 16 for each of 256 vGPUs. What comes beyond it is closed.
const MOST: usize = 4096;
/// What a daemon has said, once the store has taken its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Ready,
    Alive,
    Main(Pid),
    /// A descriptor was kept or dropped.
    Kept,
    Other,
}

/// How long a store that does not take more at once is left alone, and one that is not there.
const REST: Duration = Duration::from_millis(20);
const ABSENCE: Duration = Duration::from_secs(1);

/// A store that outlives this process: that of what has started it.
#[derive(Debug, Default)]
struct Behind {
    /// The file of its socket: another one is of another process, which may have nothing, or what the one before had.
    socket: Option<(u64, i64, i64)>,
    /// Names of what it may have.
    told: BTreeSet<String>,
    /// Names of what it has not heard of yet, or has otherwise.
    owed: BTreeSet<String>,
}

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    socket: UnixDatagram,
    name: String,
    /// Where the service manager hears this process, if there is one.
    outer: Option<OsString>,
    /// It did not hear what was said last.
    is_deaf: Cell<bool>,
    files: BTreeMap<String, OwnedFd>,
    /// How many of them there may be.
    most: usize,
    behind: Option<Behind>,
}

impl Store {
    /// One that is empty.
    ///
    /// # Errors
    /// The system gives no socket.
    pub(super) fn open() -> io::Result<Self> {
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("campanile-keeper-{:016x}", u64::from_ne_bytes(salt));
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        let outer = env::var_os("NOTIFY_SOCKET");
        let behind = env::var_os(STORE_BEHIND).map(|_| Behind::default());
        Ok(Self {
            socket,
            name,
            outer,
            is_deaf: Cell::new(false),
            files: BTreeMap::new(),
            most: MOST,
            behind,
        })
    }

    /// Begins with what the store behind this one has.
    pub(super) fn begin_with(&mut self, files: impl IntoIterator<Item = (String, OwnedFd)>) {
        for (name, file) in files {
            // What ends before that one was told of it is to be dropped there, too.
            if let Some(behind) = &mut self.behind {
                behind.told.insert(name.clone());
            }
            self.files.insert(name, file);
        }
    }

    /// Tells the store behind this one what it does not know, as far as it takes that at once. When there is more to tell.
    pub(super) fn pass_down(&mut self) -> Option<Duration> {
        let (Some(Behind { socket, told, owed }), Some(address)) = (&mut self.behind, &self.outer) else {
            return None;
        };
        // Its number alone may be that of the file before.
        let now = fs::metadata(address).ok().map(|file| (file.ino(), file.ctime(), file.ctime_nsec()));
        if *socket != now {
            *socket = now;
            owed.extend(self.files.keys().filter(|name| fd_store::is_of_a_vgpu(name)).cloned());
        }
        if owed.is_empty() {
            return None;
        }
        let heard = crate::service_manager::connect(address).and_then(|store| {
            // This process has a daemon to look after.
            store.set_nonblocking(true)?;
            while let Some(name) = owed.first().cloned() {
                match self.files.get(&name) {
                    Some(file) => {
                        fd_store::add(&store, &name, Some(file.as_fd()))?;
                        told.insert(name);
                    }
                    None if told.contains(&name) => {
                        fd_store::add(&store, &name, None)?;
                        told.remove(&name);
                    }
                    None => {}
                }
                owed.pop_first();
            }
            Ok(())
        });
        heard.err().map(|error| if error.kind() == io::ErrorKind::WouldBlock { REST } else { ABSENCE })
    }

    /// What has this name is another, or gone.
    fn owe(&mut self, name: String) {
        if let Some(behind) = self.behind.as_mut().filter(|_| fd_store::is_of_a_vgpu(&name)) {
            behind.owed.insert(name);
        }
    }

    /// As `NOTIFY_SOCKET` has it.
    pub(super) fn address(&self) -> String {
        format!("@{}", self.name)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Names and descriptors.
    pub(super) fn contents(&self) -> (Vec<&str>, Vec<BorrowedFd<'_>>) {
        self.files.iter().map(|(name, file)| (name.as_str(), file.as_fd())).unzip()
    }

    /// The next thing that was said, by a process that may speak; none when all was heard.
    pub(super) fn hear(&mut self, may_speak: impl Fn(Pid) -> bool) -> io::Result<Option<Said>> {
        while let Some(Datagram { bytes, files, sender }) = sd_notify::receive(&self.socket)? {
            if sender.is_some_and(&may_speak) {
                return Ok(Some(self.take(sd_notify::read(&bytes), &bytes, files)));
            }
            log::debug!("keeper: process {sender:?} is none of its daemon's");
        }
        Ok(None)
    }

    fn take(&mut self, message: Message, bytes: &[u8], files: Vec<OwnedFd>) -> Said {
        match message {
            Message::Keep(name) => {
                match files.into_iter().next() {
                    Some(_) if self.files.len() >= self.most && !self.files.contains_key(&name) => {
                        log::warn!("keeper: {name}: more than {} descriptors; it is not kept", self.most);
                    }
                    Some(file) => {
                        self.files.insert(name.clone(), file);
                        self.owe(name);
                    }
                    None => log::warn!("keeper: {name}: no descriptor came with it"),
                }
                Said::Kept
            }
            Message::Drop(name) => {
                self.files.remove(&name);
                self.owe(name);
                Said::Kept
            }
            // The service of its manager is this process.
            Message::Main(pid) => Said::Main(pid),
            Message::Ready => {
                self.pass_on(bytes);
                Said::Ready
            }
            Message::Alive => {
                self.pass_on(bytes);
                Said::Alive
            }
            Message::Other => {
                self.pass_on(bytes);
                Said::Other
            }
        }
    }

    /// Where the service manager hears this process, if there is one.
    pub(super) fn outer(&self) -> Option<&OsStr> {
        self.outer.as_deref()
    }

    fn pass_on(&self, bytes: &[u8]) {
        let Some(outer) = &self.outer else { return };
        // It may have been killed, and another come in its place.
        let said = crate::service_manager::connect(outer).and_then(|socket| {
            // What does not read is not waited for: this process has a daemon to look after.
            socket.set_nonblocking(true)?;
            socket.send(bytes)
        });
        let was_deaf = self.is_deaf.replace(said.is_err());
        match said {
            Err(error) if !was_deaf => log::warn!("NOTIFY_SOCKET {}: {error}", outer.display()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::os::unix::net::UnixDatagram;

    use rustix::net::SendAncillaryBuffer;
    use rustix::net::SendAncillaryMessage;
    use rustix::net::SendFlags;
    use rustix::net::sendmsg;

    use super::ABSENCE;
    use super::Behind;
    use super::Message;
    use super::Said;
    use super::Store;
    use super::sd_notify;

    fn say(socket: &UnixDatagram, words: &str, file: Option<&File>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        sendmsg(socket, &[IoSlice::new(words.as_bytes())], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn cont_22_a_store_behind_hears_what_is_new_and_another_in_its_place_hears_all_that_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let mut store = Store::open().unwrap();
        (store.outer, store.behind) = (Some(path.clone().into()), Some(Behind::default()));
        let file = || tempfile::tempfile().unwrap();
        let listen = || {
            // It stays somewhere, so that the next one is no file of the same number and moment.
            let _none = std::fs::rename(&path, folder.path().join("before"));
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let heard = |socket: &UnixDatagram| -> Vec<(Message, usize)> {
            let next = || sd_notify::receive(socket).unwrap();
            std::iter::from_fn(next).map(|it| (sd_notify::read(&it.bytes), it.files.len())).collect()
        };
        let name = |role: &str| format!("campanile.a.{role}");
        let keep = |role| (Message::Keep(name(role)), 1);
        store.begin_with(["ended", "log", "words"].map(|role| (name(role), file().into())));
        store.begin_with([("campanile..estate".to_owned(), file().into())]);
        assert_eq!(store.pass_down(), None, "it has never been there");
        // What ends before it is told of anything is something that it has.
        store.take(Message::Drop(name("ended")), b"", Vec::new());
        let first = listen();
        assert_eq!(store.pass_down(), None);
        assert_eq!(heard(&first), [(Message::Drop(name("ended")), 0), keep("log"), keep("words")]);
        store.take(Message::Keep(name("kick-0")), b"", vec![file().into()]);
        store.take(Message::Keep(name("gone")), b"", vec![file().into()]);
        store.take(Message::Drop(name("gone")), b"", Vec::new());
        assert_eq!(store.pass_down(), None);
        assert_eq!(heard(&first), [keep("kick-0")], "what it never had is not dropped");
        // What ends while no process listens is dropped by the next one, which may have it from elsewhere.
        drop(first);
        store.take(Message::Drop(name("words")), b"", Vec::new());
        assert_eq!(store.pass_down(), Some(ABSENCE));
        let second = listen();
        assert_eq!(store.pass_down(), None);
        assert_eq!(heard(&second), [keep("kick-0"), keep("log"), (Message::Drop(name("words")), 0)]);
    }

    #[test]
    fn what_its_daemon_stores_is_kept_by_name_and_no_other_process_is_heard() {
        let mut store = Store::open().unwrap();
        let socket = crate::service_manager::connect(store.address().as_ref()).unwrap();
        let file = File::open("/dev/null").unwrap();
        for words in ["FDSTORE=1\nFDNAME=a", "FDSTORE=1\nFDNAME=b", "FDSTORE=1\nFDNAME=a"] {
            say(&socket, words, Some(&file));
            assert_eq!(store.hear(|_| true).unwrap(), Some(Said::Kept));
        }
        assert_eq!(store.contents().0, ["a", "b"]);
        say(&socket, "FDSTOREREMOVE=1\nFDNAME=a", None);
        say(&socket, "FDSTORE=1\nFDNAME=c", None);
        say(&socket, "READY=1", None);
        let own = rustix::process::getpid();
        let heard: Vec<Said> = std::iter::from_fn(|| store.hear(|pid| pid == own).unwrap()).collect();
        assert_eq!(heard, [Said::Kept, Said::Kept, Said::Ready]);
        assert_eq!(store.contents().0, ["b"]);
        say(&socket, "FDSTOREREMOVE=1\nFDNAME=b", None);
        assert_eq!(store.hear(|pid| pid != own).unwrap(), None);
        assert_eq!((store.contents().0, store.len()), (vec!["b"], 1));
    }

    #[test]
    fn there_are_no_more_descriptors_than_there_may_be_and_those_that_are_there_may_be_replaced() {
        let mut store = Store { most: 2, ..Store::open().unwrap() };
        let socket = crate::service_manager::connect(store.address().as_ref()).unwrap();
        let file = File::open("/dev/null").unwrap();
        for name in ["a", "b", "c", "a"] {
            say(&socket, &format!("FDSTORE=1\nFDNAME={name}"), Some(&file));
            assert_eq!(store.hear(|_| true).unwrap(), Some(Said::Kept));
        }
        assert_eq!(store.contents().0, ["a", "b"]);
    }

    #[test]
    fn a_service_manager_hears_what_is_not_the_keepers_own_affair() {
        let name = format!("campanile-outer-{}", std::process::id());
        let outer = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        outer.set_nonblocking(true).unwrap();
        let mut store = Store { outer: Some(format!("@{name}").into()), ..Store::open().unwrap() };
        let socket = crate::service_manager::connect(store.address().as_ref()).unwrap();
        let file = File::open("/dev/null").unwrap();
        say(&socket, "FDSTORE=1\nFDNAME=a", Some(&file));
        for words in ["READY=1", "WATCHDOG=1", "STATUS=well", "MAINPID=7", "FDSTOREREMOVE=1\nFDNAME=a"] {
            say(&socket, words, None);
        }
        while store.hear(|_| true).unwrap().is_some() {}
        let mut bytes = [0; 100];
        let heard = std::iter::from_fn(|| {
            let length = outer.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
        });
        assert_eq!(heard.collect::<Vec<_>>(), ["READY=1", "WATCHDOG=1", "STATUS=well"]);
        // One that reads nothing is not waited for.
        for _ in 0..2000 {
            say(&socket, "WATCHDOG=1", None);
            assert_eq!(store.hear(|_| true).unwrap(), Some(Said::Alive));
        }
        assert!(store.is_deaf.get());
    }
}
