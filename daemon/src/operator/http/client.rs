//! One client.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::SendFlags;
use rustix::net::recv;
use rustix::net::send;

use super::page::Asked;
use super::page::Page;
use super::request;
use super::request::MAX_REQUEST;
use super::request::Request;

/// How long a client may take for all of it.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, and how far it is.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    ends: Instant,
    said: Vec<u8>,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Answer {
    head: Vec<u8>,
    body: Arc<str>,
    /// Bytes of both that are sent.
    sent: usize,
}

/// What became of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is to be called again when its socket is ready.
    Waits,
    /// It has its answer, or has gone.
    Over,
}

impl Client {
    /// A connection that does not block, from now on.
    pub fn new(socket: OwnedFd, now: Instant) -> Self {
        Self { socket, ends: now + TIMEOUT, said: Vec::new(), answer: None }
    }

    /// When it is given up.
    pub fn ends(&self) -> Instant {
        self.ends
    }

    /// What it waits for.
    pub fn wants(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads and writes as far as that goes at once. `page` makes the answer.
    pub fn go_on(&mut self, page: impl FnOnce(Asked<'_>) -> Result<Page, &'static str>) -> Progress {
        match self.try_go_on(page) {
            Ok(progress) => progress,
            Err(error) => {
                log::debug!("a client of metrics or of the web page is dropped: {error}");
                Progress::Over
            }
        }
    }

    fn try_go_on(
        &mut self,
        page: impl FnOnce(Asked<'_>) -> Result<Page, &'static str>,
    ) -> io::Result<Progress> {
        if self.answer.is_none() {
            let mut bytes = [0; 1024];
            let room = bytes.len().min(MAX_REQUEST.saturating_sub(self.said.len()));
            match recv(&self.socket, &mut bytes[..room], RecvFlags::empty()) {
                Ok((_, 0)) => return Ok(Progress::Over),
                Ok((_, count)) => self.said.extend_from_slice(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Progress::Waits),
                Err(error) => return Err(error.into()),
            }
            let found = match request::read(&self.said) {
                Request::Unfinished => return Ok(Progress::Waits),
                Request::Wrong(status) => Err(status),
                Request::Get(asked) => page(asked),
            };
            self.answer = Some(match found {
                Ok(page) => Answer { head: request::head(&page).into(), body: page.body, sent: 0 },
                Err(status) => Answer { head: request::refusal(status).into(), body: "".into(), sent: 0 },
            });
        }
        let Some(answer) = &mut self.answer else { return Ok(Progress::Waits) };
        loop {
            let rest = match answer.sent.checked_sub(answer.head.len()) {
                None => &answer.head[answer.sent..],
                Some(of_body) => &answer.body.as_bytes()[of_body..],
            };
            if rest.is_empty() {
                return Ok(Progress::Over);
            }
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => answer.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Progress::Waits),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
