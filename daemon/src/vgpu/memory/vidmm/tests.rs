//! Memory of one vGPU as a whole: places, contents, what is noted as written, and what is charged.

use std::sync::Arc;

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE as PAGE;
use campanile_protocol::control::memory::PRIORITY_NORMAL;
use campanile_protocol::page_table::SegmentId;

use super::allocations::Allocations;
use super::allocations::Backing;
use super::allocations::Freed;
use super::allocations::MemoryError;
use super::allocations::MovedAllocation;
use super::allocations::Spot;
use super::allocations::TakeOverError;
use super::quota::Account;
use super::quota::Pool;
use super::quota::Quota;
use super::quota::QuotaError;
use super::vram::AREA_REGION;
use super::vram::MAX_APERTURE;
use super::vram::Place;
use super::vram::VideoMemory;
use crate::vgpu::objects::ids::AllocationId;

/// Half of it is aperture.
const LENGTH: u64 = 32 * PAGE;
const HALF: u64 = LENGTH / 2;

fn memory() -> VideoMemory {
    VideoMemory::new(LENGTH, LENGTH, Method::BoundRanges).unwrap()
}

/// A vGPU that may allocate twice as much as it has video memory.
fn allocations() -> (Allocations, Arc<Account>) {
    let quota = Quota { min: 0, max: 2 * LENGTH };
    let account = Arc::new(Account::new(quota, Pool::new(None, []).unwrap()));
    (Allocations::new(memory(), Arc::clone(&account)), account)
}

fn bytes(pages: u64) -> usize {
    usize::try_from(pages * PAGE).unwrap()
}

/// Stores to a place as an engine does, which the daemon does not see.
fn fill(memory: &VideoMemory, place: Place, pages: u64, value: u8) {
    let slice = memory.mapping_of(place).slice(place.offset(), pages * PAGE).unwrap();
    slice.copy_from(&vec![value; bytes(pages)]);
}

/// The values that bytes of a place have.
fn values(memory: &VideoMemory, place: Place, pages: u64) -> Vec<u8> {
    let mut read = vec![0; bytes(pages)];
    memory.mapping_of(place).slice(place.offset(), pages * PAGE).unwrap().copy_to(&mut read);
    read.dedup();
    read
}

/// Pages that were written since the last call, as far as that is noted.
fn written(tracker: &Tracker) -> Vec<u64> {
    let pages = tracker.length() / PAGE;
    let mut bits = vec![0; usize::try_from(pages.div_ceil(64) * 8).unwrap()];
    tracker.query_dirty_bit_data(tracker.whole(), None, &mut bits, true).unwrap();
    (0..pages).filter(|page| bits[usize::try_from(page / 8).unwrap()] >> (page % 8) & 1 != 0).collect()
}

#[test]
fn the_parts_of_a_video_memory_are_as_long_as_its_length_says() {
    let aperture = |pages: u64| VideoMemory::aperture_of(pages * PAGE);
    assert_eq!([2, 7, 32].map(aperture), [PAGE, 3 * PAGE, 16 * PAGE]);
    let most = MAX_APERTURE / PAGE;
    assert_eq!(
        [2 * most - 2, 2 * most, 2 * most + 2, 8 * most].map(aperture),
        [(most - 1) * PAGE, 256 << 20, 256 << 20, 256 << 20,]
    );
    assert_eq!(VideoMemory::store_bytes(LENGTH, 0), 2 * LENGTH);
    assert_eq!(VideoMemory::store_bytes(LENGTH, LENGTH + PAGE), 2 * LENGTH + 2 * PAGE);
    assert_eq!(VideoMemory::store_bytes(LENGTH, u64::MAX), u64::MAX);
    assert_eq!((AREA_REGION, VideoMemory::file_bytes_of(LENGTH)), (1 << 20, LENGTH + (1 << 20)));
    let memory = memory();
    assert_eq!((memory.length(), memory.file_bytes()), (LENGTH, LENGTH + AREA_REGION));
    assert_eq!((memory.aperture_bytes(), memory.aperture_free()), (HALF, HALF));
    assert_eq!((memory.local().free_bytes(), memory.areas().free_bytes()), (HALF, AREA_REGION));
    assert_eq!(memory.file().metadata().unwrap().len(), LENGTH + AREA_REGION);
    assert_eq!(memory.evicted_file().metadata().unwrap().len(), 2 * LENGTH);
}

