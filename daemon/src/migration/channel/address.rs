//! Where a peer is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

/// Where a daemon listens for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Peer {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`, in the clear, for lines that are safe by themselves.
    Tcp(String),
    /// `host:port`; both sides show certificates.
    Tls(String),
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no peer; unix:/PATH, tcp:HOST:PORT and tls:HOST:PORT are");
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let has_port = || {
            rest.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        match kind {
            "unix" if !rest.is_empty() => Ok(Self::Unix(rest.into())),
            "tcp" if has_port() => Ok(Self::Tcp(rest.to_owned())),
            "tls" if has_port() => Ok(Self::Tls(rest.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl Peer {
    /// Its TCP port; none of a Unix socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(address) | Self::Tls(address) => address.rsplit_once(':')?.1.parse().ok(),
        }
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        peer.to_string()
    }
}

impl TryFrom<String> for Peer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Tls(address) => write!(f, "tls:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Peer;

    #[test]
    fn a_peer_is_read_as_it_is_written() {
        for text in ["unix:/run/a.sock", "tcp:host:1", "tls:[::1]:65535", "tcp:127.0.0.1:0"] {
            assert_eq!(text.parse::<Peer>().unwrap().to_string(), text);
        }
        for wrong in ["", "unix:", "tcp:host", "tls::1", "tcp:host:65536", "http:host:1", "/run/a.sock"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }
}
