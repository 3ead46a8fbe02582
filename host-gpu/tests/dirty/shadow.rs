//! Costly tracking: contents are compared with what was sent of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::basis::Subrange;
use campanile_host_gpu::dirty::error::DirtyError;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::tracker::Last;
use campanile_host_gpu::dirty::view::EngineView;
use campanile_host_gpu::dirty::view::How;

use crate::support::Memory;
use crate::support::PAGE;

const PAGES: usize = 150;

fn costly() -> Memory {
    Memory::with(PAGES as u64, Method::ShadowCompare)
}

fn started(memory: &Memory) -> BasisHandle {
    memory.started(&[(0, PAGES as u64)])
}

/// As a migration: what is read is sent.
fn send(memory: &Memory, basis: BasisHandle, pages: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut sent = Vec::new();
    for page in pages {
        let mut copy = vec![0; 4096];
        memory.tracker.read(basis, page as u64 * PAGE, &mut copy).unwrap();
        sent.extend(copy);
    }
    sent
}

#[test]
fn dirty_03_dirty_30_costly_tracking_is_on_and_takes_memory_only_while_a_basis_is_tracked() {
    let memory = costly();
    let caps = memory.tracker.caps();
    assert!(caps.supported && !caps.performant);
    let is_off = || {
        assert!(!memory.tracker.is_tracking());
        assert_eq!(memory.tracker.shadow_bytes(), 0);
        let mut bits = [0xa5; 32];
        let whole = memory.tracker.whole();
        let asked = memory.tracker.query_dirty_bit_data(whole, None, &mut bits, true);
        assert_eq!((asked, bits), (Err(DirtyError::NotStarted), [0xa5; 32]));
    };
    memory.write(5, 1);
    is_off();
    let basis = started(&memory);
    assert!(memory.tracker.is_tracking());
    // A hash and two bits a page.
    assert_eq!(memory.tracker.shadow_bytes(), 8 * 150 + 38);
    assert!(memory.dirty(basis, PAGES, false).is_empty(), "what was written before is not known");
    let other = started(&memory);
    memory.tracker.stop_dirty_tracking(basis).unwrap();
    assert!(memory.tracker.shadow_bytes() > 0, "another one is tracked");
    memory.tracker.destroy_memory_basis(other).unwrap();
    is_off();
    // What is cheap is on from the beginning, and has no shadow.
    let cheap = Memory::new(8);
    assert!(cheap.tracker.caps().performant && cheap.tracker.is_tracking());
    cheap.started(&[(0, 8)]);
    assert_eq!(cheap.tracker.shadow_bytes(), 0);
}

#[test]
fn a_page_is_dirty_when_its_contents_differ_from_what_was_sent_of_it() {
    let memory = costly();
    let basis = started(&memory);
    send(&memory, basis, 0..PAGES);
    memory.write(5, 1);
    memory.write(64, 1);
    memory.tracker.mark(70 * PAGE, 20 * PAGE);
    assert_eq!(
        memory.dirty(basis, PAGES, true),
        [5, 64],
        "a range that could be written is not what was written"
    );
    send(&memory, basis, [5, 64]);
    memory.write(5, 2);
    memory.write(5, 1);
    assert!(memory.dirty(basis, PAGES, true).is_empty(), "the other side has that");
}

#[test]
fn dirty_36_a_query_of_a_part_compares_no_other_pages() {
    let memory = costly();
    let basis = memory.started(&[(0, 64), (64, 64)]);
    send(&memory, basis, 0..PAGES);
    memory.write(5, 1);
    memory.write(70, 1);
    // A basis that begins has all that was noted looked at first.
    memory.started(&[(0, 1)]);
    let mut bits = [0; 8];
    let part = Some(Subrange { index: 0, offset: 0, length: 64 * PAGE });
    memory.tracker.query_dirty_bit_data(basis, part, &mut bits, true).unwrap();
    assert_eq!(u64::from_le_bytes(bits), 1 << 5);
    send(&memory, basis, [5]);
    memory.write(70, 0);
    assert!(memory.dirty(basis, 128, true).is_empty(), "it is again what was sent");
}

#[test]
fn dirty_50_what_changed_between_look_and_copy_and_back_is_dirty_where_tracking_is_costly() {
    let memory = costly();
    let basis = started(&memory);
    send(&memory, basis, 0..PAGES);
    memory.write(3, 1);
    assert_eq!(memory.dirty(basis, PAGES, true), [3]);
    memory.write(3, 2);
    assert_eq!(send(&memory, basis, [3])[10], 2);
    memory.write(3, 1);
    assert_eq!(memory.dirty(basis, PAGES, true), [3]);
    // Of what was never sent, nothing is known to be the same.
    let memory = costly();
    let basis = started(&memory);
    memory.tracker.mark(9 * PAGE, 1);
    assert_eq!(memory.dirty(basis, PAGES, true), [9]);
}

