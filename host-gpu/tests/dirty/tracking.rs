//! Start and stop.

use std::sync::Arc;

use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::tracker::Last;
use campanile_host_gpu::dirty::view::EngineView;
use campanile_host_gpu::dirty::view::How;

use crate::support::Memory;
use crate::support::SEGMENT;

#[test]
fn dirty_24_dirty_25_dirty_26_a_start_reads_zero_and_counts_what_comes_after_it() {
    let memory = Memory::new(64);
    memory.write(3, 1);
    let basis = memory.basis(&[(0, 64)]);
    memory.write(4, 1);
    memory.tracker.start_dirty_tracking(basis).unwrap();
    assert!(memory.dirty(basis, 64, false).is_empty());
    memory.write(5, 1);
    assert_eq!(memory.dirty(basis, 64, false), [5]);
    // More than it asked for is tracked, and does not show.
    let part = memory.started(&[(8, 8)]);
    memory.write(20, 1);
    assert!(memory.dirty(part, 8, true).is_empty());
}

#[test]
fn dirty_28_dirty_29_stopping_one_request_leaves_the_others_tracking() {
    let memory = Memory::new(64);
    let (one, other) = (memory.started(&[(0, 64)]), memory.started(&[(0, 64)]));
    memory.write(1, 1);
    memory.tracker.stop_dirty_tracking(one).unwrap();
    memory.write(2, 1);
    assert_eq!(memory.dirty(other, 64, true), [1, 2]);
    memory.tracker.stop_dirty_tracking(other).unwrap();
    memory.write(3, 1);
    assert_eq!(memory.dirty(memory.tracker.whole(), 64, false), [1, 2, 3]);
}

#[test]
fn dirty_31_dirty_34_all_that_was_ever_written_is_known_from_the_start_and_the_rest_is_zero() {
    let memory = Memory::new(64);
    assert!(memory.dirty(memory.tracker.whole(), 64, false).is_empty());
    memory.write(9, 7);
    // A migration that was given up has cleared its own view alone: the next one to come finds all of it again.
    let first = memory.started(&[(0, 64)]);
    assert_eq!(memory.dirty(memory.tracker.whole(), 64, false), [9]);
    memory.write(10, 7);
    assert_eq!(memory.dirty(first, 64, true), [10]);
    memory.tracker.destroy_memory_basis(first).unwrap();
    assert_eq!(memory.dirty(memory.tracker.whole(), 64, false), [9, 10]);
    assert_eq!(memory.tracker.pages_written(), 2);
    let mut bytes = vec![1; 64 * 4096];
    memory.tracker.read(memory.tracker.whole(), 0, &mut bytes).unwrap();
    let written = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    assert_eq!(written.map(|(at, _)| at / 4096).collect::<Vec<_>>(), [9, 10]);
}

#[test]
fn dirty_54_what_comes_from_elsewhere_is_dirty_for_the_next_pass() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(0, 64)]);
    memory.tracker.write(7 * 4096 + 100, &[5; 5000]).unwrap();
    assert_eq!(memory.dirty(basis, 64, true), [7, 8]);
    assert_eq!(memory.dirty(memory.tracker.whole(), 64, false), [7, 8]);
    let mut page = vec![0; 4096];
    memory.tracker.read(basis, 7 * 4096, &mut page).unwrap();
    assert_eq!((page[99], page[100]), (0, 5));
    memory.tracker.write(64 * 4096 - 1, &[0]).unwrap();
    assert_eq!(memory.dirty(basis, 64, true), [63]);
    assert!(memory.tracker.write(64 * 4096 - 1, &[0; 2]).is_err());
    assert!(memory.tracker.write(u64::MAX, &[0; 2]).is_err());
    assert!(memory.dirty(basis, 64, false).is_empty());
}

#[test]
fn dirty_32_a_start_and_a_clear_leave_the_bits_of_others() {
    let memory = Memory::new(64);
    let one = memory.started(&[(0, 64)]);
    memory.write(1, 1);
    let other = memory.started(&[(0, 64)]);
    assert_eq!(memory.dirty(one, 64, false), [1]);
    memory.write(2, 1);
    assert_eq!(memory.dirty(other, 64, true), [2]);
    assert_eq!(memory.dirty(one, 64, true), [1, 2]);
    assert!(memory.dirty(other, 64, false).is_empty());
}

#[test]
fn dirty_33_a_stop_without_a_start_and_a_second_start_are_refused() {
    let memory = Memory::new(64);
    let basis = memory.basis(&[(0, 64)]);
    assert_eq!(memory.tracker.stop_dirty_tracking(basis), Err(DirtyError::NotStarted));
    memory.tracker.start_dirty_tracking(basis).unwrap();
    memory.write(1, 1);
    assert_eq!(memory.tracker.start_dirty_tracking(basis), Err(DirtyError::Started));
    assert_eq!(memory.dirty(basis, 64, false), [1], "and it changes nothing");
    memory.tracker.stop_dirty_tracking(basis).unwrap();
    assert_eq!(memory.tracker.stop_dirty_tracking(basis), Err(DirtyError::NotStarted));
}

#[test]
fn dirty_50_each_engine_counts_for_itself_and_for_the_part_that_is_asked() {
    let memory = Memory::new(64);
    assert_eq!((memory.tracker.segment(), memory.tracker.length()), (SEGMENT, 64 * 4096));
    let unknown = || {
        let view = EngineView::new(64 * 4096);
        view.begin(How::Unknown);
        memory.tracker.attach(Arc::new(view))
    };
    let (one, other) = (unknown(), unknown());
    let basis = memory.started(&[(8, 8), (40, 2)]);
    assert_eq!(memory.dirty(basis, 10, true).len(), 10, "of an unknown one all counts, at each query");
    assert!(memory.tracker.detach(one, Last::Look));
    assert_eq!(memory.dirty(basis, 10, true).len(), 10, "and the other one is still there");
    assert_eq!(memory.dirty(basis, 10, true).len(), 10);
    assert!(memory.tracker.detach(other, Last::Look));
    assert!(memory.tracker.detach(other, Last::Unscanned), "it is gone already");
    memory.dirty(basis, 10, true);
    assert!(memory.dirty(basis, 10, true).is_empty());
}
