//! The process at the other end of a Unix socket, as the kernel says.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// The process that connected, as it was then; the descriptor may be another's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Its effective user.
    pub user: u32,
    /// Its process; 0 where that is of a pid namespace that this process does not see into, such as the host's from a container.
    pub process: i32,
}

impl Caller {
    /// That of a connection (SO_PEERCRED).
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn of(socket: &UnixStream) -> io::Result<Self> {
        let credentials = getsockopt(socket, PeerCredentials)?;
        Ok(Self { user: credentials.uid(), process: credentials.pid() })
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            0 => write!(f, "uid {}, a process of another pid namespace", self.user),
            process => write!(f, "uid {}, pid {process}", self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::Caller;

    #[test]
    fn a_connection_is_of_the_process_that_made_it() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let caller = Caller::of(&stream).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!((caller.user, caller.process), (rustix::process::geteuid().as_raw(), own));
        assert_eq!(caller.to_string(), format!("uid {}, pid {own}", caller.user));
        let hidden = Caller { process: 0, ..caller };
        assert!(hidden.to_string().ends_with("another pid namespace"), "{hidden}");
    }
}