#[test]
fn dirty_53_stores_of_the_guests_cpu_are_found_where_tracking_is_costly() {
    let memory = costly();
    let show =
        |visible| memory.tracker.set_cpu_visible(Range { offset: 8 * PAGE, length: 4 * PAGE }, visible);
    show(true);
    let basis = started(&memory);
    send(&memory, basis, 0..PAGES);
    assert!(memory.dirty(basis, PAGES, true).is_empty());
    memory.store(9, 1);
    memory.store(20, 1);
    assert_eq!(memory.dirty(basis, PAGES, true), [9], "the other one is not in the window");
    memory.store(10, 1);
    show(false);
    assert_eq!(memory.dirty(basis, PAGES, true), [9, 10], "what was stored last, as they leave");
}

#[test]
fn dirty_29_dirty_32_what_was_sent_for_one_basis_is_dirty_for_others_where_tracking_is_costly() {
    let memory = costly();
    let (one, other) = (started(&memory), started(&memory));
    send(&memory, one, 0..PAGES);
    send(&memory, other, 0..PAGES);
    // The first that is sent of a page is news to all others.
    for basis in [one, other] {
        memory.dirty(basis, PAGES, true);
    }
    memory.write(4, 1);
    assert_eq!(memory.dirty(one, PAGES, true), [4]);
    send(&memory, one, [4]);
    assert_eq!(memory.dirty(other, PAGES, true), [4], "it was sent to one of them");
    send(&memory, other, [4]);
    memory.write(4, 2);
    send(&memory, one, [4]);
    memory.write(4, 2);
    assert_eq!(memory.dirty(other, PAGES, true), [4], "also before the first query");
}

#[test]
fn dirty_50_of_unknown_engines_all_is_compared_and_of_unscanned_ones_all_is_dirty() {
    let memory = costly();
    let view = || {
        let view = EngineView::new(PAGES as u64 * PAGE);
        view.begin(How::Unknown);
        memory.tracker.attach(Arc::new(view))
    };
    let engine = view();
    let basis = started(&memory);
    send(&memory, basis, 0..PAGES);
    memory.store(11, 1);
    memory.store(149, 1);
    assert_eq!(memory.dirty(basis, PAGES, true), [11, 149]);
    send(&memory, basis, [11, 149]);
    memory.store(12, 1);
    assert!(memory.tracker.detach(engine, Last::Look));
    assert_eq!(memory.dirty(basis, PAGES, true), [12], "the last look, after its end");
    let engine = view();
    assert!(!memory.tracker.detach(engine, Last::Unscanned));
    assert_eq!(memory.dirty(basis, PAGES, true).len(), PAGES);
}

#[test]
fn dirty_44_writers_and_readers_of_two_bases_lose_nothing_where_tracking_is_costly() {
    let memory = costly();
    let (over, written, pulled) =
        (AtomicBool::new(false), AtomicU64::new(0), [(); 2].map(|()| AtomicU64::new(0)));
    let pull = |basis: BasisHandle, copy: &mut [u8]| {
        for page in memory.dirty(basis, PAGES, true) {
            copy[page * 4096..(page + 1) * 4096].copy_from_slice(&send(&memory, basis, [page]));
        }
    };
    let copies = std::thread::scope(|scope| {
        let readers = [0, 1].map(|index| {
            let (over, pulled, pull) = (&over, &pulled[index], &pull);
            let memory = &memory;
            scope.spawn(move || {
                let basis = started(memory);
                let mut copy = send(memory, basis, 0..PAGES);
                while !over.load(Ordering::Acquire) {
                    pull(basis, &mut copy);
                    pulled.fetch_add(1, Ordering::Relaxed);
                }
                (basis, copy)
            })
        });
        let (memory, written, all_pulled) = (&memory, &written, &pulled);
        // Few values, so that pages often have again what was sent of them before.
        let pulls = || all_pulled.iter().map(|pulled| pulled.load(Ordering::Relaxed)).min().unwrap_or(0);
        let mut round = 0u64;
        while round < 20_000 || (pulls() < 200 && round < 100_000_000) {
            round += 1;
            let page = round.wrapping_mul(0x9e37_79b9) % 40;
            memory.write(page, u8::try_from(round / 7 % 3).unwrap());
            written.store(round, Ordering::Relaxed);
        }
        over.store(true, Ordering::Release);
        readers.map(|reader| reader.join().unwrap())
    });
    for (basis, mut copy) in copies {
        pull(basis, &mut copy);
        assert!(copy == send(&memory, basis, 0..PAGES), "after {} writes", written.load(Ordering::Relaxed));
    }
}
