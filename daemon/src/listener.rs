//! A socket file: of a vGPU, or of the operator.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;

use campanile_host_gpu::outside;
use rustix::fs::Mode;
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
    /// The thread cannot be made.
    #[error("{}: no thread to serve it", path.display())]
    Thread {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listening socket; its file is removed when it is dropped, unless another has taken its name.
#[derive(Debug)]
pub struct Listener {
    /// Not blocking.
    pub socket: UnixListener,
    path: PathBuf,
    file: (u64, u64),
}

/// Connections that may wait to be accepted, at a private socket.
const PRIVATE_BACKLOG: i32 = 16;

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
        Self::with(path, |path| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            // The file takes the mode of the socket, less the umask (unix(7)).
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, PRIVATE_BACKLOG)?;
            Ok(UnixListener::from(socket))
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn with(path: &Path, make: impl FnOnce(&Path) -> io::Result<UnixListener>) -> Result<Self, SocketError> {
        clear(path)?;
        let failed = |source| SocketError::Bind { path: path.into(), source };
        let socket = make(path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { socket, path: path.into(), file: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (path, made) = (self.path.clone(), self.file);
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
        // AGAIN: a listener whose backlog is full.
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse { path: path.into() }),
        Err(errno) => Err(unknown(errno.into())),
    }
}

fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}
