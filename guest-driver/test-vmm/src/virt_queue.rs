//! A virtqueue that any number of threads use at the same time.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use super::pause::lock::Held;
use super::pause::lock::Lock;
use super::request::Chain;
use super::request::Loss;
use super::request::Outcome;
use super::request::Request;
use super::ring_events::RingEvents;
use super::split_ring::Notify;
use super::split_ring::RingPlaces;
use super::split_ring::SplitRing;
use super::waiters::Waiters;
use campanile_guest_driver::transport::error::TransportError;

/// One queue of the device.
#[derive(Debug)]
pub(crate) struct VirtQueue {
    state: Lock<QueueState>,
    sent: AtomicU64,
}

/// What the lock of a queue protects.
#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) ring: SplitRing,
    pub(super) events: Arc<RingEvents>,
    /// Head → the chain under way, and the request that waits for its outcome.
    in_flight: Vec<Option<(Chain, Arc<Request>)>>,
    pub(super) loss: Option<Loss>,
    pub(super) waiters: Waiters,
    /// Nothing new enters the ring.
    paused: bool,
}

/// What the device is told of a ring.
#[derive(Debug, Clone)]
pub(crate) struct Wiring {
    pub(crate) size: u16,
    pub(crate) places: RingPlaces,
    pub(crate) events: Arc<RingEvents>,
}

impl VirtQueue {
    pub(crate) fn new(ring: SplitRing) -> Result<Arc<Self>, TransportError> {
        let in_flight = (0..ring.size()).map(|_| None).collect();
        let events = Arc::new(RingEvents::new()?);
        let waiters = Waiters::default();
        let state = QueueState { ring, events, in_flight, loss: None, waiters, paused: false };
        Ok(Arc::new(Self { state: Lock::new(state), sent: AtomicU64::new(0) }))
    }

    pub(super) fn state(&self) -> Held<'_, QueueState> {
        self.state.lock()
    }

    /// Ring and events, as they are now.
    pub(crate) fn wiring(&self) -> Wiring {
        let state = self.state();
        Wiring { size: state.ring.size(), places: state.ring.places(), events: Arc::clone(&state.events) }
    }

    /// Lets the ring go on with another device, which has these events. A thread that slept on the old ones looks again.
    pub(crate) fn rewire(&self, events: Arc<RingEvents>) {
        let old = std::mem::replace(&mut self.state().events, events);
        old.interrupt().wake();
    }

    /// From now on new chains wait, or do not wait any more.
    pub(crate) fn set_paused(&self, paused: bool) {
        let events = {
            let mut state = self.state();
            state.paused = paused;
            state.waiters.wake_all();
            Arc::clone(&state.events)
        };
        events.interrupt().wake();
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
    pub(crate) fn submit(&self, chain: Chain, timeout: Duration) -> Result<Arc<Request>, TransportError> {
        let descriptors = chain.descriptors.len();
        let request = Request::new(chain.name);
        let mut chain = Some(chain);
        let deadline = Instant::now().checked_add(timeout);
        self.wait_until(None, "room on the ring", deadline, |state| {
            if descriptors > usize::from(state.ring.size()) || descriptors == 0 {
                let ring_size = state.ring.size();
                return Some(Err(TransportError::ChainTooLong { descriptors, ring_size }));
            }
            if let Some(loss) = state.loss {
                return Some(Err(loss.error()));
            }
            let taken = chain.take_if(|_| !state.paused && state.ring.free() >= descriptors)?;
            let (head, notify) = state.ring.push(&taken.descriptors, taken.links)?;
            state.in_flight[usize::from(head)] = Some((taken, Arc::clone(&request)));
            // Under the lock, so that the kick goes to the device that has the ring.
            state.notify(notify);
            Some(Ok(()))
        })??;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(request)
    }

    /// Writes the ring as no driver does, and kicks.
    pub(crate) fn abuse(&self, how: impl FnOnce(&mut SplitRing)) {
        let mut state = self.state();
        how(&mut state.ring);
        state.notify(Notify::Wanted);
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

    /// Sleeps until `ready` gives something, which it must do once the queue is lost or `request` is done.
    fn wait_until<T>(
        &self,
        request: Option<&Arc<Request>>,
        what: &'static str,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut QueueState) -> Option<T>,
    ) -> Result<T, TransportError> {
        let begin = deadline.map(|_| Instant::now());
        let mut state = self.state();
        let result = loop {
            state.reap();
            if let Some(result) = ready(&mut state) {
                break Ok(result);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                let after = begin.map_or_else(Default::default, |begin| begin.elapsed());
                break Err(TransportError::Timeout { what, after });
            }
            if state.waiters.led {
                let id = state.waiters.enter(request);
                drop(state);
                match deadline {
                    None => std::thread::park(),
                    Some(deadline) => {
                        std::thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
                    }
                }
                state = self.state();
                state.waiters.leave(id);
            } else if state.ring.arm() || state.loss.is_some() {
                state.waiters.led = true;
                let events = Arc::clone(&state.events);
                drop(state);
                events.interrupt().sleep(deadline);
                state = self.state();
                state.waiters.led = false;
            }
        };
        state.waiters.hand_over();
        drop(state);
        result
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
        let events = {
            let mut state = self.state();
            state.lose(loss);
            Arc::clone(&state.events)
        };
        events.interrupt().wake();
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
    fn notify(&self, notify: Notify) {
        if notify == Notify::Wanted
            && let Err(error) = self.events.kick().write(1)
        {
            log::warn!("a kick was lost: {error}");
        }
    }

    /// Takes what the device has used off the ring, and wakes the threads that wait for it.
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
