//! Guests whose vGPU became another one's.

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::transport::blob::BlobMemory;
use std::sync::atomic::Ordering;

use crate::moving::Moving;
use crate::moving::Shape;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::fill;

#[test]
fn lm_45_lm_49_lm_50_a_ring_goes_on_where_it_was_with_what_was_rung() {
    for page in [BlobMemory::Vram, BlobMemory::GuestRam] {
        let moving = Moving::start(&Shape::default());
        let vm = moving.vm();
        let guest = RawGuest::open_in(&vm, page);
        let context = guest.context(campanile_guest_driver::node::Node::Copy);
        let memories =
            [guest.memory(BlobMemory::Vram, 16 << 20), guest.memory(BlobMemory::GuestRam, 1 << 20)];
        let mut queue = RawQueue::new(&guest, context);
        queue.connect().unwrap();
        for _ in 0..100 {
            queue.run(&CommandBuffer::new());
        }
        for value in 1..=20 {
            for memory in &memories {
                assert_eq!(queue.submit(&fill(memory.va, memory.size(), value)), CONNECTED);
            }
        }
        moving.freeze();
        assert!(queue.fence() < 140, "all of it was done before");
        assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
        moving.ask(campanile_exchange);
        moving.thaw();
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.wait(141);
        for memory in &memories {
            let last = memory.word(memory.size() - 8).load(Ordering::Acquire);
            assert_eq!(last, 20 << 32 | 20, "page in {page:?}");
        }
    }
}

fn campanile_exchange(device: &mut crate::moving::Movable) {
    let _saved = device.exchange();
}
