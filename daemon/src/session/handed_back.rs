//! Kernel-mode buffers that the engine has not done: handed back, to go on later from where they are.
//!
//! ```text
//!   engine: blocked, and another behind it ──▶ front of its context's software queue, with how far it is
//!                                               ├─ waits for a native fence ─▶ PARKED until the value is there:
//!                                               │                              MonitoredValue, interrupt, run list
//!                                               └─ waits for any other word ─▶ run list, after a while
//!   engine: told to put back what it has ─────▶ front of its context's software queue ─▶ run list
//!   engine: its context is suspended ─────────▶ front of its context's software queue ─▶ run list, when it is resumed
//! ```
//!
//! So a buffer that waits holds up its own context alone. One that nobody stands behind stays in the engine, which looks
//! at its word. The engine slows itself down where all that there is waits, so that two blocked contexts are not handed
//! to and fro all the time.

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::engine::hw_queue::HW_BLOCKED;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::handle::Handle;

use super::objects::Buffer;
use super::objects::GpuWait;
use super::state::Session;

impl Session {
    /// The engine has handed a buffer back, which it was given after so many suspends of its context.
    pub(super) fn buffer_handed_back(
        &mut self,
        at: EngineAddress,
        suspends: u64,
        of: u32,
        buffer: Buffer,
        result: &HwResult,
    ) {
        let handle = buffer.context;
        let is_unasked = match result.fault {
            HW_SUSPENDED => self.suspends_of(of, handle) == Some(suspends),
            HW_PREEMPTED => !self.engines[at.index()].process().is_some_and(EngineProcess::is_preempting),
            _ => false,
        };
        if is_unasked {
            self.end_item(of, buffer.ring, buffer.item);
            self.lose_engine(at, "it handed a buffer back that nobody had asked for");
            return;
        }
        let device = self.device_mut(of).ok().filter(|device| device.is_active());
        let wanted = device.and_then(|device| {
            let fence = device.fences.iter().find(|(_, fence)| fence.va == result.fault_va);
            let index = fence.map(|(_, fence)| fence.index).filter(|_| result.fault == HW_BLOCKED);
            let context = device.contexts.get_mut(handle)?;
            // In the order of submission: the one before it may have been handed back too.
            let place = context.software_queue.partition_point(|other| other.order < buffer.order);
            context
                .software_queue
                .insert(place, Buffer { is_saved: result.is_saved != 0, is_resubmitted: true, ..buffer });
            Some((index.filter(|_| place == 0), context.is_parked))
        });
        match wanted {
            None => self.end_item(of, buffer.ring, buffer.item),
            // What is parked waits for the first buffer, whatever comes behind it.
            Some((_, true)) => {}
            Some((Some(index), false)) => {
                self.unlist_context(of, handle);
                if let Ok(device) = self.device_mut(of) {
                    device.gpu_waits.push(GpuWait { context: handle, index, value: result.value });
                    if let Some(context) = device.contexts.get_mut(handle) {
                        // Listed or not: nothing but the fence brings it back.
                        (context.is_parked, context.listed) = (true, true);
                    }
                }
                self.release_native_waiters(index);
            }
            Some((None, false)) if result.fault == HW_BLOCKED => self.block_context(of, handle),
            Some((None, false)) => self.list_context(of, handle),
        }
    }

    /// Suspends of a context so far; none where it, or its engine, is gone.
    fn suspends_of(&self, of: u32, handle: Handle) -> Option<u64> {
        let context = self.device(of).ok()?.contexts.get(handle)?;
        Some(self.engines[context.at.index()].process()?.suspends(context.entry?))
    }

    /// What a parked context waits for is there, or never will be: it takes its turn again.
    pub(super) fn unpark(&mut self, of: u32, handle: Handle) {
        let Ok(device) = self.device_mut(of) else { return };
        let Some(context) = device.contexts.get_mut(handle) else { return };
        if std::mem::take(&mut context.is_parked) {
            let at = context.at;
            context.listed = false;
            self.list_context(of, handle);
            self.fill_hw_queue(at);
        }
    }
}
