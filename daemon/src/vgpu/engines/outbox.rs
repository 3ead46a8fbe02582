//! What engines are asked, in order, whether their channel has room at the moment or not.
//!
//! ```text
//!   post ─▶ outbox ─▶ channel (at once where it has room, else when the engine has read) ─▶ control thread
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::channel::ChannelError;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::page_table::SegmentId;

use crate::vgpu::memory::segments::Segments;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;

/// Bytes of kernel sources that may wait for one engine to read them.
pub const MAX_WAITING_SOURCES: usize = 4 << 20;

/// One request.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// AddSegment with this serial; the segment is looked up when it is sent, and is still there.
    Segment(u64, SegmentId),
    /// CreateKernel, and whether it is compiled alone.
    Kernel(KernelName, KernelSource, bool),
    /// DestroyKernel, with the source that was charged for it.
    End { kernel: KernelName, _source: Option<Arc<SourceBytes>> },
    /// Move.
    Move(Request),
    /// RemoveSegment with this serial.
    SegmentIsGone(u64, SegmentId),
}

/// Requests that wait until an engine has read those before.
#[derive(Debug, Default)]
pub struct Outbox {
    pub(super) waiting: VecDeque<Outgoing>,
    sources: usize,
    pub(super) is_watched: bool,
}

impl Outbox {
    /// Whether a kernel source of `bytes` may be added.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.sources + bytes <= MAX_WAITING_SOURCES
    }

    pub(super) fn push(&mut self, outgoing: Outgoing) {
        if let Outgoing::Kernel(_, source, _) = &outgoing {
            self.sources += source.bytes.len();
        }
        self.waiting.push_back(outgoing);
    }

    /// Sends what the channel takes. False when it is full. Kernels that can never be sent are left out, and go to `unsent`
    /// with the reason: nothing is wrong with the engine.
    pub(super) fn send(
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
                Outgoing::Kernel(kernel, KernelSource { language, entry, bytes, .. }, alone) => {
                    let (kernel, language, entry, alone) = (*kernel, *language, entry.clone(), *alone);
                    process.request(&Request::CreateKernel { kernel, language, entry, alone }, bytes, &[])
                }
                Outgoing::End { kernel, .. } => {
                    process.request(&Request::DestroyKernel { kernel: *kernel }, &[], &[])
                }
                Outgoing::Move(request) => process.request(request, &[], &[]),
                Outgoing::SegmentIsGone(serial, id) => {
                    let request = Request::RemoveSegment { segment: id.0, serial: *serial };
                    process.request(&request, &[], &[])
                }
                Outgoing::Segment(serial, id) => send_segment(process, *serial, *id, segments),
            };
            match sent {
                Ok(()) => {}
                Err(AdapterError::Channel(ChannelError::Full)) => return Ok(false),
                Err(error) => match (&error, outgoing) {
                    (
                        AdapterError::Channel(ChannelError::Unsendable(_) | ChannelError::TooLarge(_)),
                        Outgoing::Kernel(kernel, ..),
                    ) => unsent.push((*kernel, error.to_string())),
                    _ => return Err(error),
                },
            }
            if let Some(Outgoing::Kernel(_, source, _)) = self.waiting.pop_front() {
                self.sources -= source.bytes.len();
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::kernel::name::KernelName;

    use crate::vgpu::config::Config;
    use crate::vgpu::engines::kernels::Kernels;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::kernel_source::KernelSource;
    use crate::vgpu::objects::kernel_source::SourceBytes;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::session;

    fn source(session: &Session, entry: Option<String>, bytes: usize) -> KernelSource {
        let charge = session.vm.purse.charge(Kind::Kernels, 1).unwrap();
        let bytes = SourceBytes::new(&vec![0; bytes], charge);
        KernelSource { language: 1, entry, bytes, is_ending: false }
    }

    #[test]
    fn a_kernel_that_cannot_be_sent_is_refused_and_its_engine_goes_on() {
        let at = EngineAddress::new(0, NodeKind::Copy);
        // It never answers, and ends when it is killed.
        let launcher = Arc::new(Program::new(PathBuf::from("/usr/bin/yes"), Vec::new()));
        let mut session = session(&Arc::new(Config { launcher, ..config() }));
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(at)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        let pid = session.vm.engines[at.index()].process().unwrap().pid();
        let kernel = KernelName { root: 1, handle: 2 };
        session.vm.engines[at.index()].rebuilding.insert((1, 2));
        for (entry, bytes) in [("\x01".repeat(40 << 10), 1), ("main".to_owned(), 1 << 20)] {
            let source = source(&session, Some(entry), bytes);
            session.vm.engines.push_kernel(at, kernel, &source, false);
            Kernels::of(&mut session.vm).flush_outbox(at);
        }
        let source = source(&session, None, 1);
        session.vm.engines.push_kernel(at, kernel, &source, false);
        Kernels::of(&mut session.vm).flush_outbox(at);
        let slot = &session.vm.engines[at.index()];
        let process = slot.process().unwrap();
        assert!(!process.is_lost() && process.pid() == pid, "another process, or none");
        assert!(slot.outbox.waiting.is_empty() && slot.outbox.sources == 0, "{:?}", slot.outbox);
        assert!(!slot.rebuilding.contains(&(1, 2)), "nothing waits for what is never compiled");
    }
}
