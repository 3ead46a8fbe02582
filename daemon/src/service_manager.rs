//! The service manager that started this process, where one did: the sockets that it hands over, which listen already
//! (`LISTEN_FDS`, sd_listen_fds(3)), and that it wants to know when the daemon serves (`NOTIFY_SOCKET`, sd_notify(3)).
//!
//! A socket is told by its path, not by its place or name: an option that names the path of a handed socket takes it.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::descriptors;
use listenfd::ListenFd;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::socket_acceptconn;
use thiserror::Error;

/// Why what was handed over cannot be used.
#[derive(Debug, Error)]
pub enum HandedError {
    /// It is no Unix socket that listens at a path.
    #[error("socket {number} that the service manager has handed over: {why}")]
    Unfit {
        /// Which of them, from 1.
        number: usize,
        /// Why not.
        why: String,
    },
    /// No option names it: a client that connects there would wait for ever.
    #[error("{}: handed over by the service manager, but no option names this socket", path.display())]
    Unused {
        /// Where it listens.
        path: PathBuf,
    },
}

/// What names of descriptors begin with that this program has stored (`FDSTORE=1`); no name of a socket unit does.
pub const STORED: &str = "campanile.";

/// Descriptors that were stored.
static KEPT: Mutex<Vec<(String, OwnedFd)>> = Mutex::new(Vec::new());
/// In the environment of a process that has a keeper: where it is heard when that has ended, as `NOTIFY_SOCKET` has it.
pub(crate) const BEHIND: &str = "CAMPANILE_NOTIFY_BEHIND";

/// In the environment of a keeper whose `NOTIFY_SOCKET` is that of a store which outlives it, and of its daemon.
pub(crate) const STORE_BEHIND: &str = "CAMPANILE_STORE_BEHIND";
/// In the environment of a keeper whose standard input is a channel with what such a store has of its vGPU.
pub(crate) const HAS_STORE: &str = "CAMPANILE_STORED";

/// Where a service manager hears this process.
#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    /// Where the one behind it does, or another one in its place.
    behind: SocketAddr,
    /// The same, where that one is a store.
    store_behind: Option<SocketAddrUnix>,
    /// What was said last was not heard.
    is_deaf: AtomicBool,
    /// What heard it first has ended.
    has_gone: AtomicBool,
}

/// The process's own.
static MANAGER: OnceLock<Manager> = OnceLock::new();
/// Those that no option has taken yet. The environment that they come from is the whole process's, too.
static HANDED: Mutex<Vec<(PathBuf, UnixListener)>> = Mutex::new(Vec::new());

fn handed() -> impl std::ops::DerefMut<Target = Vec<(PathBuf, UnixListener)>> {
    HANDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds what was handed over to this process. Call it once, before the first thread: it changes the environment.
///
/// # Errors
/// One is no Unix socket that listens at a path.
pub fn take_sockets() -> Result<(), HandedError> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let mut from = ListenFd::from_env();
    for index in 0..from.len() {
        let unfit = |why: String| HandedError::Unfit { number: index + 1, why };
        if let Some(name) = names.get(index).filter(|name| name.starts_with(STORED)) {
            let number = from.take_raw_fd(index).map_err(|error| unfit(error.to_string()))?;
            let stored =
                number.map(descriptors::adopt).transpose().map_err(|error| unfit(error.to_string()))?;
            stored_files().extend(stored.map(|file| ((*name).to_owned(), file)));
            continue;
        }
        match from.take_unix_listener(index) {
            Ok(Some(socket)) => hand_over(socket).map_err(unfit)?,
            Ok(None) => {}
            Err(error) => return Err(unfit(error.to_string())),
        }
    }
    Ok(())
}

/// The descriptors that a process before this one has stored, by name, once.
pub(crate) fn take_stored() -> Vec<(String, OwnedFd)> {
    mem::take(&mut *stored_files())
}

fn stored_files() -> impl std::ops::DerefMut<Target = Vec<(String, OwnedFd)>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a service manager does.
pub(crate) fn hand_over(socket: UnixListener) -> Result<(), String> {
    if !socket_acceptconn(&socket).map_err(|error| error.to_string())? {
        return Err("it does not listen".to_owned());
    }
    let address = socket.local_addr().map_err(|error| error.to_string())?;
    let path = address.as_pathname().ok_or("it has no path")?.to_owned();
    handed().push((path, socket));
    Ok(())
}

