//! Blobs: what fronts ask of them, and their moves in and out of the window.

use campanile_protocol::virtio_gpu::blob::MemEntry;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::hotplug::absences::Absences;
use crate::vgpu::hotplug::absences::KeptBlob;
use crate::vgpu::memory::blobs::ATTACHED_BYTES;
use crate::vgpu::memory::blobs::BLOB_BYTES;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::blobs::find_runs;
use crate::vgpu::memory::blobs::is_of_file;
use crate::vgpu::memory::blobs::pieces_of;
use crate::vgpu::memory::segments::GuestSegment;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::vm::Vm;

/// Blobs, as fronts ask for them.
#[derive(Debug)]
pub struct Blobs<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
    pub(in crate::vgpu) away: &'a mut Absences,
}

impl<'a> Blobs<'a> {
    /// Over these.
    pub fn of(vm: &'a mut Vm, away: &'a mut Absences) -> Self {
        Self { vm, away }
    }
}

impl Blobs<'_> {
    /// Creates a blob of video memory.
    pub fn create_vram_blob(&mut self, resource: u32, size: u64, mappable: bool) -> Result<(), Refusal> {
        self.vm.is_fresh = false;
        self.vm.memory.check_new_blob(resource, size)?;
        let charge = self.vm.purse.charge(Kind::Blobs, BLOB_BYTES)?;
        let allocation = self.vm.memory.allocations.create_vram(size).map_err(|_| Refusal::OutOfMemory)?;
        let (is_vram, shown, name) = (true, Shown::No, None);
        self.vm.memory.blobs.insert(resource, Blob { allocation, is_vram, mappable, shown, name, charge });
        Ok(())
    }

    /// Creates a blob of guest pages; due when every engine has mapped them.
    pub fn create_guest_blob(
        &mut self,
        resource: u32,
        size: u64,
        entries: &[MemEntry],
        token: Token,
    ) -> Result<(), Refusal> {
        self.vm.is_fresh = false;
        self.vm.memory.check_new_blob(resource, size)?;
        let memory = self.vm.memory.guest_memory.as_ref().ok_or(Refusal::Unspecified)?;
        let window = self.vm.memory.allocations.memory().file();
        let (runs, files) = find_runs(memory, window, entries)?;
        let total: u64 = runs.iter().map(|run| run.length).sum();
        if total != size {
            return Err(Refusal::Parameter);
        }
        // Pages may be named more than once, but a list that is longer than the VM's memory is no honest one.
        let ram = memory.iter().filter(|region| !is_of_file(region, window)).map(|region| region.len()).sum();
        if total > ram {
            return Err(Refusal::Parameter);
        }
        let segment = GuestSegment::new(runs, files, pieces_of(entries));
        let charge = self.vm.purse.charge(Kind::Blobs, BLOB_BYTES)?;
        let pages = self.vm.purse.charge(Kind::Blobs, segment.price())?;
        let id = self.vm.memory.segments.insert(segment, pages).ok_or(Refusal::OutOfMemory)?;
        let allocation = self.vm.memory.allocations.create_guest(id, size);
        let (is_vram, mappable, shown, name) = (false, false, Shown::No, None);
        self.vm.memory.blobs.insert(resource, Blob { allocation, is_vram, mappable, shown, name, charge });
        Deferred::of(self.vm).introduce_segment(allocation);
        let barrier = Barrier::announced(&self.vm.engines);
        Deferred::of(self.vm).after(barrier, Action::Answer(token));
        Ok(())
    }

    /// Shows a blob at `offset` of the window; due when it is there.
    pub fn map_blob(&mut self, resource: u32, offset: u64, token: Token) -> Result<(), Refusal> {
        Deferred::of(self.vm).map_blob(resource, offset, token)
    }

    /// Takes a blob out of the window, contents preserved; due when it is out.
    pub fn unmap_blob(&mut self, resource: u32, token: Token) -> Result<(), Refusal> {
        let blob = self.vm.memory.blobs.get(&resource).ok_or(Refusal::Resource)?;
        if blob.shown != Shown::Yes {
            return Err(Refusal::Parameter);
        }
        let allocation = blob.allocation;
        let target =
            self.vm.memory.allocations.begin_move_out(allocation).map_err(|_| Refusal::OutOfMemory)?;
        Deferred::of(self.vm).start_move(resource, allocation, target, token);
        Ok(())
    }

    /// The guest gives its name for a blob up. Its memory goes when nothing refers to it any more (UMS-82).
    pub fn unref_blob(&mut self, resource: u32) -> Result<(), Refusal> {
        if !self.vm.memory.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        for process in self.vm.objects.processes.values_mut() {
            process.attached.remove(&resource);
        }
        match self.vm.memory.blobs.remove(&resource) {
            Some(blob) if blob.name.is_some() => self.keep_blob(blob),
            Some(blob) => GuestPages::of(self.vm).release_allocation(blob.allocation),
            None => {}
        }
        Ok(())
    }

    /// As [`Self::unref_blob`]; due when its memory is no longer reached: no mapping, and no engine. While a process
    /// has it mapped that is never.
    pub fn retire_blob(&mut self, resource: u32, token: Token) -> Result<(), Refusal> {
        let blob = self.vm.memory.blobs.get(&resource).ok_or(Refusal::Resource)?;
        match self.vm.memory.allocations.guest_segment(blob.allocation) {
            Some(segment) => drop(self.vm.memory.retired.insert(segment.0, token)),
            None => self.vm.objects.due.push((token, Ok(()))),
        }
        self.unref_blob(resource)
    }

    /// A context may name a resource.
    pub fn attach(&mut self, context: FrontContext, resource: u32) -> Result<(), Refusal> {
        let own = self.away.own_context(&self.vm.objects, context)?;
        if !self.vm.memory.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        if self.vm.objects.processes.get(&own).is_some_and(|process| process.attached.contains_key(&resource))
        {
            return Ok(());
        }
        let charge = self.charge_name(context)?;
        self.attach_charged(context, resource, charge)
    }

    /// Charges a context for the name of a resource, before there is one.
    pub fn charge_name(&self, context: FrontContext) -> Result<Charge, Refusal> {
        let process = self
            .vm
            .objects
            .processes
            .get(&self.away.own_context(&self.vm.objects, context)?)
            .ok_or(Refusal::Context)?;
        Ok(process.purse.charge(Kind::Blobs, ATTACHED_BYTES)?)
    }

    /// As [`Self::attach`], with what was charged for it.
    pub fn attach_charged(
        &mut self,
        context: FrontContext,
        resource: u32,
        charge: Charge,
    ) -> Result<(), Refusal> {
        let context = self.away.own_context(&self.vm.objects, context)?;
        let process = self.vm.objects.processes.get_mut(&context).ok_or(Refusal::Context)?;
        process.attached.insert(resource, charge);
        Ok(())
    }

    /// Charges the VM for something that its front keeps.
    pub fn charge_front(&self, bytes: u64) -> Result<Charge, Refusal> {
        Ok(self.vm.purse.charge(Kind::Files, bytes)?)
    }

    /// A context may no longer name a resource. What it has mapped stays mapped.
    pub fn detach(&mut self, context: FrontContext, resource: u32) -> Result<(), Refusal> {
        let context = self.away.own_context(&self.vm.objects, context)?;
        let process = self.vm.objects.processes.get_mut(&context).ok_or(Refusal::Context)?;
        process.attached.remove(&resource).map(drop).ok_or(Refusal::Resource)
    }

    /// A guest has given up its name for a blob of a process that is away.
    pub(in crate::vgpu) fn keep_blob(&mut self, blob: Blob) {
        let owner = blob.name.and_then(|name| {
            let of = |process: &&Process| {
                process.away.is_some_and(|away| name.wrapping_sub(away.parked.names) <= u64::from(u32::MAX))
            };
            self.vm.objects.processes.iter().find(|(_, process)| of(process)).map(|(own, _)| *own)
        });
        match (blob.name, owner) {
            (Some(name), Some(owner)) => {
                let blob = Blob { shown: Shown::No, ..blob };
                if let Some(before) = self.away.kept.insert(name, KeptBlob { blob, owner }) {
                    GuestPages::of(self.vm).release_allocation(before.blob.allocation);
                }
            }
            _ => GuestPages::of(self.vm).release_allocation(blob.allocation),
        }
    }

    /// Frees what a process has left of what it had.
    pub(in crate::vgpu) fn drop_kept(&mut self, own: GuestProcess) {
        let left: Vec<KeptBlob> =
            self.away.kept.extract_if(.., |_, kept| kept.owner == own).map(|(_, kept)| kept).collect();
        for kept in left {
            GuestPages::of(self.vm).release_allocation(kept.blob.allocation);
        }
    }

    /// As if no process had ever gone.
    pub(in crate::vgpu) fn forget_absences(&mut self) {
        let kept = std::mem::take(self.away).kept;
        kept.into_values().for_each(|kept| GuestPages::of(self.vm).release_allocation(kept.blob.allocation));
    }

    /// RESOURCE_CREATE_BLOB with a name: a process that comes back makes its blob again.
    pub fn take_blob_again(&mut self, resource: u32, size: u64, name: u64) -> Result<(), Refusal> {
        self.vm.is_fresh = false;
        self.vm.memory.check_new_blob(resource, size)?;
        let is_its = |kept: &&KeptBlob| self.vm.memory.allocations.size(kept.blob.allocation) == size;
        let kept = self.away.kept.get(&name).filter(is_its);
        kept.filter(|kept| kept.blob.is_vram).ok_or(Refusal::Parameter)?;
        if let Some(kept) = self.away.kept.remove(&name) {
            self.vm.memory.blobs.insert(resource, kept.blob);
        }
        Ok(())
    }
}
