//! The socket at which a keeper says that its worker serves (`NOTIFY_SOCKET`, sd_notify(3)).

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::sd_notify;
use crate::sd_notify::Message;

/// Bytes of a datagram that are looked at.
const LONGEST: usize = 4096;

/// The socket. Its file lies where only this user reaches it.
#[derive(Debug)]
pub struct Notify(UnixDatagram);

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
        Ok(Self(socket))
    }

    /// Takes all that was said; whether something serves, by that. A sign of life counts, too: what it was told before may be
    /// something that another process heard.
    pub fn serves(&self) -> bool {
        let mut serves = false;
        let mut bytes = [0; LONGEST];
        loop {
            match self.0.recv(&mut bytes) {
                Ok(count) => {
                    serves |= matches!(sd_notify::read(&bytes[..count]), Message::Ready | Message::Alive)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_none) => return serves,
            }
        }
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::Notify;
    use crate::service_manager::connect;

    #[test]
    fn what_serves_or_lives_is_heard_and_nothing_else_and_the_next_process_hears_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.notify");
        let notify = Notify::open(&path).unwrap();
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
        let next = Notify::open(&path).unwrap();
        say(b"WATCHDOG=1");
        assert!(next.serves() && !notify.serves());
    }
}
