//! The socket between a daemon and the broker: one message in CBOR a packet, descriptors beside it. Nothing here waits but
//! [`Line::wait`].

use std::io;
use std::io::IoSlice;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::ReturnFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::Shutdown;
use rustix::net::SocketAddrUnix;
use rustix::net::SocketFlags;
use rustix::net::SocketType;
use rustix::net::connect;
use rustix::net::recvmsg;
use rustix::net::sendmsg;
use rustix::net::shutdown;
use rustix::net::socket_with;
use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the longest message.
const MAX_BYTES: usize = 4096;
/// Descriptors of one message.
const MAX_FILES: usize = 5;

/// One end.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// A message, with what came beside it.
pub type Received<T> = (T, Vec<OwnedFd>);

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl From<OwnedFd> for Line {
    /// The end that was accepted.
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl Line {
    /// Connects to the broker that listens at `path`.
    ///
    /// # Errors
    /// None does, or its backlog is full.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// The process at the other end; of a connection that was made here, the one that listens.
    pub fn peer(&self) -> Option<Pid> {
        Pid::from_raw(getsockopt(&self.0, PeerCredentials).ok()?.pid())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other side has gone, or has not read what was sent before (`WouldBlock`).
    pub fn send(&self, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        ciborium::into_writer(message, &mut bytes).map_err(io::Error::other)?;
        if bytes.len() > MAX_BYTES {
            return Err(wrong(format!("a message of {} bytes", bytes.len())));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if files.len() > MAX_FILES
            || !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files))
        {
            return Err(wrong(format!("a message with {} descriptors", files.len())));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            // More descriptors are in flight than the user may have: the other side has to read some.
            Err(Errno::TOOMANYREFS) => Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next message, where there is one.
    ///
    /// # Errors
    /// The other side has gone (`UnexpectedEof`), or what it says is no such message; descriptors beside that are closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<Received<T>>> {
        let mut bytes = [0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(errno) => return Err(errno.into()),
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
        if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(wrong("a message without its end".to_owned()));
        }
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = bytes.get(..got.bytes).unwrap_or_default();
        let message = ciborium::from_reader(bytes).map_err(|error| wrong(error.to_string()))?;
        Ok(Some((message, files)))
    }

    /// Closes both directions: either side sees the end.
    pub fn close(&self) {
        if let Err(error) = shutdown(&self.0, Shutdown::Both) {
            log::debug!("closing a line of the broker: {error}");
        }
    }

    /// Waits until there is a message, or (with `OUT`) room for one, or the end, for `limit` at the most. Whether it came.
    pub fn wait(&self, what: PollFlags, limit: Duration) -> bool {
        let timeout = Timespec::try_from(limit).unwrap_or_default();
        matches!(poll(&mut [PollFd::new(&self.0, what)], Some(&timeout)), Ok(ready) if ready > 0)
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::fd::AsFd;

    use rustix::net::AddressFamily;
    use rustix::net::SendFlags;
    use rustix::net::SocketFlags;
    use rustix::net::SocketType;
    use rustix::net::send;
    use rustix::net::socketpair;

    use super::Line;
    use super::MAX_BYTES;

    fn pair() -> (Line, Line) {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (pair.0.into(), pair.1.into())
    }

    fn fails(line: &Line) -> ErrorKind {
        line.receive::<String>().unwrap_err().kind()
    }

    #[test]
    fn messages_come_one_by_one_with_their_descriptors() {
        let (one, other) = pair();
        let files = [(); 5].map(|()| tempfile::tempfile().unwrap());
        one.send(&"first", &files.each_ref().map(AsFd::as_fd)).unwrap();
        one.send(&"second", &[]).unwrap();
        let (first, with) = other.receive::<String>().unwrap().unwrap();
        assert_eq!((first.as_str(), with.len()), ("first", 5));
        let (second, with) = other.receive::<String>().unwrap().unwrap();
        assert_eq!((second.as_str(), with.len()), ("second", 0));
        assert!(other.receive::<String>().unwrap().is_none(), "nothing is there, and nothing waits");
        drop(one);
        assert_eq!(fails(&other), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_too_long_or_no_message_is_told_and_what_comes_next_is_read() {
        let (one, other) = pair();
        assert_eq!(one.send(&"x".repeat(MAX_BYTES), &[]).unwrap_err().kind(), ErrorKind::InvalidData);
        // Three bytes say how long the text is.
        one.send(&"x".repeat(MAX_BYTES - 3), &[]).unwrap();
        assert_eq!(other.receive::<String>().unwrap().unwrap().0.len(), MAX_BYTES - 3);
        let six = [(); 6].map(|()| tempfile::tempfile().unwrap());
        assert_eq!(
            one.send(&"x", &six.each_ref().map(AsFd::as_fd)).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        for bytes in [vec![0x65; MAX_BYTES + 1], vec![0x65, b'x'], vec![0xff]] {
            send(&one.0, &bytes, SendFlags::empty()).unwrap();
            assert_eq!(fails(&other), ErrorKind::InvalidData, "{} bytes", bytes.len());
        }
        one.send(&"next", &[]).unwrap();
        assert_eq!(other.receive::<String>().unwrap().unwrap().0, "next");
    }

    #[test]
    fn a_side_that_does_not_read_is_told_of_and_not_waited_for() {
        let (one, _other) = pair();
        let sent = (0..100_000).map(|_| one.send(&"x", &[])).find_map(Result::err);
        assert_eq!(sent.unwrap().kind(), ErrorKind::WouldBlock);
    }
}
