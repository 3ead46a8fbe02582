//! Kernels: compiled in the engine process, never here (design §3).
//!
//! ```text
//!   CREATE_KERNEL ─▶ every compute engine that runs: compiles it ─▶ all have it: answered; one refuses: refused
//!                └─▶ one that comes up, now or later: compiles all kernels that there are, and then runs
//! ```
//!
//! So a kernel is good for a context on whatever physical adapter. While all is compiled and an engine works, its spare is asked for
//! one kernel at each look: a process that takes another's place has then little left to compile.

use super::room::Engines;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashSet;
use std::sync::Arc;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::message::MAX_ENTRY_BYTES;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::pending_kernel::PendingKernel;
use super::pending_kernel::Suspicion;
use super::pending_kernel::begin_oldest;
use super::pending_kernel::clear_others;
use super::pending_kernel::judge_end;
use super::pending_kernel::oldest;
use super::slot::EngineSlot;
use super::slot::WaitingMessage;
use crate::ids::GuestProcess;
use crate::vgpu::engines::sending::Flushed;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::vm::Vm;

/// Bytes of the kernel sources of one VM: they are kept for the next process of an engine (MCDM-06).
pub const MAX_KERNEL_BYTES: usize = 64 << 20;

/// Bytes of a kernel's place in the tables of its process and of engines.
pub(in crate::vgpu) const KERNEL_OBJECT_BYTES: u64 = 512;

/// Whether an entry point can have this name.
pub fn is_entry_name(name: &str) -> bool {
    name.len() <= MAX_ENTRY_BYTES as usize && !name.chars().any(char::is_control)
}

/// The name of a kernel for an engine.
pub(in crate::vgpu) fn kernel_name(root: u64, handle: Handle) -> KernelName {
    KernelName { root, handle: handle.0 }
}

/// The kernels that there are: of devices that are active, and none that is about to go.
pub(in crate::vgpu) fn kernels_of(objects: &Objects) -> impl Iterator<Item = (KernelName, &KernelSource)> {
    let devices = objects.processes.values().filter_map(|process| process.device.as_ref());
    devices.filter(|device| device.is_active()).flat_map(|device| {
        let there = device.kernels.iter().filter(|(_, source)| !source.is_ending);
        there.map(|(handle, source)| (kernel_name(device.root.0, handle), source))
    })
}

impl EngineSlot {
    /// The kernel that was asked for first of those that are compiled for the first time, abandoned or not.
    pub fn oldest_kernel(&self) -> Option<(KernelName, &PendingKernel)> {
        let [compiling, abandoned] = [&self.compiling, &self.abandoned].map(oldest);
        compiling.into_iter().chain(abandoned).min_by_key(|(_, kernel)| kernel.number)
    }
}

impl Engines {
    /// The compute engines, one a physical adapter.
    pub(in crate::vgpu) fn compilers(&self) -> impl Iterator<Item = EngineAddress> + use<> {
        self.addresses().filter(|at| at.node == NodeKind::Compute)
    }

    /// Takes what waits for a kernel that an engine has compiled or refused; its compiler has stirred.
    fn take_compiled(&mut self, at: EngineAddress, kernel: KernelName) -> Option<PendingKernel> {
        let slot = &mut self[at.index()];
        slot.stirred = clock::now();
        let name = (kernel.root, kernel.handle);
        let taken = slot.compiling.remove(&name);
        let number = taken.or_else(|| slot.abandoned.remove(&name)).map(|kernel| kernel.number);
        // Those that were compiled before come before all of these.
        if let Some(number) = number.or_else(|| slot.rebuilding.contains(&name).then_some(0)) {
            begin_oldest([&mut slot.compiling, &mut slot.abandoned], number);
        }
        taken
    }

    /// The kernels that an engine's process was asked for before it took the place of another.
    pub(in crate::vgpu) fn take_ahead(&mut self, at: EngineAddress) -> BTreeSet<KernelName> {
        let process = self[at.index()].process_mut();
        process.map(|process| process.take_ahead().into_iter().collect()).unwrap_or_default()
    }

    /// Has the spare of an engine compile one more of the kernels that there are, where the engine itself owes none.
    pub(in crate::vgpu) fn compile_ahead(&mut self, at: EngineAddress, objects: &Objects) {
        let slot = &mut self[at.index()];
        if !slot.is_running() || slot.owes_kernels() {
            return;
        }
        let Some(process) = slot.process_mut() else { return };
        let asked: HashSet<KernelName> = process.compiled_ahead().iter().copied().collect();
        let next = kernels_of(objects).find(|(kernel, _)| !asked.contains(kernel));
        if let Some((kernel, source)) = next {
            process.compile_ahead(kernel, source.language, source.entry.clone(), &source.bytes);
        }
    }

