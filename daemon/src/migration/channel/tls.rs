//! TLS over TCP, with certificates on both sides.

use std::io;
use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustls::ClientConfig;
use rustls::ClientConnection;
use rustls::Connection;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::ServerConnection;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;

use super::stream::Stream;
use crate::migration::error::MigrationError;

/// Bytes read off the socket at a time.
const READ: usize = 256 << 10;

/// What this daemon is to others, and which peers it believes.
#[derive(Debug, Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

fn wrong(what: impl std::fmt::Display) -> MigrationError {
    MigrationError::Tls(what.to_string())
}

impl Identity {
    /// From PEM files: its certificate with the chain, its key, and the authority whose certificates it believes.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should.
    pub fn load(certificate: &Path, key: &Path, authority: &Path) -> Result<Self, MigrationError> {
        let read = |path: &Path| {
            std::fs::read(path)
                .map_err(|source| MigrationError::File { path: path.display().to_string(), source })
        };
        Self::from_pem(&read(certificate)?, &read(key)?, &read(authority)?)
    }

    /// The same, from what is in the files.
    ///
    /// # Errors
    /// They do not hold what they should.
    pub fn from_pem(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self, MigrationError> {
        let list = |pem: &[u8], what: &str| {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            match all {
                Ok(all) if !all.is_empty() => Ok(all),
                Ok(_) => Err(wrong(format!("there is no certificate in the file of {what}"))),
                Err(error) => Err(wrong(format!("the file of {what}: {error}"))),
            }
        };
        let chain = list(certificate, "the certificate")?;
        let key = || PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(format!("the key: {error}")));
        let mut roots = RootCertStore::empty();
        for root in list(authority, "the authority")? {
            roots.add(root).map_err(wrong)?;
        }
        let roots = Arc::new(roots);
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(wrong)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key()?)
            .map_err(wrong)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(wrong)?
            .with_client_cert_verifier(verifier.build().map_err(wrong)?)
            .with_single_cert(chain, key()?)
            .map_err(wrong)?;
        // A line is used once.
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that connects to `host`, which the certificate of the other must name.
    ///
    /// # Errors
    /// The handshake fails or takes longer than `limit`.
    pub fn connect(
        &self,
        socket: TcpStream,
        host: &str,
        limit: Duration,
    ) -> Result<TlsStream, MigrationError> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(wrong)?;
        let session = ClientConnection::new(Arc::clone(&self.client), name).map_err(wrong)?;
        TlsStream::shake_hands(socket, session.into(), limit)
    }

    /// The side that was connected to.
    ///
    /// # Errors
    /// The handshake fails or takes longer than `limit`.
    pub fn accept(&self, socket: TcpStream, limit: Duration) -> Result<TlsStream, MigrationError> {
        let session = ServerConnection::new(Arc::clone(&self.server)).map_err(wrong)?;
        TlsStream::shake_hands(socket, session.into(), limit)
    }
}

/// A TLS connection whose handshake is done.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    session: Connection,
    cipher: Vec<u8>,
    plain: Vec<u8>,
    given: usize,
}

impl TlsStream {
    fn shake_hands(socket: TcpStream, session: Connection, limit: Duration) -> Result<Self, MigrationError> {
        let mut stream = Self { socket, session, cipher: vec![0; READ], plain: Vec::new(), given: 0 };
        stream.set_timeout(limit)?;
        let end = Instant::now() + limit;
        while stream.session.is_handshaking() {
            if Instant::now() > end {
                return Err(MigrationError::Stalled);
            }
            let step = stream.send_all().and_then(|()| {
                if stream.session.is_handshaking() { stream.fill().map(|_| ()) } else { Ok(()) }
            });
            step.map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => wrong(error),
                _ => MigrationError::of_line(error),
            })?;
        }
        stream.send_all().map_err(MigrationError::of_line)?;
        Ok(stream)
    }

    /// The certificate that the peer has shown, which the authority has signed.
    pub fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        Some(self.session.peer_certificates()?.first()?.clone().into_owned())
    }

    fn send_all(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Reads off the socket once, and deciphers what has come whole. Whether the peer is still there.
    fn fill(&mut self) -> io::Result<bool> {
        let count = self.socket.read(&mut self.cipher)?;
        if count == 0 {
            return if self.session.is_handshaking() {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(false)
            };
        }
        self.plain.clear();
        self.given = 0;
        let mut rest = &self.cipher[..count];
        while !rest.is_empty() {
            self.session.read_tls(&mut rest)?;
            let state = match self.session.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    // What is wrong, for the peer; it may be gone.
                    let _told = self.session.write_tls(&mut self.socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            };
            let had = self.plain.len();
            self.plain.resize(had + state.plaintext_bytes_to_read(), 0);
            self.session.reader().read_exact(&mut self.plain[had..])?;
            if state.peer_has_closed() {
                return Ok(!self.plain.is_empty());
            }
        }
        Ok(true)
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.plain.len() {
            if !self.fill()? {
                return Ok(0);
            }
        }
        let count = buffer.len().min(self.plain.len() - self.given);
        buffer[..count].copy_from_slice(&self.plain[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_all()?;
        let count = self.session.writer().write(bytes)?;
        self.send_all()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_all()
    }
}

impl Stream for TlsStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.socket.set_timeout(limit)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn has_buffered(&self) -> bool {
        self.given < self.plain.len()
    }

    fn shutdown(&self) {
        let _gone = self.socket.shutdown(Shutdown::Both);
    }
}
