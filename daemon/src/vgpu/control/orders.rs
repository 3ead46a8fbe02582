//! What the operator asks of a vGPU: put in by a thread of the control socket, taken by the vGPU's own thread.
//!
//! ```text
//!   operator's thread ── ask ──▶ [waiting, bounded] ── event ──▶ session: take, do, answer
//!           ◀──────────────────────── answer, or the time is over ──────────┘
//! ```
//!
//! A vGPU without a front-end has no session: then orders are not taken, and each is refused at once. The session's
//! thread never waits for the operator: an answer that is not waited for any more is dropped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::event::Event;
use serde_json::Value;

use super::tuning::Tuning;

/// Orders that may wait for one vGPU's thread.
const MAX_WAITING: usize = 16;

/// How a vGPU's process is to fail.
#[cfg(debug_assertions)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its thread panics.
    Panic,
    /// It asks for more memory than it may have.
    Memory,
}

/// An order to one vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Say what there is: processes, engines, devices.
    Describe,
    /// Say which engines there are: the places of those that have a process.
    Engines,
    /// Say what the engines ran, all that they remember or the last of it.
    History(Option<Duration>),
    /// Reset one engine (TDR-29), or all.
    ResetEngine(Option<EngineAddress>),
    /// Reset every engine, with all devices (TDR-29).
    ResetAdapter,
    /// Go to D3, when all contexts are suspended (UMS-123).
    EnterD3,
    /// Come back to D0 (UMS-124).
    EnterD0,
    /// Have all guest processes park their devices, within this time: the VMM is about to take the device away.
    Leave(Duration),
    /// That is called off.
    Stay,
    /// Be tuned otherwise from now on.
    Tune(Tuning),
    /// Fail. Not in a release build.
    #[cfg(debug_assertions)]
    Fault(Fault),
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// No front-end is connected, so there is nothing to act on.
    #[error("no VM is connected")]
    NoSession,
    /// The vGPU's thread has too many orders before this one.
    #[error("too many orders wait already")]
    Full,
    /// The vGPU's thread did not answer in time; it may still carry the order out.
    #[error("the vGPU did not answer in time")]
    Late,
    /// The vGPU's thread says why.
    #[error("{0}")]
    Refused(String),
}

/// What an order came to.
pub type Answer = Result<Value, OrderError>;

/// An order on its way.
#[derive(Debug)]
pub struct PendingOrder {
    /// What to do.
    pub order: Order,
    answer: SyncSender<Answer>,
}

impl PendingOrder {
    /// Tells the operator, if he still waits.
    pub fn answer(&self, answer: Answer) {
        // The caller may have gone.
        let _gone = self.answer.try_send(answer);
    }
}

#[derive(Debug, Default)]
struct Waiting {
    sessions: u32,
    pending: VecDeque<PendingOrder>,
}

/// The orders to one vGPU, over all its sessions.
#[derive(Debug)]
pub struct Orders {
    waiting: Mutex<Waiting>,
    event: Event,
}

impl Orders {
    /// None yet, and no session to take them.
    ///
    /// # Errors
    /// No eventfd could be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), event: Event::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the vGPU's thread, and waits up to `limit` for its answer.
    ///
    /// # Errors
    /// It is not there, is too busy, or refuses.
    pub fn ask(&self, order: Order, limit: Duration) -> Answer {
        let (answer, receiver) = mpsc::sync_channel(1);
        {
            let mut waiting = self.lock();
            if waiting.sessions == 0 {
                return Err(OrderError::NoSession);
            }
            if waiting.pending.len() >= MAX_WAITING {
                return Err(OrderError::Full);
            }
            waiting.pending.push_back(PendingOrder { order, answer });
        }
        self.event.signal();
        match receiver.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(OrderError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(OrderError::NoSession),
        }
    }

    /// Has the vGPU's thread look at what may have changed around it.
    pub fn nudge(&self) {
        self.event.signal();
    }

    /// Whether a VM is connected.
    pub fn has_session(&self) -> bool {
        self.lock().sessions > 0
    }

    /// A session takes orders from now on.
    pub fn begin_session(&self) {
        self.lock().sessions += 1;
    }

    /// A session takes no more; what waits is refused.
    pub fn end_session(&self) {
        let mut waiting = self.lock();
        waiting.sessions = waiting.sessions.saturating_sub(1);
        if waiting.sessions == 0 {
            waiting.pending.clear();
        }
    }

    /// The orders that wait, oldest first.
    pub fn take(&self) -> Vec<PendingOrder> {
        self.event.drain();
        self.lock().pending.drain(..).collect()
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::Order;
    use super::OrderError;
    use super::Orders;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_order_without_a_session_is_refused_at_once() {
        let orders = Orders::new().unwrap();
        assert_eq!(orders.ask(Order::Describe, LONG), Err(OrderError::NoSession));
        orders.begin_session();
        orders.end_session();
        assert_eq!(orders.ask(Order::Describe, LONG), Err(OrderError::NoSession));
    }

    #[test]
    fn a_session_that_ends_refuses_what_waits_and_one_that_is_deaf_does_not_hold_the_operator() {
        let orders = Orders::new().unwrap();
        orders.begin_session();
        assert_eq!(orders.ask(Order::Describe, Duration::ZERO), Err(OrderError::Late));
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| orders.ask(Order::ResetAdapter, LONG));
            while orders.lock().pending.len() < 2 {
                std::thread::yield_now();
            }
            orders.end_session();
            assert_eq!(asks.join().unwrap(), Err(OrderError::NoSession));
        });
    }

    #[test]
    fn what_waits_is_bounded_and_answered_in_order() {
        let orders = Orders::new().unwrap();
        orders.begin_session();
        for _ in 0..super::MAX_WAITING {
            assert_eq!(orders.ask(Order::Describe, Duration::ZERO), Err(OrderError::Late));
        }
        assert_eq!(orders.ask(Order::Describe, LONG), Err(OrderError::Full));
        assert_eq!(orders.take().len(), super::MAX_WAITING);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| orders.ask(Order::ResetEngine(None), LONG));
            let pending = loop {
                if let Some(pending) = orders.take().pop() {
                    break pending;
                }
            };
            assert_eq!(pending.order, Order::ResetEngine(None));
            pending.answer(Ok(Value::Bool(true)));
            assert_eq!(asks.join().unwrap(), Ok(Value::Bool(true)));
        });
    }
}
