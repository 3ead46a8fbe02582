//! Requests to engines: kept in their outboxes, and sent as far as their channels have room.

use std::sync::Arc;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::channel::ChannelError;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::page_table::SegmentId;
use epoll::Events;

use super::outbox::Outgoing;
use super::room::Engines;
use super::wakeup::Wakeup;
use crate::vgpu::memory::segments::Segments;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;

/// What must follow when an engine was sent what waited for it.
#[derive(Debug, Default)]
#[must_use]
pub struct Flushed {
    /// Why the engine cannot be asked, where it cannot: it is lost.
    pub lost: Option<String>,
    /// Kernels that can never be sent, each with the reason: they are refused.
    pub unsent: Vec<(KernelName, String)>,
}

impl Engines {
    fn push(&mut self, at: EngineAddress, outgoing: Outgoing) {
        let slot = &mut self[at.index()];
        if slot.hears() {
            slot.outbox.push(outgoing);
        }
    }

    /// Keeps a request to compile a kernel, with nothing beside it where `alone`, where there is a process; [`Self::flush`] sends it.
    pub fn push_kernel(&mut self, at: EngineAddress, kernel: KernelName, source: &KernelSource, alone: bool) {
        self.push(at, Outgoing::Kernel(kernel, source.clone(), alone));
    }

    /// As [`Self::push_kernel`], to forget a kernel. What was charged for the kernel is held until it was sent.
    pub fn push_kernel_end(
        &mut self,
        at: EngineAddress,
        kernel: KernelName,
        source: Option<&Arc<SourceBytes>>,
    ) {
        self.push(at, Outgoing::End { kernel, _source: source.cloned() });
    }

    /// As [`Self::push_kernel`], to map a segment.
    pub fn push_segment(&mut self, at: EngineAddress, id: SegmentId) {
        let slot = &mut self[at.index()];
        if let Some(serial) = slot.segment_serial() {
            slot.segments_outstanding.insert(serial, id);
            slot.outbox.push(Outgoing::Segment(serial, id));
        }
    }

    /// As [`Self::push_kernel`], to forget a segment, which is gone. Its number may be that of another from here on: what was
    /// not sent of this one never is.
    pub fn push_segment_end(&mut self, at: EngineAddress, id: SegmentId) {
        let slot = &mut self[at.index()];
        slot.segments_outstanding.retain(|_, of| *of != id);
        slot.outbox.waiting.retain(|outgoing| !matches!(outgoing, Outgoing::Segment(_, of) if *of == id));
        if let Some(serial) = slot.segment_serial() {
            slot.outbox.push(Outgoing::SegmentIsGone(serial, id));
        }
    }

    /// Sends what waits for an engine, and has the poller wake the session when there is room for the rest.
    pub fn flush(&mut self, at: EngineAddress, segments: &Segments) -> Flushed {
        let Self { slots, poller, .. } = self;
        let slot = &mut slots[at.index()];
        let mut outbox = std::mem::take(&mut slot.outbox);
        let mut flushed = Flushed::default();
        let Some(process) = slot.process().filter(|_| slot.hears()) else { return flushed };
        let sent = outbox.send(process, segments, &mut flushed.unsent).and_then(|is_empty| {
            if outbox.is_watched == is_empty {
                let events = if is_empty { Events::EPOLLIN } else { Events::EPOLLIN | Events::EPOLLOUT };
                let token = Wakeup::Channel(at).data();
                poller.modify(process.channel_fd(), token, events).map_err(ChannelError::Socket)?;
                outbox.is_watched = !is_empty;
            }
            Ok(())
        });
        slot.outbox = outbox;
        flushed.lost = sent.err().map(|error| error.to_string());
        flushed
    }
}
