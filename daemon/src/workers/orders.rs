//! What those that answer the operator have the supervisor do.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::time::Duration;

use campanile_host_gpu::event::Event;

/// How long a worker may take to begin, or to end.
const LIMIT: Duration = Duration::from_secs(50);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Start the worker of a vGPU; answered when it serves. With the words in which the operator has made it, if he has.
    Begin {
        /// The vGPU.
        vgpu: String,
        /// `name=…,socket=…`.
        made: Option<String>,
    },
    /// End the worker of a vGPU, which is gone; answered when it has ended.
    End {
        /// The vGPU.
        vgpu: String,
    },
    /// Execute this program in place of this process, once the operator has the answer, and start the schedule anew by it.
    Replace {
        /// The program.
        program: PathBuf,
    },
    /// The operator has the answer.
    Answered,
}

/// Where the outcome of an order goes.
pub type Outcome = Sender<Result<(), String>>;

/// The end of those that order.
#[derive(Debug)]
pub struct Orders {
    orders: Sender<(Order, Outcome)>,
    bell: Event,
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Inbox {
    orders: Receiver<(Order, Outcome)>,
    bell: Event,
}

/// Both ends.
///
/// # Errors
/// No descriptor could be had.
pub fn pair() -> io::Result<(Orders, Inbox)> {
    let (send, receive) = mpsc::channel();
    let bell = Event::new()?;
    let its_bell = bell.try_clone()?;
    Ok((Orders { orders: send, bell }, Inbox { orders: receive, bell: its_bell }))
}

impl Orders {
    /// Has it done, and waits for that.
    ///
    /// # Errors
    /// In the operator's words: it cannot be done, or was not done in time; then it may be done later.
    pub fn carry_out(&self, order: Order) -> Result<(), String> {
        let (outcome, outcomes) = mpsc::channel();
        let is_over = || "this process is about to end".to_owned();
        self.orders.send((order, outcome)).map_err(|_over| is_over())?;
        self.bell.signal();
        match outcomes.recv_timeout(LIMIT) {
            Ok(outcome) => outcome,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("not done within {} s", LIMIT.as_secs())),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(is_over()),
        }
    }
}

impl Inbox {
    /// The next order.
    pub fn next(&self) -> Option<(Order, Outcome)> {
        self.orders.try_recv().ok()
    }

    /// Looks for orders from here on: what is ordered later is told anew.
    pub fn clear(&self) {
        self.bell.drain();
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
