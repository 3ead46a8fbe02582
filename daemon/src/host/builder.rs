//! The thread that makes and removes vGPUs while the daemon serves.
//!
//! ```text
//!   control socket's thread, filter and Landlock domain ──job──▶ "vgpus", neither ──▶ socket, cgroup, threads of a front
//!                                                       ◀─result─┘                       (each confined as those at start)
//! ```
//!
//! Threads inherit filters and domains, and the operator's threads have others than a front's: so a thread that was started before
//! those does it. It has what the process has: the user of `--user`, no new privileges. Other than the "engines" thread it may wait
//! for a session that ends, which needs that one.

use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::mpsc;
use std::sync::mpsc::Sender;
use std::thread;
use std::thread::JoinHandle;

use crate::confine::Confinement;

type Job = Box<dyn FnOnce() + Send>;

/// The thread; it ends when this is dropped. A daemon that is not confined needs none.
#[derive(Debug)]
pub(super) struct Builder {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Builder {
    /// Starts it. Call it from a thread that is not confined.
    ///
    /// # Errors
    /// No thread could be had.
    pub(super) fn start(confinement: Confinement) -> io::Result<Self> {
        if confinement == Confinement::Off {
            return Ok(Self { jobs: None, thread: None });
        }
        let (jobs, waiting) = mpsc::channel::<Job>();
        let run = move || {
            for job in waiting {
                // The result's sender goes with the job: its caller learns that there is none.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!("making or removing a vGPU panicked");
                }
            }
        };
        let thread = thread::Builder::new().name("vgpus".to_owned()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Does `work` there, and waits for it.
    ///
    /// # Errors
    /// The work panicked.
    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let Some(jobs) = &self.jobs else { return Ok(work()) };
        let lost = || io::Error::other("the thread that makes vGPUs gave no result");
        let (done, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            let _caller_waits = done.send(work());
        });
        jobs.send(job).map_err(|_| lost())?;
        result.recv().map_err(|_| lost())
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that makes vGPUs panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::Builder;
    use crate::confine::Confinement;

    #[test]
    fn work_is_done_by_one_thread_which_outlives_a_panic_and_by_the_caller_where_nothing_is_confined() {
        let builder = Builder::start(Confinement::On).unwrap();
        let name = || thread::current().name().map(ToOwned::to_owned);
        assert_eq!(builder.run(name).unwrap().as_deref(), Some("vgpus"));
        assert!(builder.run(|| -> () { panic!("on purpose") }).is_err());
        assert_eq!(builder.run(name).unwrap().as_deref(), Some("vgpus"));
        let none = Builder::start(Confinement::Off).unwrap();
        assert_eq!(none.run(|| thread::current().id()).unwrap(), thread::current().id());
    }
}
