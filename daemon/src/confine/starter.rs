//! Starts threads of one role for threads of another, which could start their like only.
//!
//! ```text
//!   thread that hears peers ──job──▶ starter, a thread of the VM's role ──▶ thread of that role: does the job
//!            ◀──────────────── what came of it, or that it panicked ───────────────┘
//! ```

use std::io;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::thread;

use campanile_host_gpu::log_limit::inherit;

type Job = Box<dyn FnOnce() + Send>;

/// Reaches the thread that starts them, which ends when the last of these is dropped.
#[derive(Debug, Clone)]
pub struct Starter {
    jobs: Sender<(&'static str, Job)>,
}

impl Starter {
    /// One whose threads have the role of the calling thread.
    ///
    /// # Errors
    /// No thread could be had.
    pub fn begin() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<(&str, Job)>();
        thread::Builder::new().name("starter".to_owned()).spawn(move || {
            for (name, job) in waiting {
                // The result's sender goes with the job: its caller learns that there is none.
                if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(job) {
                    log::warn!("no thread {name}: {error}");
                }
            }
        })?;
        Ok(Self { jobs })
    }

    /// Has `job` done by a thread called `name`. What comes of it, or nothing where the thread could not be had or has panicked.
    pub fn start<T: Send + 'static>(
        &self,
        name: &'static str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (result, receiver) = mpsc::sync_channel(1);
        let job = inherit(move || {
            // Its caller may not want it any more.
            let _unheard = result.send(job());
        });
        // Where that thread is gone, the job is dropped, and its caller learns that nothing comes of it.
        let _gone = self.jobs.send((name, Box::new(job)));
        receiver
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::Starter;

    #[test]
    fn what_comes_of_a_job_is_told_and_that_nothing_does() {
        let starter = Starter::begin().unwrap();
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(starter.start("job", name).recv().unwrap().as_deref(), Some("job"));
        assert!(starter.start::<u32>("job", || panic!("on purpose")).recv().is_err());
        assert_eq!(starter.clone().start("job", || 7).recv(), Ok(7), "it goes on");
    }
}
