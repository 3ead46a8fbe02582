//! A user-mode queue written by hand.

use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::daemon::until;

/// Entries of the ring.
pub(crate) const ENTRIES: u32 = 8;
/// Where the packets of a queue begin, in its memory.
pub(crate) const PACKETS: u64 = 8192;
/// Bytes of a queue's memory: ring control, ring, packets and room to play.
pub(crate) const BYTES: u64 = 256 * 1024;

/// A queue whose ring control, ring and packets lie in one blob.
pub(crate) struct Ring {
    pub(crate) va: u64,
    pub(crate) blob: Blob,
    pub(crate) memory: SharedMemory,
    pub(crate) context: Handle,
    pub(crate) queue: QueueCreated,
    pub(crate) bell: DoorbellCreated,
}

impl Ring {
    /// At [`DATA_VA`], connected.
    pub(crate) fn new(attacker: &Attacker) -> Self {
        Self::at(attacker, DATA_VA)
    }

    pub(crate) fn at(attacker: &Attacker, va: u64) -> Self {
        let (blob, memory) = attacker.memory(va, BYTES);
        let context = attacker.create_context();
        let queue = attacker.create_queue(context, QUEUE_USER_MODE_SUBMISSION);
        let (status, payload) =
            attacker.message(message::CREATE_DOORBELL, doorbell(queue.queue, &blob, va).as_bytes());
        assert_eq!(status, Status::Ok);
        let bell = DoorbellCreated::read_from_bytes(&payload).unwrap();
        let ring = Self { va, blob, memory, context, queue, bell };
        assert_eq!(attacker.named(message::CONNECT_DOORBELL, ring.bell.doorbell), Status::Ok);
        ring
    }

    /// A right entry for packets at [`PACKETS`].
    pub(crate) fn entry(&self, length: usize, fence_value: u64) -> RingEntry {
        let length = u32::try_from(length).unwrap();
        RingEntry { buffer_va: self.va + PACKETS, length, flags: 0, fence_value, reserved: 0 }
    }

    /// Writes the packets of [`Self::entry`].
    pub(crate) fn packets(&self, packets: &[u8]) {
        self.memory.write(PACKETS, packets).unwrap();
    }

    /// Writes entry `index`.
    pub(crate) fn write(&self, index: u64, entry: &RingEntry) {
        let place = 4096 + index % u64::from(ENTRIES) * ring::RING_ENTRY_BYTES;
        self.memory.write(place, entry.as_bytes()).unwrap();
    }

    /// Rings with any write pointer; reconnects where told to.
    pub(crate) fn ring(&self, attacker: &Attacker, write_pointer: u64) {
        loop {
            self.store_ring(attacker, write_pointer);
            match self.status(attacker) {
                DoorbellStatus::DisconnectedRetry => {
                    let status = attacker.named(message::CONNECT_DOORBELL, self.bell.doorbell);
                    assert!(matches!(status, Status::Ok | Status::DeviceLost), "{status:?}");
                }
                _ => return,
            }
        }
    }

    /// Stores what a ring is, whatever the status, by the model that the daemon says the node has.
    pub(crate) fn store_ring(&self, attacker: &Attacker, write_pointer: u64) {
        let word = |offset| attacker.page.word(offset).unwrap();
        self.memory.word(ring::CONTROL_WRITE_POINTER).unwrap().store(write_pointer, Ordering::SeqCst);
        if self.bell.ring_value != 0 {
            word(self.bell.cell_offset).swap(self.bell.ring_value, Ordering::SeqCst);
            return;
        }
        word(self.bell.cell_offset).store(write_pointer, Ordering::SeqCst);
        word(self.bell.summary_offset).fetch_or(self.bell.summary_bit, Ordering::SeqCst);
    }

    pub(crate) fn status(&self, attacker: &Attacker) -> DoorbellStatus {
        DoorbellStatus::from_word(attacker.word(self.bell.status_offset)).unwrap()
    }

    /// Runs `packets` as the only entry.
    pub(crate) fn run_first(&self, attacker: &Attacker, packets: &[u8]) {
        self.packets(packets);
        self.write(0, &self.entry(packets.len(), 1));
        self.ring(attacker, 1);
    }

    /// Waits for a value of the progress fence.
    pub(crate) fn reached(&self, attacker: &Attacker, value: u64) {
        until("the progress fence rises", || attacker.word(self.queue.fence_offset) >= value);
    }
}

/// A right CREATE_DOORBELL for a blob like that of a [`Ring`].
pub(crate) fn doorbell(queue: Handle, blob: &Blob, va: u64) -> CreateDoorbell {
    CreateDoorbell {
        queue,
        ring_va: va + 4096,
        control_va: va,
        ring_resource: blob.resource_id(),
        control_resource: blob.resource_id(),
        ring_entries: ENTRIES,
        flags: 0,
        private_bytes: 0,
        reserved: 0,
        private_data: [0; DOORBELL_PRIVATE_BYTES],
    }
}
