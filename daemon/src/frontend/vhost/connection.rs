//! One connection, from accept to hang-up.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;

use campanile_host_gpu::descriptors;
use campanile_host_gpu::essential_thread::panic_text;
use campanile_host_gpu::log_limit::inherit;
use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use thiserror::Error;
use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::Error as ProtocolError;

use super::counters::Counters;
use super::device::Device;
use super::device::MAX_QUEUES;
use super::gate::Gate;
use super::handed::Handed;
use super::handover;
use super::mailbox::Mailbox;
use super::parking::Next;
use super::parking::Parking;
use super::ring::Rings;
use super::session::Session;
use super::session::Shared;
use super::window::Waiting;
use super::worker::Worker;
use super::worker::WorkerEnd;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::ledger::keeping::Ledger;
use crate::ledger::words::Words;
use crate::poller::Poller;

/// Why a connection ended other than by the front-end hanging up between two messages.
#[derive(Debug, Error)]
pub(super) enum ConnectionError {
    #[error("the device could not be made")]
    Device(#[source] io::Error),
    #[error("the device offers {0} queues (1 to {MAX_QUEUES} can be)")]
    Queues(u16),
    #[error("a descriptor or thread for the session could not be made")]
    Host(#[source] io::Error),
    #[error("request refused or broken: {0}")]
    Request(ProtocolError),
    #[error("{0} is not there any more: the VMM has cut its file short, or a page of it is broken")]
    MemoryLost(String),
    #[error("the queue worker cannot wait")]
    Wait(#[source] io::Error),
    #[error("the restored device may not run: {0}")]
    Start(String),
    #[error("the queue worker panicked: {0}")]
    Panic(String),
    #[error("what the predecessor has handed over cannot be used: {0}")]
    Handed(String),
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The front-end has hung up.
    HungUp,
    /// It goes on, served by another process.
    HandedOver,
    /// The daemon takes no front-end that it does not have.
    TurnedAway,
}

/// What a connection needs of its socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The socket's name, for the log.
    pub(super) socket: &'a str,
    pub(super) counters: &'a Arc<Counters>,
    pub(super) waiting: &'a Waiting,
    pub(super) parking: &'a Parking,
    pub(super) ledger: &'a Arc<Ledger>,
}

/// Serves one front-end until it hangs up, goes to another process, or something breaks. `handed` is what it said to the process
/// before, which is to be told whether it goes on; then `device` is as it was there, frozen.
pub(super) fn serve(
    place: Place<'_>,
    stream: &UnixStream,
    device: Box<dyn Device>,
    handed: Option<(Handed, Sender<Result<(), String>>)>,
) -> Result<Ended, ConnectionError> {
    let was_handed = handed.is_some();
    let ended = serve_to_its_end(place, stream, device, handed);
    if was_handed && ended.is_err() {
        // So that its end takes it out of the store, however far it came.
        place.ledger.begin(stream.as_fd());
    }
    ended
}

fn serve_to_its_end(
    place: Place<'_>,
    stream: &UnixStream,
    device: Box<dyn Device>,
    handed: Option<(Handed, Sender<Result<(), String>>)>,
) -> Result<Ended, ConnectionError> {
    let Place { socket, counters, waiting, parking, ledger } = place;
    let mut offer = device.offer().map_err(ConnectionError::Device)?;
    if !(1..=MAX_QUEUES).contains(&offer.queues) {
        return Err(ConnectionError::Queues(offer.queues));
    }
    let poller = Poller::new().map_err(ConnectionError::Host)?;
    let log = Arc::new(DirtyLog::default());
    let shared = Shared {
        rings: Arc::new(Rings::new(offer.queues, offer.smallest_answer, &log)),
        log,
        gate: Arc::new(Gate::default()),
        mailbox: Arc::new(Mailbox::new().map_err(ConnectionError::Host)?),
        poller: Arc::new(poller),
        counters: Arc::clone(counters),
        domain: FaultDomain::new().map_err(ConnectionError::Host)?,
        aperture: Arc::new(Mutex::new(offer.aperture.take().map(Arc::new))),
        window: Arc::default(),
        is_handed_over: Arc::default(),
        ledger: Arc::clone(ledger),
    };
    // What was taken over is stored once it is whole.
    let words = if handed.is_none() { ledger.begin(stream.as_fd()) } else { ledger.words() };
    let line = stream.try_clone().map_err(ConnectionError::Host)?;
    let session = Arc::new(Session::new(socket, shared.clone(), offer, Arc::clone(waiting), line));
    let gate = Arc::clone(&shared.gate);
    let (mailbox, is_handed_over) = (Arc::clone(&shared.mailbox), Arc::clone(&shared.is_handed_over));
    let hang_up = stream.try_clone().map_err(ConnectionError::Host)?;
    let mut queues = Worker::new(device, shared);
    if let Some(words) = &words {
        queues.write_to(words).map_err(ConnectionError::Host)?;
    }
    if let Some((handed, _)) = &handed {
        session.adopt(&handed.shell).map_err(|error| ConnectionError::Handed(error.to_string()))?;
        queues.begin_frozen();
    }
    let its_ledger = Arc::clone(ledger);
    let worker = thread::Builder::new()
        .name("vgpu-queues".into())
        .spawn(inherit(move || work(queues, &hang_up, &gate, &its_ledger)))
        .map_err(ConnectionError::Host)?;

    let opened = match handed {
        None => stream
            .try_clone()
            .map(|requests| BackendReqHandler::from_stream(requests, Arc::clone(&session)))
            .map_err(ConnectionError::Host),
        Some((handed, said)) => {
            let resumed = handover::resume(&session, stream, handed);
            let _gone = said.send(resumed.as_ref().map(|_| ()).map_err(Clone::clone));
            resumed.map_err(ConnectionError::Handed)
        }
    };
    let end = opened.and_then(|mut handler| answer(&mut handler, &session, parking, words.as_deref()));
    is_handed_over.store(matches!(end, Ok(Ended::HandedOver)), Ordering::Release);
    mailbox.post(|mail| mail.exit = true);
    let worked = worker.join().unwrap_or_else(|panic| Err(ConnectionError::Panic(panic_text(&*panic))));
    match session.lost_memory() {
        Some(what) => worked.and(Err(ConnectionError::MemoryLost(what))),
        None => worked.and(end),
    }
}

/// Answers the front-end's requests.
fn answer(
    handler: &mut BackendReqHandler<Session>,
    session: &Session,
    parking: &Parking,
    words: Option<&Words>,
) -> Result<Ended, ConnectionError> {
    let set_busy = |is_busy| words.into_iter().for_each(|words| words.set_busy(is_busy));
    loop {
        session.write_ledger();
        set_busy(false);
        if handover::wait(&session.line, parking.bell()) == handover::Woken::Bell {
            match parking.stand(Some(&|| session.hand_over())) {
                Next::GoesOn => continue,
                Next::Leaves => return Ok(Ended::HandedOver),
            }
        }
        if let Err(error) = session.look_for_back_channel() {
            log::debug!("{}: looking at a request: {error}", session.name);
        }
        set_busy(true);
        let handled = handler.handle_request();
        // The vhost crate receives descriptors that pass to other programs, and keeps the back channel's to itself.
        descriptors::close_all_on_exec().map_err(ConnectionError::Host)?;
        if session.shared.domain.fault().is_some() {
            return Ok(Ended::HungUp);
        }
        match handled {
            Ok(()) => {}
            Err(ProtocolError::Disconnected) => return Ok(Ended::HungUp),
            Err(error) => return Err(ConnectionError::Request(error)),
        }
    }
}

/// The worker's thread. A panic ends the session, and nothing else: the device is dropped either way. Where another daemon would go on
/// with the session, it ends this one.
fn work(
    mut worker: Worker,
    hang_up: &UnixStream,
    gate: &Gate,
    ledger: &Ledger,
) -> Result<(), ConnectionError> {
    let is_handed_over = worker.is_handed_over();
    let ran = catch_unwind(AssertUnwindSafe(|| worker.run()));
    if let Err(panic) = &ran {
        ledger.panicked(&panic_text(&**panic), true);
    }
    let freed = catch_unwind(AssertUnwindSafe(|| drop(worker)));
    // The connection thread is waiting for the worker or the front-end: this ends its wait.
    gate.end();
    if !is_handed_over.load(Ordering::Acquire) {
        let _ = hang_up.shutdown(Shutdown::Both);
    }
    match (ran, freed) {
        (Ok(ended), Ok(())) => ended.map_err(|end| match end {
            WorkerEnd::Wait(error) => ConnectionError::Wait(error),
            WorkerEnd::Start(text) => ConnectionError::Start(text),
        }),
        (Err(panic), _) | (_, Err(panic)) => Err(ConnectionError::Panic(panic_text(&*panic))),
    }
}
