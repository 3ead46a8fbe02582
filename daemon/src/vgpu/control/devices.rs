//! Devices: the first object of a guest process, and its end.

use campanile_host_gpu::adapter::Adapter;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::queue::doorbell::DoorbellStatus;

use crate::ids::GuestProcess;
use crate::ledger::log::Key;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::memory::mapping::MAPPING_BYTES;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::device_page::DevicePage;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::vm::Vm;

/// Whether a process may have a device; else why not.
pub(in crate::vgpu) fn admission(vm: &Vm, context: GuestProcess) -> Result<(), Refused> {
    // MCDM-41: the second request fails, and does not wait.
    let has_device = |(other, process): (&GuestProcess, &crate::vgpu::objects::process::Process)| {
        *other != context && process.device.is_some()
    };
    if vm.config.single_use && vm.objects.processes.iter().any(has_device) {
        let text = "this device is single-use, and another process has it".to_owned();
        return Err(Refused { status: Status::Busy, text });
    }
    let blocked = |text: String| Refused { status: Status::Blocked, text };
    if let Some(quarantine) = vm.config.standing.quarantined() {
        return Err(blocked(format!("this vGPU is quarantined: {}", quarantine.why)));
    }
    match vm.objects.processes.get(&context).and_then(|process| process.blocked) {
        None => Ok(()),
        Some(report) => Err(blocked(format!(
            "this process hung the GPU more than {} times within {} s (report {report})",
            vm.config.policy.process_limit(),
            vm.config.policy.limit_time.as_secs()
        ))),
    }
}

