//! Reaching a peer, and being reached.

use std::io;
use std::net::IpAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::AddressFamily;
use rustix::net::SocketAddrUnix;
use rustix::net::SocketFlags;
use rustix::net::SocketType;

use super::address::Peer;
use super::peer_name::Credentials;
use super::stream::Stream;
use super::stream::prepare_tcp;
use super::tls::Identity;
use crate::caller::Caller;
use crate::listener::Listener;
use crate::migration::error::MigrationError;
use crate::open_sockets;
use crate::open_sockets::Registered;

fn tcp(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, limit) {
            Ok(socket) => {
                prepare_tcp(&socket)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A Unix socket whose listener may be full: that is said at once, and not waited for.
fn unix(path: &std::path::Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn no_identity() -> MigrationError {
    MigrationError::Tls("no certificate: give --migrate-cert, --migrate-key and --migrate-ca".to_owned())
}

/// Connects.
///
/// # Errors
/// No peer answers within `limit`, or certificates do not match.
pub fn connect(
    peer: &Peer,
    identity: Option<&Identity>,
    limit: Duration,
) -> Result<Box<dyn Stream>, MigrationError> {
    let unreachable = |source| MigrationError::Unreachable { peer: peer.to_string(), source };
    match peer {
        Peer::Unix(path) => Ok(Box::new(unix(path).map_err(unreachable)?)),
        Peer::Tcp(address) => Ok(Box::new(tcp(address, limit).map_err(unreachable)?)),
        Peer::Tls(address) => {
            let identity = identity.ok_or_else(no_identity)?;
            let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
            Ok(Box::new(identity.connect(tcp(address, limit).map_err(unreachable)?, host, limit)?))
        }
    }
}

/// Where others reach this daemon.
#[derive(Debug)]
pub enum Door {
    /// A Unix socket.
    Unix(Listener),
    /// A TCP port, with or without TLS.
    Tcp(TcpListener, Option<Identity>, Registered),
}

/// A peer that has connected: not yet a line, since a handshake takes time.
#[derive(Debug)]
pub enum Visitor {
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream, IpAddr, Option<Identity>),
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// The name or port is taken, or TLS is wanted without a certificate.
    pub fn open(at: &Peer, identity: Option<&Identity>) -> Result<Self, MigrationError> {
        let taken = |source| MigrationError::Unreachable { peer: at.to_string(), source };
        let listen = |address: &str, identity: Option<Identity>| {
            let (listener, registered) = open_sockets::tcp(address).map_err(taken)?;
            Ok(Self::Tcp(listener, identity, registered))
        };
        match at {
            Peer::Unix(path) => Ok(Self::Unix(Listener::bind_private(path)?)),
            Peer::Tcp(address) => listen(address, None),
            Peer::Tls(address) => {
                let identity = identity.ok_or_else(no_identity)?;
                listen(address, Some(identity.clone()))
            }
        }
    }

    /// Where it is: with the port that the kernel chose where it was to.
    pub fn address(&self) -> Option<Peer> {
        match self {
            Self::Unix(listener) => Some(Peer::Unix(listener.path().to_owned())),
            Self::Tcp(listener, identity, _) => {
                let address = listener.local_addr().ok()?.to_string();
                Some(if identity.is_some() { Peer::Tls(address) } else { Peer::Tcp(address) })
            }
        }
    }

    /// The next peer that has connected; `WouldBlock` where there is none.
    ///
    /// # Errors
    /// No peer has connected, or no descriptor is left.
    pub fn accept(&self) -> io::Result<Visitor> {
        match self {
            Self::Unix(listener) => {
                let (socket, _) = listener.socket.accept()?;
                socket.set_nonblocking(false)?;
                Ok(Visitor::Unix(socket))
            }
            Self::Tcp(listener, identity, _) => {
                let (socket, from) = listener.accept()?;
                socket.set_nonblocking(false)?;
                prepare_tcp(&socket)?;
                Ok(Visitor::Tcp(socket, from.ip().to_canonical(), identity.clone()))
            }
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.socket.as_fd(),
            Self::Tcp(listener, ..) => listener.as_fd(),
        }
    }
}

impl Visitor {
    /// Ends the line, whatever state it is in: another handle of the same socket.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn handle(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Unix(socket) => Ok(Box::new(socket.try_clone()?)),
            Self::Tcp(socket, ..) => Ok(Box::new(socket.try_clone()?)),
        }
    }

    /// Its address; none over a Unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(_, address, _) => Some(*address),
        }
    }

    /// Does the handshake. Gives back the stream, and what the peer has shown of itself.
    ///
    /// # Errors
    /// The handshake fails, or takes longer than `limit`.
    pub fn admit(self, limit: Duration) -> Result<(Box<dyn Stream>, Credentials), MigrationError> {
        match self {
            Self::Unix(socket) => {
                let user = Caller::of(&socket)?.user;
                Ok((Box::new(socket), Credentials::User(user)))
            }
            Self::Tcp(socket, _, None) => Ok((Box::new(socket), Credentials::None)),
            Self::Tcp(socket, _, Some(identity)) => {
                let stream = identity.accept(socket, limit)?;
                let certificate = stream.peer_certificate();
                Ok((Box::new(stream), certificate.map_or(Credentials::None, Credentials::Certificate)))
            }
        }
    }
}
