//! Waits for fences: answered when the value is there, and looked at when an engine, a CPU or a reset may have changed it.

use crate::ids::GuestProcess;
use crate::vgpu::fences::native::Look;
use crate::vgpu::fences::native::smallest_wait;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::waits::Wait;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::vm::Vm;
use campanile_host_gpu::adapter::native_fences::Signalled;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use std::sync::atomic::Ordering;

/// Why an engine is no good that names a fence which is none.
const IMPOSSIBLE: &str = "it signalled a fence that does not exist";

/// Waits for fences of queues and for native fences, of CPUs and of contexts that are parked.
#[derive(Debug)]
pub struct Waits<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Waits<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Waits<'_> {
    /// Frees fences that no engine has mapped any more. What engines reported of them before is read first: an
    /// engine that names one of them later lies.
    pub(in crate::vgpu) fn free_fences(&mut self, indices: &[u32]) {
        for at in self.vm.engines.addresses() {
            self.read_signalled(at);
        }
        for &index in indices {
            for process in self.vm.engines.iter().filter_map(|slot| slot.process()) {
                process.native_fences.destroy(index);
            }
            self.vm.fences.free(index);
        }
    }

    /// Tells an engine that starts with an empty block of all fences there are.
    pub(in crate::vgpu) fn announce_native_fences(&mut self, at: EngineAddress) {
        let all: Vec<_> = self.vm.fences.iter().collect();
        for (index, global) in all {
            if let Some(process) = self.vm.engines[at.index()].process() {
                process.native_fences.create(index, global);
            }
            self.release_native_waiters(index);
        }
    }

    /// Answers the waits for a fence that are over, in whatever process, and has the engines watch for the next
    /// (UMS-133, UMS-135, UMS-137).
    pub(in crate::vgpu) fn release_native_waiters(&mut self, index: u32) {
        loop {
            let smallest = smallest_wait(&self.vm.objects, index);
            let Some(value) = self.vm.fences.value(index) else { return };
            for process in self.vm.engines.iter().filter_map(|slot| slot.process()) {
                process.native_fences.monitor(index, smallest, value);
            }
            // After every engine has the new MonitoredValue: signals from here on interrupt.
            let over = self.vm.fences.take_over(&mut self.vm.objects, index);
            if over.is_empty() {
                return;
            }
            for wait in over.of_cpu {
                self.vm.answer(wait.origin, Ok(Vec::new()));
            }
            for (of, context) in over.of_gpu {
                self.unpark(of, context);
            }
        }
    }

    /// Looks at every wait for a fence of any kind: after a report that names none, and after the end of an
    /// engine that may have signalled without having said so.
    pub(in crate::vgpu) fn release_all_waiters(&mut self) {
        let mut native = Vec::new();
        let mut queues = Vec::new();
        for (context, process) in &self.vm.objects.processes {
            let Some(device) = &process.device else { continue };
            native.extend(device.native_waits.iter().map(|wait| wait.index));
            native.extend(device.gpu_waits.iter().map(|wait| wait.index));
            queues.extend(device.waits.iter().map(|wait| (*context, wait.queue)));
        }
        native.sort_unstable();
        native.dedup();
        for index in native {
            self.release_native_waiters(index);
        }
        for (context, queue) in queues {
            self.release_waiters(context, queue);
        }
    }

    /// A device in error waits no more, and others go on (UMS-140).
    pub(in crate::vgpu) fn lose_native_waits(&mut self, context: GuestProcess) {
        let Ok(device) = self.vm.objects.device_mut(context) else { return };
        for wait in std::mem::take(&mut device.native_waits) {
            let text = "the device is in error".to_owned();
            self.vm.answer(wait.origin, Err(Refused { status: Status::DeviceLost, text }));
            self.release_native_waiters(wait.index);
        }
    }

    /// What a device in error had parked was cancelled.
    pub(in crate::vgpu) fn lose_gpu_waits(&mut self, context: GuestProcess) {
        let Ok(device) = self.vm.objects.device_mut(context) else { return };
        for wait in std::mem::take(&mut device.gpu_waits) {
            self.release_native_waiters(wait.index);
        }
    }

    /// Reads what an engine has signalled; remembers one that names a fence that is none (UMS-141).
    pub(in crate::vgpu) fn read_signalled(&mut self, at: EngineAddress) {
        let Some(process) = self.vm.engines[at.index()].process() else { return };
        let handles = match process.native_fences.take_signalled() {
            Signalled::Fences(handles) => handles,
            Signalled::AllWaiters => return self.release_all_waiters(),
            Signalled::Impossible => return self.vm.engines.condemn(at, IMPOSSIBLE),
        };
        for handle in handles {
            match self.vm.fences.look(handle) {
                Look::AtWaitsFor(index) => self.release_native_waiters(index),
                Look::AtAllWaits => self.release_all_waiters(),
                Look::Nowhere => {}
                Look::Violation => self.vm.engines.condemn(at, IMPOSSIBLE),
            }
        }
    }

    /// Answers the waits of a queue that are over, and has the engine watch for the next (UMS-133, UMS-135,
    /// UMS-137).
    pub(in crate::vgpu) fn release_waiters(&mut self, context: GuestProcess, queue: Handle) {
        loop {
            let Ok(device) = self.vm.objects.device(context) else { return };
            let waits = device.waits.iter().filter(|wait| wait.queue == queue);
            let smallest = waits.map(|wait| wait.value).min();
            let current = self.monitor_fence(context, queue, smallest);
            let Ok(device) = self.vm.objects.device_mut(context) else { return };
            let (over, waiting) = std::mem::take(&mut device.waits)
                .into_iter()
                .partition(|wait| wait.queue == queue && wait.value <= current);
            device.waits = waiting;
            let over: Vec<Wait> = over;
            if over.is_empty() {
                return;
            }
            for wait in over {
                self.vm.answer(wait.origin, Ok(Vec::new()));
            }
        }
    }

    /// Sets MonitoredValue and reads CurrentValue after it.
    fn monitor_fence(&self, context: GuestProcess, queue: Handle, smallest: Option<u64>) -> u64 {
        let Ok(device) = self.vm.objects.device(context) else { return 0 };
        let Some(page) = device.page.view(&self.vm.memory.allocations, &self.vm.memory.dirty) else {
            return 0;
        };
        let Some(word) = page.word(device_page::fence(queue.index())) else { return 0 };
        let doorbell = match device.queues.get(queue).map(|queue| (queue.kind, queue.at)) {
            Some((QueueKind::UserMode { doorbell: Some(doorbell), .. }, at)) => {
                device.doorbells.get(doorbell).zip(Some(at))
            }
            _ => None,
        };
        if let Some((doorbell, at)) = doorbell
            && let Some(process) = self.vm.engines[at.index()].process()
            && let Some(hw_queue) = doorbell.hw_queue
        {
            return process.tables.monitor(hw_queue, smallest, word);
        }
        word.load(Ordering::Acquire)
    }

    /// What a parked context waits for is there, or never will be: it takes its turn again.
    pub(in crate::vgpu) fn unpark(&mut self, of: GuestProcess, handle: ContextHandle) {
        let Ok(device) = self.vm.objects.device_mut(of) else { return };
        let Some(context) = device.contexts.get_mut(handle) else { return };
        if std::mem::take(&mut context.is_parked) {
            let at = context.at;
            context.listed = false;
            Submission::of(self.vm).list_context(of, handle);
            Submission::of(self.vm).fill_hw_queue(at);
        }
    }
}
