//! How the thread of a socket is parked, so that another thread can say what becomes of its connection.
//!
//! ```text
//!   thread of the operator                              thread of the socket (accepts, or serves a connection)
//!   ─────────────────────                               ──────────────────────────────────────────────────
//!   park ── exchange, bell ───────────────────────────▶ between two messages: parked
//!   record ───────────────────────────────────────────▶ says what the connection is
//!   leave ────────────────────────────────────────────▶ ends, and leaves connection and socket as they are
//!   (dropped) ────────────────────────────────────────▶ goes on
//! ```

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::time::Duration;

use campanile_host_gpu::event::Event;

use super::handed::Handed;

/// What is asked of a thread that is parked.
#[derive(Debug)]
enum Order {
    Record,
    Leave,
}

#[derive(Debug)]
enum Answer {
    Parked { is_connected: bool },
    Recorded(Box<Result<Handed, String>>),
}

#[derive(Debug)]
struct Exchange {
    orders: Receiver<Order>,
    answers: Sender<Answer>,
}

/// What a thread does that was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    /// It goes on.
    GoesOn,
    /// It ends; what it served is another process's.
    Leaves,
}

/// Where the thread of one socket is asked to park.
#[derive(Debug)]
pub(super) struct Parking {
    asked: Mutex<Option<Exchange>>,
    bell: Event,
    is_left: Arc<AtomicBool>,
}

impl Parking {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { asked: Mutex::default(), bell: Event::new()?, is_left: Arc::default() })
    }

    /// Whether what the thread serves is another process's: it may still be freeing what it had itself.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Rings when something is asked; also for other reasons of the socket's.
    pub(super) fn bell(&self) -> &Event {
        &self.bell
    }

    /// Asks the thread to park, and waits up to `limit` until it is.
    pub(super) fn park(&self, limit: Duration) -> Result<Parked, String> {
        let (orders, its_orders) = mpsc::channel();
        let (its_answers, answers) = mpsc::channel();
        let exchange = Exchange { orders: its_orders, answers: its_answers };
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
        self.bell.signal();
        match answers.recv_timeout(limit) {
            Ok(Answer::Parked { is_connected }) => {
                Ok(Parked { orders, answers, is_left: Arc::clone(&self.is_left), is_connected })
            }
            // The thread finds that nothing is asked any more.
            _ => Err("its VMM is in the middle of a message, or is being answered".to_owned()),
        }
    }

    /// Parks the calling thread if that is asked, until it is told what to do. `record` says what its connection is, if there is one.
    pub(super) fn stand(&self, record: Option<&dyn Fn() -> Result<Handed, String>>) -> Next {
        let exchange = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Exchange { orders, answers }) = exchange else { return Next::GoesOn };
        if answers.send(Answer::Parked { is_connected: record.is_some() }).is_err() {
            return Next::GoesOn;
        }
        for order in orders {
            match order {
                Order::Leave => return Next::Leaves,
                Order::Record => {
                    let none = || Err("no VMM is connected".to_owned());
                    let recorded = Answer::Recorded(Box::new(record.map_or_else(none, |record| record())));
                    // The thread that asked may have given up: then there is no further order.
                    let _gone = answers.send(recorded);
                }
            }
        }
        Next::GoesOn
    }
}

/// A socket whose thread is parked; it goes on when this is dropped.
#[derive(Debug)]
pub struct Parked {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    is_left: Arc<AtomicBool>,
    /// Whether a VMM is connected.
    pub is_connected: bool,
}

impl Parked {
    /// What the connection is; waits up to `limit`.
    ///
    /// # Errors
    /// Why it cannot go to another process now.
    pub fn record(&self, limit: Duration) -> Result<Handed, String> {
        let gone = || "the thread of its socket has ended".to_owned();
        self.orders.send(Order::Record).map_err(|_| gone())?;
        match self.answers.recv_timeout(limit) {
            Ok(Answer::Recorded(recorded)) => *recorded,
            _ => Err(gone()),
        }
    }

    /// Has the thread end: socket and connection are another process's from here on.
    pub fn leave(self) {
        self.is_left.store(true, Ordering::Release);
        let _ended = self.orders.send(Order::Leave);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::Next;
    use super::Parking;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_parks_until_it_is_told_to_leave_or_the_other_one_has_given_up() {
        let parking = Parking::new().unwrap();
        assert_eq!(parking.stand(None), Next::GoesOn, "nothing is asked");
        thread::scope(|scope| {
            for leaves in [false, true] {
                let stands = scope.spawn(|| {
                    assert!(parking.bell().wait(Some(LONG)));
                    parking.stand(Some(&|| Err("on purpose".to_owned())))
                });
                let parked = parking.park(LONG).unwrap();
                assert!(parked.is_connected);
                assert_eq!(parked.record(LONG).unwrap_err(), "on purpose");
                if leaves {
                    parked.leave()
                } else {
                    drop(parked)
                }
                let expected = if leaves { Next::Leaves } else { Next::GoesOn };
                assert_eq!(stands.join().unwrap(), expected);
            }
        });
        assert!(parking.park(Duration::ZERO).is_err(), "no thread is there");
        assert_eq!(parking.stand(None), Next::GoesOn, "the one that asked has gone");
    }
}
