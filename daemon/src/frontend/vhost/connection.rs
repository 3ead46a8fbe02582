//! One connection, from accept to hang-up.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Mutex;
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
use super::mailbox::Mailbox;
use super::ring::Rings;
use super::session::Session;
use super::session::Shared;
use super::window::Waiting;
use super::worker::Worker;
use super::worker::WorkerEnd;
use crate::guest_ram::dirty_log::DirtyLog;
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
}

/// Serves one front-end until it hangs up, or something breaks. `stream` is shut down afterwards.
pub(super) fn serve(
    socket: &str,
    stream: &UnixStream,
    device: Box<dyn Device>,
    counters: &Arc<Counters>,
    waiting: &Waiting,
) -> Result<(), ConnectionError> {
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
    };
    let line = stream.try_clone().map_err(ConnectionError::Host)?;
    let session = Arc::new(Session::new(socket, shared.clone(), offer, Arc::clone(waiting), line));
    let gate = Arc::clone(&shared.gate);
    let mailbox = Arc::clone(&shared.mailbox);
    let requests = stream.try_clone().map_err(ConnectionError::Host)?;
    let hang_up = stream.try_clone().map_err(ConnectionError::Host)?;
    let worker = thread::Builder::new()
        .name("vgpu-queues".into())
        .spawn(inherit(move || work(Worker::new(device, shared), &hang_up, &gate)))
        .map_err(ConnectionError::Host)?;

    let mut handler = BackendReqHandler::from_stream(requests, Arc::clone(&session));
    let end = loop {
        let handled = handler.handle_request();
        // The vhost crate receives descriptors that pass to other programs, and keeps the back channel's to itself.
        if let Err(error) = descriptors::close_all_on_exec() {
            break Err(ConnectionError::Host(error));
        }
        if session.shared.domain.fault().is_some() {
            break Ok(());
        }
        match handled {
            Ok(()) => {}
            Err(ProtocolError::Disconnected) => break Ok(()),
            Err(error) => break Err(ConnectionError::Request(error)),
        }
    };
    mailbox.post(|mail| mail.exit = true);
    let worked = worker.join().unwrap_or_else(|panic| Err(ConnectionError::Panic(panic_text(&*panic))));
    match session.lost_memory() {
        Some(what) => worked.and(Err(ConnectionError::MemoryLost(what))),
        None => worked.and(end),
    }
}

/// The worker's thread. A panic ends the session, and nothing else: the device is dropped either way.
fn work(mut worker: Worker, hang_up: &UnixStream, gate: &Gate) -> Result<(), ConnectionError> {
    let ran = catch_unwind(AssertUnwindSafe(|| worker.run()));
    let freed = catch_unwind(AssertUnwindSafe(|| drop(worker)));
    // The connection thread is waiting for the worker or the front-end: this ends its wait.
    gate.end();
    let _ = hang_up.shutdown(Shutdown::Both);
    match (ran, freed) {
        (Ok(ended), Ok(())) => ended.map_err(|end| match end {
            WorkerEnd::Wait(error) => ConnectionError::Wait(error),
            WorkerEnd::Start(text) => ConnectionError::Start(text),
        }),
        (Err(panic), _) | (_, Err(panic)) => Err(ConnectionError::Panic(panic_text(&*panic))),
    }
}
