//! Rings of guests: entries, pointers and doorbells (UMS-92).

use std::sync::atomic::Ordering;
use std::thread;

use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::handshake::doorbell;
use campanile_protocol::handshake::doorbell::Doorbell;
use campanile_protocol::handshake::doorbell::GlobalDoorbell;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::Pending;

use crate::support::TIMES;
use crate::support::mapping;
use crate::support::read;
use crate::support::until;
use crate::support::word;
use crate::support::write;

const WRITE_POINTER: u64 = ring::CONTROL_WRITE_POINTER;
const READ_POINTER: u64 = ring::CONTROL_READ_POINTER;
const CELL: u64 = 256;
const SUMMARY: u64 = 320;
const STATUS: u64 = 384;
const ENTRIES_AT: u64 = 512;
/// Entries of a ring.
const ENTRIES: u32 = 4;
/// Bytes from one queue's words to those of the next.
const QUEUE: u64 = 1024;

/// Guest: the entry after `count`, once there is room for it.
fn submit(shared: &Mapping, queue: u64, count: u64) {
    until("room in the ring", || {
        let consumed = word(shared, queue + READ_POINTER).load(Ordering::Acquire);
        (count - consumed < u64::from(ENTRIES)).then_some(())
    });
    let place = queue + ENTRIES_AT + ring::place(count, ENTRIES);
    write(shared, place, 100 + count);
    write(shared, place + 16, count + 1);
}

/// Engine: reads what the write pointer covers; how many entries it has read now.
fn consume(shared: &Mapping, queue: u64, mut consumed: u64, write_pointer: u64) -> u64 {
    if write_pointer < consumed {
        // An older cell than the pointer that was looked at.
        return consumed;
    }
    let Pending::Entries(count) = ring::pending(consumed, write_pointer, ENTRIES) else { return consumed };
    for _ in 0..count {
        let place = queue + ENTRIES_AT + ring::place(consumed, ENTRIES);
        assert_eq!((read(shared, place), read(shared, place + 16)), (100 + consumed, consumed + 1));
        consumed += 1;
        word(shared, queue + READ_POINTER).store(consumed, Ordering::Release);
    }
    consumed
}

#[test]
fn ums_92_entries_are_there_by_the_cell_and_by_the_last_look_and_are_not_overwritten_meanwhile() {
    let shared = mapping(4096);
    thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0..TIMES {
                submit(&shared, 0, count);
                let bell = Doorbell {
                    write_pointer: word(&shared, WRITE_POINTER),
                    cell: word(&shared, CELL),
                    summary: word(&shared, SUMMARY),
                    summary_bit: 2,
                    status: word(&shared, STATUS),
                };
                assert_eq!(bell.ring(count + 1), 0);
            }
        });
        let mut consumed = 0;
        while consumed < TIMES {
            let by_look = consumed % 3 == 0;
            consumed = until("a ring", || {
                let pointer = if by_look {
                    doorbell::final_look(word(&shared, WRITE_POINTER))
                } else {
                    // Where a look has found all so far, it says nothing new, and the next ring does.
                    let is_rung = doorbell::take_rung(word(&shared, SUMMARY)) != 0;
                    is_rung.then(|| word(&shared, CELL).load(Ordering::Acquire))?
                };
                let now = consume(&shared, 0, consumed, pointer);
                (now > consumed).then_some(now)
            });
        }
    });
}

#[test]
fn ums_92_entries_of_every_queue_are_there_by_one_cell_of_all() {
    let shared = mapping(4096);
    thread::scope(|scope| {
        for queue in [0, 1] {
            let shared = &shared;
            scope.spawn(move || {
                for count in 0..TIMES {
                    submit(shared, queue * QUEUE, count);
                    let bell = GlobalDoorbell {
                        write_pointer: word(shared, queue * QUEUE + WRITE_POINTER),
                        cell: word(shared, 2 * QUEUE + CELL),
                        value: queue + 1,
                        status: word(shared, 2 * QUEUE + STATUS),
                    };
                    assert_eq!(bell.ring(count + 1), 0);
                }
            });
        }
        let mut consumed = [0; 2];
        while consumed != [TIMES; 2] {
            until("a ring", || (doorbell::take_global(word(&shared, 2 * QUEUE + CELL)) != 0).then_some(()));
            for (queue, consumed) in (0..).zip(&mut consumed) {
                let pointer = doorbell::recheck(word(&shared, queue * QUEUE + WRITE_POINTER));
                *consumed = consume(&shared, queue * QUEUE, *consumed, pointer);
            }
        }
    });
}
