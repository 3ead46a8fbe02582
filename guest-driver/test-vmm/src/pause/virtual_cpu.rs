//! A guest thread that can be stopped.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gate::Gate;
use super::slot;
use super::slot::ENDED;
use super::slot::Slot;

/// Makes the calling thread a virtual CPU of a VM until it is dropped: `LoopbackVm::pause` stops it wherever it is.
#[derive(Debug)]
pub struct VirtualCpu {
    gate: Arc<Gate>,
    slot: Arc<Slot>,
    /// It belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl VirtualCpu {
    /// Registers the thread. `None` where it is a virtual CPU already. Blocks while the VM is paused.
    pub(crate) fn register(gate: &Arc<Gate>) -> Option<Self> {
        let slot = Arc::new(Slot::default());
        if !slot::take(&slot) {
            return None;
        }
        gate.admit(&slot);
        // Paused already: no signal comes.
        slot::stand();
        Some(Self { gate: Arc::clone(gate), slot, _here: PhantomData })
    }
}

impl Drop for VirtualCpu {
    fn drop(&mut self) {
        // In this order: a CPU that is off the roster is not woken, so it must not stand any more.
        slot::give_back();
        self.slot.acknowledged.store(ENDED, Ordering::SeqCst);
        slot::wake(&self.slot.acknowledged);
        self.gate.dismiss(&self.slot);
    }
}
