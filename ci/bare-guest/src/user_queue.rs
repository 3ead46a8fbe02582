//! A user-mode queue whose ring, doorbell and fence lie in this machine's memory: work goes to the engine by stores alone.

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::handshake::doorbell::Doorbell;
use campanile_protocol::handshake::doorbell::GlobalDoorbell;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use crate::control::Control;
use crate::fault::Fault;
use crate::front::Front;
use crate::memory::Memory;

/// Entries of the ring.
const ENTRIES: u32 = 16;
/// Where they begin, behind the ring control.
const RING: u64 = 4096;
/// Bytes of ring control and ring.
pub(crate) const RING_BYTES: u64 = RING + ENTRIES as u64 * ring::RING_ENTRY_BYTES;

/// The queue.
pub(crate) struct UserQueue {
    queue: QueueCreated,
    bell: DoorbellCreated,
    ring: Memory,
    written: u64,
    connects: u64,
}

impl UserQueue {
    /// Makes the doorbell of a queue, over a ring that is mapped at `va`.
    pub(crate) fn create(
        front: &mut Front,
        control: &mut Control,
        queue: QueueCreated,
        ring: Memory,
        resource: u32,
        va: u64,
    ) -> Result<Self, Fault> {
        let create = CreateDoorbell {
            queue: queue.queue,
            ring_va: va + RING,
            control_va: va,
            ring_resource: resource,
            control_resource: resource,
            ring_entries: ENTRIES,
            flags: 0,
            private_bytes: 0,
            reserved: 0,
            private_data: [0; DOORBELL_PRIVATE_BYTES],
        };
        let bell = control.ask(front, "CREATE_DOORBELL", message::CREATE_DOORBELL, &[create.as_bytes()])?;
        Ok(Self { queue, bell, ring, written: 0, connects: 0 })
    }

    /// How often the doorbell had to be connected.
    pub(crate) fn connects(&self) -> u64 {
        self.connects
    }

    /// Whether all that was submitted is done.
    pub(crate) fn is_done(&self, page: Memory) -> bool {
        page.word(self.queue.fence_offset).acquire() >= self.written
    }

    /// Submits packets. The ring is never full: each submission is waited for.
    pub(crate) fn submit(
        &mut self,
        front: &mut Front,
        control: &mut Control,
        buffer_va: u64,
        length: u32,
    ) -> Result<(), Fault> {
        let value = self.written + 1;
        control.page().word(self.bell.last_queued_offset).release(value);
        let entry = RingEntry { buffer_va, length, flags: 0, fence_value: value, reserved: 0 };
        self.ring.write(RING + ring::place(self.written, ENTRIES), entry.as_bytes());
        self.written = value;
        let mut was_connected = false;
        loop {
            match DoorbellStatus::from_word(self.ring_once(control.page())) {
                Some(DoorbellStatus::Connected) => return Ok(()),
                Some(DoorbellStatus::ConnectedNotify) => {
                    let notify = Notify { queue: self.queue.queue, flags: 0, reserved: 0 };
                    return control.tell(front, "NOTIFY", message::NOTIFY, &[notify.as_bytes()]);
                }
                // The connect has found what was written.
                Some(DoorbellStatus::DisconnectedRetry) if was_connected => return Ok(()),
                Some(DoorbellStatus::DisconnectedRetry) => {
                    let named = Named { handle: self.bell.doorbell };
                    control.tell(
                        front,
                        "CONNECT_DOORBELL",
                        message::CONNECT_DOORBELL,
                        &[named.as_bytes()],
                    )?;
                    self.connects += 1;
                }
                Some(DoorbellStatus::DisconnectedAbort) | None => {
                    control.check()?;
                    return Err(Fault::Abort);
                }
            }
            was_connected = true;
        }
    }

    fn ring_once(&self, page: Memory) -> u64 {
        let write_pointer = &self.ring.word(ring::CONTROL_WRITE_POINTER);
        let (cell, status) = (&page.word(self.bell.cell_offset), &page.word(self.bell.status_offset));
        if self.bell.ring_value == 0 {
            let (summary, summary_bit) = (&page.word(self.bell.summary_offset), self.bell.summary_bit);
            Doorbell { write_pointer, cell, summary, summary_bit, status }.ring(self.written)
        } else {
            GlobalDoorbell { write_pointer, cell, value: self.bell.ring_value, status }.ring(self.written)
        }
    }
}
