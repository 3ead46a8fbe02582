//! Guest memory of a session that came from elsewhere: known only when the front-end shows it, after the state.

use campanile_protocol::device_page;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use log::Level;

use crate::session::blobs::find_runs;
use crate::session::segments::GuestSegment;
use crate::session::state::Session;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::allocations::Backing;

/// Bytes that an entry of a page list can say, whole pages.
const MAX_ENTRY: u64 = 1 << 31;

/// The page list of a segment.
fn entries(pieces: &[(u64, u64)]) -> Vec<MemEntry> {
    let mut entries = Vec::new();
    for &(address, bytes) in pieces {
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(MAX_ENTRY);
            let address = address.saturating_add(at);
            entries.push(MemEntry { address, length: u32::try_from(length).unwrap_or(0), padding: 0 });
            at += length;
        }
    }
    entries
}

impl Session {
    /// Looks for the pages of segments in guest memory, as far as that is known.
    pub(in crate::session) fn find_guest_pages(&mut self) {
        if self.segments.unknown().is_empty() {
            return;
        }
        let Some(memory) = self.guest_memory.clone() else { return };
        for (id, pieces) in self.segments.unknown().clone() {
            let window = self.allocations.memory().file();
            // Guest memory may come in several messages: what is not there yet may come.
            let Ok((runs, files)) = find_runs(&memory, window, &entries(&pieces)) else { continue };
            self.segments.found(id, GuestSegment::new(runs, files, pieces));
        }
        self.find_device_pages();
    }

    fn find_device_pages(&mut self) {
        let lost = |page: &crate::session::page::DevicePage| {
            page.guest.is_none() && self.allocations.guest_segment(page.allocation).is_some()
        };
        let devices = self.processes.iter().filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let missing: Vec<_> = devices
            .filter(|(_, device)| lost(&device.page))
            .map(|(of, device)| (of, device.page.allocation, device.page.offset))
            .collect();
        for (context, allocation, offset) in missing {
            let mapped = self.map_guest_page(allocation, offset).ok().flatten();
            if let Ok(device) = self.device_mut(context) {
                device.page.guest = mapped;
            }
        }
    }

    /// Everything begins to run: what guest memory does not have now is not there, and whose it is has lost its device.
    pub(in crate::session) fn settle_guest_memory(&mut self) {
        self.find_guest_pages();
        let gone: Vec<u16> = self.segments.unknown().keys().copied().collect();
        if gone.is_empty() {
            return;
        }
        let of_gone = |id: &AllocationId| {
            self.allocations.get(*id).is_some_and(|allocation| {
                matches!(allocation.backing, Backing::Guest(segment) if gone.contains(&segment.0))
            })
        };
        let mut lost = Vec::new();
        for (context, process) in &self.processes {
            // Who is away brings other pages.
            let Some(device) = process.device.as_ref().filter(|_| !process.is_away()) else { continue };
            let mapped = device.mappings.values().map(|mapping| mapping.allocation);
            let rings = device.doorbells.iter().flat_map(|(_, bell)| [bell.ring, bell.control]);
            if mapped.chain(rings).chain([device.page.allocation]).any(|id| of_gone(&id)) {
                lost.push(*context);
            }
        }
        if lost.is_empty() {
            return;
        }
        self.journal.line(
            Level::Error,
            format_args!("guest memory lacks pages of {} blobs: {} devices are lost", gone.len(), lost.len()),
        );
        // Nobody may come to pages that are not there: engines fault on a segment that they do not know.
        for context in lost {
            self.put_device_in_error(context, device_page::DEVICE_STOPPED);
        }
    }
}
