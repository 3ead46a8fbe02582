//! What an adapter is asked when it starts.

use campanile_host_gpu::dirty::caps::AdapterCaps;
use campanile_host_gpu::dirty::caps::CapsError;
use campanile_host_gpu::dirty::caps::DirtyCaps;
use campanile_host_gpu::dirty::caps::adapter_start;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::vram::create_memfd;

use crate::support::Memory;
use crate::support::PAGE;

/// An adapter that answers as it is told, and notes what it was asked.
struct Fake {
    caps: AdapterCaps,
    sizes: Vec<(u32, u64)>,
    asked: Vec<Option<u32>>,
}

impl DirtyCaps for Fake {
    fn adapter_caps(&mut self) -> AdapterCaps {
        self.asked.push(None);
        self.caps
    }

    fn segment_page_size(&mut self, segment: u32) -> Result<u64, DirtyError> {
        self.asked.push(Some(segment));
        let found = self.sizes.iter().find(|(known, _)| *known == segment);
        found.map(|(_, size)| *size).ok_or(DirtyError::NotImplemented)
    }
}

fn fake(supported: bool, performant: bool, live_migration: bool, sizes: &[(u32, u64)]) -> Fake {
    Fake {
        caps: AdapterCaps { supported, performant, live_migration },
        sizes: sizes.to_vec(),
        asked: Vec::new(),
    }
}

#[test]
fn dirty_01_dirty_02_dirty_05_caps_are_asked_first_and_each_segment_once_if_there_is_tracking() {
    let mut adapter = fake(true, true, true, &[(0, PAGE), (3, PAGE)]);
    let tracking = adapter_start(&mut adapter, &[0, 3]).unwrap();
    assert_eq!(adapter.asked, [None, Some(0), Some(3)]);
    assert_eq!(tracking.segments, [(0, PAGE), (3, PAGE)]);
    let mut adapter = fake(false, false, false, &[(0, PAGE)]);
    assert_eq!(adapter_start(&mut adapter, &[0]).unwrap().segments, [] as [(u32, u64); 0]);
    assert_eq!(adapter.asked, [None]);
}

#[test]
fn dirty_04_cheap_tracking_that_is_not_there_is_refused() {
    let refused = adapter_start(&mut fake(false, true, false, &[]), &[0]);
    assert_eq!(refused, Err(CapsError::PerformantOnly));
}

#[test]
fn dirty_06_dirty_07_a_bit_is_for_a_power_of_two_of_at_least_4_kib_whatever_pages_the_gpu_has() {
    for wrong in [0, 1, 2048, 4097, 12_288, u64::MAX] {
        let refused = adapter_start(&mut fake(true, true, false, &[(0, wrong)]), &[0]);
        assert_eq!(refused, Err(CapsError::PageSize { segment: 0, page_size: wrong }));
        let file = create_memfd("test", 1 << 20).unwrap();
        assert!(Tracker::new(0, &file, 1 << 20, wrong, Method::BoundRanges).is_err());
    }
    for size in [4096, 1 << 16, 1 << 20] {
        assert!(adapter_start(&mut fake(true, true, true, &[(0, size)]), &[0]).is_ok());
        let file = create_memfd("test", 1 << 20).unwrap();
        let tracker = Tracker::new(0, &file, 1 << 20, size, Method::BoundRanges).unwrap();
        tracker.mark((1 << 20) - 1, 1);
        let mut buffer = vec![0; usize::try_from(((1 << 20) / size).div_ceil(8)).unwrap()];
        tracker.query_dirty_bit_data(tracker.whole(), None, &mut buffer, false).unwrap();
        assert_eq!(*buffer.last().unwrap(), 1 << (((1 << 20) / size - 1) % 8));
    }
}

#[test]
fn dirty_08_segments_may_have_bits_of_different_sizes() {
    let sizes = [(0, PAGE), (1, 1 << 16)];
    assert_eq!(adapter_start(&mut fake(true, true, true, &sizes), &[0, 1]).unwrap().segments, sizes);
}

#[test]
fn dirty_09_a_segment_without_a_plane_says_so_and_others_still_work() {
    let tracking = adapter_start(&mut fake(true, true, false, &[(1, PAGE)]), &[0, 1]).unwrap();
    assert_eq!(tracking.segments, [(1, PAGE)]);
    let file = create_memfd("test", 8 * PAGE).unwrap();
    let without = Tracker::new(0, &file, 8 * PAGE, PAGE, Method::Off).unwrap();
    assert!(!without.caps().supported && !without.caps().performant);
    let mut buffer = [0xa5];
    let asked = without.query_dirty_bit_data(without.whole(), None, &mut buffer, true);
    assert_eq!((asked, buffer), (Err(DirtyError::NotImplemented), [0xa5]), "the output is left alone");
    assert_eq!(without.start_dirty_tracking(without.whole()), Err(DirtyError::NotImplemented));
    assert_eq!(without.create_memory_basis(0, &[]), Err(DirtyError::NotImplemented));
}

#[test]
fn dirty_10_live_migration_needs_tracking_of_every_segment() {
    let refused = adapter_start(&mut fake(false, false, true, &[]), &[0]);
    assert_eq!(refused, Err(CapsError::MigrationWithoutTracking));
    let refused = adapter_start(&mut fake(true, true, true, &[(0, PAGE)]), &[0, 1]);
    assert_eq!(refused, Err(CapsError::MigrationWithoutSegment(1)));
}

#[test]
fn dirty_11_what_is_cheap_runs_from_the_beginning_and_its_page_size_stays() {
    let memory = Memory::new(16);
    let caps = memory.tracker.caps();
    assert!(caps.supported && caps.performant);
    assert_eq!(caps.page_size, PAGE);
    memory.write(5, 1);
    assert_eq!(memory.dirty(memory.tracker.whole(), 16, false), [5], "tracked without being asked to");
    assert_eq!(memory.tracker.caps(), caps);
}
