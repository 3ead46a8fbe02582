//! Local memory in a device's own, as part of the video memory: what the daemon can copy by itself, and what only the device can.

use std::sync::Arc;

use campanile_host_gpu::engine::message::MoveSide;
use campanile_host_gpu::memory::local::LocalMemory;

use super::allocations::Allocations;
use super::allocations::Backing;
use super::device_local::DeviceLocal;
use super::device_places::keep_rest;
use super::device_places::mark_zeroed;
use super::device_places::offer_filled;
use super::in_device::Claimed;
use super::in_device::Zeroed;
use super::ranges::Ranges;
use super::vram::Place;
use super::vram::VideoMemory;
use crate::vgpu::objects::ids::AllocationId;

/// What the device has to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCopy {
    /// Where it is.
    pub from: MoveSide,
    /// Where it goes.
    pub to: MoveSide,
    /// Bytes, whole pages.
    pub bytes: u64,
}

const fn side(place: Place) -> MoveSide {
    match place {
        Place::Aperture(offset) | Place::Area(offset) => MoveSide::Visible(offset),
        Place::Local(offset) => MoveSide::Local(offset),
        Place::Host(offset) => MoveSide::Evicted(offset),
    }
}

/// How engines import local memory of a vGPU with `length` bytes of video memory, of which at most `most` are in use.
pub fn described(device: &Arc<DeviceLocal>, length: u64, most: u64) -> LocalMemory {
    let start = VideoMemory::aperture_of(length);
    let evicted_bytes = VideoMemory::store_bytes(length, most);
    LocalMemory { start, bytes: length - start, evicted_bytes, passport: device.passport }
}

/// What is free of local memory, or will be as soon as it is zeroed.
pub fn local_soon(memory: &VideoMemory) -> Ranges {
    let free = memory.local();
    memory.device().map_or_else(|| free.clone(), |device| device.soon(free))
}

/// What was taken for contents that come is to be zeroed.
pub fn drop_claims(all: &mut Allocations) {
    let filled = offer_filled(&mut all.memory);
    keep_rest(&mut all.memory, &filled);
}

impl Allocations {
    /// Takes a place in a device's memory for contents of an allocation that comes, and says what is in it; none where it is taken, or
    /// is no such place.
    pub fn claim_local(&mut self, offset: u64, length: u64) -> Option<Claimed> {
        let is_place = self.memory.has_place(Place::Local(offset), length);
        let VideoMemory { device, local, .. } = &mut self.memory;
        device.as_mut().filter(|_| is_place)?.claim(local, offset, length)
    }

    /// Takes what of local memory is to be zeroed: offset and bytes of each piece.
    pub fn take_unclean(&mut self) -> Vec<(u64, u64)> {
        self.memory.device.as_mut().map(|device| device.take()).unwrap_or_default()
    }

    /// What became of a piece that was to be zeroed.
    pub fn is_zeroed(&mut self, piece: (u64, u64), outcome: Zeroed) {
        if self.memory.device.as_mut().is_some_and(|device| device.note(piece, outcome)) {
            mark_zeroed(&self.memory, piece.0, piece.1);
            self.memory.local.release(piece.0, piece.1);
        }
    }

    /// What a device has to copy before an allocation can be at `target`; none where the daemon copies, or nothing is to be copied.
    pub fn device_copy(&self, id: AllocationId, target: Place) -> Option<DeviceCopy> {
        let allocation = self.table.get(&id)?;
        let Backing::Vram(Some(place)) = allocation.backing else { return None };
        let needs = place.is_hidden(&self.memory) || target.is_hidden(&self.memory);
        needs.then(|| DeviceCopy { from: side(place), to: side(target), bytes: allocation.size })
    }

    /// Takes the place that an evicted allocation will be brought back to by a device; none where there is no room, or
    /// [`Self::bring_back`] does it.
    pub fn begin_restore(&mut self, id: AllocationId) -> Option<Place> {
        if !self.is_restored_by_device(id) {
            return None;
        }
        let allocation = self.table.get_mut(&id).filter(|it| !it.is_moving)?;
        let target = self.memory.take_local(allocation.size)?;
        allocation.is_moving = true;
        Some(target)
    }

