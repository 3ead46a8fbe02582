//! Queues that ring one cell.

use std::sync::Arc;

use loom::thread;

use super::words::Modelled;
use super::words::Plain;
use super::words::Strong;
use crate::handshake::doorbell;
use crate::queue::doorbell::GLOBAL_HIDDEN;

const CONNECTED: u64 = 0;

/// Two queues ring one cell. Once it is empty again, the engine has seen both.
fn two_rings_one_cell<W: Modelled>() {
    loom::model(|| {
        let cell = Arc::new(W::new(0));
        let status = Arc::new(W::new(CONNECTED));
        let pointers = [Arc::new(W::new(0)), Arc::new(W::new(0))];
        let rings = [0, 1].map(|index| {
            let (cell, status, pointer) =
                (Arc::clone(&cell), Arc::clone(&status), Arc::clone(&pointers[index]));
            thread::spawn(move || {
                let value = index as u64 + 1;
                let bell = doorbell::GlobalDoorbell {
                    write_pointer: &*pointer,
                    cell: &*cell,
                    value,
                    status: &*status,
                };
                assert_eq!(bell.ring(1), CONNECTED);
            })
        });
        let mut seen = [0, 0];
        if doorbell::take_global(&*cell) != 0 {
            seen = [0, 1].map(|index| doorbell::recheck(&*pointers[index]));
        }
        for ring in rings {
            ring.join().unwrap();
        }
        // Of what is left, only those that are named; all of them where the cell says that a ring is hidden.
        let left = doorbell::take_global(&*cell);
        for index in 0..2 {
            let named = left & !GLOBAL_HIDDEN == index as u64 + 1;
            if named || left & GLOBAL_HIDDEN != 0 {
                seen[index] = doorbell::recheck(&*pointers[index]);
            }
        }
        assert_eq!(seen, [1, 1], "a ring hid another");
    });
}

#[test]
fn loom_no_ring_of_a_global_cell_hides_another() {
    two_rings_one_cell::<Strong>();
}

#[test]
#[should_panic(expected = "a ring hid another")]
fn loom_twin_that_stores_hides_a_ring() {
    two_rings_one_cell::<Plain>();
}
