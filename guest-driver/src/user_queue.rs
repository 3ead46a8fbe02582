//! User-mode queues: a ring, a doorbell, a fence.
//!
//! ```text
//!   submit:  packets ─▶ arena;  N+1 ─▶ last-queued;  entry ─▶ ring;  write pointer, cell, summary;  status?
//!            CONNECTED: done · NOTIFY: tell the daemon · RETRY: connect, ring again · ABORT: device lost
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::QUEUE_NATIVE_PROGRESS_FENCE;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::reply::DoorbellConnected;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::device_page;
use campanile_protocol::handshake::doorbell::Doorbell;
use campanile_protocol::handshake::doorbell::GlobalDoorbell;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::commands::CommandBuffer;
use crate::context::Context;
use crate::context::destroy;
use crate::device::Shared;
use crate::error::DriverError;
use crate::fence::FencePoint;
use crate::loss::DeviceLoss;
use crate::transport::blob::BlobMemory;

/// Where the ring begins in its buffer, behind the ring control.
const RING_OFFSET: u64 = 4096;

/// How a user-mode queue is made.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Entries of the ring, a power of two.
    pub entries: u32,
    /// Bytes for the packets of buffers under way.
    pub arena_bytes: u64,
    /// Where ring and packets lie.
    pub memory: BlobMemory,
    /// Has the engine not poll for this queue: the driver tells the daemon after each ring (UMS-51). For queues that
    /// are seldom used.
    pub notify: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { entries: 256, arena_bytes: 256 * 1024, memory: BlobMemory::Vram, notify: false }
    }
}

/// A queue that the engine fetches from by itself.
#[derive(Debug)]
pub struct UserQueue {
    context: Context,
    created: QueueCreated,
    bell: DoorbellCreated,
    ring: Buffer,
    arena: Buffer,
    entries: u32,
    written: u64,
    value: u64,
    arena_at: u64,
    arena_in_use: VecDeque<(u64, u64, u64)>,
    reconnects: u64,
    connect_commands: u64,
    most_turns: u64,
}

impl Context {
    /// A queue fed through its doorbell, without the daemon.
    pub fn create_user_queue(&self, options: &QueueOptions) -> Result<UserQueue, DriverError> {
        UserQueue::create(self, options)
    }
}

impl UserQueue {
    fn create(context: &Context, options: &QueueOptions) -> Result<Self, DriverError> {
        let shared = context.shared();
        let _pass = shared.control.enter();
        let ring_bytes = RING_OFFSET + u64::from(options.entries) * ring::RING_ENTRY_BYTES;
        let ring = Buffer::create(shared, options.memory, ring_bytes)?;
        let arena = Buffer::create(shared, options.memory, options.arena_bytes)?;
        let created = context.create_queue(QUEUE_USER_MODE_SUBMISSION | QUEUE_NATIVE_PROGRESS_FENCE)?;
        let create = CreateDoorbell {
            queue: created.queue,
            ring_va: ring.va() + RING_OFFSET,
            control_va: ring.va(),
            ring_resource: shared.control.transport().number(ring.resource_id()),
            control_resource: shared.control.transport().number(ring.resource_id()),
            ring_entries: options.entries,
            flags: if options.notify { DOORBELL_NOTIFY } else { 0 },
            private_bytes: 0,
            reserved: 0,
            private_data: [0; DOORBELL_PRIVATE_BYTES],
        };
        let bell = match shared.control.request("CREATE_DOORBELL", message::CREATE_DOORBELL, &create) {
            Ok(bell) => bell,
            Err(error) => {
                destroy(shared, "DESTROY_QUEUE", message::DESTROY_QUEUE, created.queue);
                return Err(error);
            }
        };
        Ok(Self {
            context: context.clone(),
            created,
            bell,
            ring,
            arena,
            entries: options.entries,
            written: 0,
            value: 0,
            arena_at: 0,
            arena_in_use: VecDeque::new(),
            reconnects: 0,
            connect_commands: 0,
            most_turns: 0,
        })
    }

