//! CREATE_KERNEL and DESTROY_KERNEL: see [`super::kernels`].

use crate::vgpu::control::request::NewKernel;
use crate::vgpu::engines::kernels::KERNEL_OBJECT_BYTES;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::engines::kernels::MAX_KERNEL_BYTES;
use crate::vgpu::engines::kernels::is_entry_name;
use crate::vgpu::engines::kernels::kernel_name;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::pending_kernel::PendingKernel;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::message::CREATE_KERNEL;
use campanile_protocol::control::message::DESTROY_KERNEL;
use campanile_protocol::control::message::LANGUAGES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::status::Status;
use std::sync::Arc;
use zerocopy::IntoBytes;

impl Lifecycle<'_> {
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
        self.vm.objects.device(origin.context)?.kernels.has_room().or(Status::OutOfResources)?;
        let Some(engines) = self.compilers_for(origin, create)? else {
            return Ok(Handled::Parked);
        };
        (self.vm.objects.kernel_bytes + source.len() <= MAX_KERNEL_BYTES).or(Status::OutOfResources)?;
        let price = SourceBytes::price(source.len(), entry.as_deref());
        let charge = self.vm.objects.charge(origin.context, Kind::Kernels, price)?;
        let object = self.vm.objects.charge(origin.context, Kind::Objects, KERNEL_OBJECT_BYTES)?;
        let origin = if origin.item.is_some() { origin } else { self.vm.objects.park(origin)? };
        let bytes = SourceBytes::new(source, charge);
        let kept = KernelSource { language: create.head.language, entry, bytes, is_ending: false };
        let device = self.vm.objects.device_mut(origin.context)?;
        // There is room: it was looked for above.
        let handle = device.kernels.insert(kept.clone(), object).ok_or(Status::OutOfResources)?;
        let kernel = kernel_name(device.root.0, handle);
        self.vm.objects.kernel_bytes += source.len();
        self.vm.objects.kernel_board.put(kernel, kept.clone());
        for at in &engines {
            let slot = &mut self.vm.engines[at.index()];
            if !slot.owes_kernels() {
                slot.stirred = clock::now();
            }
            if slot.is_running() {
                slot.kernels_asked += 1;
                let pending = PendingKernel::new(origin, handle, slot.kernels_asked);
                slot.compiling.insert((kernel.root, kernel.handle), pending);
            } else {
                slot.rebuilding.insert((kernel.root, kernel.handle));
            }
        }
        for at in engines {
            // An engine that cannot be asked is lost, and may take the kernel along.
            if self.vm.objects.device(origin.context).is_ok_and(|device| device.kernels.get(handle).is_some())
            {
                self.vm.engines.push_kernel(at, kernel, &kept, false);
                Kernels::of(self.vm).flush_outbox(at);
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
        let hears = |at: &EngineAddress| self.vm.engines[at.index()].hears();
        let there: Vec<EngineAddress> = self.vm.engines.compilers().filter(hears).collect();
        if !there.iter().any(|at| self.vm.engines[at.index()].is_running()) {
            let first = there.first().copied().unwrap_or(EngineAddress::new(0, NodeKind::Compute));
            self.ensure_engine(first)?;
            let _parked = self.wait_for_engine(origin, first, CREATE_KERNEL, create.body)?;
            return Ok(None);
        }
        if !there.iter().all(|at| self.vm.engines[at.index()].outbox.has_room(create.source.len())) {
            let text = "the engine has not read the kernels before this one yet".to_owned();
            return Err(Refused { status: Status::OutOfResources, text });
        }
        Ok(Some(there))
    }

    /// DESTROY_KERNEL: answered when no engine knows it any more. A buffer that is rung after that and names it faults.
    pub(in crate::vgpu) fn destroy_kernel(&mut self, origin: Origin, message: &Named) -> Outcome {
        let device = self.vm.objects.device(origin.context)?;
        let source = device.kernels.get(message.handle).ok_or(Status::InvalidHandle)?;
        let (is_asked, kernel) = (source.is_ending, kernel_name(device.root.0, message.handle));
        let bytes = Arc::clone(&source.bytes);
        // Only the message that asked may come again, from where it waited; one that was refused, as its device was lost.
        (!is_asked || origin.item.is_some() || !device.is_active()).or(Status::InvalidHandle)?;
        (!self.vm.engines.is_compiling(kernel)).or(Status::Busy)?;
        if !is_asked {
            if let Some(source) = self.vm.objects.device_mut(origin.context)?.kernels.get_mut(message.handle)
            {
                source.is_ending = true;
            }
            for at in self.vm.engines.compilers() {
                let slot = &mut self.vm.engines[at.index()];
                if slot.hears() {
                    if !slot.owes_kernels() {
                        slot.stirred = clock::now();
                    }
                    slot.forgetting.insert((kernel.root, kernel.handle));
                }
            }
            Kernels::of(self.vm).forget_kernel(kernel, &bytes);
        }
        // What is in error runs nothing any more.
        let runs = self.vm.objects.device(origin.context)?.is_active();
        let knows = |at: &EngineAddress| {
            self.vm.engines[at.index()].forgetting.contains(&(kernel.root, kernel.handle))
        };
        if let Some(at) = self.vm.engines.compilers().find(knows).filter(|_| runs) {
            return self.wait_for_engine(origin, at, DESTROY_KERNEL, message.as_bytes());
        }
        Kernels::of(self.vm).drop_kernel(origin.context, message.handle);
        Ok(Handled::done())
    }
}
