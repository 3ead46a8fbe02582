//! What engines are asked, in order, whether their channel has room at the moment or not.
//!
//! ```text
//!   post ─▶ outbox ─▶ channel (at once where it has room, else when the engine has read) ─▶ control thread
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::channel::ChannelError;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::page_table::SegmentId;
use rustix::event::epoll;

use super::engines::Wakeup;
use super::segments::Segments;
use super::state::Session;

/// Bytes of kernel sources that may wait for one engine to read them.
pub const MAX_WAITING_SOURCES: usize = 4 << 20;

/// One request.
#[derive(Debug)]
enum Outgoing {
    /// AddSegment with this serial; the segment is looked up when it is sent, and is still there.
    Segment(u64, SegmentId),
    /// Any other, with the bytes behind it.
    Plain(Request, Vec<u8>),
}

/// Requests that wait until an engine has read those before.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Outgoing>,
    sources: usize,
    is_watched: bool,
}

impl Outbox {
    /// Whether a kernel source of `bytes` may be added.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.sources + bytes <= MAX_WAITING_SOURCES
    }

    fn push(&mut self, outgoing: Outgoing) {
        if let Outgoing::Plain(_, bytes) = &outgoing {
            self.sources += bytes.len();
        }
        self.waiting.push_back(outgoing);
    }

    /// Sends what the channel takes. False when it is full. Kernels that can never be sent are left out, and go to `unsent`
    /// with the reason: nothing is wrong with the engine.
    fn send(
        &mut self,
        process: &EngineProcess,
        segments: &Segments,
        unsent: &mut Vec<(KernelName, String)>,
    ) -> Result<bool, AdapterError> {
        match process.pay_begin() {
            Ok(()) => {}
            Err(AdapterError::Channel(ChannelError::Full)) => return Ok(false),
            Err(error) => return Err(error),
        }
        while let Some(outgoing) = self.waiting.front() {
            let sent = match outgoing {
                Outgoing::Plain(request, bytes) => process.request(request, bytes, &[]),
                Outgoing::Segment(serial, id) => send_segment(process, *serial, *id, segments),
            };
            match sent {
                Ok(()) => {}
                Err(AdapterError::Channel(ChannelError::Full)) => return Ok(false),
                Err(error) => match (&error, outgoing) {
                    (
                        AdapterError::Channel(ChannelError::Unsendable(_) | ChannelError::TooLarge(_)),
                        Outgoing::Plain(Request::CreateKernel { kernel, .. }, _),
                    ) => unsent.push((*kernel, error.to_string())),
                    _ => return Err(error),
                },
            }
            if let Some(Outgoing::Plain(_, bytes)) = self.waiting.pop_front() {
                self.sources -= bytes.len();
            }
        }
        Ok(true)
    }
}

fn send_segment(
    process: &EngineProcess,
    serial: u64,
    id: SegmentId,
    segments: &Segments,
) -> Result<(), AdapterError> {
    let Some(segment) = segments.get(id) else { return Ok(()) };
    let list: File = segment.list().map_err(ChannelError::from)?;
    let descriptors: Vec<BorrowedFd<'_>> =
        std::iter::once(list.as_fd()).chain(segment.files().iter().map(AsFd::as_fd)).collect();
    process.announce_segment(id, serial, segment.length());
    let request = Request::AddSegment { segment: id.0, serial, runs: segment.run_count() };
    process.request(&request, &[], &descriptors)
}

impl Session {
    /// Asks an engine, if there is one. An engine that cannot be asked is lost.
    pub(super) fn post(&mut self, at: EngineAddress, request: Request, bytes: &[u8]) {
        let slot = &mut self.engines[at.index()];
        if slot.hears() {
            slot.outbox.push(Outgoing::Plain(request, bytes.to_vec()));
            self.flush_outbox(at);
        }
    }

    /// Tells an engine to map a segment.
    pub(super) fn announce_segment(&mut self, at: EngineAddress, id: SegmentId) {
        let slot = &mut self.engines[at.index()];
        if let Some(serial) = slot.segment_serial() {
            slot.segments_outstanding.insert(serial, id);
            slot.outbox.push(Outgoing::Segment(serial, id));
            self.flush_outbox(at);
        }
    }

    /// Tells every engine to forget a segment, which is gone. Its number may be that of another from here on: what was not
    /// sent of this one never is.
    pub(super) fn renounce_segment(&mut self, id: SegmentId) {
        for at in self.addresses() {
            let slot = &mut self.engines[at.index()];
            slot.segments_outstanding.retain(|_, of| *of != id);
            slot.outbox.waiting.retain(|outgoing| !matches!(outgoing, Outgoing::Segment(_, of) if *of == id));
            if let Some(serial) = slot.segment_serial() {
                self.post(at, Request::RemoveSegment { segment: id.0, serial }, &[]);
            }
        }
    }

    /// Sends what waits for an engine, and has the session woken when there is room for the rest.
    pub(super) fn flush_outbox(&mut self, at: EngineAddress) {
        let slot = &mut self.engines[at.index()];
        let mut outbox = std::mem::take(&mut slot.outbox);
        let Some(process) = slot.process().filter(|_| slot.hears()) else { return };
        let mut unsent = Vec::new();
        let flushed = outbox.send(process, &self.segments, &mut unsent).and_then(|is_empty| {
            if outbox.is_watched == is_empty {
                let flags = if is_empty {
                    epoll::EventFlags::IN
                } else {
                    epoll::EventFlags::IN | epoll::EventFlags::OUT
                };
                let data = epoll::EventData::new_u64(Wakeup::Channel(at).data());
                epoll::modify(&self.epoll, process.channel_fd(), data, flags)
                    .map_err(|errno| ChannelError::Socket(errno.into()))?;
                outbox.is_watched = !is_empty;
            }
            Ok(())
        });
        self.engines[at.index()].outbox = outbox;
        if let Err(error) = flushed {
            self.lose_engine(at, &error.to_string());
        }
        for (kernel, reason) in unsent {
            self.kernel_refused(at, kernel, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::engine::message::Request;
    use campanile_host_gpu::kernel::name::KernelName;

    use crate::session::config::Config;
    use crate::session::testing::config;
    use crate::session::testing::session;

    #[test]
    fn a_kernel_that_cannot_be_sent_is_refused_and_its_engine_goes_on() {
        let at = EngineAddress::new(0, NodeKind::Copy);
        // It never answers, and ends when it is killed.
        let program = Program::new(PathBuf::from("/usr/bin/yes"), Vec::new());
        let mut session = session(&Arc::new(Config { program, ..config() }));
        assert!(!session.ensure_engine(at).unwrap_or_else(|refused| panic!("{}", refused.text)));
        let pid = session.engines[at.index()].process().unwrap().pid();
        let kernel = KernelName { root: 1, handle: 2 };
        session.engines[at.index()].rebuilding.insert((1, 2));
        for (entry, bytes) in [("\x01".repeat(40 << 10), 1), ("main".to_owned(), 1 << 20)] {
            let request = Request::CreateKernel { kernel, language: 1, entry: Some(entry) };
            session.post(at, request, &vec![0; bytes]);
        }
        let right = Request::CreateKernel { kernel, language: 1, entry: None };
        session.post(at, right, &[0]);
        let slot = &session.engines[at.index()];
        let process = slot.process().unwrap();
        assert!(!process.is_lost() && process.pid() == pid, "another process, or none");
        assert!(slot.outbox.waiting.is_empty() && slot.outbox.sources == 0, "{:?}", slot.outbox);
        assert!(!slot.rebuilding.contains(&(1, 2)), "nothing waits for what is never compiled");
    }
}
