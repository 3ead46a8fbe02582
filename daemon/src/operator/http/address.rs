//! Where HTTP is served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A Unix socket, or a port that only this host reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket, mode 0600.
    Unix(PathBuf),
    /// A loopback address.
    Tcp(SocketAddr),
}

/// A port that only this host reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loopback(pub SocketAddr);

impl FromStr for Loopback {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address: Option<SocketAddr> = text.parse().ok();
        let address = address.filter(|address| address.ip().is_loopback()).map(Self);
        address.ok_or_else(|| {
            format!(
                "{text:?}: the page has no password, so only this host may see it: 127.0.0.1:PORT or [::1]:PORT"
            )
        })
    }
}

impl fmt::Display for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address for metrics; unix:PATH and tcp:127.0.0.1:PORT are");
        match text.split_once(':').ok_or_else(wrong)? {
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            ("tcp", rest) => {
                let address: SocketAddr = rest.parse().map_err(|_| wrong())?;
                if address.ip().is_loopback() {
                    Ok(Self::Tcp(address))
                } else {
                    Err(format!(
                        "{text:?}: metrics have no password, so only this host may read them: tcp:127.0.0.1:PORT or tcp:[::1]:PORT"
                    ))
                }
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Address;
    use super::Loopback;

    #[test]
    fn only_this_host_can_be_served() {
        for right in ["unix:/run/m", "tcp:127.0.0.1:9", "tcp:[::1]:9"] {
            assert_eq!(right.parse::<Address>().unwrap().to_string(), right);
        }
        for wrong in
            ["", "unix:", "tcp:localhost:9", "tcp:0.0.0.0:9", "tcp:10.0.0.1:9", "tcp:127.0.0.1", "/run/m"]
        {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        assert_eq!("[::1]:9".parse::<Loopback>().unwrap().to_string(), "[::1]:9");
        for wrong in ["", "9", "localhost:9", "0.0.0.0:9", "[::]:9", "10.0.0.1:9", "tcp:127.0.0.1:9"] {
            assert!(wrong.parse::<Loopback>().is_err(), "{wrong}");
        }
    }
}