#[test]
fn a_place_is_whole_pages_within_its_own_region() {
    let memory = memory();
    type Make = fn(u64) -> Place;
    let regions: [(Make, u64, u64); 4] = [
        (Place::Aperture, 0, HALF),
        (Place::Local, HALF, LENGTH),
        (Place::Area, LENGTH, LENGTH + AREA_REGION),
        (Place::Host, 0, 2 * LENGTH),
    ];
    for (place, start, end) in regions {
        let has = |offset: u64, length: u64| memory.has_place(place(offset), length);
        assert!(has(start, end - start) && has(end - PAGE, PAGE), "{:?}", place(start));
        assert!(!has(start, end - start + PAGE) && !has(end, PAGE), "{:?}: past its end", place(start));
        assert!(start == 0 || !has(start - PAGE, 2 * PAGE), "{:?}: before it", place(start));
        assert!(!has(start + 1, PAGE) && !has(start, PAGE + 1), "{:?}: parts of pages", place(start));
        assert!(!has(u64::MAX / PAGE * PAGE, 2 * PAGE), "{:?}: past the end of all", place(start));
    }
}

#[test]
fn memory_that_somebody_had_is_zeroed_before_another_gets_it_and_that_is_noted_as_written() {
    let mut memory = memory();
    let place = memory.allocate_local(2 * PAGE).unwrap();
    assert_eq!(written(memory.tracker()), [0; 0], "nothing was ever there");
    fill(&memory, place, 2, 7);
    memory.release(place, 2 * PAGE);
    let again = memory.allocate_local(3 * PAGE).unwrap();
    assert_eq!((again, values(&memory, again, 3)), (place, vec![0]));
    let first = HALF / PAGE;
    assert_eq!(written(memory.tracker()), [first, first + 1], "the third was never anybody's");
    assert_eq!(memory.reserve_local(LENGTH, PAGE), None, "that is another region");
    // What was taken without being zeroed was in use before, too.
    type Take = fn(&mut VideoMemory, u64) -> Option<Place>;
    let takes: [Take; 2] =
        [VideoMemory::take_local, |memory, length| memory.reserve_local(HALF + 4 * PAGE, length)];
    for take in takes {
        let mut memory = self::memory();
        let taken = take(&mut memory, 4 * PAGE).unwrap();
        fill(&memory, taken, 4, 9);
        memory.release(taken, 4 * PAGE);
        assert_eq!(memory.allocate_local(HALF), Some(Place::Local(HALF)));
        assert_eq!(values(&memory, taken, 4), [0], "{taken:?}");
    }
}