    fn shared(&self) -> &Arc<Shared> {
        self.context.shared()
    }

    /// Whether its doorbell is connected now. Where it is not, as after its engine fell asleep, the next submission connects it.
    pub fn is_connected(&self) -> bool {
        let page = self.context.shared().control.page();
        let status = page.word(self.bell.status_offset).map(|word| word.load(Ordering::Acquire));
        let status = status.and_then(DoorbellStatus::from_word);
        matches!(status, Some(DoorbellStatus::Connected | DoorbellStatus::ConnectedNotify))
    }

    /// Control messages sent because the doorbell was not connected.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Commands on the device's control queue that those messages took, as [`Device::control_commands`] counts them. On the fs front
    /// that is more than one each: whether a message is answered, or its slot free, is asked by a WAIT.
    ///
    /// [`Device::control_commands`]: crate::device::Device::control_commands
    pub fn connect_commands(&self) -> u64 {
        self.connect_commands
    }

    /// The most connects of others that a connect of this queue waited for (UMS-77).
    pub fn most_turns(&self) -> u64 {
        self.most_turns
    }

    /// The doorbell's status word.
    pub fn status(&self) -> Option<DoorbellStatus> {
        let word = self.shared().control.page().word(self.bell.status_offset)?;
        DoorbellStatus::from_word(word.load(Ordering::Acquire))
    }

    /// The ring's own memory, for programs that write it themselves.
    pub fn ring(&self) -> &Buffer {
        &self.ring
    }

    /// The point that the last submission will reach.
    pub fn last(&self) -> FencePoint {
        self.point(self.value)
    }

