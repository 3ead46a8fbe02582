//! Kernel-mode queues: every submission goes through the daemon's scheduler.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::kernel_queue::Ticket;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::boundary::timeout;
use crate::commands::CampanileCommands;
use crate::context::CampanileContext;
use crate::failure::Failure;
use crate::result::CampanileResult;

/// A queue that is fed through the daemon.
#[derive(Debug)]
pub struct CampanileKernelQueue(KernelQueue);

impl CampanileKernelQueue {
    fn ticket(&self, number: u64) -> Result<Ticket, Failure> {
        let never = || Failure::argument(format_args!("ticket {number} was never given out by this queue"));
        self.0.ticket(number).ok_or_else(never)
    }
}

/// Makes a queue that is fed through the daemon: always there, also where user-mode submission is not.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_queue_create(
    context: Option<&CampanileContext>,
    queue: Option<&mut MaybeUninit<Box<CampanileKernelQueue>>>,
) -> CampanileResult {
    guarded("campanile_kernel_queue_create", || {
        let (context, place) = (given(context, "context")?, given(queue, "queue")?);
        place.write(Box::new(CampanileKernelQueue(context.0.create_kernel_queue()?)));
        Ok(())
    })
}

/// Ends a queue; NULL is nothing. Waits for what was submitted.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_queue_destroy(queue: Option<Box<CampanileKernelQueue>>) {
    release("campanile_kernel_queue_destroy", queue);
}

/// Submits a copy of `commands`. Waits for an earlier submission only when eight are under way. `ticket` may be NULL;
/// there goes the submission's number in this queue, from 1 on.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_queue_submit(
    queue: Option<&mut CampanileKernelQueue>,
    commands: Option<&CampanileCommands>,
    ticket: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_kernel_queue_submit", || {
        let (queue, commands) = (given(queue, "queue")?, given(commands, "commands")?);
        let given_out = queue.0.submit(&commands.0)?;
        ticket.map(|place| place.write(given_out.number()));
        Ok(())
    })
}

/// Whether the submission `ticket` is done. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_queue_poll(
    queue: Option<&CampanileKernelQueue>,
    ticket: u64,
    done: Option<&mut MaybeUninit<bool>>,
) -> CampanileResult {
    guarded("campanile_kernel_queue_poll", || {
        let (queue, place) = (given(queue, "queue")?, given(done, "done")?);
        place.write(queue.0.is_done(queue.ticket(ticket)?));
        Ok(())
    })
}

/// Waits until the submission `ticket` is done. `timeout_ns` is in nanoseconds, or `CAMPANILE_NO_TIMEOUT`, and counts
/// anew for each submission that is before it. `CAMPANILE_TIMEOUT` when the time was over first;
/// `CAMPANILE_DEVICE_LOST` when the packets broke a rule; another failure when the daemon refused them.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_queue_wait(
    queue: Option<&mut CampanileKernelQueue>,
    ticket: u64,
    timeout_ns: u64,
) -> CampanileResult {
    guarded("campanile_kernel_queue_wait", || {
        let queue = given(queue, "queue")?;
        let ticket = queue.ticket(ticket)?;
        Ok(queue.0.wait(ticket, timeout(timeout_ns))?)
    })
}
