//! Why a migration ended.

use std::io;

use super::memory::Memory;
use crate::vhost::listener::SocketError;

/// Why a migration, or one stream of it, ended. Each is a clean end: the source goes on, the target keeps nothing.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The peer cannot be reached.
    #[error("{peer} cannot be reached: {source}")]
    Unreachable {
        /// Whom.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody can reach this daemon.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The line failed.
    #[error("the line failed: {0}")]
    Line(#[from] io::Error),
    /// The peer closed the line.
    #[error("the peer has closed the line")]
    Closed,
    /// The peer said or took nothing for too long.
    #[error("the peer stands still")]
    Stalled,
    /// Bytes changed on the way, or a message was repeated or lost.
    #[error("the stream is corrupt: {0}")]
    Corrupt(&'static str),
    /// The peer said what it may not say now.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// The peer refuses, or gives up, and says why.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// A record reaches past a memory, or past what may lie in it.
    #[error("{memory}: {what}")]
    Bounds {
        /// Which.
        memory: Memory,
        /// What is wrong.
        what: &'static str,
    },
    /// What has come cannot be kept.
    #[error("{memory} cannot be stored: {source}")]
    Storing {
        /// Which.
        memory: Memory,
        /// Why.
        source: io::Error,
    },
    /// It was called off here.
    #[error("called off: {0}")]
    CalledOff(String),
    /// What is wanted is not possible now (LM-29).
    #[error("{0}")]
    State(String),
    /// A certificate or key cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// A file cannot be written or read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl MigrationError {
    /// What a read or write came to: a time-out is a peer that stands still.
    pub fn of_line(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Stalled,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Closed
            }
            _ => Self::Line(error),
        }
    }

    /// The peer said something out of place.
    pub fn protocol(text: impl Into<String>) -> Self {
        Self::Protocol(text.into())
    }
}