    fn progress(&self) -> u64 {
        let word = self.shared().control.page().word(self.created.fence_offset);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn point(&self, value: u64) -> FencePoint {
        FencePoint::new(Arc::clone(self.shared()), self.created.queue, self.created.fence_offset, value)
    }

    /// Room for `length` bytes of packets; waits for the oldest buffers where there is none.
    fn place(&mut self, length: u64) -> Result<u64, DriverError> {
        if length == 0 {
            return Ok(0);
        }
        if length > self.arena.size() {
            return Err(DriverError::Commands("longer than the queue's arena"));
        }
        if self.arena_at + length > self.arena.size() {
            self.arena_at = 0;
        }
        let (start, end) = (self.arena_at, self.arena_at + length);
        while let Some(&(value, used_start, used_end)) = self.arena_in_use.front() {
            let reached = self.progress() >= value;
            if !reached && used_start < end && start < used_end {
                self.point(value).wait(None)?;
            } else if !reached {
                break;
            }
            self.arena_in_use.pop_front();
        }
        Ok(start)
    }

    /// Submits a copy of `commands` by stores alone, unless the doorbell must be connected first (UMS-85 to
    /// UMS-91). Waits only when ring or arena are full.
    pub fn submit(&mut self, commands: &CommandBuffer) -> Result<FencePoint, DriverError> {
        let bytes = commands.bytes();
        let offset = self.place(bytes.len() as u64)?;
        self.arena.write(offset, bytes)?;
        let length = u32::try_from(bytes.len()).map_err(|_| DriverError::Commands("too long"))?;
        let point = self.submit_at(self.arena.va() + offset, length)?;
        if length > 0 {
            self.arena_in_use.push_back((point.value, offset, offset + u64::from(length)));
            self.arena_at = offset + u64::from(length);
        }
        Ok(point)
    }

    /// Submits packets that lie in GPU memory already.
    pub fn submit_at(&mut self, buffer_va: u64, length: u32) -> Result<FencePoint, DriverError> {
        // The doorbell of a device in error says so too, a moment later.
        self.context.shared().check()?;
        self.wait_for_room()?;
        let value = self.value + 1;
        let page = self.context.shared().control.page().clone();
        let missing = DriverError::BadAnswer("device page");
        let last_queued = page.word(self.bell.last_queued_offset).ok_or(missing)?;
        last_queued.store(value, Ordering::Release);
        let entry = RingEntry { buffer_va, length, flags: 0, fence_value: value, reserved: 0 };
        let place = RING_OFFSET + ring::place(self.written, self.entries);
        self.ring.write(place, entry.as_bytes())?;
        self.written += 1;
        self.value = value;
        self.ring_doorbell()?;
        Ok(self.last())
    }

    fn wait_for_room(&mut self) -> Result<(), DriverError> {
        let read_pointer = self.ring.memory().word(ring::CONTROL_READ_POINTER);
        let read = read_pointer.map_or(0, |word| word.load(Ordering::Acquire));
        if self.written - read.min(self.written) < u64::from(self.entries) {
            return Ok(());
        }
        // The oldest entry of a full ring carries this value: one a submission, rising by one.
        self.point(self.value + 1 - u64::from(self.entries)).wait(None)
    }

    /// Stores write pointer and doorbell, by the model that the node has; the status read after it.
    fn ring_once(&self) -> Option<u64> {
        let page = self.context.shared().control.page();
        let write_pointer = self.ring.memory().word(ring::CONTROL_WRITE_POINTER)?;
        let cell = page.word(self.bell.cell_offset)?;
        let status = page.word(self.bell.status_offset)?;
        Some(if self.bell.ring_value == 0 {
            let (summary, summary_bit) = (page.word(self.bell.summary_offset)?, self.bell.summary_bit);
            Doorbell { write_pointer, cell, summary, summary_bit, status }.ring(self.written)
        } else {
            let value = self.bell.ring_value;
            GlobalDoorbell { write_pointer, cell, value, status }.ring(self.written)
        })
    }

    fn ring_doorbell(&mut self) -> Result<(), DriverError> {
        let mut was_connected = false;
        loop {
            let status = self.ring_once().ok_or(DriverError::BadAnswer("device page"))?;
            match DoorbellStatus::from_word(status) {
                Some(DoorbellStatus::Connected) => return Ok(()),
                Some(DoorbellStatus::ConnectedNotify) => return self.notify(),
                // The connect came after the write pointer, so it found what was written (UMS-64), though another
                // queue has the doorbell already. The next submission connects again.
                Some(DoorbellStatus::DisconnectedRetry) if was_connected => return Ok(()),
                Some(DoorbellStatus::DisconnectedRetry) => self.connect()?,
                Some(DoorbellStatus::DisconnectedAbort) | None => {
                    self.context.shared().check()?;
                    return Err(DriverError::DeviceLost(DeviceLoss::of_status(device_page::DEVICE_STOPPED)));
                }
            }
            was_connected = true;
        }
    }

    /// Connects the doorbell; [`Self::submit`] does so by itself.
    pub fn connect(&mut self) -> Result<(), DriverError> {
        self.reconnects += 1;
        let named = Named { handle: self.bell.doorbell };
        let sent = self.shared().control.transport().commands_sent();
        let connected: Result<DoorbellConnected, _> =
            self.shared().control.request_polling("CONNECT_DOORBELL", message::CONNECT_DOORBELL, &named);
        self.connect_commands += self.shared().control.transport().commands_sent() - sent;
        match connected {
            Ok(connected) => {
                self.most_turns = self.most_turns.max(connected.turns);
                Ok(())
            }
            Err(error) => self.shared().check().and(Err(error)),
        }
    }

    fn notify(&self) -> Result<(), DriverError> {
        let notify = Notify { queue: self.created.queue, flags: 0, reserved: 0 };
        self.shared().control.call("NOTIFY", message::NOTIFY, &[notify.as_bytes()]).map(|_| ())
    }
}

impl Drop for UserQueue {
    fn drop(&mut self) {
        let shared = self.context.shared();
        // Answered when what was rung has run to its end (UMS-126, UMS-146).
        destroy(shared, "DESTROY_DOORBELL", message::DESTROY_DOORBELL, self.bell.doorbell);
        destroy(shared, "DESTROY_QUEUE", message::DESTROY_QUEUE, self.created.queue);
    }
}
