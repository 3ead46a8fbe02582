//! Paging operations: changes of an address space, in order with the work around them (MCDM-39, MCDM-40).
//!
//! ```text
//!   SUBMIT a ─ UNMAP ─ SUBMIT b        a runs ──▶ done ──▶ page tables change ──▶ b runs
//!                                                              └─ engines let go ──▶ paging fence
//! ```
//!
//! The operations of a process happen in the order in which they came: each after the kernel-mode buffers that were
//! submitted before it are done, and before those that came after it begin. Mapping what nothing was mapped at does not
//! wait: no buffer before it can use that address and live. Of user-mode queues the daemon sees nothing; there the guest
//! orders by fences: an unmap goes out when the queue's progress fence is there, and what needs a mapping is rung when
//! the paging fence is.

use campanile_host_gpu::memory::page_table::writer::Root;
use log::Level;

use super::room::Memory;
use super::vidmm::allocations::Spot;
use crate::vgpu::journal::Journal;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::message::Refused;

impl Memory {
    /// Writes a mapping into the page tables, and remembers it.
    pub(in crate::vgpu) fn show_to_gpu(
        &mut self,
        root: Root,
        va: u64,
        mapping: GpuMapping,
    ) -> Result<(), Refused> {
        let epoch = self.residency.epoch;
        match self.allocations.locate(mapping.allocation, epoch) {
            Spot::Segment(segment, start) => {
                self.tables.map(root, va, segment, start + mapping.offset, mapping.size, mapping.writable)
            }
            Spot::Moving => self.tables.map_moving(root, va, mapping.size),
            Spot::Evicted => self.tables.map_evicted(root, va, mapping.size),
        }?;
        self.residency.shown.insert(root, va, mapping);
        Ok(())
    }

    /// Takes a mapping out of the page tables, and forgets it.
    pub(in crate::vgpu) fn hide_from_gpu(
        &mut self,
        root: Root,
        va: u64,
        mapping: &GpuMapping,
        journal: &mut Journal,
    ) {
        if let Err(error) = self.tables.unmap(root, va, mapping.size) {
            journal.line(Level::Error, format_args!("a mapping of ours could not be undone: {error}"));
        }
        self.residency.shown.remove(mapping.allocation, root, va);
    }
}
