//! Control messages: one response slot each, answered in the device page.

use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::reply::MAX_PAYLOAD;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::error::DriverError;
use crate::transport::Transport;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission::Submission;

/// The control path of one device.
pub(crate) struct Control {
    transport: Arc<dyn Transport>,
    page: SharedMemory,
    slots: Mutex<Slots>,
    freed: Condvar,
    sequence: AtomicU64,
}

/// Slots that no [`Call`] has.
struct Slots {
    free: Vec<u32>,
    /// Of calls that were dropped before they were answered: free once they are.
    abandoned: Vec<(u32, Submission)>,
}

impl Slots {
    /// Frees what was abandoned and is answered by now.
    fn sweep(&mut self) {
        let Self { free, abandoned } = self;
        free.extend(abandoned.extract_if(.., |(_, submission)| submission.is_done()).map(|(slot, _)| slot));
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// Slots that waits leave to other messages, some of which may be what ends a wait.
const KEPT_FROM_WAITS: usize = 8;

/// How often somebody who needs a slot looks whether an abandoned one was answered.
const SWEEP: Duration = Duration::from_millis(1);

/// A message under way. Dropping it gives its slot back when it is answered, and not before: a slot that the daemon
/// may still write is not used again.
#[derive(Debug)]
pub(crate) struct Call {
    control: Arc<Control>,
    message: &'static str,
    slot: u32,
    sequence: u64,
    submission: Submission,
}

impl Control {
    pub(crate) fn new(transport: Arc<dyn Transport>, page: SharedMemory) -> Self {
        let slots = Slots { free: (0..device_page::RESPONSE_SLOTS).rev().collect(), abandoned: Vec::new() };
        Self { transport, page, slots: Mutex::new(slots), freed: Condvar::new(), sequence: AtomicU64::new(1) }
    }

    /// The way to the daemon.
    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The device page.
    pub(crate) fn page(&self) -> &SharedMemory {
        &self.page
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self) -> u32 {
        let mut slots = self.slots();
        loop {
            if let Some(slot) = slots.free.pop() {
                return slot;
            }
            // Nobody tells when an abandoned call is answered.
            slots = self.freed.wait_timeout(slots, SWEEP).unwrap_or_else(PoisonError::into_inner).0;
            slots.sweep();
        }
    }

    /// A slot for a wait, unless too few are left.
    fn take_slot_for_wait(&self) -> Option<u32> {
        let mut slots = self.slots();
        slots.sweep();
        if slots.free.len() > KEPT_FROM_WAITS { slots.free.pop() } else { None }
    }

    fn free_slot(&self, slot: u32) {
        self.slots().free.push(slot);
        self.freed.notify_one();
    }

    /// Sends a message. Each slot has a timeline of its own, so that a message that takes long holds up no other.
    pub(crate) fn send(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Call, DriverError> {
        self.send_with(self.take_slot(), message, opcode, parts)
    }

    /// Sends a message that may take very long to be answered; none where other messages need what slots are left.
    pub(crate) fn send_wait(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Option<Call>, DriverError> {
        let slot = self.take_slot_for_wait();
        slot.map(|slot| self.send_with(slot, message, opcode, parts)).transpose()
    }

    fn send_with(
        self: &Arc<Self>,
        slot: u32,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Call, DriverError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let size = (size_of::<FrameHeader>() + body).next_multiple_of(8);
        let header = FrameHeader {
            magic: MAGIC,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            opcode,
            slot,
            sequence,
        };
        let mut frame = header.as_bytes().to_vec();
        for part in parts {
            frame.extend_from_slice(part);
        }
        frame.resize(size, 0);
        let ring = u8::try_from(slot + 1).unwrap_or(0);
        match self.transport.submit(&frame, Some(ring)) {
            Ok(submission) => Ok(Call { control: Arc::clone(self), message, slot, sequence, submission }),
            Err(error) => {
                self.free_slot(slot);
                Err(error.into())
            }
        }
    }

    /// Sends a message and waits for its answer.
    pub(crate) fn call(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, DriverError> {
        self.send(message, opcode, parts)?.finish(None)
    }

    /// Sends a message whose answer is a `T`.
    pub(crate) fn request<T: FromBytes + KnownLayout + Immutable>(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<T, DriverError> {
        let payload = self.call(message, opcode, &[body.as_bytes()])?;
        T::read_from_bytes(&payload).map_err(|_| DriverError::BadAnswer(message))
    }
}

impl Call {
    /// Waits until the message and its work are done; `Timeout` leaves it under way.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(), DriverError> {
        use crate::transport::error::TransportError;
        self.submission.wait(timeout).map_err(|error| match error {
            TransportError::Timeout { .. } if timeout.is_some() => DriverError::Timeout,
            other => other.into(),
        })
    }

    /// Waits, and takes the answer.
    pub(crate) fn finish(self, timeout: Option<Duration>) -> Result<Vec<u8>, DriverError> {
        self.wait(timeout)?;
        self.answer()
    }

    /// Whether message and work are done.
    pub(crate) fn is_done(&self) -> bool {
        self.submission.is_done()
    }

    /// The answer of a call that is done.
    pub(crate) fn answer(&self) -> Result<Vec<u8>, DriverError> {
        let bad = DriverError::BadAnswer(self.message);
        let at = device_page::response(self.slot);
        let page = &self.control.page;
        let word = page.word(at).ok_or(DriverError::BadAnswer(self.message))?;
        // PAIRS WITH the daemon's release of the sequence in `answer`.
        if word.load(Ordering::Acquire) != self.sequence {
            return Err(bad);
        }
        let mut head = [0; size_of::<ResponseHeader>()];
        page.read(at, &mut head).ok_or(DriverError::BadAnswer(self.message))?;
        let header =
            ResponseHeader::read_from_bytes(&head).map_err(|_| DriverError::BadAnswer(self.message))?;
        let length = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX).min(MAX_PAYLOAD);
        let mut payload = vec![0; length];
        page.read(at + head.len() as u64, &mut payload).ok_or(bad)?;
        match Status::from_word(header.status) {
            Some(Status::Ok) => Ok(payload),
            Some(status) => {
                let text = String::from_utf8_lossy(&payload).into_owned();
                Err(DriverError::Refused { message: self.message, status, text })
            }
            None => Err(DriverError::BadAnswer(self.message)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_done() {
            self.control.free_slot(self.slot);
        } else {
            self.control.slots().abandoned.push((self.slot, self.submission.clone()));
        }
    }
}
