//! What is said to one process, and what it still has to answer.

use std::cell::Cell;
use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;

use crate::engine::answers::Answers;
use crate::engine::channel::Channel;
use crate::engine::channel::ChannelError;
use crate::engine::message::Request;
use crate::engine::message::Response;

/// The daemon's end of the channel to one process.
#[derive(Debug)]
pub(super) struct Conversation {
    channel: Channel,
    /// It is to be told to begin, as soon as its channel has room.
    owes_begin: Cell<bool>,
    answers: RefCell<Answers>,
    /// Its end of the channel is closed.
    is_closed: Cell<bool>,
    /// What it has allocated.
    allocated: RefCell<Option<OwnedFd>>,
}

impl Conversation {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            owes_begin: Cell::new(false),
            answers: RefCell::default(),
            is_closed: Cell::default(),
            allocated: RefCell::default(),
        }
    }

    /// One whose other end is closed.
    pub(super) fn with_none() -> io::Result<Self> {
        Ok(Self::new(Channel::pair()?.0))
    }

    /// The next response, where it may be said now. One that says that it has come up is owed a begin.
    pub(super) fn receive(&self) -> Result<Option<Response>, ChannelError> {
        let received = self.channel.receive::<Response>(false);
        if matches!(received, Err(ChannelError::Closed)) {
            self.is_closed.set(true);
        }
        let received = received?;
        let (response, descriptors) =
            received.map(|received| (received.message, received.descriptors)).unzip();
        if let Some(response) = &response {
            self.answers.borrow_mut().judge(response)?;
            if matches!(response, Response::Allocated { .. }) {
                *self.allocated.borrow_mut() = descriptors.and_then(|mut all: Vec<OwnedFd>| all.pop());
            }
            if matches!(response, Response::Started { .. }) {
                self.owes_begin.set(true);
            }
        }
        Ok(response)
    }

    /// Whether all that it has said was received, and it says no more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// The descriptor of what it has allocated, once it has said so.
    pub(super) fn take_allocated(&self) -> Option<OwnedFd> {
        self.allocated.take()
    }

    /// Tells a process to begin that is owed that. `segments`: the serial of the last segment that it is told of.
    pub(super) fn pay_begin(&self, segments: u64) -> Result<(), ChannelError> {
        if self.owes_begin.get() {
            self.channel.send(&Request::Begin { segments }, &[], &[], false)?;
            self.owes_begin.set(false);
        }
        Ok(())
    }

    pub(super) fn send(
        &self,
        request: &Request,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.channel.send(request, bytes, descriptors, false)?;
        self.answers.borrow_mut().asked(request);
        Ok(())
    }
}

impl AsFd for Conversation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
