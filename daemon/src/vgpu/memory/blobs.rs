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
use crate::guest_ram::memory::GuestRam;
use crate::guest_ram::memory::GuestRegion;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::refusal::Refusal;

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

/// Whether a region of guest memory lies in `file`. VMMs list the window, which is video memory, with guest RAM.
pub(in crate::vgpu) fn is_of_file(region: &GuestRegion, file: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    match (region.file_offset().map(|range| identity(range.file())), identity(file)) {
        (Some(Ok(one)), Ok(other)) => one == other,
        _ => false,
    }
}

/// Guest-physical address and bytes of a page list, neighbours joined.
pub(in crate::vgpu) fn pieces_of(entries: &[MemEntry]) -> Vec<(u64, u64)> {
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
