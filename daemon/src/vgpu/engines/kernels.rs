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
use campanile_protocol::control::message::CREATE_KERNEL;
use campanile_protocol::control::message::DESTROY_KERNEL;
use campanile_protocol::control::message::LANGUAGES;
use campanile_protocol::control::message::MAX_ENTRY_BYTES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::slot::PendingKernel;
use super::slot::WaitingMessage;
use crate::vgpu::control::request::NewKernel;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::session::Session;

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

impl Engines {
    /// The compute engines, one a physical adapter.
    pub(in crate::vgpu) fn compilers(&self) -> impl Iterator<Item = EngineAddress> + use<> {
        self.addresses().filter(|at| at.node == NodeKind::Compute)
    }

    /// Takes what waits for a kernel that an engine has compiled or refused; its compiler has stirred.
    fn take_compiled(&mut self, at: EngineAddress, kernel: KernelName) -> Option<PendingKernel> {
        let slot = &mut self[at.index()];
        slot.stirred = clock::now();
        slot.compiling.remove(&(kernel.root, kernel.handle))
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
    fn is_compiling(&self, kernel: KernelName) -> bool {
        self.iter().any(|slot| slot.compiling.contains_key(&(kernel.root, kernel.handle)))
    }

    /// Takes the kernels that are compiled and for which `which` holds; where their answers go.
    pub(in crate::vgpu) fn take_compiling(&mut self, which: impl Fn(&PendingKernel) -> bool) -> Vec<Origin> {
        let slots = self.iter_mut();
        let taken = slots.flat_map(|slot| slot.compiling.extract_if(.., |_, kernel| which(kernel)));
        // Several engines may compile one.
        let taken: BTreeMap<(u64, u64), PendingKernel> = taken.collect();
        taken.into_values().map(|kernel| kernel.origin).collect()
    }
}

impl Session {
    /// CREATE_KERNEL: answered when it is compiled and warm, or refused.
    pub(in crate::vgpu) fn create_kernel(&mut self, origin: Origin, create: &NewKernel<'_>) -> Outcome {
        (create.head.reserved == 0).or(Status::InvalidParameter)?;
        LANGUAGES.contains(&create.head.language).or(Status::NotSupported)?;
        let entry = match create.entry {
            None => None,
            Some(name) => {
                let entry = std::str::from_utf8(name).map_err(|_| Status::InvalidParameter)?;
                is_entry_name(entry).or(Status::InvalidParameter)?;
                Some(entry.to_owned())
            }
        };
        let source = create.source;
        self.rooms.objects.device(origin.context)?.kernels.has_room().or(Status::OutOfResources)?;
        let Some(engines) = self.compilers_for(origin, create)? else {
            return Ok(Handled::Parked);
        };
        (self.rooms.objects.kernel_bytes + source.len() <= MAX_KERNEL_BYTES).or(Status::OutOfResources)?;
        let price = SourceBytes::price(source.len(), entry.as_deref());
        let charge = self.rooms.objects.charge(origin.context, Kind::Kernels, price)?;
        let object = self.rooms.objects.charge(origin.context, Kind::Objects, KERNEL_OBJECT_BYTES)?;
        let origin = if origin.item.is_some() { origin } else { self.rooms.objects.park(origin)? };
        let bytes = SourceBytes::new(source, charge);
        let kept = KernelSource { language: create.head.language, entry, bytes, is_ending: false };
        let device = self.rooms.objects.device_mut(origin.context)?;
        // There is room: it was looked for above.
        let handle = device.kernels.insert(kept.clone(), object).ok_or(Status::OutOfResources)?;
        let kernel = kernel_name(device.root.0, handle);
        self.rooms.objects.kernel_bytes += source.len();
        for at in &engines {
            let slot = &mut self.rooms.engines[at.index()];
            if !slot.owes_kernels() {
                slot.stirred = clock::now();
            }
            if slot.is_running() {
                slot.kernels_asked += 1;
                let pending = PendingKernel { origin, handle, number: slot.kernels_asked };
                slot.compiling.insert((kernel.root, kernel.handle), pending);
            } else {
                slot.rebuilding.insert((kernel.root, kernel.handle));
            }
        }
        for at in engines {
            // An engine that cannot be asked is lost, and may take the kernel along.
            if self
                .rooms
                .objects
                .device(origin.context)
                .is_ok_and(|device| device.kernels.get(handle).is_some())
            {
                self.rooms.engines.push_kernel(at, kernel, &kept);
                self.flush_outbox(at);
            }
        }
        Ok(Handled::Parked)
    }

    /// The engines that have to compile a new kernel: every compute engine that has a process. The answer waits for those
    /// that run; one that is on its way up compiles it before it runs. `None`: none runs, and the message is parked.
    fn compilers_for(
        &mut self,
        origin: Origin,
        create: &NewKernel<'_>,
    ) -> Result<Option<Vec<EngineAddress>>, Refused> {
        let hears = |at: &EngineAddress| self.rooms.engines[at.index()].hears();
        let there: Vec<EngineAddress> = self.rooms.engines.compilers().filter(hears).collect();
        if !there.iter().any(|at| self.rooms.engines[at.index()].is_running()) {
            let first = there.first().copied().unwrap_or(EngineAddress::new(0, NodeKind::Compute));
            self.ensure_engine(first)?;
            let _parked = self.wait_for_engine(origin, first, CREATE_KERNEL, create.body)?;
            return Ok(None);
        }
        if !there.iter().all(|at| self.rooms.engines[at.index()].outbox.has_room(create.source.len())) {
            let text = "the engine has not read the kernels before this one yet".to_owned();
            return Err(Refused { status: Status::OutOfResources, text });
        }
        Ok(Some(there))
    }

