//! A socket file: of a vGPU, or of the operator. One that the service manager has handed over is served as it is.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;

use campanile_host_gpu::outside;
use rustix::fs::Mode;
use rustix::fs::chmod;
use rustix::fs::fchmod;
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::SocketAddrUnix;
use rustix::net::SocketFlags;
use rustix::net::SocketType;
use rustix::net::bind;
use rustix::net::connect;
use rustix::net::listen;
use rustix::net::socket_with;
use thiserror::Error;

use crate::open_sockets;
use crate::open_sockets::Registered;
use crate::service_manager;

/// Why a socket cannot be served.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("{}: another process serves this socket", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{}: exists and is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be examined, or a dead one removed.
    #[error("{}: cannot tell whether a daemon serves this socket", path.display())]
    Probe {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("{}: cannot listen", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service manager has made it for more users than this one.
    #[error("{}: handed over by the service manager with mode {mode:o}; only its user may connect (SocketMode=0600)", path.display())]
    Open {
        /// The socket.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The thread cannot be made.
    #[error("{}: no thread to serve it", path.display())]
    Thread {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listening socket; its file is removed when it is dropped, unless another has taken its name, or it is the service manager's.
#[derive(Debug)]
pub struct Listener {
    /// Not blocking.
    pub socket: UnixListener,
    path: PathBuf,
    /// Device and inode; none of a file that another made, and removes.
    file: Option<(u64, u64)>,
    /// A daemon before this one has made it.
    is_inherited: bool,
    _registered: Registered,
}

/// Connections that may wait to be accepted, at a private socket.
const PRIVATE_BACKLOG: i32 = 16;
/// What group and others may do with a file.
const OTHERS: u32 = 0o077;

impl Listener {
    /// Listens at `path`. A dead socket there is replaced, a live one is not.
    ///
    /// # Errors
    /// The name is taken, or the file cannot be made.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        Self::with(path, |path| UnixListener::bind(path))
    }

    /// As [`Self::bind`], and only this user can ever connect (mode 0600 from the first moment on).
    ///
    /// # Errors
    /// The name is taken, or the file cannot be made.
    pub fn bind_private(path: &Path) -> Result<Self, SocketError> {
        Self::bind_for(path, Mode::RUSR | Mode::WUSR)
    }

    /// As [`Self::bind_private`], and the daemon's group can connect, too (mode 0660).
    ///
    /// # Errors
    /// The name is taken, or the file cannot be made.
    pub fn bind_for_group(path: &Path) -> Result<Self, SocketError> {
        Self::bind_for(path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)
    }

    /// As [`Self::bind_private`], and every user can connect (mode 0666): the server looks at the user of each connection.
    ///
    /// # Errors
    /// The name is taken, or the file cannot be made.
    pub fn bind_for_all(path: &Path) -> Result<Self, SocketError> {
        let all = [Mode::RUSR, Mode::WUSR, Mode::RGRP, Mode::WGRP, Mode::ROTH, Mode::WOTH];
        Self::bind_for(path, all.into_iter().collect())
    }

    /// As [`Self::bind_for_group`], for clients that send packets (`SOCK_SEQPACKET`).
    ///
    /// # Errors
    /// The name is taken, or the file cannot be made.
    pub fn bind_packets_for_group(path: &Path) -> Result<Self, SocketError> {
        Self::bind_as(path, SocketType::SEQPACKET, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)
    }

    fn bind_for(path: &Path, mode: Mode) -> Result<Self, SocketError> {
        Self::bind_as(path, SocketType::STREAM, mode)
    }

    fn bind_as(path: &Path, kind: SocketType, mode: Mode) -> Result<Self, SocketError> {
        let listener = Self::with(path, |path| {
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            // The file takes the mode of the socket, less the umask (unix(7)).
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            // No umask takes the group's part away.
            chmod(path, mode)?;
            listen(&socket, PRIVATE_BACKLOG)?;
            Ok(UnixListener::from(socket))
        })?;
        let failed = |source| SocketError::Bind { path: path.into(), source };
        match fs::symlink_metadata(path).map_err(failed)?.mode() & 0o7777 {
            found if found & OTHERS & !mode.as_raw_mode() != 0 => {
                Err(SocketError::Open { path: path.into(), mode: found })
            }
            _ => Ok(listener),
        }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn with(path: &Path, make: impl FnOnce(&Path) -> io::Result<UnixListener>) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Bind { path: path.into(), source };
        let inherited = open_sockets::take(path.as_os_str());
        let is_inherited = inherited.is_some();
        let (socket, has_file) = if let Some(socket) = inherited {
            (UnixListener::from(socket.socket), socket.has_file)
        } else if let Some(socket) = service_manager::claim(path) {
            log::info!("{}: handed over by the service manager", path.display());
            (socket, false)
        } else {
            clear(path)?;
            (make(path).map_err(failed)?, true)
        };
        socket.set_nonblocking(true).map_err(failed)?;
        let of_file = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let file = has_file.then(|| fs::symlink_metadata(path).map(of_file)).transpose().map_err(failed)?;
        let registered = open_sockets::register(path.as_os_str(), &socket, has_file).map_err(failed)?;
        Ok(Self { socket, path: path.into(), file, is_inherited, _registered: registered })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_anothers = open_sockets::are_left() || self.is_inherited && open_sockets::are_on_trial();
        let Some(made) = self.file.filter(|_| !is_anothers) else { return };
        let path = self.path.clone();
        // The thread that served it may remove nothing.
        let removed = outside::run(move || {
            let ours = |file: &fs::Metadata| (file.dev(), file.ino()) == made;
            if fs::symlink_metadata(&path).is_ok_and(|file| ours(&file)) {
                fs::remove_file(&path)
            } else {
                Ok(())
            }
        });
        if let Err(error) = removed.and_then(|removed| removed) {
            log::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

fn clear(path: &Path) -> Result<(), SocketError> {
    let unknown = |source| SocketError::Probe { path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unknown(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {
            log::info!("{}: no daemon serves this socket; replaced", path.display());
            fs::remove_file(path).map_err(unknown)
        }
        Err(Errno::NOENT) => Ok(()),
        // AGAIN: a listener whose backlog is full. PROTOTYPE: one of packets.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(SocketError::InUse { path: path.into() }),
        Err(errno) => Err(unknown(errno.into())),
    }
}

fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::Listener;
    use super::SocketError;
    use crate::service_manager;

    #[test]
    fn a_socket_that_was_handed_over_is_served_and_its_file_left() {
        let _alone = service_manager::tests::alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        service_manager::hand_over(UnixListener::bind(&path).unwrap()).unwrap();
        drop(Listener::bind(&path).unwrap());
        assert!(path.exists(), "the service manager listens on");
        // No process listens there, so the socket is replaced, and is the daemon's own now.
        drop(Listener::bind(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_private_socket_that_was_handed_over_to_more_than_its_user_is_refused() {
        let _alone = service_manager::tests::alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        for (mode, is_private) in [(0o660, false), (0o606, false), (0o600, true)] {
            let _ = fs::remove_file(&path);
            let socket = UnixListener::bind(&path).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            service_manager::hand_over(socket).unwrap();
            match Listener::bind_private(&path) {
                Ok(_) => assert!(is_private, "{mode:o}"),
                Err(SocketError::Open { mode: found, .. }) => assert_eq!((found, is_private), (mode, false)),
                Err(other) => panic!("{mode:o}: {other}"),
            }
        }
    }
}
