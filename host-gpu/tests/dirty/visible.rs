//! Pages that the guest's CPU can write.

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::basis::Subrange;
use campanile_host_gpu::dirty::error::DirtyError;

use crate::support::Memory;
use crate::support::PAGE;

fn show(memory: &Memory, first: u64, count: u64, visible: bool) {
    memory.tracker.set_cpu_visible(Range { offset: first * PAGE, length: count * PAGE }, visible);
}

fn send(memory: &Memory, basis: campanile_host_gpu::dirty::requests::BasisHandle, page: u64) -> Vec<u8> {
    let mut copy = vec![0; usize::try_from(PAGE).unwrap()];
    memory.tracker.read(basis, page * PAGE, &mut copy).unwrap();
    copy
}

#[test]
fn dirty_53_stores_of_the_guests_cpu_show_though_none_is_reported() {
    let memory = Memory::new(64);
    show(&memory, 8, 4, true);
    let basis = memory.started(&[(0, 64)]);
    assert_eq!(memory.dirty(basis, 64, true), [8, 9, 10, 11], "nothing was sent of them yet");
    (8..12).for_each(|page| drop(send(&memory, basis, page)));
    assert!(memory.dirty(basis, 64, true).is_empty());
    memory.store(9, 1);
    memory.store(20, 1);
    assert_eq!(memory.dirty(basis, 64, true), [9], "the other one is not in the window");
    assert_eq!(memory.dirty(basis, 64, true), [9], "until it is sent");
    send(&memory, basis, 9);
    assert!(memory.dirty(basis, 64, true).is_empty());
    memory.store(10, 1);
    show(&memory, 8, 4, false);
    assert_eq!(memory.dirty(basis, 64, true), [8, 9, 10, 11], "once more as they leave");
    memory.store(10, 2);
    assert!(memory.dirty(basis, 64, true).is_empty());
}

#[test]
fn dirty_50_a_page_that_changes_between_look_and_copy_and_back_is_sent_again() {
    let memory = Memory::new(8);
    show(&memory, 0, 8, true);
    let basis = memory.started(&[(0, 8)]);
    (0..8).for_each(|page| drop(send(&memory, basis, page)));
    memory.dirty(basis, 8, true);
    memory.store(3, 1);
    assert_eq!(memory.dirty(basis, 8, true), [3]);
    // What is sent is neither what was there at the look, nor what is there at the next.
    memory.store(3, 2);
    assert_eq!(send(&memory, basis, 3)[10], 2);
    memory.store(3, 1);
    assert_eq!(memory.dirty(basis, 8, true), [3]);
    assert_eq!(send(&memory, basis, 3)[10], 1);
    assert!(memory.dirty(basis, 8, true).is_empty());
}

#[test]
fn dirty_29_dirty_32_what_was_sent_for_one_basis_was_not_sent_for_another() {
    let memory = Memory::new(8);
    show(&memory, 0, 8, true);
    let (one, other) = (memory.started(&[(0, 8)]), memory.started(&[(0, 8)]));
    for basis in [one, other] {
        (0..8).for_each(|page| drop(send(&memory, basis, page)));
    }
    for basis in [one, other] {
        memory.dirty(basis, 8, true);
    }
    memory.store(5, 1);
    send(&memory, one, 5);
    assert!(memory.dirty(one, 8, true).is_empty());
    assert_eq!(memory.dirty(other, 8, true), [5]);
}

#[test]
fn only_whole_pages_of_the_segment_are_read() {
    let memory = Memory::new(8);
    let whole = memory.tracker.whole();
    for (offset, length) in
        [(1, 4096), (0, 4095), (8 * PAGE, 4096), (u64::MAX - 4095, 4096), (7 * PAGE, 8192)]
    {
        let mut bytes = vec![0; length];
        let read = memory.tracker.read(whole, offset, &mut bytes);
        assert_eq!(read, Err(DirtyError::Pages { offset, length: length as u64 }));
    }
}

#[test]
fn all_pages_of_a_query_that_were_sent_are_compared_and_no_others() {
    let memory = Memory::new(64);
    show(&memory, 0, 64, true);
    let basis = memory.started(&[(0, 32), (32, 32)]);
    let sent = [2, 3, 6, 7, 20, 40];
    sent.into_iter().for_each(|page| drop(send(&memory, basis, page)));
    memory.dirty(basis, 64, true);
    (0..64).filter(|page| !sent.contains(page)).for_each(|page| drop(send(&memory, basis, page)));
    memory.dirty(basis, 64, true);
    // Of some pages nothing was sent, so that what was lies apart.
    show(&memory, 4, 2, true);
    show(&memory, 8, 1, true);
    memory.store(20, 1);
    memory.store(40, 1);
    let mut first = [0; 4];
    let part = Some(Subrange { index: 0, offset: 0, length: 32 * PAGE });
    memory.tracker.query_dirty_bit_data(basis, part, &mut first, true).unwrap();
    assert_eq!(u32::from_le_bytes(first), 1 << 4 | 1 << 5 | 1 << 8 | 1 << 20);
    memory.store(40, 0);
    let dirty = memory.dirty(basis, 64, true);
    assert!(!dirty.contains(&40), "it is again what was sent, and was not compared meanwhile");
}
