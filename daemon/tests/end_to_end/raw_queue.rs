//! A user-mode queue whose every store a test makes itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::reply::DoorbellConnected;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use campanile_protocol::handshake::doorbell::Doorbell;
use campanile_protocol::handshake::doorbell::GlobalDoorbell;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use crate::raw::RawGuest;
use crate::raw::RawMemory;
use crate::support::until;

pub(crate) const CONNECTED: u64 = DoorbellStatus::Connected.word();
pub(crate) const CONNECTED_NOTIFY: u64 = DoorbellStatus::ConnectedNotify.word();
pub(crate) const RETRY: u64 = DoorbellStatus::DisconnectedRetry.word();
pub(crate) const ABORT: u64 = DoorbellStatus::DisconnectedAbort.word();

/// Entries of the rings here.
pub(crate) const ENTRIES: u32 = 64;
/// Bytes of a place for packets.
const PLACE: u64 = 256;

/// A ring with its control and packets: what a doorbell is made for.
#[derive(Debug)]
pub(crate) struct RawRing {
    /// The ring, at its start.
    pub(crate) ring: RawMemory,
    /// The ring control, at its start.
    pub(crate) control: RawMemory,
    /// The packets.
    pub(crate) arena: RawMemory,
}

impl RawRing {
    pub(crate) fn new(guest: &RawGuest) -> Self {
        let ring = guest.vram(u64::from(ENTRIES) * ring::RING_ENTRY_BYTES);
        Self { ring, control: guest.vram(4096), arena: guest.vram(u64::from(ENTRIES) * PLACE) }
    }

    /// A message that makes a doorbell for `queue` over this.
    pub(crate) fn doorbell(&self, queue: Handle) -> CreateDoorbell {
        CreateDoorbell {
            queue,
            ring_va: self.ring.va,
            control_va: self.control.va,
            ring_resource: self.ring.resource(),
            control_resource: self.control.resource(),
            ring_entries: ENTRIES,
            flags: 0,
            private_bytes: 0,
            reserved: 0,
            private_data: [0; DOORBELL_PRIVATE_BYTES],
        }
    }
}

/// A user-mode queue with its doorbell, never connected by itself.
#[derive(Debug)]
pub(crate) struct RawQueue {
    pub(crate) guest: Arc<RawGuest>,
    pub(crate) created: QueueCreated,
    pub(crate) bell: DoorbellCreated,
    pub(crate) ring: RawRing,
    /// Entries put into the ring.
    pub(crate) written: u64,
    /// Progress fence value of the last of them.
    pub(crate) value: u64,
}

impl RawQueue {
    pub(crate) fn new(guest: &Arc<RawGuest>, context: Handle) -> Self {
        Self::over(guest, context, RawRing::new(guest))
    }

    /// Over a ring of the caller's.
    pub(crate) fn over(guest: &Arc<RawGuest>, context: Handle, ring: RawRing) -> Self {
        Self::make(guest, context, ring, 0)
    }

    /// With more flags for the queue.
    pub(crate) fn flagged(guest: &Arc<RawGuest>, context: Handle, flags: u32) -> Self {
        Self::make(guest, context, RawRing::new(guest), flags)
    }

    fn make(guest: &Arc<RawGuest>, context: Handle, ring: RawRing, flags: u32) -> Self {
        let created = guest.queue(context, QUEUE_USER_MODE_SUBMISSION | flags).unwrap();
        let bell = guest.ask(message::CREATE_DOORBELL, &ring.doorbell(created.queue)).unwrap();
        Self { guest: Arc::clone(guest), created, bell, ring, written: 0, value: 0 }
    }

    pub(crate) fn connect(&self) -> Result<u64, Status> {
        let named = Named { handle: self.bell.doorbell };
        self.guest
            .ask::<DoorbellConnected>(message::CONNECT_DOORBELL, &named)
            .map(|connected| connected.status)
    }

    pub(crate) fn status(&self) -> u64 {
        self.guest.load(self.bell.status_offset)
    }

    pub(crate) fn fence(&self) -> u64 {
        self.guest.load(self.created.fence_offset)
    }

    pub(crate) fn read_pointer(&self) -> u64 {
        self.ring.control.word(ring::CONTROL_READ_POINTER).load(Ordering::Acquire)
    }

    /// Puts any entry into the ring; the write pointer stays.
    pub(crate) fn put_entry(&mut self, entry: &RingEntry) {
        let place = self.written % u64::from(ENTRIES) * ring::RING_ENTRY_BYTES;
        self.ring.ring.memory.write(place, entry.as_bytes()).unwrap();
        self.written += 1;
    }

