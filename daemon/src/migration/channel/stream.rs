//! Byte streams that a line can be made of.

use std::io;
use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt;

/// A stream in both directions, blocking, whose reads and writes each end after a time-out.
pub trait Stream: Read + Write + Send {
    /// Bounds every single read and write from here on; zero is refused.
    ///
    /// # Errors
    /// The socket refuses.
    fn set_timeout(&self, limit: Duration) -> io::Result<()>;

    /// Readable when the peer has sent something that was not read off the socket.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether something that the peer has sent was read off the socket already and can be read here.
    fn has_buffered(&self) -> bool {
        false
    }

    /// Ends both directions: reads and writes of other threads fail from here on.
    fn shutdown(&self);
}

impl Stream for UnixStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn shutdown(&self) {
        let _gone = UnixStream::shutdown(self, Shutdown::Both);
    }
}

impl Stream for TcpStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn shutdown(&self) {
        let _gone = TcpStream::shutdown(self, Shutdown::Both);
    }
}

/// How a TCP socket is set up: small messages at once, and a peer whose machine is gone is noticed within half a minute
/// though nothing is said.
///
/// # Errors
/// The kernel refuses an option.
pub fn prepare_tcp(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    Ok(())
}
