//! How far a migration is, for people and scripts.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::node::clock;
use serde::Serialize;
use serde_json::Value;
use serde_json::json;

use super::kernels::KernelsSent;
use crate::migration::lock::locked;
use crate::migration::pages::PAGE;
use crate::migration::passes::pass::Sent;
use crate::migration::passes::plan;

/// Passes, and steps, that are remembered.
const KEPT: usize = 64;

/// What a source did, in order.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    /// Tracking for this migration has begun, or, with the VM paused, what was written was asked.
    Begin {
        /// To be sent.
        left_bytes: u64,
    },
    /// Pages were sent.
    Pass {
        /// Its number, from 1.
        pass: u32,
        /// Bytes of pages.
        bytes: u64,
    },
    /// Trackers were asked, and have forgotten what they told.
    Query {
        /// To be sent, with what was not sent before.
        left_bytes: u64,
    },
}

/// One pass.
#[derive(Debug, Clone, Copy, Serialize)]
struct Pass {
    pass: u32,
    /// Whether the VM was paused.
    is_last: bool,
    /// When it began and ended, nanoseconds of the host's monotonic clock.
    begin_ns: u64,
    end_ns: u64,
    #[serde(flatten)]
    sent: Sent,
}

#[derive(Debug, Default)]
struct Passes {
    done: VecDeque<Pass>,
    steps: VecDeque<Step>,
    /// How long the vGPU stood still until all was sent.
    blackout: Option<Duration>,
    sum: Sent,
    /// Bytes that the pass under way began with.
    aim: u64,
    /// When it began.
    begun: Duration,
    left: u64,
    kernels: KernelsSent,
    words: String,
}

/// What a migration has done so far.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of pages sent in the pass under way.
    pub in_pass: AtomicU64,
    passes: Mutex<Passes>,
}

impl Progress {
    /// A pass begins.
    pub fn begin_pass(&self, pending_bytes: u64) {
        self.in_pass.store(0, Ordering::Relaxed);
        let mut passes = locked(&self.passes);
        passes.aim = pending_bytes;
        passes.begun = clock::monotonic();
        passes.left = pending_bytes;
        drop(passes);
        self.say("sending");
    }

    /// What is being done now.
    pub fn say(&self, words: &str) {
        locked(&self.passes).words = words.to_owned();
    }

    /// This was done. The first steps are kept, and the last.
    pub fn step(&self, step: Step) {
        let steps = &mut locked(&self.passes).steps;
        steps.push_back(step);
        if steps.len() > KEPT {
            let _forgotten = steps.remove(KEPT / 2);
        }
    }

    /// All was sent, so long after the vGPU was to stand still (DIRTY-62).
    pub fn blackout(&self, time: Duration) {
        locked(&self.passes).blackout = Some(time);
    }

    /// A pass is over.
    pub fn end_pass(&self, pass: u32, is_last: bool, sent: Sent) {
        let mut passes = locked(&self.passes);
        let [begin_ns, end_ns] = [passes.begun, clock::monotonic()].map(clock::nanoseconds);
        passes.done.push_back(Pass { pass, is_last, begin_ns, end_ns, sent });
        if passes.done.len() > KEPT {
            passes.done.pop_front();
        }
        passes.sum = passes.sum.plus(sent);
        passes.aim = 0;
        self.in_pass.store(0, Ordering::Relaxed);
    }

    /// So much is dirty again.
    pub fn left(&self, bytes: u64) {
        locked(&self.passes).left = bytes;
    }

    /// So many kernels were sent, and compiled.
    pub fn kernels(&self, kernels: KernelsSent) {
        locked(&self.passes).kernels = kernels;
    }

    /// Bytes of pages per second, over all passes.
    pub fn rate(&self) -> u64 {
        let sum = locked(&self.passes).sum;
        plan::rate(sum.bytes(), sum.time())
    }

    /// All that was sent.
    pub fn sum(&self) -> Sent {
        locked(&self.passes).sum
    }

    /// In numbers.
    pub fn describe(&self) -> Value {
        let rate = self.rate();
        let passes = locked(&self.passes);
        let in_pass = self.in_pass.load(Ordering::Relaxed);
        let left = if passes.aim > 0 { passes.aim.saturating_sub(in_pass) } else { passes.left };
        let milliseconds = |bytes| u64::try_from(plan::estimate(bytes, rate).as_millis()).unwrap_or(u64::MAX);
        json!({
            "doing": passes.words,
            "passes": passes.done,
            "steps": passes.steps,
            "blackout_us": passes.blackout.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            "sent_bytes": passes.sum.wire_bytes,
            "pages": passes.sum.pages,
            "zero_pages": passes.sum.zero_pages,
            "page_bytes": PAGE,
            "left_bytes": left,
            "bytes_per_second": rate,
            "estimate_ms": milliseconds(left),
            "kernels_sent": passes.kernels.sent,
            "kernels_left": passes.kernels.left,
        })
    }
}
