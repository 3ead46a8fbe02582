//! A virtqueue that any number of threads use at the same time.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::interrupt::Interrupt;
use super::request::Chain;
use super::request::Loss;
use super::request::Outcome;
use super::request::Request;
use super::split_ring::Notify;
use super::split_ring::RingPlaces;
use super::split_ring::SplitRing;
use super::waiters::Waiters;
use crate::transport::error::TransportError;

/// `eventfd` flags EFD_CLOEXEC and EFD_NONBLOCK.
const EFD_CLOEXEC: i32 = 0o2_000_000;
const EFD_NONBLOCK: i32 = 0o4_000;

/// One queue of the device.
#[derive(Debug)]
pub(crate) struct VirtQueue {
    state: Mutex<QueueState>,
    kick: EventFd,
    error: EventFd,
    interrupt: Interrupt,
    sent: AtomicU64,
}

/// What the lock of a queue protects.
#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) ring: SplitRing,
    /// Head → the chain under way, and who asks for its outcome.
    in_flight: Vec<Option<(Chain, Arc<Request>)>>,
    pub(super) loss: Option<Loss>,
    pub(super) waiters: Waiters,
}

impl VirtQueue {
    pub(crate) fn new(ring: SplitRing) -> Result<Arc<Self>, TransportError> {
        let refused =
            |source: io::Error| TransportError::System { what: "an eventfd", source: source.into() };
        let kick = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(refused)?;
        let error = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(refused)?;
        let interrupt = Interrupt::new().map_err(refused)?;
        let in_flight = (0..ring.size()).map(|_| None).collect();
        let state = QueueState { ring, in_flight, loss: None, waiters: Waiters::default() };
        Ok(Arc::new(Self { state: Mutex::new(state), kick, error, interrupt, sent: AtomicU64::new(0) }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Written when the driver wants the device to look.
    pub(crate) fn kick_event(&self) -> &EventFd {
        &self.kick
    }

    /// Written by the device when it finds the ring broken. As QEMU, nobody reads it.
    pub(crate) fn error_event(&self) -> &EventFd {
        &self.error
    }

    /// Written when the device wants the driver to look.
    pub(crate) fn call_event(&self) -> &EventFd {
        self.interrupt.event()
    }

    pub(crate) fn ring_size(&self) -> u16 {
        self.state().ring.size()
    }

    pub(crate) fn places(&self) -> RingPlaces {
        self.state().ring.places()
    }

    /// Chains put on the ring so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Descriptors that no chain has.
    pub(crate) fn free_descriptors(&self) -> usize {
        let mut state = self.state();
        state.reap();
        state.ring.free()
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state().loss
    }

    /// Puts a chain on the ring, waiting for room where there is none.
    pub(crate) fn submit(&self, chain: Chain, patience: Duration) -> Result<Arc<Request>, TransportError> {
        let descriptors = chain.descriptors.len();
        let request = Request::new(chain.name);
        let mut chain = Some(chain);
        let deadline = Instant::now().checked_add(patience);
        let notify = self.wait_until(None, "room on the ring", deadline, |state| {
            if descriptors > usize::from(state.ring.size()) || descriptors == 0 {
                let ring_size = state.ring.size();
                return Some(Err(TransportError::ChainTooLong { descriptors, ring_size }));
            }
            if let Some(loss) = state.loss {
                return Some(Err(loss.error()));
            }
            let taken = chain.take_if(|_| state.ring.free() >= descriptors)?;
            let (head, notify) = state.ring.push(&taken.descriptors, taken.links)?;
            state.in_flight[usize::from(head)] = Some((taken, Arc::clone(&request)));
            Some(Ok(notify))
        })??;
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.notify(notify);
        Ok(request)
    }

    /// Writes the ring as no driver does, and kicks.
    pub(crate) fn abuse(&self, how: impl FnOnce(&mut SplitRing)) {
        how(&mut self.state().ring);
        self.notify(Notify::Wanted);
    }

    fn notify(&self, notify: Notify) {
        if notify == Notify::Wanted
            && let Err(error) = self.kick.write(1)
        {
            log::warn!("a kick was lost: {error}");
        }
    }

    /// Blocks until the request has an outcome.
    pub(crate) fn wait(
        &self,
        request: &Arc<Request>,
        timeout: Option<Duration>,
    ) -> Result<(), TransportError> {
        if request.is_done() {
            return Ok(());
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.wait_until(Some(request), request.name, deadline, |_| request.is_done().then_some(()))
    }

    /// Whether the request has an outcome, after a look at the ring.
    pub(crate) fn poll(&self, request: &Request) -> bool {
        if request.is_done() {
            return true;
        }
        let mut state = self.state();
        state.reap();
        request.is_done()
    }

    /// Ends every request under way, and refuses new ones, until [`Self::restart`]. A hang-up is told before
    /// anything else, and then what came first.
    pub(crate) fn lose(&self, loss: Loss) {
        self.state().lose(loss);
        self.interrupt.wake();
    }

    /// A fresh ring, for a device that was reset and has let go of the old one.
    pub(crate) fn restart(&self, ring: SplitRing) {
        let mut state = self.state();
        state.lose(Loss::Reset);
        state.ring = ring;
        state.loss = None;
    }
}

impl QueueState {
    /// Takes what the device has used off the ring, and wakes those who wait for it.
    pub(super) fn reap(&mut self) {
        if self.loss.is_some() {
            return;
        }
        let mut reaped = false;
        loop {
            match self.ring.pop() {
                Ok(Some(used)) => {
                    reaped = true;
                    self.complete(used.head, used.length);
                }
                Ok(None) => break,
                Err(_) => {
                    self.lose(Loss::BrokenRing);
                    return;
                }
            }
        }
        if reaped {
            self.waiters.wake_satisfied();
        }
    }

    fn complete(&mut self, head: u32, length: u32) {
        let known = u16::try_from(head).ok().filter(|head| *head < self.ring.size());
        let Some((head, (chain, request))) =
            known.and_then(|head| Some((head, self.in_flight[usize::from(head)].take()?)))
        else {
            // Nothing was asked there: the answer to a head that a hostile test made up.
            log::debug!("the device used head {head}, which is not under way");
            return;
        };
        let (offset, room) = chain.response;
        let written = usize::try_from(length).unwrap_or(usize::MAX).min(room);
        let mut response = vec![0; written];
        if let Some(block) = chain.block.as_ref().filter(|_| written > 0) {
            block.slice(offset, written).copy_to(&mut response);
        }
        self.ring.release(head);
        // Set at most once: the head left `in_flight` above.
        let _first = request.outcome.set(Outcome::Used { length, response });
    }

    fn lose(&mut self, loss: Loss) {
        let loss = match self.loss {
            Some(earlier) if loss != Loss::Disconnected => earlier,
            _ => loss,
        };
        self.loss = Some(loss);
        for slot in &mut self.in_flight {
            if let Some((_, request)) = slot.take() {
                let _first = request.outcome.set(Outcome::Lost(loss));
            }
        }
        self.waiters.wake_all();
    }
}