    /// Puts packets, last-queued and ring entry in their places; the write pointer stays. No more than
    /// [`ENTRIES`] may be under way. Returns the progress fence value that will stand for it.
    pub(crate) fn put(&mut self, commands: &CommandBuffer) -> u64 {
        let bytes = commands.bytes();
        assert!(bytes.len() as u64 <= PLACE);
        let offset = self.written % u64::from(ENTRIES) * PLACE;
        self.ring.arena.memory.write(offset, bytes).unwrap();
        self.value += 1;
        self.guest.word(self.bell.last_queued_offset).store(self.value, Ordering::Release);
        self.put_entry(&RingEntry {
            buffer_va: self.ring.arena.va + offset,
            length: u32::try_from(bytes.len()).unwrap(),
            flags: 0,
            fence_value: self.value,
            reserved: 0,
        });
        self.value
    }

    /// Overwrites the packets and the ring entry of the last submission, as a guest may once its fence is there.
    pub(crate) fn spoil(&self) {
        let last = (self.written - 1) % u64::from(ENTRIES);
        let place = usize::try_from(PLACE).unwrap();
        self.ring.arena.memory.write(last * PLACE, &vec![0xff; place]).unwrap();
        let entry = [0xff; size_of::<RingEntry>()];
        self.ring.ring.memory.write(last * ring::RING_ENTRY_BYTES, &entry).unwrap();
    }

    /// Makes the entries visible to whoever looks, without a ring.
    pub(crate) fn store_write_pointer(&self) {
        self.ring.control.word(ring::CONTROL_WRITE_POINTER).store(self.written, Ordering::Release);
    }

    /// Stores to the doorbell cell, and nothing else that says what was written. In the global model the value is that
    /// of the queue, whatever is asked for.
    pub(crate) fn store_cell(&self, value: u64) {
        let cell = self.guest.word(self.bell.cell_offset);
        if self.bell.ring_value == 0 {
            cell.store(value, Ordering::Release);
            self.guest.word(self.bell.summary_offset).fetch_or(self.bell.summary_bit, Ordering::Release);
        } else {
            cell.swap(self.bell.ring_value, Ordering::AcqRel);
        }
    }

    /// Rings as a driver does, by the model that the daemon says the node has; the status read after it.
    pub(crate) fn ring(&self) -> u64 {
        let write_pointer = self.ring.control.word(ring::CONTROL_WRITE_POINTER);
        let cell = self.guest.word(self.bell.cell_offset);
        let status = self.guest.word(self.bell.status_offset);
        if self.bell.ring_value == 0 {
            let (summary, summary_bit) = (self.guest.word(self.bell.summary_offset), self.bell.summary_bit);
            Doorbell { write_pointer, cell, summary, summary_bit, status }.ring(self.written)
        } else {
            let value = self.bell.ring_value;
            GlobalDoorbell { write_pointer, cell, value, status }.ring(self.written)
        }
    }

    /// Puts packets and rings.
    pub(crate) fn submit(&mut self, commands: &CommandBuffer) -> u64 {
        self.put(commands);
        self.ring()
    }

    /// Waits by looking at the fence alone: nothing is sent that could help the work along.
    pub(crate) fn wait(&self, value: u64) {
        until("a progress fence", || self.fence() >= value);
    }

    /// Submits, which a connected doorbell delivers, and waits.
    pub(crate) fn run(&mut self, commands: &CommandBuffer) {
        assert_eq!(self.submit(commands), CONNECTED);
        self.wait(self.value);
    }
}

/// Packets that fill `bytes` at `va` with `value`.
pub(crate) fn fill(va: u64, bytes: u64, value: u32) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.fill(va, bytes, value).unwrap();
    commands
}

/// Packets that wait until the word at `va` is `value` or more.
pub(crate) fn wait_for(va: u64, value: u64) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.wait(va, value).unwrap();
    commands
}

/// Packets that copy.
pub(crate) fn copy(source: u64, target: u64, bytes: u64) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.copy(source, target, bytes).unwrap();
    commands
}

/// A guest with one context on the copy node.
pub(crate) fn copy_guest(vm: &Arc<campanile_test_vmm::vm::LoopbackVm>) -> (Arc<RawGuest>, Handle) {
    let guest = RawGuest::open(vm);
    let context = guest.context(campanile_guest_driver::node::Node::Copy);
    (guest, context)
}

/// Memory in video memory or in guest RAM.
pub(crate) const BOTH_MEMORIES: [BlobMemory; 2] = [BlobMemory::Vram, BlobMemory::GuestRam];
