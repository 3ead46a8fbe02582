//! Claims about descriptors that a front-end hands over: the queue worker never waits on one, and takes eventfds only.

use std::io::IoSlice;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::EventfdFlags;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::eventfd;
use rustix::event::poll;
use rustix::fs::MemfdFlags;
use rustix::fs::OFlags;
use rustix::fs::fcntl_getfl;
use rustix::fs::fcntl_setfl;
use rustix::fs::memfd_create;
use rustix::io::read;
use rustix::io::write;
use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::sendmsg;
use rustix::pipe::pipe;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::ECHO;
use crate::device::Seen;

const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;

/// A front-end that has negotiated REPLY_ACK, and another handle of its connection.
fn negotiated(bench: &Bench) -> (Frontend, UnixStream) {
    let stream = UnixStream::connect(&bench.path).unwrap();
    let mut front = Frontend::from_stream(stream.try_clone().unwrap(), 2);
    front.set_owner().unwrap();
    let features = front.get_features().unwrap();
    front.get_protocol_features().unwrap();
    front.set_protocol_features(VhostUserProtocolFeatures::REPLY_ACK).unwrap();
    front.set_features(features).unwrap();
    (front, stream)
}

/// Sends a descriptor for queue 0, asks for an answer, and gives back the status; `None` where the session ended.
fn hand_over(mut stream: &UnixStream, request: u32, fd: BorrowedFd<'_>) -> Option<u64> {
    const VERSION_AND_NEED_REPLY: u32 = 1 | 1 << 3;
    let mut bytes: Vec<u8> =
        [request, VERSION_AND_NEED_REPLY, 8].iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(0u64.to_ne_bytes());
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).ok()?;
    Some(u64::from_ne_bytes(*answer.last_chunk().unwrap()))
}

/// Empties the counter when the test ends, so that a worker that did block does not keep a failing test from its end.
struct Drained(OwnedFd);

impl Drop for Drained {
    fn drop(&mut self) {
        // Where it is empty and blocks, there was no worker to free.
        let is_empty =
            || poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default())) != Ok(1);
        let _count = if is_empty() { Ok(0) } else { read(&self.0, &mut [0u8; 8]) };
    }
}

#[test]
fn a_call_descriptor_that_is_full_and_blocks_stops_no_queue() {
    let bench = Bench::new();
    let other_bench = Bench::new();
    let mut other = Vm::started(&other_bench);
    let (front, stream) = negotiated(&bench);
    let mut vm = Vm::with(front, 256, true);
    vm.start([0, 0]);
    let full = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    assert_eq!(hand_over(&stream, SET_VRING_CALL, full.as_fd()), Some(0));
    // The flags belong to the description, which the front-end shares: it may take O_NONBLOCK away at any time.
    fcntl_setfl(&full, fcntl_getfl(&full).unwrap() - OFlags::NONBLOCK).unwrap();
    write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let _drained = Drained(full.try_clone().unwrap());
    for round in 0..20u16 {
        vm.control.request(2 * round, &[ECHO; 32]);
        vm.control.want_interrupt(1);
        vm.control.offer(2 * round);
        vm.control.kick();
        eventually("the answer is there", || vm.control.used_index() == round + 1);
        assert_eq!(vm.control.used(), Some((2 * round, 32)));
    }
    assert_eq!(vm.cursor.round(0, &[ECHO; 32]), [ECHO; 32]);
    assert_eq!(other.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    // The counter is as the front-end left it, and the session ends when it hangs up.
    let mut count = [0u8; 8];
    read(&full, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
    drop((vm, stream));
    bench.script.await_seen(&Seen::Dropped);
}

#[test]
fn what_is_no_eventfd_is_refused_as_kick_call_or_error_descriptor() {
    let (reader, writer) = pipe().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let memory = memfd_create("no eventfd", MemfdFlags::CLOEXEC).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let all = [reader.as_fd(), writer.as_fd(), socket.as_fd(), memory.as_fd(), epoll.as_fd()];
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        for fd in all {
            let bench = Bench::new();
            let (_front, stream) = negotiated(&bench);
            assert_ne!(hand_over(&stream, request, fd), Some(0), "request {request}, {fd:?}");
            bench.script.await_seen(&Seen::Dropped);
        }
        let bench = Bench::new();
        let (_front, stream) = negotiated(&bench);
        let right = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(hand_over(&stream, request, right.as_fd()), Some(0), "request {request}");
    }
}
