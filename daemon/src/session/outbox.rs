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

    /// Sends what the channel takes. False when it is full.
    fn send(&mut self, process: &EngineProcess, segments: &Segments) -> Result<bool, AdapterError> {
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
                Err(error) => return Err(error),
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
        let flushed = outbox.send(process, &self.segments).and_then(|is_empty| {
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
    }
}
