//! The memory of one VM: its allocations, where page tables show them, and which of them lie where engines reach them.
//!
//! It calls the guest processes' objects alone. What must follow from a change elsewhere is returned, and the dispatcher
//! carries it out: [`LetGo`] before contents may be copied, [`Released`] when an allocation has ended.

mod blobs;
mod dirty;
mod save_areas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_protocol::page_table::SegmentId;

use super::blobs::Blob;
use super::dirty::Dirty;
use super::residency_faults::Residency;
use super::save_areas::Areas;
use super::segments::Segments;
use super::vidmm::allocations::Allocations;
use super::vidmm::quota::Account;
use super::vidmm::vram::Place;
use super::vidmm::vram::VideoMemory;
use super::window::Window;
use crate::guest_ram::memory::GuestRam;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::timeline::Token;

/// What engines must do before the contents of memory that moves may be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in crate::vgpu) enum LetGo {
    /// Forget what they were asked to forget before: no page table shows it any more, but one that did they may still use.
    WhatWasAsked,
    /// Forget what they have resolved, each of them.
    EveryEngine,
}

/// What must follow when a reference to an allocation was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in crate::vgpu) enum Released {
    /// Nothing.
    Nothing,
    /// Nothing refers to this segment of guest RAM any more: engines must forget it, and [`Memory::forget_segment`].
    Segment(SegmentId),
}

/// An allocation that leaves its place once engines have let go of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in crate::vgpu) struct Leaving {
    /// The allocation; this holds one reference.
    pub(in crate::vgpu) allocation: AllocationId,
    /// Where it goes.
    pub(in crate::vgpu) target: Place,
    /// What engines must do first.
    pub(in crate::vgpu) let_go: LetGo,
}

/// The memory of one VM.
#[derive(Debug)]
pub struct Memory {
    pub(in crate::vgpu) allocations: Allocations,
    pub(in crate::vgpu) residency: Residency,
    pub(in crate::vgpu) tables: PageTables,
    pub(in crate::vgpu) areas: Areas,
    pub(in crate::vgpu) segments: Segments,
    /// Blobs, by resource id.
    pub(in crate::vgpu) blobs: BTreeMap<u32, Blob>,
    /// Segments of blobs whose names were given up: what is due when they are no longer reached.
    pub(in crate::vgpu) retired: BTreeMap<u16, Token>,
    pub(in crate::vgpu) guest_memory: Option<Arc<GuestRam>>,
    pub(in crate::vgpu) dirty: Dirty,
    pub(in crate::vgpu) window: Window,
}

impl Memory {
    /// Video memory without allocations in it, and page tables without address spaces but that of save areas. `account`
    /// pays for what is allocated.
    ///
    /// # Errors
    /// No page table could be had.
    pub fn new(memory: VideoMemory, account: Arc<Account>) -> io::Result<Self> {
        let mut tables = PageTables::new().map_err(io::Error::other)?;
        let areas = Areas::new(&mut tables).map_err(io::Error::other)?;
        Ok(Self {
            allocations: Allocations::new(memory, account),
            residency: Residency::default(),
            tables,
            areas,
            segments: Segments::default(),
            blobs: BTreeMap::new(),
            retired: BTreeMap::new(),
            guest_memory: None,
            dirty: Dirty::default(),
            window: Window::Awaited(Vec::new()),
        })
    }
}
