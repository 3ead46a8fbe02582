//! Kernel-mode queues: every buffer goes through the daemon's scheduler.

use std::collections::VecDeque;
use std::time::Duration;

use campanile_protocol::control::message;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::reply::Submitted;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::commands::CommandBuffer;
use crate::context::Context;
use crate::context::destroy;
use crate::control::Call;
use crate::error::DriverError;

/// Buffers that one queue has under way at the most.
const DEPTH: u64 = 8;
/// Bytes for each.
const SLOT_BYTES: u64 = 64 * 1024;

/// A queue fed through the daemon.
#[derive(Debug)]
pub struct KernelQueue {
    context: Context,
    created: QueueCreated,
    arena: Buffer,
    submitted: u64,
    pending: VecDeque<Call>,
}

/// A buffer under way in a [`KernelQueue`]; its number counts the queue's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// Its number: the queue's first buffer has 1.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl Context {
    /// A queue fed through the daemon: always there, also where user-mode submission is not (UMS-06).
    pub fn create_kernel_queue(&self) -> Result<KernelQueue, DriverError> {
        KernelQueue::create(self)
    }
}

impl KernelQueue {
    fn create(context: &Context) -> Result<Self, DriverError> {
        let arena =
            Buffer::create(context.shared(), crate::transport::blob::BlobMemory::Vram, DEPTH * SLOT_BYTES)?;
        let created = context.create_queue(0)?;
        Ok(Self { context: context.clone(), created, arena, submitted: 0, pending: VecDeque::new() })
    }

    /// Submits a copy of `commands`. Waits for an earlier buffer only when eight are under way.
    pub fn submit(&mut self, commands: &CommandBuffer) -> Result<Ticket, DriverError> {
        while self.pending.len() as u64 >= DEPTH {
            self.finish_oldest(None)?;
        }
        let offset = self.submitted % DEPTH * SLOT_BYTES;
        self.arena.write(offset, commands.bytes())?;
        let length = u32::try_from(commands.bytes().len()).map_err(|_| DriverError::Commands("too long"))?;
        let submit =
            Submit { queue: self.created.queue, buffer_va: self.arena.va() + offset, length, flags: 0 };
        let control = &self.context.shared().control;
        let call = control.send("SUBMIT", message::SUBMIT, &[submit.as_bytes()])?;
        self.pending.push_back(call);
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    /// The ticket of the queue's buffer `number`, where there was one.
    pub fn ticket(&self, number: u64) -> Option<Ticket> {
        (1..=self.submitted).contains(&number).then_some(Ticket(number))
    }

    fn finish_oldest(&mut self, timeout: Option<Duration>) -> Result<(), DriverError> {
        let Some(call) = self.pending.front() else { return Ok(()) };
        call.wait(timeout)?;
        let Some(call) = self.pending.pop_front() else { return Ok(()) };
        let payload = call.finish(None)?;
        Submitted::read_from_bytes(&payload).map_err(|_| DriverError::BadAnswer("SUBMIT"))?;
        self.context.shared().check()
    }

    /// Waits until a buffer is done.
    ///
    /// # Errors
    /// `Refused` when the daemon did not take it, `DeviceLost` when it broke a rule, `Timeout`.
    pub fn wait(&mut self, ticket: Ticket, timeout: Option<Duration>) -> Result<(), DriverError> {
        while self.submitted - (self.pending.len() as u64) < ticket.0 {
            self.finish_oldest(timeout)?;
        }
        Ok(())
    }

    /// Whether a buffer is done.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        let done = self.pending.iter().take_while(|call| call.is_done()).count() as u64;
        self.submitted - (self.pending.len() as u64) + done >= ticket.0
    }
}

impl Drop for KernelQueue {
    fn drop(&mut self) {
        // What a suspended context holds is cancelled with its queue.
        while !self.pending.is_empty() && !self.context.is_suspended() {
            let before = self.pending.len();
            if let Err(error) = self.finish_oldest(None) {
                log::debug!("a buffer at the end of its queue: {error}");
                // It is not answered, and those behind it are not either.
                if self.pending.len() == before {
                    break;
                }
            }
        }
        destroy(self.context.shared(), "DESTROY_QUEUE", message::DESTROY_QUEUE, self.created.queue);
    }
}
