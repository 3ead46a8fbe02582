//! Under which names peers are known, and which of them may bring a vGPU.

use std::fmt;
use std::str::FromStr;

use rustls::client::verify_server_name;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;

use crate::migration::text::printable;

/// Characters of a name that a message repeats.
const SHOWN: usize = 100;

/// A peer that a vGPU may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerName {
    /// A DNS name or address that its TLS certificate is for.
    Host(ServerName<'static>),
    /// A user of this machine, by number, over a Unix socket.
    User(u32),
}

impl FromStr for PeerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{:?} is no name of a peer; a DNS name, an IP address and uid:NUMBER are",
                printable(text, SHOWN)
            )
        };
        if let Some(user) = text.strip_prefix("uid:") {
            return user.parse().map(Self::User).map_err(|_| wrong());
        }
        ServerName::try_from(text.to_owned()).map(Self::Host).map_err(|_| wrong())
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(&name.to_str()),
            Self::User(user) => write!(f, "uid:{user}"),
        }
    }
}

/// What a peer has shown of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing: TCP in the clear.
    None,
    /// Its user, as the kernel says.
    User(u32),
    /// A certificate that the authority has signed.
    Certificate(CertificateDer<'static>),
}

impl Credentials {
    /// Whether they prove this name.
    pub fn prove(&self, name: &PeerName) -> bool {
        match (self, name) {
            (Self::User(user), PeerName::User(wanted)) => user == wanted,
            (Self::Certificate(certificate), PeerName::Host(host)) => {
                ParsedCertificate::try_from(certificate)
                    .is_ok_and(|certificate| verify_server_name(&certificate, host).is_ok())
            }
            _ => false,
        }
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("a peer without credentials (TCP in the clear)"),
            Self::User(user) => write!(f, "a peer of user {user}"),
            Self::Certificate(_) => f.write_str("a peer whose certificate is for another name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Credentials;
    use super::PeerName;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for text in ["host-a.example", "10.0.0.7", "::1", "uid:0", "uid:4294967295"] {
            assert_eq!(text.parse::<PeerName>().unwrap().to_string(), text);
        }
        for wrong in ["", "uid:", "uid:-1", "uid:4294967296", "a b", "host\n"] {
            let refused = wrong.parse::<PeerName>().unwrap_err();
            assert!(refused.contains("uid:NUMBER") && !refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn a_user_proves_its_own_number_and_nothing_proves_anything_without_credentials() {
        let [root, other] = ["uid:0", "uid:1000"].map(|text| text.parse::<PeerName>().unwrap());
        assert!(Credentials::User(0).prove(&root));
        assert!(!Credentials::User(0).prove(&other));
        assert!(!Credentials::None.prove(&root));
        assert!(!Credentials::User(0).prove(&"localhost".parse().unwrap()));
    }
}
