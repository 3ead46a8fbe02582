//! One line: frames over a stream, each wait with an end.

use std::io;
use std::io::Read;
use std::io::Write;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::event::Event;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::frame;
use super::frame::HEADER;
use super::frame::Head;
use super::frame::Kind;
use super::kernel::SentKernel;
use super::message::Message;
use super::message::shortened;
use super::stream::Stream;
use crate::migration::error::MigrationError;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A record; its bytes are [`Line::body`].
    Pages,
    /// A kernel; likewise.
    Kernel,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The peer has said something, or is gone.
    Peer,
    /// A thread of this daemon wants something.
    Bell,
    /// The time is over.
    Time,
}

/// A line to a peer. Dropping it closes it.
pub struct Line {
    stream: Box<dyn Stream>,
    timeout: Duration,
    sent: u64,
    received: u64,
    body: Vec<u8>,
    /// Bytes of the body that came last.
    length: usize,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("sent", &self.sent).field("received", &self.received).finish()
    }
}

impl Line {
    /// Over a stream; every frame must come, or be taken, within `timeout`.
    ///
    /// # Errors
    /// The socket takes no time-out.
    pub fn new(stream: Box<dyn Stream>, timeout: Duration) -> Result<Self, MigrationError> {
        stream.set_timeout(timeout)?;
        Ok(Self { stream, timeout, sent: 0, received: 0, body: Vec::new(), length: 0 })
    }

    /// The number of the next frame that is sent.
    pub fn next_sequence(&self) -> u64 {
        self.sent
    }

    /// Sends a frame that was sealed with [`Line::next_sequence`].
    ///
    /// # Errors
    /// The peer is gone, or does not take it in time.
    pub fn send_frame(&mut self, bytes: &[u8]) -> Result<(), MigrationError> {
        let end = Instant::now() + self.timeout;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(MigrationError::Closed),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(MigrationError::of_line(error)),
            }
            if !rest.is_empty() && Instant::now() > end {
                return Err(MigrationError::Stalled);
            }
        }
        self.sent += 1;
        self.stream.flush().map_err(MigrationError::of_line)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The peer is gone, or does not take it in time.
    pub fn send(&mut self, message: &Message) -> Result<(), MigrationError> {
        let frame = frame::framed(Kind::Message, self.sent, &message.encode()?);
        self.send_frame(&frame)
    }

    /// Sends a kernel.
    ///
    /// # Errors
    /// The peer is gone, or does not take it in time.
    pub fn send_kernel(&mut self, kernel: &SentKernel<'_>) -> Result<(), MigrationError> {
        let frame = frame::framed(Kind::Kernel, self.sent, &kernel.encode());
        self.send_frame(&frame)
    }

    /// Fills a part of the body; one read waits for `timeout` at the most, all together for no more than two of these.
    fn fill(&mut self, from: usize, to: usize) -> Result<(), MigrationError> {
        let end = Instant::now() + self.timeout;
        let mut at = from;
        while at < to {
            match self.stream.read(&mut self.body[at..to]) {
                Ok(0) => return Err(MigrationError::Closed),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(MigrationError::of_line(error)),
            }
            if at < to && Instant::now() > end {
                return Err(MigrationError::Stalled);
            }
        }
        Ok(())
    }

    /// The next frame.
    ///
    /// # Errors
    /// None comes in time, or what comes is none.
    pub fn receive(&mut self) -> Result<Received, MigrationError> {
        if self.body.len() < HEADER {
            self.body.resize(HEADER, 0);
        }
        self.fill(0, HEADER)?;
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.body[..HEADER]);
        let head = Head::read(&header, self.received)?;
        if head.kind == Kind::State {
            return Err(MigrationError::protocol("state does not come over a line"));
        }
        // At most the kind's limit, and kept for the next one.
        if self.body.len() < head.length {
            self.body.resize(head.length, 0);
        }
        self.fill(0, head.length)?;
        head.check(&self.body[..head.length])?;
        self.received += 1;
        self.length = head.length;
        match head.kind {
            Kind::Message => Ok(Received::Message(Message::decode(&self.body[..head.length])?)),
            Kind::Kernel => Ok(Received::Kernel),
            Kind::Pages | Kind::State => Ok(Received::Pages),
        }
    }

    /// The body of the record that came last.
    pub fn body(&self) -> &[u8] {
        &self.body[..self.length]
    }

    /// The next frame, which must be a message. A refusal, or a good-bye, is an error with the peer's reason.
    ///
    /// # Errors
    /// Another thing comes, or nothing.
    pub fn hear(&mut self) -> Result<Message, MigrationError> {
        match self.receive()? {
            Received::Message(Message::Refused { reason } | Message::GiveUp { reason }) => {
                Err(MigrationError::Refused(shortened(&reason)))
            }
            Received::Message(message) => Ok(message),
            Received::Pages | Received::Kernel => {
                Err(MigrationError::protocol("pages or a kernel come where a message should"))
            }
        }
    }

    /// Waits for the peer, for `bell`, or for `limit`. Reads nothing, and takes the bell's signal.
    pub fn wait(&self, bell: &Event, limit: Duration) -> Woken {
        if self.stream.has_buffered() {
            return Woken::Peer;
        }
        let descriptor = self.stream.descriptor();
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let _interrupted = poll(&mut fds, Timespec::try_from(limit).ok().as_ref());
        let [rang, heard] = fds.map(|fd| !fd.revents().is_empty());
        if rang {
            bell.drain();
            Woken::Bell
        } else if heard {
            Woken::Peer
        } else {
            Woken::Time
        }
    }

    /// Whether the peer has said something that was not read yet, or is gone.
    pub fn is_readable(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.descriptor(), PollFlags::IN)];
        self.stream.has_buffered()
            || matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
    }

    /// Ends it: nothing is sent or received any more.
    pub fn close(&self) {
        self.stream.shutdown();
    }

    /// Reads and forgets what still comes, until the peer closes or the time is over: a line that is closed with something
    /// unread in it may take what was said last with it.
    pub fn linger(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        let _as_before = self.stream.set_timeout(limit.max(Duration::from_millis(1)));
        self.body.resize(self.body.len().max(64 << 10), 0);
        while Instant::now() < end && matches!(self.stream.read(&mut self.body), Ok(count) if count > 0) {}
    }

    /// What an error of sending means: the peer may have said why before it went.
    pub fn explain(&mut self, error: MigrationError) -> MigrationError {
        if matches!(error, MigrationError::Closed | MigrationError::Line(_)) && self.is_readable() {
            let mut told = self.hear();
            while told.is_ok() && self.is_readable() {
                told = self.hear();
            }
            if let Err(MigrationError::Refused(reason)) = told {
                return MigrationError::Refused(reason);
            }
        }
        error
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // There may be other handles of the same socket.
        self.stream.shutdown();
    }
}
