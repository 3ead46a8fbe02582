//! Spans of `tracing` over kernel-mode buffers, and over preempt commands.
//!
//! ```text
//!   SUBMIT ──▶ submission ─────────────────────────────────▶ fence, or whatever else ends it
//!                └─ given to the engine ─▶ run ─▶ result, or handed back; then the next run
//!   preempt command ─▶ preempt ─▶ the engine has put back what it had
//! ```
//!
//! They are of the level debug: without a filter that lets them through each costs a look at one word, and nothing is kept. What user-mode
//! queues run passes the daemon by, and has none. Spans of what is rare, such as a reset, are of the level info: what is logged within says of which
//! it is.

use std::collections::BTreeMap;

use campanile_host_gpu::engine::address::EngineAddress;
use tracing::Span;
use tracing::debug_span;
use tracing::field::Empty;
use tracing::info_span;

use crate::ids::GuestProcess;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::timeline::Item;

/// The target of all spans, for filters: `RUST_LOG=info,campanile::span=debug`.
pub const TARGET: &str = "campanile::span";
/// While an engine is reset, for this reason.
pub fn reset(vgpu: &str, at: EngineAddress, cause: &str) -> Span {
    info_span!(target: TARGET, "reset", vgpu, node = %at, cause)
}

/// While everything of a vGPU is reset.
pub fn adapter_reset(vgpu: &str, cause: &str) -> Span {
    info_span!(target: TARGET, "adapter reset", vgpu, cause)
}

/// Buffers with a span; there are no more than this where guests submit more than they may have at one time.
const KEPT: usize = 1 << 16;

/// A buffer by its guest process, and by the timeline and the place there that end with it.
pub type Work = (GuestProcess, u8, Item);

/// What ends first stands first.
#[derive(Debug)]
struct Submission {
    run: Span,
    whole: Span,
}

/// The spans of a session that have not ended.
#[derive(Debug, Default)]
pub struct Spans {
    submissions: BTreeMap<Work, Submission>,
    preempts: BTreeMap<usize, Span>,
}

impl Spans {
    /// A buffer was submitted.
    pub fn submitted(&mut self, vgpu: &str, process: GuestProcess, at: EngineAddress, buffer: &Buffer) {
        let Some(item) = buffer.item else { return };
        let whole = debug_span!(target: TARGET, parent: None, "submission", vgpu, node = %at, process = process.get(),
                                queue = buffer.queue.0, fence = buffer.fence_value, fault = Empty);
        if !whole.is_disabled() && self.submissions.len() < KEPT {
            self.submissions.insert((process, buffer.ring, item), Submission { run: Span::none(), whole });
        }
    }

    fn of(&mut self, process: GuestProcess, buffer: &Buffer) -> Option<&mut Submission> {
        self.submissions.get_mut(&(process, buffer.ring, buffer.item?))
    }

    /// An engine was given it.
    pub fn given(&mut self, process: GuestProcess, buffer: &Buffer) {
        if let Some(submission) = self.of(process, buffer) {
            submission.run = debug_span!(target: TARGET, parent: &submission.whole, "run");
        }
    }

    /// The engine has handed it back.
    pub fn handed_back(&mut self, process: GuestProcess, buffer: &Buffer) {
        if let Some(submission) = self.of(process, buffer) {
            submission.run = Span::none();
        }
    }

    /// The engine has run it into a fault, if this is not 0.
    pub fn ran(&mut self, process: GuestProcess, buffer: &Buffer, fault: u32) {
        if let Some(submission) = self.of(process, buffer).filter(|_| fault != 0) {
            submission.whole.record("fault", fault);
        }
    }

    /// It has ended, however.
    pub fn ended(&mut self, work: Work) {
        self.submissions.remove(&work);
    }

    /// All of this process has ended.
    pub fn gone(&mut self, process: GuestProcess) {
        self.submissions.retain(|(of, ..), _| *of != process);
    }

    /// An engine was told to put back what it has.
    pub fn preempted(&mut self, vgpu: &str, at: EngineAddress) {
        let span = debug_span!(target: TARGET, parent: None, "preempt", vgpu, node = %at);
        if !span.is_disabled() {
            self.preempts.insert(at.index(), span);
        }
    }

    /// It has, or is no more.
    pub fn yielded(&mut self, at: EngineAddress) {
        self.preempts.remove(&at.index());
    }
}
