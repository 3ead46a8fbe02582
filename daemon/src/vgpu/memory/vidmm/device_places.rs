//! Local memory of a device's own, as places of a video memory: what the memory itself has to note of it.

use std::sync::Arc;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::elsewhere::Elsewhere;
use campanile_protocol::PAGE_SIZE;

use super::in_device::InDevice;
use super::local_reader::LocalReader;
use super::vram::VideoMemory;

/// Local memory of `memory` is that of `other`, which has no allocations, where that is a device's own.
pub(super) fn take_device(memory: &mut VideoMemory, other: &mut VideoMemory) {
    if let Some(device) = other.device.take() {
        device.take_out_of(&mut memory.local);
        set_device(memory, device);
    }
}

fn set_device(memory: &mut VideoMemory, device: InDevice) {
    let offset = memory.aperture_bytes();
    let range = Range { offset, length: memory.length() - offset };
    memory.tracker().lies_elsewhere(range, Arc::clone(device.reader()) as Arc<dyn Elsewhere>);
    memory.device = Some(device);
}

/// What was filled is free for the allocations that are about to take it; until [`keep_rest`].
pub(super) fn offer_filled(memory: &mut VideoMemory) -> Vec<(u64, u64)> {
    let VideoMemory { device, local, .. } = memory;
    device.as_mut().map(|device| device.offer(local)).unwrap_or_default()
}

/// They have taken of these pieces what is theirs.
pub(super) fn keep_rest(memory: &mut VideoMemory, pieces: &[(u64, u64)]) {
    let VideoMemory { device, local, .. } = memory;
    if let Some(device) = device {
        device.keep_rest(local, pieces);
    }
}

/// These pages were in use, as far as is known, before this session began.
pub fn were_in_use(memory: &mut VideoMemory, offset: u64, length: u64) {
    memory.touch(offset, length);
}

/// A piece was zeroed by the device: pages that may not have been zero before are written now.
pub(super) fn mark_zeroed(memory: &VideoMemory, offset: u64, length: u64) {
    if !memory.tracker().caps().performant {
        return memory.tracker().mark(offset, length);
    }
    let page = |at: u64| usize::try_from(at / PAGE_SIZE).unwrap_or(usize::MAX);
    let touched = memory.touched.get(page(offset)..page(offset + length)).unwrap_or_default();
    let mut at = offset;
    for run in touched.chunk_by(|one, next| one == next) {
        let bytes = run.len() as u64 * PAGE_SIZE;
        if run.first().is_some_and(|touched| *touched) {
            memory.tracker().mark(at, bytes);
        }
        at += bytes;
    }
}

impl VideoMemory {
    /// Its local memory is this of a device.
    #[must_use]
    pub fn in_device(mut self, reader: Arc<LocalReader>) -> Self {
        let device = InDevice::begin(reader, &mut self.local);
        set_device(&mut self, device);
        self
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::dirty::method::Method;

    use super::*;

    #[test]
    fn pages_that_were_in_use_before_are_not_handed_out_as_they_are() {
        let mut memory = VideoMemory::new(16 * PAGE_SIZE, 16 * PAGE_SIZE, Method::Off).unwrap();
        were_in_use(&mut memory, PAGE_SIZE, 2 * PAGE_SIZE);
        assert_eq!(memory.touched[..4], [false, true, true, false]);
    }
}