    /// Whether an evicted allocation comes back by a device. One with a device page in it comes back to the window alone.
    pub fn is_restored_by_device(&self, id: AllocationId) -> bool {
        let backing = self.table.get(&id).filter(|it| !it.is_area && it.pins == 0).map(|it| it.backing);
        self.memory.device().is_some() && matches!(backing, Some(Backing::Vram(Some(Place::Host(_)))))
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::dirty::method::Method;
    use campanile_host_gpu::memory::local::Passport;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::PAGE_SIZE as PAGE;
    use campanile_protocol::page_table::SegmentId;

    use super::*;
    use crate::vgpu::memory::vidmm::allocations::MovedAllocation;
    use crate::vgpu::memory::vidmm::allocations::Spot;
    use crate::vgpu::memory::vidmm::local_reader::LocalReader;
    use crate::vgpu::memory::vidmm::quota::Account;
    use crate::vgpu::memory::vidmm::quota::Pool;
    use crate::vgpu::memory::vidmm::quota::Quota;

    const LENGTH: u64 = 16 * PAGE;
    const HALF: u64 = 8 * PAGE;

    fn device() -> Arc<DeviceLocal> {
        let descriptor = create_memfd("opaque", HALF).unwrap().into();
        Arc::new(DeviceLocal::new(descriptor, Passport { length: HALF, ..Passport::default() }))
    }

    fn memory(device: &Arc<DeviceLocal>) -> VideoMemory {
        tracked(device, Method::Off)
    }

    fn tracked(device: &Arc<DeviceLocal>, method: Method) -> VideoMemory {
        let reader = LocalReader::without_process(Arc::clone(device), described(device, LENGTH, LENGTH));
        VideoMemory::new(LENGTH, LENGTH, method).unwrap().in_device(Arc::new(reader))
    }

    fn allocations(device: &Arc<DeviceLocal>) -> Allocations {
        over(memory(device))
    }

    fn over(memory: VideoMemory) -> Allocations {
        let account = Arc::new(Account::new(Quota { min: 0, max: LENGTH }, Pool::new(None, []).unwrap()));
        Allocations::new(memory, account)
    }

    /// Zeroes all that is to be.
    fn zero(all: &mut Allocations) {
        for piece in all.take_unclean() {
            all.is_zeroed(piece, Zeroed::Done);
        }
    }

    fn moved(offset: u64, pages: u64) -> MovedAllocation {
        MovedAllocation {
            size: pages * PAGE,
            backing: Backing::Vram(Some(Place::Local(offset))),
            references: 1,
            holds: 0,
            pins: 0,
            priority: 0,
            is_area: false,
        }
    }

    #[test]
    fn dirty_53_memory_that_was_in_use_and_is_zeroed_counts_as_written_and_what_was_not_does_not() {
        let device = device();
        drop(over(tracked(&device, Method::BoundRanges)));
        let mut all = over(tracked(&device, Method::BoundRanges));
        zero(&mut all);
        assert_eq!(all.memory().tracker().pages_written(), 0, "an earlier session wrote that");
        let id = all.create_vram(2 * PAGE).unwrap();
        assert_eq!(all.locate(id, 1), Spot::Segment(SegmentId::LOCAL, HALF));
        let _freed = all.release(id);
        assert_eq!(all.memory().tracker().pages_written(), 0, "it is not zeroed yet");
        zero(&mut all);
        assert_eq!(all.memory().tracker().pages_written(), 2);
    }

    #[test]
    fn dirty_61_all_that_is_zeroed_is_suspect_where_tracking_is_costly() {
        let device = device();
        drop(over(tracked(&device, Method::ShadowCompare)));
        let mut all = over(tracked(&device, Method::ShadowCompare));
        let tracker = Arc::clone(all.memory().tracker());
        tracker.start_dirty_tracking(tracker.whole()).unwrap();
        zero(&mut all);
        let mut bits = vec![0; usize::try_from(tracker.length() / PAGE / 8).unwrap()];
        tracker.query_dirty_bit_data(tracker.whole(), None, &mut bits, true).unwrap();
        assert_eq!(bits[..3], [0, 0xff, 0], "local memory, of which nothing was sent");
    }

    #[test]
    fn lm_40_contents_that_come_take_places_that_no_other_has_and_what_no_allocation_takes_is_zeroed() {
        let device = device();
        let mut all = allocations(&device);
        assert_eq!(all.claim_local(HALF, 2 * PAGE), Some(Claimed::Zero));
        for (offset, pages) in [(HALF + PAGE, 2), (HALF - PAGE, 1), (LENGTH, 1), (HALF + 1, 1), (HALF, 0)] {
            assert_eq!(all.claim_local(offset, pages * PAGE), None, "{pages} pages at {offset:#x}");
        }
        assert_eq!(all.claim_local(u64::MAX - PAGE + 1, PAGE), None);
        assert_eq!(all.claim_local(HALF + 4 * PAGE, 2 * PAGE), Some(Claimed::Zero));
        assert!(all.take_unclean().is_empty());
        // One place is taken, and half of another.
        all.take_over(vec![(AllocationId(1), moved(HALF, 2)), (AllocationId(2), moved(HALF + 4 * PAGE, 1))])
            .unwrap();
        assert_eq!(all.locate(AllocationId(1), 1), Spot::Segment(SegmentId::LOCAL, HALF));
        assert_eq!(all.take_unclean(), [(HALF + 5 * PAGE, PAGE)]);
        assert_eq!(free(&all), (4 * PAGE, 5 * PAGE));
        // Where it fails, nothing is taken, and all of it is zeroed.
        let mut all = allocations(&device);
        zero(&mut all);
        assert_eq!(all.claim_local(HALF, 2 * PAGE), Some(Claimed::Zero));
        let twice = vec![(AllocationId(1), moved(HALF, 2)), (AllocationId(2), moved(HALF, 1))];
        assert!(all.take_over(twice).is_err());
        assert_eq!(all.take_unclean(), [(HALF, 2 * PAGE)]);
        assert_eq!(free(&all), (6 * PAGE, HALF));
    }

    #[test]
    fn what_an_earlier_session_left_is_stale_until_it_is_zeroed_or_filled_and_goes_over_with_other_memory() {
        let device = device();
        drop(allocations(&device));
        let mut all = allocations(&device);
        all.adopt(VideoMemory::new(LENGTH, LENGTH, Method::Off).unwrap());
        let stale = || device.stale_within(0, LENGTH);
        assert_eq!((free(&all), stale()), ((0, HALF), vec![(HALF, HALF)]));
        assert_eq!(all.claim_local(HALF, 2 * PAGE), Some(Claimed::Unclean));
        all.memory().device().unwrap().is_filled();
        assert_eq!(stale(), [(HALF + 2 * PAGE, 6 * PAGE)]);
        assert_eq!(device.stale_within(HALF + PAGE, 2 * PAGE), [(HALF + 2 * PAGE, PAGE)]);
        let pieces = all.take_unclean();
        all.is_zeroed(pieces[0], Zeroed::Never);
        assert_eq!(stale(), [(HALF + 2 * PAGE, 6 * PAGE)]);
        all.take_over(vec![(AllocationId(1), moved(HALF, 2))]).unwrap();
        assert_eq!(free(&all), (0, 0));
    }

    /// Bytes that are free, and that will be soon.
    fn free(all: &Allocations) -> (u64, u64) {
        (all.memory().local().free_bytes(), local_soon(all.memory()).free_bytes())
    }

    #[test]
    fn what_was_in_use_is_free_when_it_is_zero_and_not_before() {
        let mut all = allocations(&device());
        let use_once = |all: &mut Allocations| {
            let id = all.create_vram(2 * PAGE).unwrap();
            assert_eq!(all.locate(id, 1), Spot::Segment(SegmentId::LOCAL, HALF));
            let _freed = all.release(id);
        };
        use_once(&mut all);
        assert_eq!(free(&all), (6 * PAGE, HALF));
        let pieces = all.take_unclean();
        assert_eq!(pieces, [(HALF, 2 * PAGE)]);
        assert!(all.take_unclean().is_empty(), "it is asked for once");
        assert_eq!(free(&all), (6 * PAGE, HALF));
        all.is_zeroed(pieces[0], Zeroed::NotYet);
        assert_eq!(all.take_unclean(), pieces);
        all.is_zeroed(pieces[0], Zeroed::Done);
        all.is_zeroed(pieces[0], Zeroed::Done);
        assert_eq!(free(&all), (HALF, HALF));
        use_once(&mut all);
        let pieces = all.take_unclean();
        all.is_zeroed(pieces[0], Zeroed::Never);
        assert_eq!(free(&all), (6 * PAGE, 6 * PAGE), "it is never used again");
    }

    #[test]
    fn the_first_session_has_it_as_it_was_allocated_and_the_next_has_all_of_it_zeroed() {
        let device = device();
        let mut first = allocations(&device);
        assert!(first.take_unclean().is_empty() && free(&first) == (HALF, HALF));
        let mut next = allocations(&device);
        assert_eq!(free(&next), (0, HALF));
        let id = next.create_vram(PAGE).unwrap();
        assert_eq!(next.locate(id, 1), Spot::Evicted, "none is handed out that is not zero");
        assert_eq!(next.take_unclean(), [(HALF, HALF)]);
        assert_eq!(device.stale_within(0, LENGTH), [(HALF, HALF)]);
        next.is_zeroed((HALF, HALF), Zeroed::Done);
        assert!(device.stale_within(0, LENGTH).is_empty() && free(&next) == (HALF, HALF));
    }

    #[test]
    fn a_device_page_that_leaves_the_window_stays_where_the_daemon_sees_it() {
        for (device, place) in [(None, Place::Local(HALF)), (Some(device()), Place::Host(0))] {
            let mut all = match &device {
                Some(device) => allocations(device),
                None => over(VideoMemory::new(LENGTH, LENGTH, Method::Off).unwrap()),
            };
            let id = all.create_vram(PAGE).unwrap();
            let target = all.begin_move_in(id, 0).unwrap();
            all.finish_move(id, target, 1);
            all.get_mut(id).unwrap().pins = 1;
            let target = all.begin_move_out(id).unwrap();
            assert_eq!(target, place);
            assert_eq!(all.device_copy(id, target), None, "the daemon copies");
            all.finish_move(id, target, 2);
            assert!(all.view(id).is_some() && !all.is_restored_by_device(id));
        }
    }

    #[test]
    fn local_memory_is_described_to_engines_from_the_window_on_with_all_that_may_be_evicted() {
        let passport = Passport { length: HALF, ..Passport::default() };
        let expected = LocalMemory { start: HALF, bytes: HALF, evicted_bytes: 6 * LENGTH, passport };
        assert_eq!(described(&device(), LENGTH, 3 * LENGTH), expected);
    }

    #[test]
    fn what_is_not_zero_is_free_in_no_case_after_a_state_that_cannot_be_taken_over() {
        let device = device();
        drop(allocations(&device));
        // What is to be zeroed, what is being zeroed, and what waits to be filled.
        for (begins, claims) in [(false, false), (true, false), (false, true)] {
            let mut all = allocations(&device);
            assert!(!begins || all.take_unclean() == [(HALF, HALF)]);
            assert!(!claims || all.claim_local(HALF + PAGE, PAGE) == Some(Claimed::Unclean));
            let twice = vec![(AllocationId(1), moved(0, 1)), (AllocationId(1), moved(0, 1))];
            assert!(all.take_over(twice).is_err());
            assert_eq!(free(&all), (0, HALF));
        }
        // Nor where it goes over with other memory, or what was to come does not.
        let mut all = allocations(&device);
        assert_eq!(all.claim_local(HALF, PAGE), Some(Claimed::Unclean));
        assert_eq!(all.claim_local(HALF + 4 * PAGE + 8, PAGE), None, "no whole page");
        assert_eq!(all.take_unclean(), [(HALF + PAGE, HALF - PAGE)]);
        all.adopt(VideoMemory::new(LENGTH, LENGTH, Method::Off).unwrap());
        assert_eq!(free(&all), (0, HALF - PAGE));
        drop_claims(&mut all);
        assert_eq!((free(&all), all.take_unclean()), ((0, HALF), vec![(HALF, PAGE)]));
    }

    #[test]
    fn dirty_52_what_is_read_of_local_memory_is_the_devices_and_of_all_else_the_files() {
        let memory = tracked(&device(), Method::BoundRanges);
        let tracker = memory.tracker();
        let reads = |offset| tracker.read(tracker.whole(), offset, &mut [0; 4096]).is_ok();
        let found: Vec<u64> = (0..LENGTH / PAGE + 1).filter(|page| reads(page * PAGE)).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7, 16]);
    }

    #[test]
    fn dirty_53_of_a_piece_that_is_zeroed_the_pages_that_were_in_use_count_wherever_they_are() {
        let device = device();
        drop(over(tracked(&device, Method::BoundRanges)));
        let mut all = over(tracked(&device, Method::BoundRanges));
        assert_eq!(all.claim_local(HALF + 2 * PAGE, 2 * PAGE), Some(Claimed::Unclean));
        all.take_over(vec![(AllocationId(1), moved(HALF + 2 * PAGE, 2))]).unwrap();
        let _freed = all.release(AllocationId(1));
        zero(&mut all);
        let tracker = Arc::clone(all.memory().tracker());
        let mut bits = vec![0; usize::try_from(tracker.length() / PAGE / 8).unwrap()];
        tracker.query_dirty_bit_data(tracker.whole(), None, &mut bits, true).unwrap();
        assert_eq!(bits[..3], [0, 0b1100, 0]);
    }

    #[test]
    fn the_daemon_has_no_view_of_it_and_a_device_copies_what_moves() {
        let mut all = allocations(&device());
        let id = all.create_vram(2 * PAGE).unwrap();
        assert_eq!(all.device_copy(id, Place::Aperture(0)), None, "there is nothing to copy yet");
        assert_eq!(all.locate(id, 1), Spot::Segment(SegmentId::LOCAL, HALF));
        assert!(all.view(id).is_none());
        let copy = |from, to| Some(DeviceCopy { from, to, bytes: 2 * PAGE });
        let (local, visible) = (MoveSide::Local(HALF), MoveSide::Visible(PAGE));
        let target = all.begin_move_in(id, PAGE).unwrap();
        assert_eq!(all.device_copy(id, target), copy(local, visible));
        all.finish_move(id, target, 2);
        assert!(all.view(id).is_some() && all.memory().local().free_bytes() == 6 * PAGE);
        // What lies in host memory goes there and back by the device, too.
        let target = all.begin_move_out(id).unwrap();
        assert_eq!(target, Place::Local(HALF + 2 * PAGE));
        assert_eq!(all.device_copy(id, target), copy(visible, MoveSide::Local(HALF + 2 * PAGE)));
        all.finish_move(id, target, 3);
        let target = all.begin_eviction(id).unwrap();
        assert_eq!(all.device_copy(id, target), copy(MoveSide::Local(HALF + 2 * PAGE), MoveSide::Evicted(0)));
        assert_eq!(all.begin_restore(id), None, "it is on its way");
        all.finish_move(id, target, 4);
        assert!(all.is_restored_by_device(id) && !all.bring_back(id, 5));
        let target = all.begin_restore(id).unwrap();
        assert_eq!(all.begin_restore(id), None, "it is on its way back");
        assert_eq!(all.spot(id), Spot::Moving);
        assert_eq!(all.device_copy(id, target), copy(MoveSide::Evicted(0), MoveSide::Local(HALF + 4 * PAGE)));
        all.finish_move(id, target, 6);
        assert_eq!(all.spot(id), Spot::Segment(SegmentId::LOCAL, HALF + 4 * PAGE));
        // A save area is the CPU's.
        let area = all.create_area(PAGE).unwrap();
        all.initialise(area, 1, &[]).unwrap();
        assert!(all.view(area).is_some());
        let target = all.begin_eviction(area).unwrap();
        assert_eq!(all.device_copy(area, target), None);
        all.finish_move(area, target, 7);
        assert!(!all.is_restored_by_device(area));
    }
}
