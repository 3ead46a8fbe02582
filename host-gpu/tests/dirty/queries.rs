//! Queries.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::basis::Subrange;
use campanile_host_gpu::dirty::elsewhere::Ahead;
use campanile_host_gpu::dirty::elsewhere::Elsewhere;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::method::Method;

use crate::support::Memory;
use crate::support::PAGE;
use crate::support::bits;

fn part(index: usize, first: u64, count: u64) -> Option<Subrange> {
    Some(Subrange { index, offset: first * PAGE, length: count * PAGE })
}

#[test]
fn dirty_35_dirty_43_a_bit_says_that_a_page_was_written_and_a_query_alone_clears_nothing() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(0, 64)]);
    memory.tracker.mark(5 * PAGE - 1, 2);
    for _ in 0..3 {
        assert_eq!(memory.dirty(basis, 64, false), [4, 5]);
    }
}

#[test]
fn dirty_36_dirty_37_dirty_38_a_subrange_is_part_of_one_range_and_one_of_no_bytes_is_the_whole_basis() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(32, 16), (0, 16)]);
    for page in [33, 40, 1, 9] {
        memory.write(page, 1);
    }
    let ask = |subrange: Option<Subrange>, count: usize| {
        let mut buffer = vec![0; count.div_ceil(8)];
        let asked = memory.tracker.query_dirty_bit_data(basis, subrange, &mut buffer, false);
        asked.map(|()| bits(&buffer, count).iter().position(|bit| *bit))
    };
    assert_eq!(ask(part(0, 8, 8), 8), Ok(Some(0)));
    assert_eq!(ask(part(1, 1, 3), 3), Ok(Some(0)));
    assert_eq!(ask(part(1, 10, 6), 6), Ok(None));
    let none = Subrange { index: 99, offset: 12_345, length: 0 };
    assert_eq!(ask(Some(none), 32), Ok(Some(1)), "index and offset are ignored");
    for wrong in [part(2, 0, 1), part(0, 0, 17), part(0, 16, 1), part(0, 1 << 50, 1)] {
        assert_eq!(ask(wrong, 32), Err(DirtyError::Subrange));
    }
    for (offset, length) in [(1, PAGE), (0, PAGE - 1), (u64::MAX - PAGE + 1, PAGE)] {
        assert_eq!(ask(Some(Subrange { index: 0, offset, length }), 32), Err(DirtyError::Subrange));
    }
}

#[test]
fn dirty_39_dirty_40_a_buffer_that_is_too_small_is_refused_and_nothing_is_cleared() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(0, 9), (20, 8)]);
    memory.write(3, 1);
    let mut buffer = [0xa5; 2];
    let asked = memory.tracker.query_dirty_bit_data(basis, None, &mut buffer, true);
    assert_eq!(asked, Err(DirtyError::Buffer { needed: 3, given: 2 }), "17 pages in all");
    assert_eq!(buffer, [0xa5; 2]);
    assert_eq!(memory.dirty(basis, 17, true), [3]);
    memory.write(3, 1);
    let asked = memory.tracker.query_dirty_bit_data(basis, part(0, 0, 9), &mut [0; 1], true);
    assert_eq!(asked, Err(DirtyError::Buffer { needed: 2, given: 1 }));
    assert_eq!(memory.dirty(basis, 17, true), [3]);
}

#[test]
fn dirty_42_dirty_45_a_clear_is_of_what_was_asked_alone() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(0, 64)]);
    for page in 0..64 {
        memory.write(page, 1);
    }
    let mut buffer = [0; 2];
    memory.tracker.query_dirty_bit_data(basis, part(0, 16, 16), &mut buffer, true).unwrap();
    assert_eq!(buffer, [0xff; 2]);
    let left: Vec<usize> = (0..64).filter(|page| !(16..32).contains(page)).collect();
    assert_eq!(memory.dirty(basis, 64, false), left);
    memory.write(16, 1);
    assert_eq!(memory.dirty(basis, 64, true).len(), 49);
    assert!(memory.dirty(basis, 64, true).is_empty());
}

#[test]
fn dirty_46_one_memory_is_asked_and_others_keep_their_bits() {
    let (one, other) = (Memory::new(8), Memory::new(8));
    one.write(1, 1);
    other.write(2, 1);
    assert_eq!(one.dirty(one.tracker.whole(), 8, true), [1]);
    assert_eq!(other.dirty(other.tracker.whole(), 8, true), [2]);
}

#[test]
fn dirty_47_many_small_queries_say_together_what_a_whole_one_does() {
    let memory = Memory::new(200);
    let (whole, walked) = (memory.started(&[(7, 100), (120, 70)]), memory.started(&[(7, 100), (120, 70)]));
    for page in (0..200).filter(|page| page % 3 == 1 || page % 7 == 2) {
        memory.write(page, 1);
    }
    let expected = memory.query(whole, 170, true);
    let mut seen = Vec::new();
    for (index, pages) in [(0, 100), (1, 70)] {
        for first in (0..pages).step_by(11) {
            let count = 11.min(pages - first);
            let mut buffer = [0; 2];
            let subrange = part(index, first, count);
            memory.tracker.query_dirty_bit_data(walked, subrange, &mut buffer, true).unwrap();
            seen.extend(bits(&buffer, usize::try_from(count).unwrap()));
        }
    }
    assert_eq!(seen, expected);
    assert!(memory.dirty(walked, 170, false).is_empty());
}

