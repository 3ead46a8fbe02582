//! The thread that is confined by nothing but what confines the whole process.
//!
//! ```text
//!   thread of a VM, filter and Landlock domain ──job──▶ "engines", neither ──fork, exec──▶ engine
//!                                              ◀─result─┘   └── open: /proc/ENGINE/pagemap, an operator's file
//! ```
//!
//! Filters and Landlock domains are inherited by threads and by programs that are executed, and a process in a domain
//! may not look into a process outside of it. An engine must have its own sandbox and not its starter's, and be seen by
//! dirty tracking: so a thread that was started before all others starts engines, and opens what belongs to them. It
//! lives as long as the process, and with it the engines, which end with the thread that started them
//! (`PR_SET_PDEATHSIG`).
//!
//! Jobs run one after the other, so none may wait for a guest, an engine or a peer. Between them engines' memory is looked at.

use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::thread;
use std::thread::Thread;
use std::time::Duration;

use crate::log_limit::inherit;

type Job = Box<dyn FnOnce() + Send>;

/// Work that comes again; when it is due next.
pub type Round = fn() -> Option<Duration>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();
static ROUND: OnceLock<Round> = OnceLock::new();
static ROUNDS: OnceLock<Thread> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Starts the thread, once for the process. Call it before the calling thread is confined: the new one inherits that.
///
/// # Errors
/// No thread could be had.
pub fn start() -> io::Result<()> {
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if JOBS.get().is_some() {
        return Ok(());
    }
    let (jobs, waiting) = mpsc::channel();
    thread::Builder::new().name("engines".to_owned()).spawn(move || work(&waiting))?;
    let _once = JOBS.set(jobs);
    Ok(())
}

fn work(waiting: &Receiver<Job>) {
    let mut round = None;
    loop {
        let next = match round {
            None => waiting.recv().map_err(RecvTimeoutError::from),
            Some(wait) => waiting.recv_timeout(wait),
        };
        match next {
            Ok(job) => {
                // The result's sender goes with the job: its caller learns that there is none.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!("a job outside of the confined threads panicked");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        round = ROUND.get().and_then(|round| round());
    }
}

/// Has `round` done there again and again, the first time now: each says when the next is due, or that none is until this is
/// called again. There is one such work in a process. Where no thread was started, it has one of its own.
///
/// # Errors
/// No thread could be had.
pub fn again(round: Round) -> io::Result<()> {
    let round = *ROUND.get_or_init(|| round);
    if JOBS.get().is_some() {
        // After whatever is done there now, at the latest this, it looks.
        let nothing: Job = Box::new(|| ());
        let lost = |_| io::Error::other("the thread outside of the confined ones is gone");
        return JOBS.get().map_or(Ok(()), |jobs| jobs.send(nothing).map_err(lost));
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = ROUNDS.get() {
        thread.unpark();
        return Ok(());
    }
    let rounds = thread::Builder::new().name("engine-memory".to_owned()).spawn(move || {
        loop {
            match round() {
                Some(wait) => thread::park_timeout(wait),
                None => thread::park(),
            }
        }
    })?;
    let _once = ROUNDS.set(rounds.thread().clone());
    Ok(())
}

/// Does `work` there, and waits for it; on the calling thread where none was started, as in programs that confine nothing.
///
/// # Errors
/// The work panicked.
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let Some(jobs) = JOBS.get() else { return Ok(work()) };
    let (done, result) = mpsc::sync_channel(1);
    let job: Job = Box::new(inherit(move || {
        let _caller_waits = done.send(work());
    }));
    let lost = || io::Error::other("the thread outside of the confined ones gave no result");
    jobs.send(job).map_err(|_| lost())?;
    result.recv().map_err(|_| lost())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::run;
    use super::start;

    #[test]
    fn work_is_done_by_one_thread_which_outlives_a_panic() {
        start().unwrap();
        start().unwrap();
        let name = || thread::current().name().map(ToOwned::to_owned);
        let id = run(|| thread::current().id()).unwrap();
        assert_ne!(id, thread::current().id());
        assert_eq!(run(name).unwrap().as_deref(), Some("engines"));
        assert!(run(|| -> () { panic!("on purpose") }).is_err());
        assert_eq!(run(|| thread::current().id()).unwrap(), id, "one thread, as long as the process");
    }
}
