//! The socket between the daemon and an engine: one message a packet, descriptors beside it.

use std::io;
use std::io::IoSlice;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;

use rustix::net::AddressFamily;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::SocketFlags;
use rustix::net::SocketType;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors that one message can carry.
pub const MAX_DESCRIPTORS: usize = 32;
/// Largest message, bytes: a kernel's source and some words about it.
pub const MAX_MESSAGE: usize = 192 * 1024;

/// Why a message could not be sent or read.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process is gone.
    #[error("the other end of the engine channel is closed")]
    Closed,
    /// The other process has not read what was sent before. Send again when the socket is writable.
    #[error("the other end of the engine channel does not read")]
    Full,
    /// The socket failed.
    #[error("engine channel: {0}")]
    Socket(#[from] io::Error),
    /// A message that is not what it should be.
    #[error("engine channel: malformed message: {0}")]
    Malformed(String),
}

/// One end.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// A message with what came beside it.
#[derive(Debug)]
pub struct Received<T> {
    /// The message.
    pub message: T,
    /// Bytes behind it.
    pub bytes: Vec<u8>,
    /// Descriptors.
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Both ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for end in [&one, &other] {
            rustix::net::sockopt::set_socket_send_buffer_size(end, 2 * MAX_MESSAGE)?;
        }
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// The end that was handed over as `socket`.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The socket, to hand over.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends `message`, then `bytes`, with `descriptors`. With `wait` false a full socket is an error, so that a
    /// stuck engine cannot stop the daemon.
    pub fn send(
        &self,
        message: &impl Serialize,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        wait: bool,
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message).map_err(|e| ChannelError::Malformed(e.to_string()))?;
        let length = u32::try_from(text.len()).map_err(|e| ChannelError::Malformed(e.to_string()))?;
        if text.len() + bytes.len() + 4 > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::Malformed(format!(
                "{} bytes, {} descriptors are too many",
                bytes.len(),
                descriptors.len()
            )));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::Malformed("too many descriptors".to_owned()));
        }
        let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        let head = length.to_le_bytes();
        let parts = [IoSlice::new(&head), IoSlice::new(&text), IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, flags).map_err(|errno| match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => ChannelError::Closed,
            // The second: more descriptors are in flight than the user may have.
            rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS if !wait => ChannelError::Full,
            other => ChannelError::Socket(other.into()),
        })?;
        Ok(())
    }

    /// Receives one message. `Ok(None)` when `wait` is false and nothing is there.
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> Result<Option<Received<T>>, ChannelError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags =
            if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
        let received = loop {
            match rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut buffer)],
                &mut ancillary,
                flags,
            ) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(errno) => return Err(ChannelError::Socket(errno.into())),
            }
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        let malformed = || ChannelError::Malformed("truncated".to_owned());
        let (length, rest) = buffer[..received.bytes].split_first_chunk::<4>().ok_or_else(malformed)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (text, bytes) = rest.split_at_checked(length).ok_or_else(malformed)?;
        let message = serde_json::from_slice(text).map_err(|e| ChannelError::Malformed(e.to_string()))?;
        Ok(Some(Received { message, bytes: bytes.to_vec(), descriptors }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