    /// An engine has compiled a kernel. Answered when each has that was asked.
    pub(in crate::vgpu) fn kernel_created(
        &mut self,
        at: EngineAddress,
        kernel: KernelName,
        workgroup: [u32; 3],
        binding_count: u32,
        constant_bytes: u32,
    ) {
        let Some(pending) = self.rooms.engines.take_compiled(at, kernel) else {
            return self.kernel_rebuilt(at, kernel);
        };
        if self.rooms.engines.is_compiling(kernel) {
            return;
        }
        let reply =
            KernelCreated { kernel: pending.handle, workgroup, binding_count, constant_bytes, reserved: 0 };
        self.answer(pending.origin, Ok(reply.as_bytes().to_vec()));
    }

    /// An engine has refused a kernel.
    pub(in crate::vgpu) fn kernel_refused(&mut self, at: EngineAddress, kernel: KernelName, reason: String) {
        let Some(pending) = self.rooms.engines.take_compiled(at, kernel) else {
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
        for slot in self.rooms.engines.iter_mut() {
            slot.compiling.remove(&(kernel.root, kernel.handle));
        }
        let source = self.drop_kernel(pending.origin.context, pending.handle);
        self.answer(pending.origin, Err(Refused { status: Status::KernelRefused, text }));
        for other in self.rooms.engines.compilers().filter(|other| *other != at) {
            self.rooms.engines.push_kernel_end(other, kernel, source.as_ref());
            self.flush_outbox(other);
        }
    }

    /// The next process of an engine has compiled a kernel again, or could not: then a buffer that names it faults.
    fn kernel_rebuilt(&mut self, at: EngineAddress, kernel: KernelName) {
        if self.rooms.engines[at.index()].rebuilding.remove(&(kernel.root, kernel.handle)) {
            self.retry_waiting(at);
        }
    }

    /// Forgets a kernel, and its source, which messages about its end still hold.
    pub(in crate::vgpu) fn drop_kernel(&mut self, context: u32, handle: Handle) -> Option<Arc<SourceBytes>> {
        let source = self.rooms.objects.device_mut(context).ok()?.kernels.remove(handle)?;
        self.rooms.objects.kernel_bytes -= source.bytes.len();
        Some(source.bytes)
    }

    /// DESTROY_KERNEL: answered when no engine knows it any more. A buffer that is rung after that and names it faults.
    pub(in crate::vgpu) fn destroy_kernel(&mut self, origin: Origin, message: &Named) -> Outcome {
        let device = self.rooms.objects.device(origin.context)?;
        let source = device.kernels.get(message.handle).ok_or(Status::InvalidHandle)?;
        let (is_asked, kernel) = (source.is_ending, kernel_name(device.root.0, message.handle));
        let bytes = Arc::clone(&source.bytes);
        // Only the message that asked may come again, from where it waited; one that was refused, as its device was lost.
        (!is_asked || origin.item.is_some() || !device.is_active()).or(Status::InvalidHandle)?;
        (!self.rooms.engines.is_compiling(kernel)).or(Status::Busy)?;
        if !is_asked {
            if let Some(source) =
                self.rooms.objects.device_mut(origin.context)?.kernels.get_mut(message.handle)
            {
                source.is_ending = true;
            }
            for at in self.rooms.engines.compilers() {
                let slot = &mut self.rooms.engines[at.index()];
                if slot.hears() {
                    if !slot.owes_kernels() {
                        slot.stirred = clock::now();
                    }
                    slot.forgetting.insert((kernel.root, kernel.handle));
                }
            }
            self.forget_kernel(kernel, &bytes);
        }
        // What is in error runs nothing any more.
        let runs = self.rooms.objects.device(origin.context)?.is_active();
        let knows = |at: &EngineAddress| {
            self.rooms.engines[at.index()].forgetting.contains(&(kernel.root, kernel.handle))
        };
        if let Some(at) = self.rooms.engines.compilers().find(knows).filter(|_| runs) {
            return self.wait_for_engine(origin, at, DESTROY_KERNEL, message.as_bytes());
        }
        self.drop_kernel(origin.context, message.handle);
        Ok(Handled::done())
    }

    /// An engine knows a kernel no more.
    pub(in crate::vgpu) fn kernel_forgotten(&mut self, at: EngineAddress, kernel: KernelName) {
        let slot = &mut self.rooms.engines[at.index()];
        slot.stirred = clock::now();
        slot.forgetting.remove(&(kernel.root, kernel.handle));
        let processes = &self.rooms.objects.processes;
        let waits = |message: &mut WaitingMessage| {
            let device = processes.get(&message.origin.context).and_then(|process| process.device.as_ref());
            message.ended_kernel() == Some(Handle(kernel.handle))
                && device.is_some_and(|device| device.root.0 == kernel.root)
        };
        let ended: Vec<WaitingMessage> = slot.waiting.extract_if(.., waits).collect();
        for message in ended {
            self.handle(message.origin, message.request());
        }
    }

    fn forget_kernel(&mut self, kernel: KernelName, source: &Arc<SourceBytes>) {
        for at in self.rooms.engines.compilers() {
            self.rooms.engines.push_kernel_end(at, kernel, Some(source));
            self.flush_outbox(at);
        }
    }

    /// Has the engines forget all kernels of a device that ended.
    pub(in crate::vgpu) fn forget_kernels(&mut self, device: &Device) {
        for (handle, source) in device.kernels.iter() {
            self.rooms.objects.kernel_bytes -= source.bytes.len();
            self.forget_kernel(kernel_name(device.root.0, handle), &source.bytes);
        }
    }
}