    /// Whether any engine compiles this kernel for the first time.
    pub(super) fn is_compiling(&self, kernel: KernelName) -> bool {
        self.iter().any(|slot| slot.compiling.contains_key(&(kernel.root, kernel.handle)))
    }

    /// Takes the kernels that are compiled and for which `which` holds; where their answers go. Engines may be at them yet.
    pub(in crate::vgpu) fn take_compiling(&mut self, which: impl Fn(&PendingKernel) -> bool) -> Vec<Origin> {
        // Several engines may compile one.
        let mut all = BTreeMap::new();
        for slot in self.iter_mut() {
            let taken: Vec<_> = slot.compiling.extract_if(.., |_, kernel| which(kernel)).collect();
            all.extend(taken.iter().copied());
            if slot.hears() {
                slot.abandoned.extend(taken);
            }
        }
        all.into_values().map(|kernel| kernel.origin).collect()
    }
}

/// Kernels with the engines that compile them, and the outboxes through which engines are asked.
#[derive(Debug)]
pub struct Kernels<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Kernels<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Kernels<'_> {
    /// An engine has compiled a kernel. Answered when each has that was asked.
    pub(in crate::vgpu) fn kernel_created(
        &mut self,
        at: EngineAddress,
        kernel: KernelName,
        workgroup: [u32; 3],
        binding_count: u32,
        constant_bytes: u32,
    ) {
        let Some(pending) = self.vm.engines.take_compiled(at, kernel) else {
            return self.kernel_rebuilt(at, kernel);
        };
        if self.vm.engines.is_compiling(kernel) {
            return;
        }
        let reply =
            KernelCreated { kernel: pending.handle, workgroup, binding_count, constant_bytes, reserved: 0 };
        self.vm.answer(pending.origin, Ok(reply.as_bytes().to_vec()));
    }

    /// An engine has refused a kernel.
    pub(in crate::vgpu) fn kernel_refused(&mut self, at: EngineAddress, kernel: KernelName, reason: String) {
        let Some(pending) = self.vm.engines.take_compiled(at, kernel) else {
            return self.kernel_rebuilt(at, kernel);
        };
        self.refuse_kernel(at, kernel, pending, reason);
    }

    /// A kernel that is compiled comes to nothing, because of what became of it on `at`: other engines forget it.
    pub(in crate::vgpu) fn refuse_kernel(
        &mut self,
        at: EngineAddress,
        kernel: KernelName,
        pending: PendingKernel,
        text: String,
    ) {
        let _answered_below = self.vm.engines.take_compiling(|of| of.origin == pending.origin);
        let source = self.drop_kernel(pending.origin.context, pending.handle);
        self.vm.answer(pending.origin, Err(Refused { status: Status::KernelRefused, text }));
        for other in self.vm.engines.compilers().filter(|other| *other != at) {
            self.vm.engines.push_kernel_end(other, kernel, source.as_ref());
            self.flush_outbox(other);
        }
    }

    /// The next process of an engine has compiled a kernel again, or could not: then a buffer that names it faults.
    fn kernel_rebuilt(&mut self, at: EngineAddress, kernel: KernelName) {
        if self.vm.engines[at.index()].rebuilding.remove(&(kernel.root, kernel.handle)) {
            self.retry_waiting(at);
        }
    }

    /// Forgets a kernel, and its source, which messages about its end still hold.
    pub(in crate::vgpu) fn drop_kernel(
        &mut self,
        context: GuestProcess,
        handle: Handle,
    ) -> Option<Arc<SourceBytes>> {
        let device = self.vm.objects.device_mut(context).ok()?;
        let name = kernel_name(device.root.0, handle);
        let source = device.kernels.remove(handle)?;
        self.vm.objects.kernel_bytes -= source.bytes.len();
        self.vm.objects.kernel_board.remove(name);
        Some(source.bytes)
    }

    /// An engine knows a kernel no more.
    pub(in crate::vgpu) fn kernel_forgotten(&mut self, at: EngineAddress, kernel: KernelName) {
        let slot = &mut self.vm.engines[at.index()];
        slot.stirred = clock::now();
        slot.forgetting.remove(&(kernel.root, kernel.handle));
        let processes = &self.vm.objects.processes;
        let waits = |message: &mut WaitingMessage| {
            let device = processes.get(&message.origin.context).and_then(|process| process.device.as_ref());
            message.ended_kernel() == Some(Handle(kernel.handle))
                && device.is_some_and(|device| device.root.0 == kernel.root)
        };
        let ended: Vec<WaitingMessage> = slot.waiting.extract_if(.., waits).collect();
        self.vm.engines.to_handle.extend(ended);
    }

    pub(super) fn forget_kernel(&mut self, kernel: KernelName, source: &Arc<SourceBytes>) {
        for at in self.vm.engines.compilers() {
            self.vm.engines.push_kernel_end(at, kernel, Some(source));
            self.flush_outbox(at);
        }
    }

    /// Has the engines forget all kernels of a device that ended.
    pub(in crate::vgpu) fn forget_kernels(&mut self, device: &Device) {
        for (handle, source) in device.kernels.iter() {
            let name = kernel_name(device.root.0, handle);
            self.vm.objects.kernel_bytes -= source.bytes.len();
            self.vm.objects.kernel_board.remove(name);
            self.forget_kernel(name, &source.bytes);
        }
    }

    /// Sends what waits for an engine. An engine that cannot be asked is lost; kernels that cannot be sent are refused.
    pub(in crate::vgpu) fn flush_outbox(&mut self, at: EngineAddress) {
        let Flushed { lost, unsent } = self.vm.engines.flush(at, &self.vm.memory.segments);
        if let Some(text) = lost {
            self.vm.engines.condemn(at, &text);
        }
        for (kernel, reason) in unsent {
            self.kernel_refused(at, kernel, reason);
        }
    }

    /// Something that stood between messages and their engine is out of the way: they are to be handled.
    pub(in crate::vgpu) fn retry_waiting(&mut self, at: EngineAddress) {
        if self.vm.freeze.is_stopping() {
            return;
        }
        if let Err(text) = self.vm.engines.admit(at, &self.vm.config) {
            return self.vm.engines.condemn(at, &text);
        }
        if !self.vm.engines[at.index()].is_running() {
            return;
        }
        let waiting = std::mem::take(&mut self.vm.engines[at.index()].waiting);
        self.vm.engines.to_handle.extend(waiting);
    }

    /// Has a compute engine compile every kernel that there is, but for those that it was asked for as a spare: first those that were
    /// compiled, before which it runs nothing, then the others in the order in which they were asked for.
    pub(in crate::vgpu) fn compile_again(&mut self, at: EngineAddress) {
        let slot = &mut self.vm.engines[at.index()];
        let pending = |kernel: KernelName| slot.compiling.get(&(kernel.root, kernel.handle)).copied();
        let kernels = kernels_of(&self.vm.objects);
        let mut kernels: Vec<_> =
            kernels.map(|(kernel, source)| (pending(kernel), kernel, source.clone())).collect();
        kernels.sort_by_key(|(pending, ..)| pending.map(|kernel| kernel.number));
        let mut ahead = self.vm.engines.take_ahead(at);
        for (pending, kernel, source) in kernels {
            if pending.is_none() {
                self.vm.engines[at.index()].rebuilding.insert((kernel.root, kernel.handle));
            }
            if !ahead.remove(&kernel) {
                let alone = pending.is_some_and(|kernel| kernel.suspicion == Suspicion::Alone);
                self.vm.engines.push_kernel(at, kernel, &source, alone);
                self.flush_outbox(at);
            }
        }
        for gone in ahead {
            self.vm.engines.push_kernel_end(at, gone, None);
            self.flush_outbox(at);
        }
    }

    /// Its process has ended: refuses the kernel that it ended over, where it compiled one, or that is known. The others are compiled by
    /// the next process. `ran`: it ran work as well, which may be what it ended over.
    pub(in crate::vgpu) fn judge_compiling(&mut self, at: EngineAddress, ran: bool) {
        let slot = &mut self.vm.engines[at.index()];
        let is_at_others = !slot.rebuilding.is_empty() || !slot.abandoned.is_empty();
        if let Some(kernel) = judge_end(&mut slot.compiling, is_at_others, ran) {
            self.refuse_pending(at, kernel, "the engine ended while it compiled this kernel".to_owned());
        }
    }

    /// The oldest kernel that is compiled is not by now, which is why the process ends: refuses it, where it is waited for. Whose it is.
    pub(in crate::vgpu) fn refuse_overdue(
        &mut self,
        at: EngineAddress,
        text: String,
    ) -> Option<GuestProcess> {
        let slot = &self.vm.engines[at.index()];
        // Kernels that are compiled again come before all of these. None is refused for one of them.
        let oldest = slot.oldest_kernel().filter(|_| slot.rebuilding.is_empty());
        let of = oldest.map(|(kernel, pending)| (kernel, pending.origin.context));
        if let Some((kernel, _)) = of {
            self.refuse_pending(at, kernel, text);
        }
        clear_others(&mut self.vm.engines[at.index()].compiling);
        let (kernel, owner) = of?;
        // Its number may be that of another process by now.
        self.vm.objects.device(owner).is_ok_and(|device| device.root.0 == kernel.root).then_some(owner)
    }

    fn refuse_pending(&mut self, at: EngineAddress, kernel: KernelName, text: String) {
        if let Some(pending) = self.vm.engines[at.index()].compiling.remove(&(kernel.root, kernel.handle)) {
            self.refuse_kernel(at, kernel, pending, text);
        }
    }
}