#[test]
fn the_aperture_is_zeroed_too_and_what_the_cpu_stores_to_it_counts_as_written_while_it_is_taken() {
    let mut memory = memory();
    let place = memory.reserve_aperture(2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(memory.aperture_free(), HALF - 2 * PAGE);
    fill(&memory, place, 2, 7);
    assert_eq!(written(memory.tracker()), [2, 3]);
    assert_eq!(written(memory.tracker()), [2, 3], "the CPU may have stored again");
    memory.release(place, 2 * PAGE);
    assert_eq!(memory.aperture_free(), HALF);
    assert_eq!(written(memory.tracker()), [2, 3], "what it stored last");
    assert_eq!(written(memory.tracker()), [0; 0]);
    let again = memory.reserve_aperture(PAGE, 4 * PAGE).unwrap();
    assert_eq!(values(&memory, again, 4), [0]);
}

#[test]
fn save_areas_have_a_region_of_their_own_that_is_zeroed_and_what_is_copied_there_counts_as_somebodys() {
    let mut memory = memory();
    let all = AREA_REGION;
    let place = memory.allocate_area(all).unwrap();
    assert_eq!((place, memory.areas().free_bytes()), (Place::Area(LENGTH), 0));
    assert_eq!(
        (memory.allocate_area(PAGE), memory.take_area(PAGE), memory.reserve_area(LENGTH, PAGE)),
        (None, None, None)
    );
    assert_eq!(memory.local().free_bytes(), HALF);
    memory.release(place, all);
    // A new one, of which only these pages were ever taken.
    let mut memory = self::memory();
    for taken in
        [memory.take_area(2 * PAGE).unwrap(), memory.reserve_area(LENGTH + 6 * PAGE, 2 * PAGE).unwrap()]
    {
        fill(&memory, taken, 2, 9);
        memory.release(taken, 2 * PAGE);
    }
    assert_eq!(memory.allocate_area(all), Some(Place::Area(LENGTH)));
    assert_eq!(values(&memory, place, all / PAGE), [0]);
    let first = LENGTH / PAGE;
    assert_eq!(written(memory.tracker()), [0, 1, 6, 7].map(|page| first + page));
}

#[test]
fn what_begins_evicted_is_zero_and_noted_as_written() {
    let mut memory = memory();
    let place = memory.take_host(3 * PAGE).unwrap();
    assert_eq!(written(memory.evicted_tracker()), [0; 0], "nobody stored there yet");
    fill(&memory, place, 3, 5);
    memory.release(place, 3 * PAGE);
    assert_eq!(memory.evicted_bytes(), 0);
    let place = memory.allocate_host(3 * PAGE).unwrap();
    assert_eq!((memory.evicted_bytes(), values(&memory, place, 3)), (3 * PAGE, vec![0]));
    assert_eq!(written(memory.evicted_tracker()), [0, 1, 2]);
    assert_eq!(written(memory.tracker()), [0; 0]);
    assert_eq!(memory.allocate_host(2 * LENGTH), None);
    // Beside it lies what another has.
    let beside = memory.take_host(PAGE).unwrap();
    assert_eq!(beside, Place::Host(3 * PAGE));
    fill(&memory, beside, 1, 6);
    memory.release(place, 3 * PAGE);
    assert_eq!(memory.allocate_host(3 * PAGE), Some(place));
    assert_eq!(values(&memory, beside, 1), [6]);
}

#[test]
fn a_copy_has_the_contents_and_is_noted_where_it_went() {
    let mut memory = memory();
    let (local, area) = (memory.allocate_local(2 * PAGE).unwrap(), memory.take_area(2 * PAGE).unwrap());
    let host = memory.take_host(2 * PAGE).unwrap();
    fill(&memory, local, 2, 3);
    memory.copy(local, host, 2 * PAGE);
    assert_eq!(values(&memory, host, 2), [3]);
    assert_eq!((written(memory.evicted_tracker()), written(memory.tracker())), (vec![0, 1], vec![]));
    memory.copy(host, area, 2 * PAGE);
    assert_eq!(values(&memory, area, 2), [3]);
    let first = LENGTH / PAGE;
    assert_eq!(
        (written(memory.evicted_tracker()), written(memory.tracker())),
        (vec![], vec![first, first + 1])
    );
    memory.mark(local, local.offset() + PAGE, 1);
    assert_eq!(written(memory.tracker()), [HALF / PAGE + 1]);
}

#[test]
fn a_place_is_taken_once_and_all_places_are_free_again_when_they_are_forgotten() {
    let mut memory = memory();
    let places =
        [Place::Aperture(PAGE), Place::Local(HALF + PAGE), Place::Area(LENGTH + PAGE), Place::Host(PAGE)];
    for place in places {
        fill(&memory, place, 1, 6);
        assert!(memory.take_place(place, PAGE), "{place:?}");
        assert!(!memory.take_place(place, PAGE), "{place:?} is taken");
        assert_eq!(values(&memory, place, 1), [6], "{place:?}: with what is in it");
    }
    assert!(!memory.take_place(Place::Local(0), PAGE), "that is the aperture");
    assert_eq!((memory.aperture_free(), memory.local().free_bytes()), (HALF - PAGE, HALF - PAGE));
    assert_eq!((memory.areas().free_bytes(), memory.evicted_bytes()), (AREA_REGION - PAGE, PAGE));
    assert_eq!(written(memory.tracker()), [1], "the CPU sees the aperture");
    memory.forget_places();
    assert_eq!((memory.aperture_free(), memory.local().free_bytes()), (HALF, HALF));
    assert_eq!((memory.areas().free_bytes(), memory.evicted_bytes()), (AREA_REGION, 0));
    assert!(written(memory.tracker()).contains(&1), "what it stored last");
    assert_eq!(written(memory.tracker()), [0; 0], "the CPU sees nothing any more");
    for place in places {
        assert!(memory.take_place(place, PAGE), "{place:?}");
        memory.release(place, PAGE);
    }
    assert!(memory.reserve_aperture(0, HALF).is_some() && memory.allocate_area(AREA_REGION).is_some());
    assert_eq!(memory.allocate_local(HALF), Some(Place::Local(HALF)));
    for place in &places[..3] {
        assert_eq!(values(&memory, *place, 1), [0], "{place:?} was somebody's");
    }
}

#[test]
fn a_place_among_what_is_evicted_makes_no_page_of_the_video_memory_somebodys() {
    let mut memory = memory();
    assert!(memory.take_place(Place::Host(HALF), PAGE));
    assert!(!memory.take_place(Place::Local(HALF - PAGE), PAGE), "outside");
    assert_eq!(memory.allocate_local(HALF), Some(Place::Local(HALF)));
    assert_eq!(written(memory.tracker()), [0; 0], "nothing had to be zeroed");
}

#[test]
fn memory_that_was_filled_elsewhere_keeps_its_contents_and_what_nobody_takes_over_is_zeroed() {
    let file = |bytes| create_memfd("filled", bytes).unwrap();
    let filled = |vram, evicted| VideoMemory::filled(vram, evicted, LENGTH, LENGTH, Method::BoundRanges);
    for (vram, evicted, what) in [
        (LENGTH, 2 * LENGTH, format!("vram: {LENGTH} bytes, not {}", LENGTH + AREA_REGION)),
        (LENGTH + AREA_REGION, LENGTH, format!("evicted: {LENGTH} bytes, not {}", 2 * LENGTH)),
    ] {
        assert_eq!(filled(file(vram), file(evicted)).unwrap_err().to_string(), what);
    }
    let (vram, evicted) = (file(LENGTH + AREA_REGION), file(2 * LENGTH));
    // Runs of pages in all three regions, of which one reaches into the next region, and the last page of all.
    let (last, runs) = (LENGTH + AREA_REGION - PAGE, [(PAGE, 2), (HALF, 1), (LENGTH - PAGE, 2)]);
    for (offset, pages) in runs.into_iter().chain([(last, 1)]) {
        std::os::unix::fs::FileExt::write_all_at(&vram, &vec![4; bytes(pages)], offset).unwrap();
    }
    let mut memory = filled(vram, evicted).unwrap();
    assert!(memory.take_place(Place::Local(HALF), PAGE));
    assert_eq!(values(&memory, Place::Local(HALF), 1), [4]);
    let local = memory.reserve_local(HALF + PAGE, PAGE).unwrap();
    memory.release(local, PAGE);
    for place in [
        memory.reserve_aperture(0, HALF).unwrap(),
        memory.allocate_local(HALF - PAGE).unwrap(),
        memory.allocate_area(AREA_REGION).unwrap(),
    ] {
        let length = match place {
            Place::Aperture(_) => HALF,
            Place::Local(_) => HALF - PAGE,
            Place::Area(_) | Place::Host(_) => AREA_REGION,
        };
        assert_eq!(values(&memory, place, length / PAGE), [0], "{place:?}");
    }
    // All of the aperture counts as written: the CPU sees it.
    let noted: Vec<u64> = written(memory.tracker()).into_iter().filter(|page| *page >= HALF / PAGE).collect();
    let zeroed = [HALF / PAGE + 1, LENGTH / PAGE - 1, LENGTH / PAGE, last / PAGE];
    assert_eq!(noted, zeroed, "and no page beside them");
}

#[test]
fn an_allocation_is_charged_until_its_last_reference_is_gone() {
    let (mut all, account) = allocations();
    assert!(all.is_empty());
    let committed = || account.budget().committed;
    let first = all.create_vram(3 * PAGE).unwrap();
    let second = all.create_vram(2 * PAGE).unwrap();
    assert_eq!((committed(), all.size(first), all.size(second)), (5 * PAGE, 3 * PAGE, 2 * PAGE));
    assert!(!all.is_empty() && first != second);
    assert_eq!(all.get(first).unwrap().priority, PRIORITY_NORMAL);
    assert_eq!(all.iter().map(|(id, _)| id).collect::<Vec<_>>(), [first, second]);
    assert!(matches!(all.create_vram(2 * LENGTH), Err(MemoryError::Quota(QuotaError::Vgpu { .. }))));
    assert_eq!(committed(), 5 * PAGE);
    assert!(matches!(all.locate(first, 4), Spot::Segment(SegmentId::VRAM, HALF)));
    all.retain(first);
    assert_eq!(all.release(first), Freed::Kept);
    assert_eq!((committed(), all.memory().local().free_bytes()), (5 * PAGE, HALF - 3 * PAGE));
    assert_eq!(all.release(first), Freed::Vram);
    assert_eq!((committed(), all.memory().local().free_bytes()), (2 * PAGE, HALF));
    assert_eq!((all.release(first), all.size(first)), (Freed::Kept, 0), "it is gone");
    let guest = all.create_guest(SegmentId(9), 8 * PAGE);
    assert_eq!(
        (committed(), all.size(guest), all.guest_segment(guest)),
        (2 * PAGE, 8 * PAGE, Some(SegmentId(9)))
    );
    assert_eq!((all.guest_segment(second), all.spot(guest)), (None, Spot::Segment(SegmentId(9), 0)));
    assert_eq!(all.release(guest), Freed::Segment(SegmentId(9)));
    drop(all);
    assert_eq!(committed(), 0, "what is left goes with the vGPU");
}

#[test]
fn what_was_freed_is_not_given_back_once_more_when_its_vgpu_ends() {
    let (mut all, account) = allocations();
    account.commit(5 * PAGE).unwrap();
    let first = all.create_vram(3 * PAGE).unwrap();
    all.create_vram(PAGE).unwrap();
    all.release(first);
    drop(all);
    assert_eq!(account.budget().committed, 5 * PAGE, "what another session has");
}

#[test]
fn an_allocation_gets_its_place_when_it_is_looked_for_and_once() {
    let (mut all, _) = allocations();
    let id = all.create_vram(2 * PAGE).unwrap();
    assert_eq!((all.spot(id), all.view(id).is_none()), (Spot::Evicted, true));
    all.get_mut(id).unwrap().is_moving = true;
    assert_eq!(all.locate(id, 3), Spot::Moving);
    all.get_mut(id).unwrap().is_moving = false;
    let spot = all.locate(id, 5);
    assert_eq!(spot, Spot::Segment(SegmentId::VRAM, HALF));
    assert_eq!((all.locate(id, 6), all.get(id).unwrap().placed_in), (spot, 5));
    let (mapping, offset) = all.view(id).unwrap();
    assert!(Arc::ptr_eq(mapping, all.memory().mapping()) && offset == HALF);
    assert!(Arc::ptr_eq(all.tracker_of(id).unwrap(), all.memory().tracker()));
    let large = all.create_vram(HALF).unwrap();
    assert_eq!(all.locate(large, 6), Spot::Evicted, "there is no room");
    let guest = all.create_guest(SegmentId(9), PAGE);
    assert!(all.view(guest).is_none() && all.tracker_of(guest).is_none());
    let nothing = AllocationId(99);
    assert_eq!((all.locate(nothing, 6), all.spot(nothing)), (Spot::Evicted, Spot::Evicted));
}

#[test]
fn contents_go_along_with_every_move_and_the_old_place_is_free() {
    let (mut all, _) = allocations();
    let id = all.create_vram(2 * PAGE).unwrap();
    all.locate(id, 1);
    let place = |all: &Allocations| match all.get(id).unwrap().backing {
        Backing::Vram(Some(place)) => place,
        other => panic!("{other:?}"),
    };
    fill(all.memory(), place(&all), 2, 8);
    type Begin = fn(&mut Allocations, AllocationId) -> Result<Place, MemoryError>;
    let moves: [(Begin, Place); 5] = [
        (|all, id| all.begin_move_in(id, 3 * PAGE), Place::Aperture(3 * PAGE)),
        (Allocations::begin_move_out, Place::Local(HALF)),
        (|all, id| all.begin_relocation(id, LENGTH - 2 * PAGE), Place::Local(LENGTH - 2 * PAGE)),
        (Allocations::begin_eviction, Place::Host(0)),
        (|all, id| all.begin_relocation(id, HALF), Place::Local(HALF)),
    ];
    for (epoch, (begin, expected)) in (10..).zip(moves) {
        let target = begin(&mut all, id).unwrap();
        assert_eq!((target, all.spot(id)), (expected, Spot::Moving));
        assert_ne!(place(&all), target, "it is where it was until that is done");
        assert!(!all.bring_back(id, 99), "it moves already");
        all.finish_move(id, target, epoch);
        assert_eq!((place(&all), values(all.memory(), target, 2)), (target, vec![8]));
        assert_eq!(all.get(id).unwrap().placed_in, epoch);
        let taken = |free: u64, of: u64| of - free;
        let memory = all.memory();
        let bytes = taken(memory.aperture_free(), HALF)
            + taken(memory.local().free_bytes(), HALF)
            + memory.evicted_bytes();
        assert_eq!(bytes, 2 * PAGE, "{target:?}: no other place is taken");
    }
}

#[test]
fn a_move_that_finds_no_room_leaves_an_allocation_where_it_is() {
    let (mut all, _) = allocations();
    let [id, other] = [HALF - PAGE, 2 * PAGE].map(|size| all.create_vram(size).unwrap());
    let spot = all.locate(id, 1);
    assert_eq!(
        all.begin_move_in(id, 2 * PAGE).unwrap_err(),
        MemoryError::Aperture { offset: 2 * PAGE, length: HALF - PAGE }
    );
    assert_eq!(all.begin_relocation(id, HALF).unwrap_err(), MemoryError::Exhausted(HALF - PAGE));
    assert_eq!(all.spot(id), spot);
    // Where engines cannot reach it, there is room.
    assert_eq!(all.begin_move_out(other).unwrap(), Place::Host(0));
    // What has no place of its own any more cannot move.
    let guest = all.create_guest(SegmentId(9), 2 * PAGE);
    all.finish_move(guest, Place::Host(0), 2);
    assert_eq!(all.memory().evicted_bytes(), 0, "a place that cannot be used is given back");
}

#[test]
fn what_is_evicted_is_brought_back_with_its_contents_where_there_is_room() {
    let (mut all, _) = allocations();
    let id = all.create_vram(2 * PAGE).unwrap();
    all.locate(id, 1);
    fill(all.memory(), Place::Local(HALF), 2, 8);
    let target = all.begin_eviction(id).unwrap();
    all.finish_move(id, target, 2);
    assert_eq!((all.spot(id), all.memory().evicted_bytes()), (Spot::Evicted, 2 * PAGE));
    assert!(Arc::ptr_eq(all.tracker_of(id).unwrap(), all.memory().evicted_tracker()));
    let large = all.create_vram(HALF).unwrap();
    assert!(all.bring_back(large, 3), "it had no place");
    assert!(!all.bring_back(id, 3), "there is no room");
    assert_eq!((all.spot(id), all.memory().evicted_bytes()), (Spot::Evicted, 2 * PAGE));
    all.release(large);
    assert!(all.bring_back(id, 4));
    assert_eq!((all.spot(id), all.memory().evicted_bytes()), (Spot::Segment(SegmentId::VRAM, HALF), 0));
    assert_eq!((values(all.memory(), Place::Local(HALF), 2), all.get(id).unwrap().placed_in), (vec![8], 4));
    assert!(all.bring_back(id, 5), "it is there");
    assert!(!all.bring_back(AllocationId(99), 5));
}

#[test]
fn pre_37_pre_39_a_save_area_has_its_first_words_and_no_place_that_the_cpu_sees() {
    let (mut all, _) = allocations();
    let id = all.create_area(2 * PAGE).unwrap();
    assert_eq!((all.locate(id, 1), all.get(id).unwrap().backing), (Spot::Evicted, Backing::Vram(None)));
    all.initialise(id, 3, &[(8, 7), (PAGE + 16, 9)]).unwrap();
    assert_eq!(all.spot(id), Spot::Segment(SegmentId::VRAM, LENGTH));
    let word = |all: &Allocations, at: u64| {
        let (mapping, offset) = all.view(id).unwrap();
        mapping.word(offset + at).unwrap().load(std::sync::atomic::Ordering::Acquire)
    };
    assert_eq!([0, 8, 16, PAGE + 16].map(|at| word(&all, at)), [0, 7, 0, 9]);
    assert_eq!(written(all.memory().tracker()), [LENGTH / PAGE, LENGTH / PAGE + 1]);
    assert_eq!(all.get(id).unwrap().placed_in, 3);
    all.note_use(id, 6);
    assert_eq!(all.get(id).unwrap().placed_in, 6);
    assert!(all.initialise(id, 4, &[(8, 1)]).is_err(), "it has contents");
    assert_eq!(word(&all, 8), 7);
    assert_eq!(all.begin_move_in(id, 0).unwrap_err(), MemoryError::Protected);
    let plain = all.create_vram(PAGE).unwrap();
    assert!(all.initialise(plain, 4, &[]).is_err(), "that is no save area");
    // It moves within its own region, and comes back there.
    let target = all.begin_relocation(id, LENGTH + 8 * PAGE).unwrap();
    assert_eq!(target, Place::Area(LENGTH + 8 * PAGE));
    all.finish_move(id, target, 7);
    let host = all.begin_eviction(id).unwrap();
    all.finish_move(id, host, 8);
    assert!(all.bring_back(id, 9));
    assert_eq!((all.spot(id), word(&all, PAGE + 16)), (Spot::Segment(SegmentId::VRAM, LENGTH), 9));
    // Where there is no room for it, it begins as evicted.
    let rest = all.create_area(2 * LENGTH - 4 * PAGE).unwrap();
    assert!(all.memory.allocate_area(AREA_REGION - 2 * PAGE).is_some());
    all.initialise(rest, 10, &[(8, 5)]).unwrap();
    assert_eq!((all.spot(rest), all.memory().evicted_bytes()), (Spot::Evicted, 2 * LENGTH - 4 * PAGE));
    assert!(!all.bring_back(rest, 11));
    let (mapping, offset) = all.view(rest).unwrap();
    assert_eq!(mapping.word(offset + 8).unwrap().load(std::sync::atomic::Ordering::Acquire), 5);
}

#[test]
fn tdr_79_what_is_purged_reads_zero_and_what_the_cpu_sees_is_moving_or_pinned_stays() {
    let (mut all, _) = allocations();
    let [shown, moving, pinned, plain, evicted, unplaced] = [(); 6].map(|()| all.create_vram(PAGE).unwrap());
    let guest = all.create_guest(SegmentId(9), PAGE);
    for id in [shown, moving, pinned, plain, evicted] {
        all.locate(id, 1);
    }
    let target = all.begin_move_in(shown, 0).unwrap();
    all.finish_move(shown, target, 1);
    let target = all.begin_eviction(evicted).unwrap();
    all.finish_move(evicted, target, 1);
    let _away = all.begin_eviction(moving).unwrap();
    all.get_mut(pinned).unwrap().pins = 1;
    let free = all.memory().local().free_bytes();
    assert_eq!(all.purge(), [plain, evicted]);
    for id in [plain, evicted] {
        assert_eq!(all.get(id).unwrap().backing, Backing::Vram(None));
    }
    assert_eq!(all.memory().local().free_bytes(), free + PAGE);
    assert_eq!(all.memory().evicted_bytes(), PAGE, "the target of the move");
    assert_eq!(all.spot(guest), Spot::Segment(SegmentId(9), 0));
    assert_eq!(all.get(unplaced).unwrap().backing, Backing::Vram(None));
}

fn moved(size: u64, backing: Backing) -> MovedAllocation {
    MovedAllocation { size, backing, references: 2, holds: 3, pins: 4, priority: 5, is_area: false }
}

#[test]
fn allocations_of_another_host_are_taken_over_where_they_were_and_later_ones_have_other_numbers() {
    let (mut all, account) = allocations();
    let place = Place::Local(LENGTH - 2 * PAGE);
    fill(all.memory(), place, 2, 8);
    all.take_over(vec![
        (AllocationId(7), moved(2 * PAGE, Backing::Vram(Some(place)))),
        (AllocationId(3), MovedAllocation { is_area: true, ..moved(PAGE, Backing::Vram(None)) }),
        (AllocationId(5), moved(9 * PAGE, Backing::Guest(SegmentId(6)))),
    ])
    .unwrap();
    assert_eq!(account.budget().committed, 3 * PAGE);
    let taken = all.get(AllocationId(7)).unwrap();
    assert_eq!((taken.size, taken.holds, taken.pins, taken.priority), (2 * PAGE, 3, 4, 5));
    assert!(!taken.is_area && !taken.is_moving && taken.placed_in == 0);
    assert!(all.get(AllocationId(3)).unwrap().is_area);
    assert_eq!(all.spot(AllocationId(7)), Spot::Segment(SegmentId::VRAM, place.offset()));
    assert_eq!(values(all.memory(), place, 2), [8]);
    assert_eq!(all.create_vram(PAGE).unwrap(), AllocationId(8));
    assert_eq!((all.release(AllocationId(7)), all.release(AllocationId(7))), (Freed::Kept, Freed::Vram));
    drop(all);
    assert_eq!(account.budget().committed, 0);
}

#[test]
fn a_state_of_which_one_allocation_cannot_be_is_refused_and_leaves_nothing_behind() {
    let place = |offset| Backing::Vram(Some(Place::Local(offset)));
    let good = || (AllocationId(7), moved(2 * PAGE, place(HALF)));
    let orphan = MovedAllocation { references: 0, ..moved(PAGE, place(HALF + 4 * PAGE)) };
    for (bad, why) in [
        ((AllocationId(0), moved(PAGE, place(HALF + 4 * PAGE))), TakeOverError::Number(0)),
        ((AllocationId(u64::MAX), moved(PAGE, place(HALF + 4 * PAGE))), TakeOverError::Number(u64::MAX)),
        ((AllocationId(7), moved(PAGE, place(HALF + 4 * PAGE))), TakeOverError::Number(7)),
        ((AllocationId(8), orphan), TakeOverError::Number(8)),
        ((AllocationId(8), moved(PAGE, place(HALF + PAGE))), TakeOverError::Place(8)),
        ((AllocationId(8), moved(PAGE, place(0))), TakeOverError::Place(8)),
    ] {
        let (mut all, account) = allocations();
        assert_eq!(all.take_over(vec![good(), bad]), Err(why));
        assert!(all.is_empty() && account.budget().committed == 0, "{why}");
        assert_eq!(all.memory().local().free_bytes(), HALF, "{why}");
        all.take_over(vec![good()]).unwrap();
        drop(all);
        assert_eq!(account.budget().committed, 0);
    }
    let (mut all, account) = allocations();
    let large = (AllocationId(8), moved(2 * LENGTH, Backing::Vram(None)));
    assert!(matches!(all.take_over(vec![good(), large]), Err(TakeOverError::Quota(_))));
    assert_eq!(account.budget().committed, 0);
}

#[test]
fn a_vgpu_without_allocations_adopts_other_memory() {
    let (mut all, _) = allocations();
    let other = memory();
    fill(&other, Place::Area(LENGTH), 1, 2);
    all.adopt(other);
    assert_eq!(values(all.memory(), Place::Area(LENGTH), 1), [2]);
}
