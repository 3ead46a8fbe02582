//! What a doorbell and its queue can be in the middle of, and the calls that succeed all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;

use crate::operator::Operated;
use crate::processes::engine;
use crate::processes::kill_engine_at_rest;
use crate::raw::RawGuest;
use crate::raw::RawMemory;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::CONNECTED_NOTIFY;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::until;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never connected.
    Fresh,
    Connected,
    /// Its slot was given to another.
    Victim,
    /// Without a slot of its own.
    Notified,
    /// Its work waits for memory.
    Busy,
    /// Its context is suspended, with work that was rung.
    Suspended,
    /// The device is in D3.
    Off,
    /// Another process has taken the place of its engine.
    Replaced,
    /// Its device is in error.
    Lost,
}

const ALL: [State; 9] = [
    State::Fresh,
    State::Connected,
    State::Victim,
    State::Notified,
    State::Busy,
    State::Suspended,
    State::Off,
    State::Replaced,
    State::Lost,
];

fn operated() -> Operated {
    // One slot, and no bound on the wait for what was rung.
    let arguments = [
        "--doorbells",
        "1",
        "--doorbell-model",
        "dedicated",
        "--tdr-timeout",
        "3600000",
        "--spin",
        "600000000",
    ];
    Operated::with(1, &arguments)
}

/// A queue in this state, its context, and what its work waits for.
fn queue_in(
    state: State,
    operated: &Operated,
    guest: &Arc<RawGuest>,
    context: Handle,
) -> (RawQueue, RawMemory) {
    let gate = guest.vram(4096);
    let mut queue = match state {
        State::Notified => {
            let ring = RawRing::new(guest);
            let created = guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap();
            let doorbell = CreateDoorbell { flags: DOORBELL_NOTIFY, ..ring.doorbell(created.queue) };
            let bell = guest.ask(message::CREATE_DOORBELL, &doorbell).unwrap();
            RawQueue { guest: Arc::clone(guest), created, bell, ring, written: 0, value: 0 }
        }
        _ => RawQueue::new(guest, context),
    };
    let connected = match state {
        State::Fresh => return (queue, gate),
        State::Notified => CONNECTED_NOTIFY,
        _ => CONNECTED,
    };
    assert_eq!(queue.connect(), Ok(connected));
    match state {
        State::Fresh | State::Connected | State::Notified => {}
        State::Victim => {
            let thief = RawQueue::new(guest, context);
            assert_eq!(thief.connect(), Ok(CONNECTED));
            guest.name(message::DESTROY_DOORBELL, thief.bell.doorbell).unwrap();
            assert_eq!(queue.status(), RETRY);
        }
        State::Busy => {
            queue.submit(&wait_for(gate.va, 1));
        }
        State::Suspended => {
            guest.name(message::SUSPEND_CONTEXT, context).unwrap();
            queue.submit(&CommandBuffer::new());
        }
        State::Off => {
            operated.ask(&["power", "--vgpu", "v0", "d3"]);
        }
        State::Replaced => {
            queue.run(&CommandBuffer::new());
            let last = kill_engine_at_rest(&operated.daemon);
            until("another engine", || engine(&operated.daemon) != last);
        }
        State::Lost => guest.lose(context),
    }
    (queue, gate)
}

#[test]
fn ums_78_ums_80_a_destroy_succeeds_whatever_its_doorbell_is_in_the_middle_of() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    for state in ALL {
        let (guest, context) = copy_guest(&vm);
        let (queue, gate) = queue_in(state, &operated, &guest, context);
        // What is under way may end: then the answer comes.
        gate.word(0).store(1, Ordering::Release);
        let destroy = || guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell);
        assert_eq!(destroy(), Ok(()), "{state:?}");
        assert_eq!(destroy(), Err(Status::InvalidHandle), "{state:?}: its handle is dead");
        let connect = guest.name(message::CONNECT_DOORBELL, queue.bell.doorbell);
        let refused = if state == State::Lost { Status::DeviceLost } else { Status::InvalidHandle };
        assert_eq!(connect, Err(refused), "{state:?}");
        assert_eq!(
            guest.name(message::DESTROY_QUEUE, queue.created.queue),
            Ok(()),
            "{state:?}: it was the last"
        );
    }
}

#[test]
fn ums_78_no_handle_but_one_s_own_doorbell_can_be_destroyed_as_one() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    let (owner, context) = copy_guest(&vm);
    let (stranger, its_context) = copy_guest(&vm);
    let queue = RawQueue::new(&owner, context);
    // One more than the other has, so that no number of it is one of the other's.
    let second = RawQueue::new(&owner, context);
    let its_queue = RawQueue::new(&stranger, its_context);
    assert_ne!(second.bell.doorbell, its_queue.bell.doorbell);
    for handle in [Handle::NONE, Handle(u64::MAX), Handle::new(700, 1), second.bell.doorbell] {
        let destroy = stranger.name(message::DESTROY_DOORBELL, handle);
        assert_eq!(destroy, Err(Status::InvalidHandle), "{handle:?}");
    }
    for (mine, its) in [(&queue, RETRY), (&second, RETRY)] {
        assert_eq!((mine.status(), mine.connect()), (its, Ok(CONNECTED)), "nothing was destroyed");
    }
    assert_eq!(its_queue.connect(), Ok(CONNECTED));
}

#[test]
fn ums_96_a_valid_notify_succeeds_whatever_its_queue_is_in_the_middle_of_and_an_invalid_one_never() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    let other = RawGuest::open(&vm);
    // A device that is lost is told nothing.
    for state in ALL.into_iter().filter(|state| *state != State::Lost) {
        let (guest, context) = copy_guest(&vm);
        let (queue, gate) = queue_in(state, &operated, &guest, context);
        for queue in [guest.queue(context, 0).unwrap().queue, queue.created.queue] {
            let notify = |flags, reserved| guest.call(message::NOTIFY, &Notify { queue, flags, reserved });
            assert_eq!(notify(0, 0), Ok(Vec::new()), "{state:?}");
            for bit in 0..32 {
                assert_eq!(notify(1 << bit, 0), Err(Status::InvalidParameter), "{state:?}");
                assert_eq!(notify(0, 1 << bit), Err(Status::InvalidParameter), "{state:?}");
            }
            let stranger = other.call(message::NOTIFY, &Notify { queue, flags: 0, reserved: 0 });
            assert_eq!(stranger, Err(Status::InvalidHandle), "{state:?}: it is no queue of another process");
        }
        // A ping does no more than that: what waits, waits.
        let done = u64::from(state == State::Replaced);
        assert_eq!(queue.fence(), done, "{state:?}");
        gate.word(0).store(1, Ordering::Release);
        guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
        guest.name(message::DESTROY_QUEUE, queue.created.queue).unwrap();
        let gone = Notify { queue: queue.created.queue, flags: 0, reserved: 0 };
        assert_eq!(guest.call(message::NOTIFY, &gone), Err(Status::InvalidHandle), "{state:?}: it is gone");
    }
}
