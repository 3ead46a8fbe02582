//! How many buffers of user-mode queues an engine has retired. Its guests ring doorbells past the daemon, so the engine counts, in a
//! word of its shared block that it alone stores to; what it says is added up here over all blocks that a node of a vGPU has had.
//!
//! That word is read when it is asked for, and when an engine is taken in or out: no ring costs anything for it.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::engine::scheduling;

/// Those of one node of a vGPU.
#[derive(Debug, Default)]
pub(super) struct UserSubmissions(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    total: u64,
    /// The block of the engine that is there, and what its word said last.
    engine: Option<(Arc<Mapping>, u64)>,
}

impl Counted {
    fn read(&mut self) {
        let Some((block, seen)) = &mut self.engine else { return };
        let now = word(block);
        // The engine may say anything.
        self.total = self.total.saturating_add(now.saturating_sub(*seen));
        *seen = now;
    }
}

fn word(block: &Mapping) -> u64 {
    block.word(scheduling::USER_SUBMISSIONS).map_or(0, |word| word.load(Ordering::Relaxed))
}

impl UserSubmissions {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An engine begins, over this block: what that says already was counted.
    pub(super) fn follow(&self, block: &Arc<Mapping>) {
        let mut counted = self.counted();
        counted.read();
        counted.engine = Some((Arc::clone(block), word(block)));
    }

    /// An engine has ended.
    pub(super) fn leave(&self) {
        let mut counted = self.counted();
        counted.read();
        counted.engine = None;
    }

    /// All of them so far.
    pub(super) fn total(&self) -> u64 {
        let mut counted = self.counted();
        counted.read();
        counted.total
    }
}
