//! Why a migration ended.

use std::io;

use super::memory::Memory;
use super::text::MAX_SHOWN;
use super::text::printable;
use crate::listener::SocketError;

/// Why a migration, or one stream of it, ended. Each is a clean end: the source goes on, the target keeps nothing. Words may
/// be a peer's: they are shown in printable characters, and not many.
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
    /// No peer can reach this daemon.
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
    #[error("the peer breaks the protocol: {}", printable(.0, MAX_SHOWN))]
    Protocol(String),
    /// The peer refuses, or gives up, and says why.
    #[error("the peer refuses: {}", printable(.0, MAX_SHOWN))]
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
    #[error("called off: {}", printable(.0, MAX_SHOWN))]
    CalledOff(String),
    /// What is wanted is not possible now (LM-29).
    #[error("{}", printable(.0, MAX_SHOWN))]
    State(String),
    /// A certificate or key cannot be used.
    #[error("TLS: {}", printable(.0, MAX_SHOWN))]
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

#[cfg(test)]
mod tests {
    use super::MigrationError;

    #[test]
    fn words_of_a_peer_make_no_line_of_log_of_their_own_and_no_long_one() {
        let words = format!("no\n[2026-01-01 ERROR] forged\x1b[2J\u{202e}{}", "x".repeat(1 << 20));
        let all = [
            MigrationError::Refused(words.clone()),
            MigrationError::Protocol(words.clone()),
            MigrationError::CalledOff(words.clone()),
            MigrationError::State(words.clone()),
            MigrationError::Tls(words),
        ];
        for error in all {
            let shown = error.to_string();
            assert!(shown.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{shown:?}");
            assert!(shown.contains("no\\u{a}[2026"), "{shown}");
            assert!(shown.chars().count() < 600, "{}", shown.len());
        }
    }
}