/// The socket that listens at `path`, if it was handed over and nothing has it yet.
pub(crate) fn claim(path: &Path) -> Option<UnixListener> {
    let mut handed = handed();
    let index = handed.iter().position(|(its, _)| its == path)?;
    Some(handed.swap_remove(index).1)
}

/// Whether all that was handed over is served.
///
/// # Errors
/// One is not; all that are not are closed.
pub fn check_claimed() -> Result<(), HandedError> {
    let left = mem::take(&mut *handed());
    left.into_iter().next().map_or(Ok(()), |(path, _)| Err(HandedError::Unused { path }))
}

/// Tells the service manager, if there is one that asked, that the sockets are served.
pub fn say_ready() {
    say("READY=1");
}

/// Tells it that this process lives.
pub fn say_alive() {
    say("WATCHDOG=1");
}

/// Tells it that the process of this number is the service from here on: this one is about to end.
pub fn say_main_process(pid: u32) {
    say(&format!("MAINPID={pid}"));
}

/// Finds the service manager. Call it once, before anything is confined: later no thread may connect to it.
pub fn open() {
    if let Some(address) = env::var_os("NOTIFY_SOCKET") {
        let behind = env::var_os(BEHIND);
        open_at(&address, behind.as_deref().unwrap_or(&address));
    }
}

/// The one that listens at this address, with another one behind it.
fn open_at(address: &OsStr, behind: &OsStr) {
    match Manager::new(address, behind) {
        Ok(manager) => {
            let store_behind = env::var_os(STORE_BEHIND).and_then(|_| path_of(behind));
            drop(MANAGER.set(Manager { store_behind, ..manager }));
        }
        Err(error) => log::warn!("NOTIFY_SOCKET {}: {error}", address.display()),
    }
}

impl Manager {
    fn new(address: &OsStr, behind: &OsStr) -> io::Result<Self> {
        let socket = connect(address).or_else(|_| connect(behind))?;
        let [is_deaf, has_gone] = [false; 2].map(AtomicBool::new);
        let (behind, store_behind) = (parse(behind)?, None);
        Ok(Self { socket, behind, store_behind, is_deaf, has_gone })
    }

    fn say(&self, words: &str) {
        let bytes = words.as_bytes();
        let said = self.socket.send(bytes).or_else(|error| {
            if !has_gone(&error) {
                return Err(error);
            }
            self.has_gone.store(true, Ordering::Relaxed);
            self.socket.send_to_addr(bytes, &self.behind)
        });
        let was_deaf = self.is_deaf.swap(said.is_err(), Ordering::Relaxed);
        match said {
            Err(error) if !was_deaf => log::warn!("NOTIFY_SOCKET: {error}"),
            _ => {}
        }
    }
}

/// Whether what hears a process has ended, by what comes of telling it something: the first time, and from then on.
pub(crate) fn has_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected)
}

/// Whether a sign of life was not heard by the keeper, which has ended.
pub(crate) fn has_lost_its_keeper() -> bool {
    MANAGER.get().is_some_and(|manager| manager.has_gone.load(Ordering::Relaxed))
}

/// Where a store hears this process that keeps its descriptors when its keeper has ended, if there is one.
pub(crate) fn store_behind() -> Option<&'static SocketAddrUnix> {
    MANAGER.get()?.store_behind.as_ref()
}

/// Where it hears this process, if it does.
pub(crate) fn socket() -> Option<&'static UnixDatagram> {
    MANAGER.get().map(|manager| &manager.socket)
}

fn say(words: &str) {
    if let Some(manager) = MANAGER.get() {
        manager.say(words);
    }
}

fn parse(address: &OsStr) -> io::Result<SocketAddr> {
    match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    }
}

/// The address of a socket that lies in a file, as `NOTIFY_SOCKET` has it.
fn path_of(address: &OsStr) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new(address.as_bytes()).ok().filter(|_| !address.as_bytes().starts_with(b"@"))
}

