//! Guest memory of a session that came from elsewhere: known only when the front-end shows it, after the state.

use campanile_protocol::device_page;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use log::Level;

use crate::vgpu::control::devices::Devices;
use crate::vgpu::memory::blobs::find_runs;
use crate::vgpu::memory::segments::GuestSegment;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::objects::ids::AllocationId;

/// Bytes that an entry of a page list can say, whole pages.
const MAX_ENTRY: usize = 0x8000_0000;

/// The page list of a segment.
fn entries(pieces: &[(u64, u64)]) -> Vec<MemEntry> {
    let parts = pieces.iter().flat_map(|&(address, bytes)| {
        (0..bytes).step_by(MAX_ENTRY).map(move |at| {
            let length = u32::try_from((bytes - at).min(MAX_ENTRY as u64)).unwrap_or(0);
            MemEntry { address: address.saturating_add(at), length, padding: 0 }
        })
    });
    parts.collect()
}

impl Devices<'_> {
    /// Looks for the pages of segments in guest memory, as far as that is known.
    pub(in crate::vgpu) fn find_guest_pages(&mut self) {
        if self.vm.memory.segments.unknown().is_empty() {
            return;
        }
        let Some(memory) = self.vm.memory.guest_memory.clone() else { return };
        for (id, pieces) in self.vm.memory.segments.unknown().clone() {
            let window = self.vm.memory.allocations.memory().file();
            // Guest memory may come in several messages: what is not there yet may come.
            let Ok((runs, files)) = find_runs(&memory, window, &entries(&pieces)) else { continue };
            self.vm.memory.segments.found(id, GuestSegment::new(runs, files, pieces));
        }
        self.find_device_pages();
    }

    fn find_device_pages(&mut self) {
        let lost = |page: &crate::vgpu::objects::device_page::DevicePage| {
            page.guest.is_none() && self.vm.memory.allocations.guest_segment(page.allocation).is_some()
        };
        let devices = self
            .vm
            .objects
            .processes
            .iter()
            .filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let missing: Vec<_> = devices
            .filter(|(_, device)| lost(&device.page))
            .map(|(of, device)| (of, device.page.allocation, device.page.offset))
            .collect();
        for (context, allocation, offset) in missing {
            let mapped = self.vm.memory.map_guest_page(allocation, offset).ok().flatten();
            if let Ok(device) = self.vm.objects.device_mut(context) {
                device.page.guest = mapped;
            }
        }
    }

    /// Everything begins to run: what guest memory does not have now is not there, and whose it is has lost its device.
    pub(in crate::vgpu) fn settle_guest_memory(&mut self) {
        self.find_guest_pages();
        self.write_pages();
        let gone: Vec<u16> = self.vm.memory.segments.unknown().keys().copied().collect();
        if gone.is_empty() {
            return;
        }
        let of_gone = |id: &AllocationId| {
            self.vm.memory.allocations.get(*id).is_some_and(|allocation| {
                matches!(allocation.backing, Backing::Guest(segment) if gone.contains(&segment.0))
            })
        };
        let mut lost = Vec::new();
        for (context, process) in &self.vm.objects.processes {
            // A process that is away brings other pages.
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
        self.vm.journal.line(
            Level::Error,
            format_args!("guest memory lacks pages of {} blobs: {} devices are lost", gone.len(), lost.len()),
        );
        // Pages that are not there are reached by nothing: engines fault on a segment that they do not know.
        for context in lost {
            Devices::of(self.vm).put_device_in_error(context, device_page::DEVICE_STOPPED);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ids::GuestProcess;
    use crate::vgpu::control::devices::Devices;
    use std::sync::Arc;

    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::device_page;
    use vm_memory::FileOffset;
    use vm_memory::GuestAddress;

    use super::entries;
    use crate::guest_ram::memory::GuestRam;
    use crate::vgpu::session::Session;
    use crate::vgpu::state::saved::process::SavedAway;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::golden;
    use crate::vgpu::testing::session;

    /// The two segments of the golden state: the device page of [`OWNER`], and memory that it maps.
    const SEGMENTS: [(u64, usize); 2] = [(0x4000_6000, 73_728), (0x4001_8000, 65_536)];

    fn guest_ram(pieces: &[(u64, usize)]) -> Arc<GuestRam> {
        let regions = pieces.iter().map(|&(address, bytes)| {
            let file = create_memfd("ram", bytes as u64).unwrap();
            (GuestAddress(address), bytes, Some(FileOffset::new(file, 0)))
        });
        Arc::new(GuestRam::from_ranges_with_files(regions.collect::<Vec<_>>()).unwrap())
    }

    fn restored() -> Session {
        let state = golden();
        let pieces = state.segments.iter().map(|segment| segment.pieces[0]);
        assert_eq!(pieces.collect::<Vec<_>>(), SEGMENTS.map(|(at, bytes)| (at, bytes as u64)));
        let mut session = session(&Arc::new(config()));
        session.restore(&state).unwrap();
        session
    }

    /// The states of both devices.
    fn statuses(session: &mut Session) -> [u64; 2] {
        [GuestProcess::new(1), OWNER].map(|of| device(session, of).status)
    }

    #[test]
    fn a_piece_longer_than_an_entry_of_a_page_list_can_say_is_said_by_several() {
        let said = |pieces: &[(u64, u64)]| -> Vec<(u64, u64)> {
            entries(pieces).iter().map(|entry| (entry.address, entry.length.into())).collect()
        };
        assert_eq!(said(&[(0x1000, 0x2000), (0x8000, 0x1000)]), [(0x1000, 0x2000), (0x8000, 0x1000)]);
        let long = said(&[(0x1000, (2 << 31) + 0x1000)]);
        assert_eq!(long, [(0x1000, 1 << 31), (0x8000_1000, 1 << 31), (0x1_0000_1000, 0x1000)]);
        assert_eq!(said(&[(0x1000, 1 << 31)]), [(0x1000, 1 << 31)]);
    }

    #[test]
    fn lm_45_guest_pages_are_found_as_guest_memory_comes_before_or_after_the_state() {
        let mut session = restored();
        assert_eq!(session.vm.memory.segments.unknown().len(), 2);
        assert!(device(&mut session, OWNER).page.guest.is_none());
        session.set_guest_memory(guest_ram(&SEGMENTS[..1]));
        assert_eq!(session.vm.memory.segments.unknown().keys().copied().collect::<Vec<_>>(), [2]);
        let page = device(&mut session, OWNER).page.guest.clone().expect("its device page");
        assert_eq!(page.addresses[..2], [0x4000_6000, 0x4000_7000]);
        assert!(device(&mut session, GuestProcess::new(1)).page.guest.is_none(), "it lies in video memory");
        session.set_guest_memory(guest_ram(&SEGMENTS));
        assert!(session.vm.memory.segments.unknown().is_empty());
        let after = device(&mut session, OWNER).page.guest.clone().unwrap();
        assert!(Arc::ptr_eq(&page.mapping, &after.mapping), "it is mapped once");
        Devices::of(&mut session.vm).settle_guest_memory();
        assert_eq!(statuses(&mut session), [device_page::DEVICE_ACTIVE; 2]);
        // The other way round.
        let mut session = crate::vgpu::testing::session(&Arc::new(config()));
        session.set_guest_memory(guest_ram(&SEGMENTS));
        session.restore(&golden()).unwrap();
        assert!(session.vm.memory.segments.unknown().is_empty());
        assert!(device(&mut session, OWNER).page.guest.is_some());
    }

    #[test]
    fn lm_45_the_device_whose_guest_memory_is_not_there_is_lost_when_all_begins_to_run_and_no_other() {
        // Its page; what it maps; nothing.
        for found in [&SEGMENTS[1..], &SEGMENTS[..1], &[]] {
            let mut session = restored();
            session.set_guest_memory(guest_ram(if found.is_empty() { &[(0x1000, 4096)] } else { found }));
            Devices::of(&mut session.vm).settle_guest_memory();
            let expected = [device_page::DEVICE_ACTIVE, device_page::DEVICE_STOPPED];
            assert_eq!(statuses(&mut session), expected, "{found:?}");
        }
    }

    #[test]
    fn lm_45_a_process_that_is_away_loses_no_device_for_pages_that_it_does_not_bring_yet() {
        let mut state = golden();
        state.processes[1].away = Some(SavedAway { token: 77, names: 1 << 40, ..SavedAway::default() });
        let mut session = session(&Arc::new(config()));
        session.restore(&state).unwrap();
        Devices::of(&mut session.vm).settle_guest_memory();
        assert_eq!(statuses(&mut session), [device_page::DEVICE_ACTIVE; 2]);
    }
}
