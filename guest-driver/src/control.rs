//! Control messages: one response slot each, answered in the device page.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::error::DriverError;
use crate::gate::Gate;
use crate::gate::Pass;
use crate::loss::DeviceLoss;
use crate::relay::Relay;
use crate::slots::Answer;
use crate::slots::Slots;
use crate::transport::Transport;
use crate::transport::blob::Blob;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission::Submission;

/// How long a message that is answered at once is polled for before its sender sleeps: longer than a CPU of a host takes
/// to leave its halt for the daemon (measured: 0.1 ms in the median), and far shorter than a user notices.
const SPIN: Duration = Duration::from_micros(500);
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;

/// The control path of one device.
pub(crate) struct Control {
    transport: Arc<dyn Transport>,
    page: SharedMemory,
    page_resource: u32,
    slots: Slots,
    sequence: AtomicU64,
    gate: Arc<Gate>,
    /// Its end is the end of the thread that waits for the device to be taken away.
    _watched: Option<Sender<()>>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// A message under way. Dropping it gives its slot back when it is answered, and not before: a slot that the daemon
/// may still write is not used again.
#[derive(Debug)]
pub(crate) struct Call {
    control: Arc<Control>,
    message: &'static str,
    answer: Answer,
    sequence: u64,
    submission: Submission,
}

impl Control {
    /// Over a device page that lies in `page_resource`. `watched` ends with it.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        page: SharedMemory,
        page_resource: u32,
        watched: Option<Sender<()>>,
    ) -> Self {
        let slots = Slots::new(page.clone());
        let (sequence, gate) = (AtomicU64::new(1), Arc::default());
        Self { transport, page, page_resource, slots, sequence, gate, _watched: watched }
    }

    /// A caller that makes something of several messages, or names a resource in one, passes it once for all of them.
    pub(crate) fn enter(&self) -> Pass<'_> {
        self.gate.enter()
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The number of the device page's blob, as this process knows it.
    pub(crate) fn page_resource(&self) -> u32 {
        self.page_resource
    }

    /// The device goes, and no thread passes: nothing of it is kept that senders of messages wait for.
    pub(crate) fn put_away(&self) {
        self.slots.under_way().iter().for_each(|(_, relay)| relay.put_away());
    }

    /// The device has come back, and no thread passes yet: what senders of messages wait for is asked for again.
    pub(crate) fn ask_again(&self) -> Result<(), DriverError> {
        for (slot, relay) in self.slots.under_way() {
            let ring = u8::try_from(slot + 1).unwrap_or(0);
            relay.replace(self.transport.submit(&[], Some(ring))?);
        }
        Ok(())
    }

    /// A slot for [`Self::call_alone`], kept from all others until [`Self::release`]; none where none is free. To be taken while
    /// others pass: with the gate closed it is not known which messages are answered, and a thread that waits for a
    /// slot would have the last one, and stand before the gate with it.
    pub(crate) fn reserve(&self) -> Option<u32> {
        self.slots.take_now()
    }

    /// Gives a slot of [`Self::reserve`] back.
    pub(crate) fn release(&self, slot: u32) {
        self.slots.put_back(slot);
    }