/// A socket whose datagrams go to this address, as `NOTIFY_SOCKET` has it.
pub(crate) fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&parse(address)?)?;
    Ok(socket)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::net::UnixListener;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::sync::MutexGuard;
    use std::sync::OnceLock;
    use std::sync::PoisonError;
    use std::sync::mpsc;
    use std::sync::mpsc::Receiver;
    use std::thread;

    use super::HandedError;
    use super::Manager;
    use super::check_claimed;
    use super::claim;
    use super::connect;
    use super::hand_over;
    use super::open_at;
    use super::socket;

    /// Held by each test that hands a socket over, where tests share a process.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor store that hears this process, and nothing yet: a process has one, which a test has alone.
    pub(crate) struct HeardStore {
        said: MutexGuard<'static, Receiver<String>>,
    }

    /// What a test says itself, to know that all before it was heard.
    const MARK: &str = "MARK=1";

    impl HeardStore {
        pub(crate) fn open() -> Self {
            static STORE: OnceLock<Mutex<Receiver<String>>> = OnceLock::new();
            let said = STORE.get_or_init(|| {
                let name = format!("campanile-store-{}", std::process::id());
                let store = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
                let address = format!("@{name}");
                open_at(address.as_ref(), address.as_ref());
                let (tell, said) = mpsc::channel();
                // A socket holds ten datagrams; a store that hears a process for as long as it runs, all.
                thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    while let Ok(length) = store.recv(&mut bytes) {
                        tell.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).unwrap();
                    }
                });
                Mutex::new(said)
            });
            let this = Self { said: said.lock().unwrap_or_else(PoisonError::into_inner) };
            let _of_others = this.heard().count();
            this
        }

        /// What was said since the last call.
        pub(crate) fn heard(&self) -> impl Iterator<Item = String> {
            socket().unwrap().send(MARK.as_bytes()).unwrap();
            self.said.iter().take_while(|said| said != MARK)
        }
    }

    #[test]
    fn a_socket_goes_to_the_option_that_names_its_path_and_one_without_such_an_option_is_no_start() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        hand_over(UnixListener::bind(&a).unwrap()).unwrap();
        hand_over(UnixListener::bind(&b).unwrap()).unwrap();
        assert!(claim(&folder.path().join("c")).is_none());
        let claimed = claim(&b).unwrap();
        assert_eq!(claimed.local_addr().unwrap().as_pathname(), Some(b.as_path()));
        assert!(claim(&b).is_none(), "it is taken");
        assert!(matches!(check_claimed(), Err(HandedError::Unused { path }) if path == a));
        assert!(UnixStream::connect(&a).is_err(), "nobody waits where nobody serves");
        assert!(check_claimed().is_ok());
    }

    #[test]
    fn what_does_not_listen_at_a_path_is_refused() {
        let (one, _other) = UnixStream::pair().unwrap();
        let said = hand_over(UnixListener::from(std::os::fd::OwnedFd::from(one))).unwrap_err();
        assert_eq!(said, "it does not listen");
        let name = format!("campanile-test-{}", std::process::id());
        let unnamed = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        assert_eq!(hand_over(unnamed).unwrap_err(), "it has no path");
    }

    #[test]
    fn what_is_behind_a_manager_that_has_gone_is_told_and_so_is_one_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let [first, behind] = ["first", "behind"].map(|name| folder.path().join(name));
        let listen = |path: &std::path::Path| {
            let socket = UnixDatagram::bind(path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let says = |socket: &UnixDatagram, words: &str| {
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], words.as_bytes());
        };
        let (manager, second) = (listen(&first), listen(&behind));
        let told = Manager::new(first.as_os_str(), behind.as_os_str()).unwrap();
        told.say("one");
        says(&manager, "one");
        drop(manager);
        told.say("two");
        says(&second, "two");
        drop(second);
        told.say("three, which none hears");
        std::fs::remove_file(&behind).unwrap();
        let third = listen(&behind);
        for words in ["four", "five"] {
            told.say(words);
            says(&third, words);
        }
    }

    #[test]
    fn who_asked_is_told_by_path_or_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("campanile-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            connect(&address).unwrap().send(b"READY=1").unwrap();
            let mut said = [0; 16];
            let length = socket.recv(&mut said).unwrap();
            assert_eq!(&said[..length], b"READY=1");
        }
        assert!(connect(folder.path().join("absent").as_os_str()).is_err());
    }
}
