//! Waits: parked, answered, and never in the way of others.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::Transport;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::MAX_TIMEOUT;
use campanile_protocol::fs::body::Submitted;
use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::fuse::file::IoctlOut;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start::InterruptIn;
use campanile_protocol::handle::Handle;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::fuse::request::FuseError;
use campanile_test_vmm::fuse::request::FuseReply;
use campanile_test_vmm::fuse::request::FuseRequest;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::machine::Worker;
use crate::machine::machine;
use crate::machine::raw;
use crate::raw::RawGuest;
use crate::sessions::ask;
use crate::support::NEVER;

/// Work that is not done before [`Open::finish`].
pub(crate) struct Open {
    pub(crate) guest: Arc<RawGuest<FuseContext>>,
    queue: Handle,
    pub(crate) sequence: u64,
}

impl Open {
    /// On a timeline of its own.
    pub(crate) fn new(guest: &Arc<RawGuest<FuseContext>>) -> Self {
        let context = guest.context(Node::Copy);
        let queue = guest.queue(context, 0).unwrap().queue;
        let frame = frame(message::WAIT_FENCE, 9, WaitFence { queue, value: 1 }.as_bytes());
        let submit = body::Submit {
            flags: body::SUBMIT_FENCE,
            ring: 40,
            length: u32::try_from(frame.len()).unwrap(),
            reserved: 0,
        };
        let body = [submit.as_bytes(), &frame].concat();
        let told = guest.transport().file().call("SUBMIT", Call::Submit, &body, 8).unwrap();
        let Submitted { sequence } = Submitted::read_from_bytes(&told).unwrap();
        Self { guest: Arc::clone(guest), queue, sequence }
    }

    /// A WAIT for it, under way.
    pub(crate) fn wait(&self, timeout: u64) -> FuseReply {
        let wait = Wait { sequence: self.sequence, timeout };
        self.guest.transport().file().begin(Call::Wait, wait.as_bytes(), 8, 1000).unwrap()
    }

    pub(crate) fn finish(&self) {
        let submit = Submit { queue: self.queue, buffer_va: 0, length: 0, flags: 0 };
        self.guest.call(message::SUBMIT, &submit).unwrap();
    }
}

fn frame(opcode: u32, slot: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(24 + body.len()).unwrap();
    let header = campanile_protocol::control::frame::FrameHeader {
        magic: campanile_protocol::control::frame::MAGIC,
        size,
        opcode,
        slot,
        sequence: 1 << 50,
    };
    [header.as_bytes(), body].concat()
}

/// Whether a WAIT found its work done.
pub(crate) fn done(reply: &FuseReply) -> bool {
    let results = reply.wait().unwrap();
    let waited = Waited::read_from_bytes(&results[size_of::<IoctlOut>() + 8..]).unwrap();
    waited.done != 0
}

pub(crate) fn errno(reply: &FuseReply) -> Errno {
    match reply.wait() {
        Err(FuseError::Errno(errno)) => errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_is_answered_when_its_work_is_done() {
    let (_daemon, vm) = machine();
    let open = Open::new(&raw(&vm));
    assert!(!done(&open.wait(0)), "a look");
    let waits: Vec<FuseReply> = (0..5).map(|_| open.wait(MAX_TIMEOUT)).collect();
    // Others go on meanwhile.
    Worker::new(&vm, 64 << 10).work(3);
    open.finish();
    for wait in &waits {
        // A busy machine may take longer than a wait lasts.
        assert!(done(wait) || done(&open.wait(MAX_TIMEOUT)));
    }
    assert!(done(&open.wait(0)));
}

#[test]
fn a_wait_ends_by_itself_and_by_an_interrupt() {
    let (_daemon, vm) = machine();
    let open = Open::new(&raw(&vm));
    let begun = Instant::now();
    assert!(!done(&open.wait(20_000_000)));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert!(!done(&open.wait(u64::MAX)), "as long as a wait may be");
    assert!(begun.elapsed() < NEVER);
    let wait = open.wait(MAX_TIMEOUT);
    let interrupt = InterruptIn { unique: wait.unique };
    ask(&vm, &FuseRequest::new(opcode::INTERRUPT, interrupt.as_bytes(), 0)).unwrap();
    assert_eq!(errno(&wait), Errno::INTR);
    open.finish();
}

#[test]
fn waits_past_the_bound_are_refused_and_others_have_room() {
    let (_daemon, vm) = machine();
    let open = Open::new(&raw(&vm));
    // A ring of 256: a sixteenth for the waits of one session.
    let waits: Vec<FuseReply> = (0..40).map(|_| open.wait(MAX_TIMEOUT)).collect();
    Worker::new(&vm, 64 << 10).work(1);
    open.finish();
    let is_refused = |wait: &&FuseReply| matches!(wait.wait(), Err(FuseError::Errno(Errno::AGAIN)));
    let refused = waits.iter().filter(is_refused).count();
    // On a machine that is slow enough some end before others come.
    assert!((1..=24).contains(&refused), "{refused} of 40");
    assert!(waits[..16].iter().all(|wait| wait.wait().is_ok()));
}

#[test]
fn waits_end_with_their_session() {
    let (_daemon, vm) = machine();
    let open = Open::new(&raw(&vm));
    let wait = open.wait(MAX_TIMEOUT);
    let release = campanile_protocol::fs::fuse::file::ReleaseIn {
        handle: open.guest.transport().file().handle,
        ..Default::default()
    };
    ask(&vm, &FuseRequest::new(opcode::RELEASE, release.as_bytes(), 0)).unwrap();
    assert_eq!(errno(&wait), Errno::NODEV);
    assert!(open.guest.transport().capset().is_err());
    Worker::new(&vm, 64 << 10).work(1);
}
