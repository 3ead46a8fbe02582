//! The line between predecessor and successor: messages in CBOR with descriptors, over a pair of stream sockets.
//!
//! ```text
//!   bytes (4, little-endian) │ descriptors (4) │ the message │ one byte for each 64 descriptors, which come with it
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::io::IoSlice;
use std::io::IoSliceMut;
use std::io::Read;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::recvmsg;
use rustix::net::sendmsg;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the longest message: states of 4 MiB, and runs of pages.
const MAX_BYTES: usize = 64 << 20;
/// Descriptors of one message: guest memory in 509 regions, and rings.
const MAX_FILES: usize = 1024;
/// Descriptors that go at once; the kernel takes 253.
const AT_ONCE: usize = 64;
/// Bytes before a message.
const HEADER: usize = 8;

/// One end.
#[derive(Debug)]
pub(in crate::host) struct Channel(UnixStream);

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl From<UnixStream> for Channel {
    fn from(stream: UnixStream) -> Self {
        Self(stream)
    }
}

impl Channel {
    /// The one that this process has as its standard input, which nothing that it starts is to have.
    ///
    /// # Errors
    /// There is no descriptor.
    pub(in crate::host) fn of_stdin() -> io::Result<Self> {
        let stream = io::stdin().as_fd().try_clone_to_owned()?;
        let null = File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self(UnixStream::from(stream)))
    }

    /// Sends a message and its descriptors; waits up to `limit` wherever the other side does not read.
    ///
    /// # Errors
    /// The other side has gone or is too slow, or the message is too long.
    pub(in crate::host) fn send(
        &self,
        message: &impl Serialize,
        files: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        ciborium::into_writer(message, &mut bytes).map_err(io::Error::other)?;
        if bytes.len() > MAX_BYTES || files.len() > MAX_FILES {
            return Err(wrong(format!("a message of {} bytes and {} descriptors", bytes.len(), files.len())));
        }
        let word = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
        self.0.set_write_timeout(Some(limit))?;
        (&self.0).write_all(&[word(bytes.len()), word(files.len())].concat())?;
        (&self.0).write_all(&bytes)?;
        for some in files.chunks(AT_ONCE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(some));
            sendmsg(&self.0, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// The next message; waits up to `limit` for each of its parts.
    ///
    /// # Errors
    /// The other side has gone (`UnexpectedEof`) or says nothing (`WouldBlock`), or what it says is no such message.
    pub(in crate::host) fn receive<T: DeserializeOwned>(
        &self,
        limit: Duration,
    ) -> io::Result<(T, VecDeque<OwnedFd>)> {
        self.0.set_read_timeout(Some(limit))?;
        let mut header = [0; HEADER];
        (&self.0).read_exact(&mut header)?;
        let [a, b, c, d, e, f, g, h] = header;
        let word = |bytes| usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        let (length, count) = (word([a, b, c, d]), word([e, f, g, h]));
        if length > MAX_BYTES || count > MAX_FILES {
            return Err(wrong(format!("a message of {length} bytes and {count} descriptors")));
        }
        let mut bytes = vec![0; length];
        (&self.0).read_exact(&mut bytes)?;
        let mut files = VecDeque::new();
        while files.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
            if got.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = files.len();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = message {
                    files.extend(some);
                }
            }
            if files.len() == before {
                return Err(wrong(format!("{before} of {count} descriptors")));
            }
        }
        let message = ciborium::from_reader(&*bytes).map_err(|error| wrong(error.to_string()))?;
        Ok((message, files))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::Channel;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (one.into(), other.into())
    }

    #[test]
    fn messages_come_with_their_descriptors_in_order() {
        let (one, other) = pair();
        let files: Vec<_> = (0..150).map(|_| tempfile::tempfile().unwrap()).collect();
        for (index, mut file) in (0u8..).zip(&files) {
            file.write_all(&[index]).unwrap();
        }
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        one.send(&"first", &borrowed, LONG).unwrap();
        one.send(&"second", &[], LONG).unwrap();
        let (first, got): (String, _) = other.receive(LONG).unwrap();
        assert_eq!((first.as_str(), got.len()), ("first", 150));
        for (index, file) in (0u8..).zip(got) {
            let mut byte = [0];
            std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::from(file), &mut byte, 0).unwrap();
            assert_eq!(byte, [index]);
        }
        let (second, none): (String, _) = other.receive(LONG).unwrap();
        assert_eq!((second.as_str(), none.len()), ("second", 0));
    }

    #[test]
    fn what_is_no_message_and_an_end_in_the_middle_of_one_are_told() {
        let (one, other) = pair();
        (&one.0).write_all(&[0xff; 8]).unwrap();
        let error = other.receive::<String>(LONG).unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes"), "{error}");
        let (one, other) = pair();
        (&one.0).write_all(&[9, 0, 0, 0, 0, 0, 0, 0, b'x']).unwrap();
        drop(one);
        assert_eq!(other.receive::<String>(LONG).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        let (one, other) = pair();
        one.send(&7u32, &[], LONG).unwrap();
        assert_eq!(other.receive::<String>(LONG).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}
