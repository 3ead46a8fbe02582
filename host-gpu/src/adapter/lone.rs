//! A process like an engine's that works for the daemon itself, beside the engines of guests: sandbox and all, with no guest process
//! in its tables. Its caller, a thread that may wait, waits for each answer.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences::MAX_FENCES;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;

use super::code_log::CodeLog;
use super::error::AdapterError;
use super::launcher::Launcher;
use super::launcher::Memory;
use super::process::EngineProcess;
use crate::engine::channel::ChannelError;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::event::Event;
use crate::memory::vram::create_memfd;

/// How long a driver may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of page tables that have nothing in them.
pub(super) const TABLE_BYTES: u64 = 16 * PAGE_SIZE;

/// The files that it works on; it has page tables and fences of its own, with nothing in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoneMemory<'a> {
    /// Video memory.
    pub(super) vram: &'a File,
    /// Local memory and what is evicted, where local memory is a device's own.
    pub(super) local: Option<[BorrowedFd<'a>; 2]>,
    /// What its driver has compiled.
    pub(super) code: Option<&'a CodeLog>,
}

/// The process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Lone {
    engine: EngineProcess,
    /// What it is, for errors.
    what: &'static str,
}

impl Lone {
    /// Starts one, and waits until it has started, or `stop` is signalled.
    ///
    /// # Errors
    /// It cannot be started, refuses to, or takes too long; `Interrupted` for `stop`.
    pub(super) fn start(
        launcher: &dyn Launcher,
        start: &Start,
        memory: LoneMemory<'_>,
        what: &'static str,
        stop: Option<&Event>,
    ) -> io::Result<Self> {
        let tables = create_memfd("campanile-no-tables", start.table_bytes)?;
        let fences = create_memfd("campanile-no-fences", u64::from(MAX_FENCES) * PAGE_SIZE)?;
        let LoneMemory { vram, local, code } = memory;
        let memory = Memory { vram, tables: &tables, fences: &fences, local, tracker: None, code };
        let mut this = Self { engine: EngineProcess::spawn(launcher, start, memory)?, what };
        match this.hear(START_LIMIT, stop)? {
            Response::Started { .. } => Ok(this),
            Response::Refused { reason } => Err(io::Error::other(reason)),
            other => Err(this.amiss(&other)),
        }
    }

    /// Asks it, and waits for the answer for so long, or until `stop` is signalled. After an error it is of no more use.
    ///
    /// # Errors
    /// It has ended, breaks the protocol, or takes too long; `Interrupted` for `stop`.
    pub(super) fn ask(
        &mut self,
        request: &Request,
        bytes: &[u8],
        limit: Duration,
        stop: Option<&Event>,
    ) -> io::Result<Response> {
        self.tell(request, bytes, limit, stop)?;
        self.hear(limit, stop)
    }

    /// Asks it, as soon as it has read enough of what it was asked before; does not wait for the answer.
    ///
    /// # Errors
    /// Those of [`Self::ask`].
    pub(super) fn tell(
        &mut self,
        request: &Request,
        bytes: &[u8],
        limit: Duration,
        stop: Option<&Event>,
    ) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match self.engine.request(request, bytes, &[]) {
                Ok(()) => return Ok(()),
                Err(AdapterError::Channel(ChannelError::Full)) => {}
                Err(error) => return Err(self.failed(&error)),
            }
            self.wait(PollFlags::OUT, (begun, limit), stop)?;
        }
    }

    /// It has answered what is no answer to what it was asked.
    pub(super) fn amiss(&self, said: &Response) -> io::Error {
        io::Error::other(format!("{}: it says {said:?}, which is no answer", self.what))
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> io::Error {
        io::Error::other(format!("{}: {error}: {}", self.what, self.engine.ending()))
    }

    /// What it says next; as [`Self::ask`].
    ///
    /// # Errors
    /// Those of [`Self::ask`].
    pub(super) fn hear(&mut self, limit: Duration, stop: Option<&Event>) -> io::Result<Response> {
        let begun = Instant::now();
        loop {
            match self.engine.receive() {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => {}
                Err(error) => return Err(self.failed(&error)),
            }
            self.wait(PollFlags::IN, (begun, limit), stop)?;
        }
    }

    /// Waits until its channel can be used, for the rest of a limit that has begun, or until `stop` is signalled.
    fn wait(
        &self,
        how: PollFlags,
        (begun, limit): (Instant, Duration),
        stop: Option<&Event>,
    ) -> io::Result<()> {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            let (what, does) = (&self.what, if how == PollFlags::OUT { "reads" } else { "says" });
            return Err(io::Error::other(format!("{what} {does} nothing for {} s", limit.as_secs())));
        }
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let channel = self.engine.channel_fd();
        let mut ends = vec![PollFd::new(&channel, how)];
        ends.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)));
        match poll(&mut ends, Some(&timeout)) {
            Ok(_) if ends.get(1).is_some_and(|stop| !stop.revents().is_empty()) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
