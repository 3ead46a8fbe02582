//! Tries mutants.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use anyhow::ensure;

use super::build::Binary;
use super::cases;
use super::cases::End;
use super::cases::Test;
use super::cases::Trace;
use super::sources::State;
use crate::mutants::list::Listed;
use crate::mutants::outcomes::Outcome;

/// What a test with a mutant may take: this, and ten times what it takes without one.
const LIMIT: Duration = Duration::from_secs(6);

/// Which tests there are, and what they reach.
pub struct Traced {
    binaries: Vec<Binary>,
    /// In the order of time.
    tests: Vec<(Test, Trace)>,
}

/// Calls `work` for each number below `count`, on several threads, and keeps what it returns in order.
fn in_parallel<T: Send>(
    workers: usize,
    count: usize,
    work: impl Fn(usize, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let (next, done, work) = (&next, &done, &work);
        for worker in 0..workers {
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let result = work(worker, number);
                    let is_over = result.is_err();
                    if let Ok(mut done) = done.lock() {
                        done.push((number, result));
                    }
                    if is_over {
                        next.store(count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs all tests without a mutant; each has to pass, at the second try at the latest.
pub fn trace(binaries: Vec<Binary>, workers: usize, folder: &Path) -> Result<Traced> {
    let mut all = Vec::new();
    for binary in 0..binaries.len() {
        all.extend(cases::list(&binaries, binary)?);
    }
    let traces = in_parallel(workers, all.len(), |worker, number| {
        let file = folder.join(format!("reached-{worker}"));
        let mut trace = cases::trace(&binaries, &all[number], &file)?;
        if trace.end != End::Passed {
            trace = cases::trace(&binaries, &all[number], &file)?;
        }
        ensure!(trace.end == End::Passed, "{} does not pass, without any mutant", all[number].name);
        Ok(trace)
    })?;
    let mut tests: Vec<_> = all.into_iter().zip(traces).collect();
    tests.sort_by_key(|(_, trace)| trace.took);
    Ok(Traced { binaries, tests })
}

impl Traced {
    /// How many tests there are.
    pub fn tests(&self) -> usize {
        self.tests.len()
    }

    /// Tries each mutant that is in the binaries, and writes what became of it, and by which test, to the file `log`.
    pub fn try_all(
        &self,
        mutants: &[Listed],
        states: &[State],
        workers: usize,
        log: &Path,
    ) -> Result<Vec<Outcome>> {
        let log = Mutex::new(File::create(log).context("the log could not be written")?);
        let done = AtomicUsize::new(0);
        in_parallel(workers, mutants.len(), |_, number| {
            let mutant = &mutants[number];
            let (outcome, why) = match states[number] {
                State::Unviable => (Outcome::Unviable, ""),
                State::NotTried => (Outcome::NotTried, ""),
                State::Built => self.try_one(mutant, number)?,
            };
            if let Ok(mut log) = log.lock() {
                writeln!(log, "{outcome:?}\t{}\t{why}", mutant.name)?;
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(200) {
                println!("-- {done} of {} mutants", mutants.len());
            }
            Ok(outcome)
        })
    }

    fn try_one(&self, mutant: &Listed, number: usize) -> Result<(Outcome, &str)> {
        let is_counted = |test: &Test| self.binaries[test.binary].package == mutant.package;
        let reaching =
            self.tests.iter().filter(|(test, trace)| is_counted(test) && trace.reached.contains(&number));
        let mut why = "reached by no test";
        for (test, trace) in reaching {
            why = "all pass that reach it";
            let limit = LIMIT + trace.took * 10;
            let number = number.to_string();
            let run = || cases::run(&self.binaries, test, limit, ("CAMPANILE_MUTANT", &number));
            // A machine that stands still lets a test fail once.
            let end = run()?;
            if end == End::Hung || (end == End::Failed && run()? != End::Passed) {
                return Ok((Outcome::Killed, &test.name));
            }
        }
        Ok((Outcome::Survived, why))
    }
}
