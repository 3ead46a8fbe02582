//! Blob resources, as a front speaks of them.
//!
//! ```text
//!   create ─▶ unmapped ──map (paging move in)──▶ mapped at the guest's offset ──unmap (move out)──▶ unmapped
//!                 └───────────────────────────── unref: freed when nothing refers to the memory ──────┘
//! ```

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use campanile_host_gpu::engine::message::MAX_RUNS;
use campanile_host_gpu::engine::message::RunRecord;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;

use super::segments::GuestSegment;
use super::vidmm::allocations::Spot;
use super::vidmm::vram::Place;
use super::window::Window;
use crate::guest_ram::memory::GuestRam;
use crate::guest_ram::memory::GuestRegion;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::session::Session;

/// Blobs of one VM (MCDM-06).
pub const MAX_BLOBS: usize = 64 * 1024;

/// Bytes of a blob: itself, its allocation and its place.
pub(in crate::vgpu) const BLOB_BYTES: u64 = 512;
/// Bytes of a name that a process has for a blob.
pub(in crate::vgpu) const ATTACHED_BYTES: u64 = 96;

/// Where a blob stands with the guest's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Not in the window.
    No,
    /// On its way in or out.
    Moving,
    /// In the window.
    Yes,
}

/// A blob resource.
#[derive(Debug)]
pub struct Blob {
    /// Its memory; one reference.
    pub allocation: AllocationId,
    /// Whether it is video memory.
    pub is_vram: bool,
    /// Whether it may be mapped.
    pub mappable: bool,
    /// Whether it is.
    pub shown: Shown,
    /// By which its process, which is away, will ask for it again.
    pub name: Option<u64>,
    /// What was charged for it.
    pub charge: Charge,
}

impl Session {
    /// Creates a blob of video memory.
    pub fn create_vram_blob(&mut self, resource: u32, size: u64, mappable: bool) -> Result<(), Refusal> {
        self.check_new_blob(resource, size)?;
        let charge = self.purse.charge(Kind::Blobs, BLOB_BYTES)?;
        let allocation = self.allocations.create_vram(size).map_err(|_| Refusal::OutOfMemory)?;
        let (is_vram, shown, name) = (true, Shown::No, None);
        self.blobs.insert(resource, Blob { allocation, is_vram, mappable, shown, name, charge });
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
        self.check_new_blob(resource, size)?;
        let memory = self.guest_memory.as_ref().ok_or(Refusal::Unspecified)?;
        let window = self.allocations.memory().file();
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
        let charge = self.purse.charge(Kind::Blobs, BLOB_BYTES)?;
        let pages = self.purse.charge(Kind::Blobs, segment.price())?;
        let id = self.segments.insert(segment, pages).ok_or(Refusal::OutOfMemory)?;
        let allocation = self.allocations.create_guest(id, size);
        let (is_vram, mappable, shown, name) = (false, false, Shown::No, None);
        self.blobs.insert(resource, Blob { allocation, is_vram, mappable, shown, name, charge });
        self.introduce_segment(allocation);
        let barrier = Barrier::announced(&self.engines);
        self.after(barrier, Action::Answer(token));
        Ok(())
    }

