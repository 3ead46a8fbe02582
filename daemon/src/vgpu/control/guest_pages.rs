//! Guest RAM as engines have it: its segments, announced and forgotten.

use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::memory::room::Released;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::vm::Vm;
use campanile_protocol::page_table::SegmentId;

/// Guest RAM as engines have it: its segments, and what was written to it.
#[derive(Debug)]
pub struct GuestPages<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> GuestPages<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl GuestPages<'_> {
    /// Tells every engine to map a segment.
    pub(in crate::vgpu) fn announce_segment_to_all(&mut self, id: SegmentId) {
        for at in self.vm.engines.addresses() {
            self.vm.engines.push_segment(at, id);
            Kernels::of(self.vm).flush_outbox(at);
        }
    }

    /// Every engine has a segment that an allocation had.
    pub(in crate::vgpu) fn segment_is_there(&mut self, allocation: AllocationId, segment: SegmentId) {
        let released = self.vm.memory.segment_is_there(allocation, segment, &mut self.vm.journal);
        self.vm.engines.poke_all();
        self.forget_segment(released);
    }

    /// Drops a reference to an allocation, and what hung on the last one.
    pub(in crate::vgpu) fn release_allocation(&mut self, allocation: AllocationId) {
        let released = self.vm.memory.release(allocation);
        self.forget_segment(released);
    }

    /// Carries out what the end of an allocation asks for: what engines wrote to its segment is logged while they know it,
    /// then they forget it, then its owner is told.
    pub(in crate::vgpu) fn forget_segment(&mut self, released: Released) {
        let Released::Segment(segment) = released else { return };
        self.sweep_segment(segment);
        let retired = self.vm.memory.forget_segment(segment);
        for at in self.vm.engines.addresses() {
            self.vm.engines.push_segment_end(at, segment);
            Kernels::of(self.vm).flush_outbox(at);
        }
        self.vm.objects.due.extend(retired.map(|token| (token, Ok(()))));
    }
}
