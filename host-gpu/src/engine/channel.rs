//! The socket between the daemon and an engine: one message a packet, descriptors beside it.

use std::io;
use std::io::IoSlice;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use campanile_protocol::engine::message::MAX_REQUEST_BYTES;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::net::AddressFamily;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::ReturnFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::SocketFlags;
use rustix::net::SocketType;

use super::answers::Breach;
use super::wire::Message;
use super::wire::WireError;

/// Descriptors that one message can carry.
pub const MAX_DESCRIPTORS: usize = campanile_protocol::engine::message::MAX_DESCRIPTORS as usize;
/// What each end may have sent before the other has read it, bytes.
const SEND_BUFFER: usize = 3 * MAX_REQUEST_BYTES as usize;

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
    Malformed(WireError),
    /// A message, or more descriptors, than one packet holds.
    #[error("engine channel: a message without its end")]
    Truncated,
    /// A message that does not belong where it came.
    #[error("engine channel: {0}")]
    Breach(#[from] Breach),
    /// This message cannot be sent, ever; nothing is wrong with the other end.
    #[error("this cannot be told to an engine: {0}")]
    Unsendable(WireError),
    /// This message does not fit into the buffer of the socket, ever; nothing is wrong with the other end.
    #[error("this cannot be told to an engine: a message of {0} bytes")]
    TooLarge(usize),
}

/// One end of a channel.
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
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Both ends of a new channel.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for end in [&one, &other] {
            rustix::net::sockopt::set_socket_send_buffer_size(end, SEND_BUFFER)?;
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
        message: &impl Message,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        wait: bool,
    ) -> Result<(), ChannelError> {
        let packet = message.encode(bytes, descriptors.len()).map_err(ChannelError::Unsendable)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::TooLarge(packet.len()));
        }
        let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        let parts = [IoSlice::new(&packet)];
        rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, flags).map_err(|errno| match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => ChannelError::Closed,
            rustix::io::Errno::MSGSIZE => ChannelError::TooLarge(packet.len()),
            // The second: more descriptors are in flight than the user may have.
            rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS if !wait => ChannelError::Full,
            other => ChannelError::Socket(other.into()),
        })?;
        Ok(())
    }

    /// Waits for a message, or the end of the channel, no longer than `limit`. Whether there is one.
    pub fn has_message_within(&self, limit: Duration) -> bool {
        let timeout = Timespec::try_from(limit).unwrap_or_default();
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN)];
        // A look that fails is the receiver's to report.
        rustix::event::poll(&mut ends, Some(&timeout)).map_or(true, |ready| ready > 0)
    }

    /// Receives one message. `Ok(None)` when `wait` is false and nothing is there.
    ///
    /// # Errors
    /// The other end is gone, or what it sent is no message of this type; descriptors that came beside it are closed.
    pub fn receive<T: Message>(&self, wait: bool) -> Result<Option<Received<T>>, ChannelError> {
        let mut buffer = vec![0; T::MAX_BYTES as usize];
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
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ChannelError::Truncated);
        }
        let (message, bytes) =
            T::decode(&buffer[..received.bytes], descriptors.len()).map_err(ChannelError::Malformed)?;
        Ok(Some(Received { message, bytes, descriptors }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