#[test]
fn dirty_48_what_is_not_tracked_cannot_be_asked() {
    let memory = Memory::new(64);
    let basis = memory.basis(&[(0, 64)]);
    let asked = memory.tracker.query_dirty_bit_data(basis, None, &mut [0; 8], false);
    assert_eq!(asked, Err(DirtyError::NotStarted));
}

#[test]
fn dirty_49_unused_bits_are_zero_and_nothing_behind_is_written() {
    let memory = Memory::new(64);
    let basis = memory.started(&[(0, 11)]);
    for page in 0..64 {
        memory.write(page, 1);
    }
    let mut buffer = [0xa5; 5];
    memory.tracker.query_dirty_bit_data(basis, None, &mut buffer, true).unwrap();
    assert_eq!(buffer, [0xff, 0b111, 0xa5, 0xa5, 0xa5]);
}

#[test]
fn dirty_44_dirty_51_every_write_is_in_one_result_or_in_a_later_one() {
    const PAGES: u64 = 256;
    const WRITERS: u64 = 4;
    let memory = Memory::new(PAGES);
    let basis = memory.started(&[(0, PAGES)]);
    let over = AtomicBool::new(false);
    let mut copy = vec![0u8; usize::try_from(PAGES * PAGE).unwrap()];
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                let mut at = writer;
                for round in 0u32.. {
                    if round % 64 == 0 && over.load(Ordering::Relaxed) {
                        return;
                    }
                    // Each page has one writer: its last value is known to be the highest.
                    at = (at + WRITERS * 13) % PAGES;
                    memory.write(at, round.to_le_bytes()[0]);
                }
            });
        }
        for pass in 0..2000 {
            if pass == 1999 {
                over.store(true, Ordering::Relaxed);
            }
            pull(&memory, basis, &mut copy);
        }
    });
    pull(&memory, basis, &mut copy);
    let mut now = vec![0; copy.len()];
    memory.tracker.read(basis, 0, &mut now).unwrap();
    assert!(copy == now, "a write was lost");
}

/// Clears first, and reads after.
fn pull(memory: &Memory, basis: campanile_host_gpu::dirty::requests::BasisHandle, copy: &mut [u8]) {
    let page = usize::try_from(PAGE).unwrap();
    for dirty in memory.dirty(basis, copy.len() / page, true) {
        let place = &mut copy[dirty * page..(dirty + 1) * page];
        memory.tracker.read(basis, dirty as u64 * PAGE, place).unwrap();
    }
}

#[test]
fn what_was_written_before_is_told_when_a_basis_starts_and_what_is_written_then_by_its_queries() {
    let memory = Memory::new(8);
    memory.write(3, 1);
    let basis = memory.basis(&[(0, 8)]);
    let mut before = [0];
    memory.tracker.start_after_history(basis, &mut before).unwrap();
    assert_eq!(before, [1 << 3]);
    assert!(memory.dirty(basis, 8, false).is_empty());
    memory.write(5, 1);
    assert_eq!(memory.dirty(basis, 8, true), [5]);
    // What is costly has no history: all pages count.
    let memory = Memory::with(8, Method::ShadowCompare);
    let basis = memory.basis(&[(0, 8)]);
    memory.tracker.start_after_history(basis, &mut before).unwrap();
    assert!(before == [0xff] && memory.tracker.is_tracking());
}

/// Reads as ones.
#[derive(Debug)]
struct Ones;

impl Elsewhere for Ones {
    fn read(&self, _offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(1);
        Ok(())
    }

    fn read_ahead(self: Arc<Self>, offset: u64, _length: u64) -> Option<Ahead<'static>> {
        Some(Box::new(move |into: &mut [u8]| self.read(offset, into)))
    }
}

#[test]
fn what_lies_elsewhere_is_read_from_there() {
    let memory = Memory::new(8);
    memory.tracker.lies_elsewhere(Range { offset: 2 * PAGE, length: PAGE }, Arc::new(Ones));
    let first = |page: u64| {
        let mut bytes = [9; 4096];
        memory.tracker.read(memory.tracker.whole(), page * PAGE, &mut bytes).unwrap();
        bytes[0]
    };
    assert_eq!([1, 2, 3].map(first), [0, 1, 0]);
}

#[test]
fn what_lies_elsewhere_is_read_ahead_in_whole_pages_and_not_where_contents_are_compared() {
    for (method, is_begun) in [(Method::BoundRanges, true), (Method::ShadowCompare, false)] {
        let memory = Memory::with(8, method);
        memory.tracker.lies_elsewhere(Range { offset: 2 * PAGE, length: PAGE }, Arc::new(Ones));
        let ahead =
            |offset: u64, length: u64| memory.tracker.read_ahead(memory.tracker.whole(), offset, length);
        let begun = ahead(2 * PAGE, PAGE);
        assert_eq!(begun.is_some(), is_begun, "{method}");
        if let Some(read) = begun {
            let mut bytes = [9; 4096];
            read(&mut bytes).unwrap();
            assert_eq!(bytes, [1; 4096]);
        }
        for (offset, length) in [(PAGE, PAGE), (2 * PAGE, 2 * PAGE), (2 * PAGE + 4, 8), (8 * PAGE, PAGE)] {
            assert!(ahead(offset, length).is_none(), "{method}: {length} from {offset}");
        }
    }
}