    pub(in crate::vgpu) fn check_new_blob(&mut self, resource: u32, size: u64) -> Result<(), Refusal> {
        self.is_fresh = false;
        if resource == 0 || self.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        if size == 0 || !size.is_multiple_of(PAGE_SIZE) {
            return Err(Refusal::Parameter);
        }
        if self.blobs.len() >= MAX_BLOBS { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    /// Shows a blob at `offset` of the window; due when it is there.
    pub fn map_blob(&mut self, resource: u32, offset: u64, token: Token) -> Result<(), Refusal> {
        match &mut self.window {
            Window::Open => {}
            Window::Never => return Err(Refusal::Unspecified),
            Window::Awaited(waiting) if waiting.len() < MAX_BLOBS => {
                waiting.push((resource, offset, token));
                return Ok(());
            }
            Window::Awaited(_) => return Err(Refusal::OutOfMemory),
        }
        if self.has_too_much_pending() {
            return Err(Refusal::OutOfMemory);
        }
        let blob = self.blobs.get(&resource).ok_or(Refusal::Resource)?;
        if !blob.mappable || blob.shown != Shown::No || !offset.is_multiple_of(PAGE_SIZE) {
            return Err(Refusal::Parameter);
        }
        let allocation = blob.allocation;
        if self.allocations.spot(allocation) == Spot::Moving {
            // It is being evicted: that is over soon.
            self.residency.deferred.push((resource, offset, token));
            return Ok(());
        }
        let target = self.allocations.begin_move_in(allocation, offset).map_err(|_| Refusal::Parameter)?;
        self.start_move(resource, allocation, target, token);
        Ok(())
    }

    /// Takes a blob out of the window, contents preserved; due when it is out.
    pub fn unmap_blob(&mut self, resource: u32, token: Token) -> Result<(), Refusal> {
        let blob = self.blobs.get(&resource).ok_or(Refusal::Resource)?;
        if blob.shown != Shown::Yes {
            return Err(Refusal::Parameter);
        }
        let allocation = blob.allocation;
        let target = self.allocations.begin_move_out(allocation).map_err(|_| Refusal::OutOfMemory)?;
        self.start_move(resource, allocation, target, token);
        Ok(())
    }

    /// The guest gives its name for a blob up. Its memory goes when nothing refers to it any more (UMS-82).
    pub fn unref_blob(&mut self, resource: u32) -> Result<(), Refusal> {
        if !self.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        for process in self.objects.processes.values_mut() {
            process.attached.remove(&resource);
        }
        match self.blobs.remove(&resource) {
            Some(blob) if blob.name.is_some() => self.keep_blob(blob),
            Some(blob) => self.release_allocation(blob.allocation),
            None => {}
        }
        Ok(())
    }

    /// As [`Self::unref_blob`]; due when its memory is no longer reached: no mapping, and no engine. While a process
    /// has it mapped that is never.
    pub fn retire_blob(&mut self, resource: u32, token: Token) -> Result<(), Refusal> {
        let blob = self.blobs.get(&resource).ok_or(Refusal::Resource)?;
        match self.allocations.guest_segment(blob.allocation) {
            Some(segment) => drop(self.retired.insert(segment.0, token)),
            None => self.objects.due.push((token, Ok(()))),
        }
        self.unref_blob(resource)
    }

    /// A context may name a resource.
    pub fn attach(&mut self, context: u32, resource: u32) -> Result<(), Refusal> {
        let own = self.own_context(context)?;
        if !self.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        if self.objects.processes.get(&own).is_some_and(|process| process.attached.contains_key(&resource)) {
            return Ok(());
        }
        let charge = self.charge_name(context)?;
        self.attach_charged(context, resource, charge)
    }

    /// Charges a context for the name of a resource, before there is one.
    pub fn charge_name(&self, context: u32) -> Result<Charge, Refusal> {
        let process = self.objects.processes.get(&self.own_context(context)?).ok_or(Refusal::Context)?;
        Ok(process.purse.charge(Kind::Blobs, ATTACHED_BYTES)?)
    }

    /// As [`Self::attach`], with what was charged for it.
    pub fn attach_charged(&mut self, context: u32, resource: u32, charge: Charge) -> Result<(), Refusal> {
        let context = self.own_context(context)?;
        let process = self.objects.processes.get_mut(&context).ok_or(Refusal::Context)?;
        process.attached.insert(resource, charge);
        Ok(())
    }

    /// Charges the VM for something that its front keeps.
    pub fn charge_front(&self, bytes: u64) -> Result<Charge, Refusal> {
        Ok(self.purse.charge(Kind::Files, bytes)?)
    }

    /// A context may no longer name a resource. What it has mapped stays mapped.
    pub fn detach(&mut self, context: u32, resource: u32) -> Result<(), Refusal> {
        let context = self.own_context(context)?;
        let process = self.objects.processes.get_mut(&context).ok_or(Refusal::Context)?;
        process.attached.remove(&resource).map(drop).ok_or(Refusal::Resource)
    }

    fn start_move(&mut self, resource: u32, allocation: AllocationId, target: Place, token: Token) {
        if let Some(blob) = self.blobs.get_mut(&resource) {
            blob.shown = Shown::Moving;
        }
        let barrier = self.begin_move(allocation);
        self.after(barrier, Action::Move { allocation, target, resource, token });
    }

    pub(in crate::vgpu) fn finish_move(
        &mut self,
        allocation: AllocationId,
        target: Place,
        resource: u32,
        token: Token,
    ) {
        self.allocations.finish_move(allocation, target, self.residency.epoch);
        self.remap(allocation);
        self.residency.look_again();
        self.release_allocation(allocation);
        // Given up meanwhile, and its name perhaps taken by another?
        if let Some(blob) = self.blobs.get_mut(&resource).filter(|blob| blob.allocation == allocation) {
            blob.shown = if matches!(target, Place::Aperture(_)) { Shown::Yes } else { Shown::No };
        }
        self.objects.due.push((token, Ok(())));
    }
}

/// Whether a region of guest memory lies in `file`. VMMs list the window, which is video memory, with guest RAM.
fn is_of_file(region: &GuestRegion, file: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    match (region.file_offset().map(|range| identity(range.file())), identity(file)) {
        (Some(Ok(one)), Ok(other)) => one == other,
        _ => false,
    }
}

/// Guest-physical address and bytes of a page list, neighbours joined.
fn pieces_of(entries: &[MemEntry]) -> Vec<(u64, u64)> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for entry in entries {
        let length = u64::from(entry.length);
        match pieces.last_mut() {
            Some((start, bytes)) if start.checked_add(*bytes) == Some(entry.address) => *bytes += length,
            _ => pieces.push((entry.address, length)),
        }
    }
    pieces
}

/// The file ranges of a page list, neighbours joined. Pages of `window` are no guest RAM.
pub(in crate::vgpu) fn find_runs(
    memory: &GuestRam,
    window: &File,
    entries: &[MemEntry],
) -> Result<(Vec<RunRecord>, Vec<Arc<File>>), Refusal> {
    let mut runs: Vec<RunRecord> = Vec::new();
    let mut files: Vec<Arc<File>> = Vec::new();
    for entry in entries {
        let length = u64::from(entry.length);
        if length == 0
            || !length.is_multiple_of(PAGE_SIZE)
            || !entry.address.is_multiple_of(PAGE_SIZE)
            || entry.padding != 0
        {
            return Err(Refusal::Parameter);
        }
        let region = memory.find_region(GuestAddress(entry.address)).ok_or(Refusal::Parameter)?;
        let within = entry.address - region.start_addr().0;
        if within.checked_add(length).is_none_or(|end| end > region.len()) {
            return Err(Refusal::Parameter);
        }
        let file = region.file_offset().ok_or(Refusal::Unspecified)?;
        let index = match files.iter().position(|known| Arc::ptr_eq(known, file.arc())) {
            Some(index) => index,
            None if is_of_file(region, window) => return Err(Refusal::Parameter),
            None if files.len() < GuestSegment::MAX_FILES => {
                files.push(Arc::clone(file.arc()));
                files.len() - 1
            }
            None => return Err(Refusal::OutOfMemory),
        };
        let record = RunRecord { file: index as u64, offset: file.start() + within, length };
        let full = runs.len() as u64 >= MAX_RUNS;
        match runs.last_mut() {
            Some(last) if last.file == record.file && last.offset + last.length == record.offset => {
                last.length += record.length;
            }
            _ if full => return Err(Refusal::OutOfMemory),
            _ => runs.push(record),
        }
    }
    Ok((runs, files))
}