    /// Sends a message in a slot of [`Self::reserve`], and waits for its answer, while no other thread passes.
    pub(crate) fn call_alone(
        self: &Arc<Self>,
        slot: u32,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
        limit: Duration,
    ) -> Result<Vec<u8>, DriverError> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let frame = frame(opcode, slot, sequence, parts);
        let ring = u8::try_from(slot + 1).unwrap_or(0);
        self.transport.submit(&frame, Some(ring))?.wait(Some(limit))?;
        read_answer(message, &self.slots.read(&self.slots.expect_nothing(slot)), sequence)
    }

    /// The way to the daemon.
    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The device page.
    pub(crate) fn page(&self) -> &SharedMemory {
        &self.page
    }

    /// `Err(DeviceLost)` when the device is in error.
    pub(crate) fn check(&self) -> Result<(), DriverError> {
        match self.status() {
            device_page::DEVICE_ACTIVE => Ok(()),
            status => {
                let load = |offset| self.page.word(offset).map_or(0, |word| word.load(Ordering::Relaxed));
                // PAIRS WITH the daemon's release of the status: these were stored before.
                let (loss, report) = (load(device_page::LOSS), load(device_page::LOSS_REPORT));
                Err(DriverError::DeviceLost(DeviceLoss::from_words(status, loss, report)))
            }
        }
    }

    fn status(&self) -> u64 {
        let word = self.page.word(device_page::DEVICE_STATUS);
        word.map_or(device_page::DEVICE_STOPPED, |word| word.load(Ordering::Acquire))
    }

    /// Why a message failed: a daemon that knows nothing of this device answers nothing that it is asked, one whose device is lost
    /// refuses what reached it before its sender looked, and the page says why.
    pub(crate) fn explain(&self, error: DriverError) -> DriverError {
        let is_by_loss = matches!(
            error,
            DriverError::BadAnswer(_)
                | DriverError::Transport(_)
                | DriverError::Refused { status: Status::DeviceLost, .. }
        );
        // Zero: the device is being made.
        match self.check() {
            Err(lost) if is_by_loss && self.status() != 0 => lost,
            _ => error,
        }
    }

    /// Frees a blob that came to nothing. Why it did is what counts, and not what freeing it comes to.
    pub(crate) fn give_up(&self, blob: Blob) {
        if let Err(error) = self.transport.destroy_blob(blob) {
            log::debug!("freeing a blob: {error}");
        }
    }

    /// Sends a message. Each slot has a timeline of its own, so that a message that takes long holds up no other.
    pub(crate) fn send(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Call, DriverError> {
        self.send_with(self.slots.take(), message, opcode, parts)
    }

    /// Sends a message that may take very long to be answered; none where other messages need what slots are left.
    pub(crate) fn send_wait(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<Option<Call>, DriverError> {
        let slot = self.slots.take_for_wait();
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
        let frame = frame(opcode, slot, sequence, parts);
        let ring = u8::try_from(slot + 1).unwrap_or(0);
        let _pass = self.gate.enter();
        match self.transport.submit(&frame, Some(ring)) {
            Ok(submission) => {
                let relay = Relay::new(Arc::clone(&self.gate), submission);
                let submission = Submission::new(Arc::<Relay>::clone(&relay));
                let answer = self.slots.expect_answer(slot, &submission, relay);
                Ok(Call { control: Arc::clone(self), message, answer, sequence, submission })
            }
            Err(error) => {
                self.slots.put_back(slot);
                Err(self.explain(error.into()))
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

    /// As [`Self::request`], and polls for a moment before it sleeps.
    pub(crate) fn request_polling<T: FromBytes + KnownLayout + Immutable>(
        self: &Arc<Self>,
        message: &'static str,
        opcode: u32,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<T, DriverError> {
        let call = self.send(message, opcode, &[body.as_bytes()])?;
        let payload = match call.poll(SPIN) {
            Some(payload) => payload?,
            None => call.finish(None)?,
        };
        T::read_from_bytes(&payload).map_err(|_| DriverError::BadAnswer(message))
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
            other => self.control.explain(other.into()),
        })
    }

    /// Looks for the answer for at most `limit` before [`Self::finish`] sleeps for it: for a message that is answered at
    /// once, and whose sender waits for what it sets going.
    pub(crate) fn poll(&self, limit: Duration) -> Option<Result<Vec<u8>, DriverError>> {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.control.slots.is_answered(&self.answer, self.sequence) {
                    return Some(self.answer());
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() >= limit {
                return None;
            }
            // Who is to answer may wait for this CPU.
            std::thread::yield_now();
        }
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
        let answer = read_answer(self.message, &self.control.slots.read(&self.answer), self.sequence);
        answer.map_err(|error| self.control.explain(error))
    }
}

/// A message with its header.
fn frame(opcode: u32, slot: u32, sequence: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let size = (size_of::<FrameHeader>() + body).next_multiple_of(8);
    let length = u32::try_from(size).unwrap_or(u32::MAX);
    let header = FrameHeader { magic: MAGIC, size: length, opcode, slot, sequence };
    let mut frame = header.as_bytes().to_vec();
    for part in parts {
        frame.extend_from_slice(part);
    }
    frame.resize(size, 0);
    frame
}

/// What is in a response slot, as the answer to message `sequence`.
fn read_answer(message: &'static str, bytes: &[u8], sequence: u64) -> Result<Vec<u8>, DriverError> {
    let bad = || DriverError::BadAnswer(message);
    let (header, payload) = ResponseHeader::read_from_prefix(bytes).map_err(|_| bad())?;
    if header.sequence != sequence {
        return Err(bad());
    }
    let length = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX).min(payload.len());
    let payload = payload.get(..length).ok_or_else(bad)?.to_vec();
    match Status::from_word(header.status) {
        Some(Status::Ok) => Ok(payload),
        Some(status) => {
            let text = String::from_utf8_lossy(&payload).into_owned();
            Err(DriverError::Refused { message, status, text })
        }
        None => Err(bad()),
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.control.slots.forget(&self.answer, &self.submission);
    }
}