/// Devices of guest processes: how they begin, fail and end.
#[derive(Debug)]
pub struct Devices<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Devices<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Devices<'_> {
    /// CREATE_DEVICE. A page that cannot be used is refused through the front, since nothing can be written
    /// there; anything else is answered in it. None is opened where the device is about to be taken away.
    pub(in crate::vgpu) fn open_device(
        &mut self,
        origin: Origin,
        message: &CreateDevice,
        is_leaving: bool,
    ) -> Result<(), Refusal> {
        if self.vm.engines.has_too_much_pending() {
            return Err(Refusal::OutOfMemory);
        }
        let refused = |refused: Refused| match refused.status {
            Status::OutOfResources => Refusal::OutOfMemory,
            Status::InvalidResource => Refusal::Resource,
            _ => Refusal::Parameter,
        };
        let page = self
            .vm
            .memory
            .attached_allocation(&self.vm.objects, origin.context, message.page_resource)
            .map_err(refused)?;
        let end = message.page_offset.checked_add(device_page::DEVICE_PAGE_BYTES);
        let inside = end.is_some_and(|end| end <= self.vm.memory.allocations.size(page));
        if !inside || !message.page_offset.is_multiple_of(PAGE_SIZE) {
            return Err(Refusal::Parameter);
        }
        let spot = self.vm.memory.allocations.locate(page, self.vm.memory.residency.epoch);
        // The daemon writes it, and sees no memory of a device.
        if matches!(spot, Spot::Segment(SegmentId::LOCAL, _)) {
            return Err(Refusal::Parameter);
        }
        // Guest RAM is there for the daemon, whether engines know it already or not.
        let there =
            matches!(spot, Spot::Segment(..)) || self.vm.memory.allocations.guest_segment(page).is_some();
        if !there && !self.vm.memory.allocations.bring_back(page, self.vm.memory.residency.epoch) {
            return Err(Refusal::OutOfMemory);
        }
        self.vm.memory.remap(page, &mut self.vm.journal);
        let guest = self.vm.memory.map_guest_page(page, message.page_offset)?;
        let root = self.vm.memory.tables.create_root().map_err(|_| Refusal::OutOfMemory)?;
        let kernels = self.vm.objects.kernel_generation();
        let process = self.vm.objects.processes.get_mut(&origin.context).ok_or(Refusal::Context)?;
        self.vm.memory.allocations.retain(page);
        let page_of =
            DevicePage { allocation: page, offset: message.page_offset, va: message.page_va, guest };
        // The address space may be that of a device that has ended, of whose kernels engines are still to speak.
        process.device = Some(Device::new(page_of, root, kernels));
        if let Some(allocation) = self.vm.memory.allocations.get_mut(page) {
            allocation.pins += 1;
        }
        let (size, offset) = (device_page::DEVICE_PAGE_BYTES, message.page_offset);
        let mapping = GpuMapping { size, allocation: page, offset, writable: true };
        let (va, objects) = (message.page_va, &mut self.vm.objects);
        let charge = objects.charge(origin.context, Kind::Mappings, MAPPING_BYTES);
        let mapped = charge.and_then(|charge| {
            self.vm.memory.map_range(objects, origin.context, va, Mapped { mapping, charge })
        });
        let leaving =
            || Refused { status: Status::Leaving, text: "the device is about to be taken away".to_owned() };
        let admission = if is_leaving { Err(leaving()) } else { admission(self.vm, origin.context) };
        let version = (message.protocol_version >> 16 == PROTOCOL_VERSION >> 16).or(Status::VersionMismatch);
        if let Err(error) = mapped {
            self.end_device(origin.context);
            return Err(refused(error));
        }
        if let Err(status) = version {
            let text = format!(
                "the guest speaks protocol {:#x}, the daemon {PROTOCOL_VERSION:#x}",
                message.protocol_version
            );
            self.vm.answer(origin, Err(Refused { status, text }));
            self.end_device(origin.context);
            return Ok(());
        }
        if let Err(refused) = admission {
            self.vm.answer(origin, Err(refused));
            self.end_device(origin.context);
            return Ok(());
        }
        self.prepare_page(origin.context);
        self.vm.answer(origin, Ok(Vec::new()));
        Ok(())
    }

    /// Status words first: zero would read as CONNECTED (UMS-49).
    fn prepare_page(&self, context: GuestProcess) {
        let Ok(device) = self.vm.objects.device(context) else { return };
        let Some(page) = device.page.view(&self.vm.memory.allocations, &self.vm.memory.dirty) else {
            return;
        };
        for index in 0..device_page::MAX_QUEUES {
            page.store(device_page::status(index), DoorbellStatus::DisconnectedRetry.word());
        }
        for offset in [device_page::LOSS, device_page::LOSS_REPORT, device_page::LEAVE] {
            page.store(offset, 0);
        }
        page.store(device_page::BUDGET, self.vm.memory.residency.budget);
        page.store(device_page::DEVICE_STATUS, device.status);
        self.vm.config.ledger.put(Key::Page(context), &page.place());
    }

    /// Writes for a daemon after this one where the device pages of all processes are, of a session that was another's.
    pub(in crate::vgpu) fn write_pages(&self) {
        let ledger = &self.vm.config.ledger;
        for (context, process) in self.vm.objects.processes.iter().filter(|(_, process)| !process.is_away()) {
            let page = process
                .device
                .as_ref()
                .and_then(|device| device.page.view(&self.vm.memory.allocations, &self.vm.memory.dirty));
            if let Some(page) = page {
                ledger.put(Key::Page(*context), &page.place());
            }
        }
    }

    /// DESTROY_DEVICE: answered first, since the page goes with it.
    pub(in crate::vgpu) fn destroy_device(&mut self, origin: Origin) -> Outcome {
        self.vm.objects.device(origin.context)?;
        self.vm.answer(origin, Ok(Vec::new()));
        self.end_device(origin.context);
        Ok(Handled::Parked)
    }

    /// Ends a device whatever its state: every doorbell ABORT, every queue off the engines, every waiter
    /// answered; then, once the engines have let go, its memory. Nothing waits for the guest's fence (UMS-129).
    pub(in crate::vgpu) fn end_device(&mut self, context: GuestProcess) {
        if self.vm.objects.device(context).is_err() {
            return;
        }
        self.stop_device(context, device_page::DEVICE_STOPPED);
        let Some(device) = self.vm.objects.take_device(context) else { return };
        self.vm.config.ledger.remove(Key::Page(context));
        for at in self.vm.engines.addresses() {
            let slot = &mut self.vm.engines[at.index()];
            if let Some(process) = slot.process_mut()
                && let Some(entry) = device.presence[at.index()]
            {
                process.destroy_process(entry);
            }
        }
        for (_, context) in device.contexts.iter() {
            if let Some((process, entry)) =
                self.vm.engines[context.at.index()].process_mut().zip(context.entry)
            {
                process.destroy_context(entry);
                self.vm.engines[context.at.index()].run_list.remove(entry);
            }
        }
        self.vm.engines.disown_buffers(&mut self.vm.objects, context);
        Kernels::of(self.vm).forget_kernels(&device);
        let mut held: Vec<_> = device.mappings.values().map(|mapping| mapping.allocation).collect();
        held.extend(device.doorbells.iter().flat_map(|(_, doorbell)| [doorbell.ring, doorbell.control]));
        held.push(device.page.allocation);
        held.extend(device.paging.held());
        for (va, mapping) in &device.mappings {
            self.vm.memory.residency.shown.remove(mapping.allocation, device.root, *va);
        }
        self.vm.memory.residency.forget_space(device.root);
        for (allocation, hold) in &device.holds {
            self.vm.memory.drop_holds(*allocation, hold.count);
        }
        if let Some(allocation) = self.vm.memory.allocations.get_mut(device.page.allocation) {
            allocation.pins -= 1;
        }
        let own = device.contexts.iter().map(|(_, context)| context.area);
        Deferred::of(self.vm).free_areas(own.chain(device.area).collect());
        let barrier = Barrier::raise(&mut self.vm.engines);
        Deferred::of(self.vm).close_fences_of(&device, barrier);
        Deferred::of(self.vm).after(barrier, Action::DestroyRoot(device.root));
        // As long as engines have it, and these lists wait for them.
        let mut charges: Vec<Charge> = device.mappings.into_values().map(|mapped| mapped.charge).collect();
        charges.extend(device.paging.into_charges());
        charges.extend(device.doorbells.into_charges());
        charges.extend(device.contexts.into_charges());
        charges.extend(device.fences.into_charges());
        Deferred::of(self.vm).after_charged(barrier, Action::Release(held), charges);
    }
}
