//! The socket at which a keeper says that its worker serves (`NOTIFY_SOCKET`, sd_notify(3)), and has kept what the next keeper goes on with.
//!
//! ```text
//!   keeper ──FDSTORE, FDSTOREREMOVE──▶ this process ──the same──▶ service manager, if there is one
//!     └ killed, and its worker ─▶ the next keeper has all of that    └ this process is killed, too ─▶ the next one has it
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::net::sockopt::set_socket_passcred;
use rustix::process::Pid;

use crate::fd_store;
use crate::ledger::read;
use crate::sd_notify;
use crate::sd_notify::Datagram;
use crate::sd_notify::Message;

/// Descriptors of a vGPU that are kept at the most.
const MOST: usize = 1024;

/// The socket, and what is kept. Its file lies where only this user reaches it.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    /// What names of its vGPU begin with, where it has one.
    prefix: Option<String>,
    files: BTreeMap<String, OwnedFd>,
    /// What has told of them, by name; nothing where that was told to a process before this one.
    tellers: BTreeMap<String, Pid>,
}

impl Notify {
    /// Listens at `path`, also where a process before this one did.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn open(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(path)?;
        // Workers may be of another user, and the folder is theirs.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        Ok(Self { socket, prefix: None, files: BTreeMap::new(), tellers: BTreeMap::new() })
    }

    /// Keeps what is of this vGPU, of which that is there already.
    #[must_use]
    pub fn keeping(self, vgpu: &str, files: BTreeMap<String, OwnedFd>) -> Self {
        Self { prefix: fd_store::prefix(vgpu), files, ..self }
    }

    /// What is kept, by name.
    pub fn kept(&self) -> &BTreeMap<String, OwnedFd> {
        &self.files
    }

    /// Nothing is kept any more: nothing serves its VM, and nothing will, which that sees.
    pub fn clear(&mut self) {
        let connection = format!("{}{}", self.prefix.as_deref().unwrap_or_default(), read::CONNECTION);
        if let Some(connection) = self.files.get(&connection) {
            // It may have hung up.
            let _over = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
        self.forget();
    }

    /// Nothing is kept any more; what serves its VM goes on.
    pub fn forget(&mut self) {
        self.tellers.clear();
        while let Some((name, _)) = self.files.pop_first() {
            pass_on(&name, None);
        }
    }

    /// Nothing is kept any more but what this process has told of: what its keeper has told of may be older.
    pub fn forget_all_but_of(&mut self, teller: Pid) {
        let Self { files, tellers, .. } = self;
        for (name, _) in files.extract_if(.., |name, _| tellers.get(name) != Some(&teller)) {
            pass_on(&name, None);
        }
        tellers.retain(|_, its| *its == teller);
    }

    fn keep(&mut self, name: String, file: OwnedFd, teller: Option<Pid>) {
        let is_its = self.prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix));
        if is_its && (self.files.len() < MOST || self.files.contains_key(&name)) {
            pass_on(&name, Some(file.as_fd()));
            match teller {
                Some(teller) => drop(self.tellers.insert(name.clone(), teller)),
                None => drop(self.tellers.remove(&name)),
            }
            self.files.insert(name, file);
        }
    }

    fn drop_one(&mut self, name: &str) {
        self.tellers.remove(name);
        if self.files.remove(name).is_some() {
            pass_on(name, None);
        }
    }

    /// Takes all that was said; whether something serves, by that. A sign of life counts, too: what it was told before may be
    /// something that another process heard.
    pub fn serves(&mut self) -> bool {
        let mut serves = false;
        while let Ok(Some(Datagram { bytes, files, sender })) = sd_notify::receive(&self.socket) {
            match sd_notify::read(&bytes) {
                Message::Ready | Message::Alive => serves = true,
                Message::Keep(name) => {
                    files.into_iter().take(1).for_each(|file| self.keep(name.clone(), file, sender));
                }
                Message::Drop(name) => self.drop_one(&name),
                Message::Main(_) | Message::Other => {}
            }
        }
        serves
    }
}

/// Has the service manager keep this, too, or drop it.
fn pass_on(name: &str, file: Option<BorrowedFd<'_>>) {
    if let Err(error) = fd_store::set(name, file) {
        log::warn!("descriptor store: {name}: {error}");
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::MOST;
    use super::Notify;
    use crate::fd_store;
    use crate::service_manager::connect;

    #[test]
    fn cont_22_what_is_kept_is_of_its_vgpu_within_a_limit_and_its_vmm_sees_that_nothing_is_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.notify");
        let (connection, mut vmm) = UnixStream::pair().unwrap();
        let before = BTreeMap::from([("campanile.a.connection".to_owned(), connection.into())]);
        let mut notify = Notify::open(&path).unwrap().keeping("a", before);
        let socket = connect(path.as_os_str()).unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut say = |name: &str, is_kept: bool| {
            fd_store::add(&socket, name, is_kept.then(|| file.as_fd())).unwrap();
            assert!(!notify.serves());
            notify.kept().keys().cloned().collect::<Vec<_>>()
        };
        let [log, connection] = ["campanile.a.log", "campanile.a.connection"].map(str::to_owned);
        assert_eq!(say(&log, true), [connection.clone(), log.clone()]);
        for other in ["campanile.ab.log", "campanile..estate", "log"] {
            assert_eq!(say(other, true).len(), 2, "{other}");
        }
        assert_eq!(say(&log, false), [connection]);
        for number in 0..MOST + 5 {
            say(&format!("campanile.a.ram-{number}"), true);
        }
        assert_eq!(say("campanile.a.ram-0", true).len(), MOST);
        notify.clear();
        assert!(notify.kept().is_empty());
        assert_eq!(vmm.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn cont_22_of_a_worker_whose_keeper_has_ended_what_it_told_of_itself_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.notify");
        let file = || File::open("/dev/null").unwrap();
        let before = ["log", "words"].map(|role| (format!("campanile.a.{role}"), file().into()));
        let mut notify = Notify::open(&path).unwrap().keeping("a", before.into());
        let socket = connect(path.as_os_str()).unwrap();
        fd_store::add(&socket, "campanile.a.words", Some(file().as_fd())).unwrap();
        assert!(!notify.serves());
        let own = rustix::process::getpid();
        notify.forget_all_but_of(own);
        assert_eq!(notify.kept().keys().collect::<Vec<_>>(), ["campanile.a.words"]);
        notify.forget_all_but_of(rustix::process::getppid().unwrap());
        assert!(notify.kept().is_empty());
    }

    #[test]
    fn what_serves_or_lives_is_heard_and_nothing_else_and_the_next_process_hears_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.notify");
        let mut notify = Notify::open(&path).unwrap();
        assert!(!notify.serves());
        let say = |words: &[u8]| connect(path.as_os_str()).unwrap().send(words).unwrap();
        say(b"STATUS=READY=1");
        say(b"MAINPID=7");
        assert!(!notify.serves());
        say(b"READY=1");
        say(b"STATUS=well");
        assert!(notify.serves() && !notify.serves());
        let error = Notify::open(folder.path()).unwrap_err();
        assert_ne!(error.kind(), std::io::ErrorKind::AddrInUse, "what is no socket is left, and named");
        let mut next = Notify::open(&path).unwrap();
        say(b"WATCHDOG=1");
        assert!(next.serves() && !notify.serves());
    }
}
