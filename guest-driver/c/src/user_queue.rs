//! User-mode queues: submission by stores to memory alone.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::buffer::memory;
use crate::commands::CampanileCommands;
use crate::context::CampanileContext;
use crate::failure::Failure;
use crate::fence_point::CampanileFencePoint;
use crate::result::CampanileResult;

/// Status of a doorbell: rings are delivered.
pub const CAMPANILE_DOORBELL_CONNECTED: u64 = 0;
/// Status of a doorbell: rings are delivered when the daemon is told of them, too, which a submission does.
pub const CAMPANILE_DOORBELL_CONNECTED_NOTIFY: u64 = 1;
/// Status of a doorbell: not delivered now; the next submission connects it again.
pub const CAMPANILE_DOORBELL_RETRY: u64 = 2;
/// Status of a doorbell: never again, the queue is dead.
pub const CAMPANILE_DOORBELL_ABORT: u64 = 3;

/// A queue that the engine fetches from by itself.
#[derive(Debug)]
pub struct CampanileUserQueue(UserQueue);

/// How a user-mode queue is made. A field that is 0 means its default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileUserQueueOptions {
    /// Entries of the ring, a power of two from 2 to 65,536; by default 256.
    pub entries: u32,
    /// Where ring and packets lie, a `CAMPANILE_MEMORY_…`; by default video memory.
    pub memory: u32,
    /// Bytes for the packets of submissions under way; by default 262,144.
    pub arena_bytes: u64,
}

fn options(from: Option<&CampanileUserQueueOptions>) -> Result<QueueOptions, Failure> {
    let mut options = QueueOptions::default();
    if let Some(from) = from {
        options.memory = memory(from.memory)?;
        if from.entries > 0 {
            options.entries = from.entries;
        }
        if from.arena_bytes > 0 {
            options.arena_bytes = from.arena_bytes;
        }
    }
    Ok(options)
}

/// Makes a queue that is fed through its doorbell, without the daemon. `options` may be NULL for the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_create(
    context: Option<&CampanileContext>,
    queue_options: Option<&CampanileUserQueueOptions>,
    queue: Option<&mut MaybeUninit<Box<CampanileUserQueue>>>,
) -> CampanileResult {
    guarded("campanile_user_queue_create", || {
        let (context, place) = (given(context, "context")?, given(queue, "queue")?);
        let made = context.0.create_user_queue(&options(queue_options)?)?;
        place.write(Box::new(CampanileUserQueue(made)));
        Ok(())
    })
}

/// Ends a queue; NULL is nothing. Waits up to 10 s for what was submitted.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_destroy(queue: Option<Box<CampanileUserQueue>>) {
    release("campanile_user_queue_destroy", queue);
}

/// Submits a copy of `commands` by stores alone, unless the doorbell must be connected first. Waits only when the ring
/// or the room for packets is full. `point` may be NULL; there goes the point that is reached when the work is done.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_submit(
    queue: Option<&mut CampanileUserQueue>,
    commands: Option<&CampanileCommands>,
    point: Option<&mut MaybeUninit<Box<CampanileFencePoint>>>,
) -> CampanileResult {
    guarded("campanile_user_queue_submit", || {
        let (queue, commands) = (given(queue, "queue")?, given(commands, "commands")?);
        let reached = queue.0.submit(&commands.0)?;
        point.map(|place| place.write(Box::new(CampanileFencePoint(reached))));
        Ok(())
    })
}

/// As `campanile_user_queue_submit`, with `length` bytes of packets that lie in GPU memory, at `va`, already. They must
/// stay there until the point is reached.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_submit_at(
    queue: Option<&mut CampanileUserQueue>,
    va: u64,
    length: u32,
    point: Option<&mut MaybeUninit<Box<CampanileFencePoint>>>,
) -> CampanileResult {
    guarded("campanile_user_queue_submit_at", || {
        let reached = given(queue, "queue")?.0.submit_at(va, length)?;
        point.map(|place| place.write(Box::new(CampanileFencePoint(reached))));
        Ok(())
    })
}

/// The point that the last submission will reach; reached already where there was none. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_last(
    queue: Option<&CampanileUserQueue>,
    point: Option<&mut MaybeUninit<Box<CampanileFencePoint>>>,
) -> CampanileResult {
    guarded("campanile_user_queue_last", || {
        let (queue, place) = (given(queue, "queue")?, given(point, "point")?);
        place.write(Box::new(CampanileFencePoint(queue.0.last())));
        Ok(())
    })
}

/// Connects the doorbell now. A submission does so by itself where it is needed.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_connect(queue: Option<&mut CampanileUserQueue>) -> CampanileResult {
    guarded("campanile_user_queue_connect", || Ok(given(queue, "queue")?.0.connect()?))
}

/// How often the doorbell was connected; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_reconnects(queue: Option<&CampanileUserQueue>) -> u64 {
    queue.map_or(0, |queue| queue.0.reconnects())
}

/// The doorbell's status now, a `CAMPANILE_DOORBELL_…`. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_get_doorbell(
    queue: Option<&CampanileUserQueue>,
    status: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_user_queue_get_doorbell", || {
        let (queue, place) = (given(queue, "queue")?, given(status, "status")?);
        let Some(word) = queue.0.status() else {
            let words = "the doorbell has a status that no daemon writes";
            return Err(Failure::new(CampanileResult::CampanileFailed, words));
        };
        place.write(word as u64);
        Ok(())
    })
}

/// The memory of the ring, for programs that look at it themselves: the read pointer is the 64-bit word at byte 64,
/// entries begin at byte 4096. Each of `pointer`, `va` and `size` may be NULL. The pointer is valid until the queue is
/// destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_user_queue_get_ring(
    queue: Option<&CampanileUserQueue>,
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
    va: Option<&mut MaybeUninit<u64>>,
    size: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_user_queue_get_ring", || {
        let ring = given(queue, "queue")?.0.ring();
        if let Some(place) = pointer {
            let Some(bytes) = ring.memory().slice(0, ring.size()) else {
                let words = "the ring is not in one piece for the CPU";
                return Err(Failure::new(CampanileResult::CampanileNotSupported, words));
            };
            place.write(bytes.ptr_guard_mut().as_ptr().cast());
        }
        va.map(|place| place.write(ring.va()));
        size.map(|place| place.write(ring.size()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use campanile_protocol::queue::doorbell::DoorbellStatus;

    #[test]
    fn the_header_has_the_numbers_of_the_protocol() {
        assert_eq!(super::CAMPANILE_DOORBELL_CONNECTED, DoorbellStatus::Connected as u64);
        assert_eq!(super::CAMPANILE_DOORBELL_CONNECTED_NOTIFY, DoorbellStatus::ConnectedNotify as u64);
        assert_eq!(super::CAMPANILE_DOORBELL_RETRY, DoorbellStatus::DisconnectedRetry as u64);
        assert_eq!(super::CAMPANILE_DOORBELL_ABORT, DoorbellStatus::DisconnectedAbort as u64);
    }
}
