//! Kernels of a VM that is on its way here, compiled before it is.
//!
//! ```text
//!   line ── kernel ──▶ [waiting, charged to the vGPU] ──▶ thread of the bundle ──▶ a process that compiles ──▶ log
//!                                                                                                            │
//!   LOAD ── end: the process is gone ── the log ──▶ the session, whose engine is given it when it starts ◀───┘
//! ```
//!
//! It is a help and no more: what is not compiled by then, or could not be, the engine compiles as if nothing had come ahead. So
//! nothing that goes wrong here ends a migration, but for a peer that sends without end.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use campanile_host_gpu::adapter::code_log::CodeLog;
use campanile_host_gpu::adapter::compile_process::CompileProcess;
use campanile_host_gpu::adapter::compile_process::KernelText;
use campanile_host_gpu::adapter::launcher::Launcher;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::event::Event;

use crate::confine::starter::Starter;
use crate::migration::channel::kernel::SentKernel;
use crate::migration::error::MigrationError;
use crate::migration::lock::locked;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::objects::budget::Budget;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;

/// Kernels that one bundle brings, at the most.
const MOST: u32 = 65_536;
/// Processes that are started for one bundle: where one ends, the oldest of the kernels that it was at is not compiled, and the others are.
const MOST_PROCESSES: u32 = 4;
/// Kernels that a process has at once: as many as it compiles beside each other, at the most.
const MOST_UNDER_WAY: usize = 4;

/// How kernels are compiled for a vGPU that has no session yet.
#[derive(Debug, Clone)]
pub struct Compiler {
    name: String,
    launcher: Arc<dyn Launcher>,
    start: Start,
    code_mib: u32,
    /// How long one may take.
    limit: Duration,
    budget: Arc<Budget>,
    /// Of threads that may start processes and end them, which those that hear peers may not.
    starter: Starter,
}

impl Compiler {
    /// That of a vGPU as configured; none where its engines keep no code, or nothing can be compiled. `starter`: of threads that may
    /// have engines.
    pub fn of(config: &Config, starter: Starter) -> Option<Self> {
        let compiles = matches!(config.compute, Compute::Available(_)) && config.code_mib > 0;
        compiles.then(|| Self {
            name: config.name.clone(),
            launcher: Arc::clone(&config.launcher),
            start: config.start_message(EngineAddress::new(0, NodeKind::Compute), 0),
            code_mib: config.code_mib,
            limit: config.policy.compile_timeout,
            budget: Arc::clone(&config.budget),
            starter,
        })
    }
}

/// A kernel that waits.
#[derive(Debug)]
struct Waiting {
    language: u32,
    entry: Option<String>,
    bytes: Box<[u8]>,
    _charge: Charge,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Those, and the ones that are being compiled.
    left: u32,
    /// How many have come.
    taken: u32,
    /// Nothing is compiled any more.
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Signalled once, for good.
    stop: Event,
}

impl Shared {
    /// The next one; none when it is over, or where none is there and it is not waited for.
    fn next(&self, is_waited_for: bool) -> Option<Waiting> {
        let waits = |queue: &mut Queue| is_waited_for && !queue.is_over && queue.waiting.is_empty();
        let queue = locked(&self.queue);
        let mut queue = self.changed.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner);
        if queue.is_over { None } else { queue.waiting.pop_front() }
    }

    /// These are still to be compiled, before all others.
    fn put_back(&self, kernels: impl DoubleEndedIterator<Item = Waiting>) {
        let queue = &mut *locked(&self.queue);
        if !queue.is_over {
            kernels.rev().for_each(|kernel| queue.waiting.push_front(kernel));
        }
    }

    /// One is compiled, or will not be.
    fn is_done(&self) {
        let queue = &mut *locked(&self.queue);
        queue.left = queue.left.saturating_sub(1);
    }

    /// Nothing is compiled any more; what waits is dropped.
    fn end(&self) {
        let queue = &mut *locked(&self.queue);
        queue.is_over = true;
        queue.left = 0;
        queue.waiting.clear();
        self.stop.signal();
        self.changed.notify_all();
    }
}

/// What is compiled for one bundle. Its thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct Compiles {
    compiler: Option<Arc<Compiler>>,
    shared: Arc<Shared>,
    /// Where the log comes from at the end of the thread, once there is one.
    log: Mutex<Option<Receiver<Option<File>>>>,
}

impl Compiles {
    /// Nothing yet.
    ///
    /// # Errors
    /// A descriptor cannot be had.
    pub(super) fn new(compiler: Option<Arc<Compiler>>) -> io::Result<Self> {
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new(), stop: Event::new()? };
        Ok(Self { compiler, shared: Arc::new(shared), log: Mutex::default() })
    }

    /// Has a kernel compiled, where that is possible and the vGPU's budget has room for it meanwhile.
    ///
    /// # Errors
    /// More have come than any VM has.
    pub(super) fn take(&self, kernel: &SentKernel<'_>) -> Result<(), MigrationError> {
        let Some(compiler) = &self.compiler else { return Ok(()) };
        let mut queue = locked(&self.shared.queue);
        queue.taken += 1;
        if queue.taken > MOST {
            return Err(MigrationError::Protocol(format!("more than {MOST} kernels")));
        }
        if queue.is_over {
            return Ok(());
        }
        let bytes = u64::try_from(kernel.bytes.len()).unwrap_or(u64::MAX);
        let Ok(charge) = compiler.budget.vm().charge(Kind::Kernels, bytes) else { return Ok(()) };
        queue.left += 1;
        queue.waiting.push_back(Waiting {
            language: kernel.language,
            entry: kernel.entry.map(str::to_owned),
            bytes: kernel.bytes.into(),
            _charge: charge,
        });
        drop(queue);
        self.shared.changed.notify_all();
        self.begin(compiler);
        Ok(())
    }

    /// Starts the thread, once.
    fn begin(&self, compiler: &Arc<Compiler>) {
        let (its_compiler, its_shared) = (Arc::clone(compiler), Arc::clone(&self.shared));
        let run = move || {
            let log = run(&its_compiler, &its_shared);
            its_shared.end();
            log
        };
        locked(&self.log).get_or_insert_with(|| compiler.starter.start("compile-ahead", run));
    }

    /// How many are neither compiled nor refused yet.
    pub(super) fn left(&self) -> u32 {
        locked(&self.shared.queue).left
    }

    /// Ends it, and waits until no process writes to the log any more, which the vGPU's engine is given then. None where nothing was
    /// compiled.
    pub(super) fn end(&self) -> Option<File> {
        self.shared.end();
        let log = locked(&self.log).take()?;
        log.recv().ok().flatten()
    }
}

impl Drop for Compiles {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Compiles what comes until it is over. The log, which nothing writes to any more.
fn run(compiler: &Compiler, shared: &Shared) -> Option<File> {
    let name = &compiler.name;
    let log = CodeLog::new(compiler.code_mib).unwrap_or_else(|error| {
        log::warn!("{name}: nothing is compiled ahead: {error}");
        None
    })?;
    let bytes = u64::from(compiler.code_mib) << 20;
    let _charge = compiler.budget.vm().charge(Kind::Kernels, bytes);
    let _charge =
        _charge.inspect_err(|error| log::warn!("{name}: nothing is compiled ahead: {error}")).ok()?;
    let mut compiled = 0;
    for _ in 0..MOST_PROCESSES {
        match compile(compiler, shared, &log, &mut compiled) {
            Ok(()) => break,
            Err(error) => log::warn!("{name}: a kernel is not compiled ahead: {error}"),
        }
    }
    log::info!("{name}: {compiled} kernels were compiled ahead");
    log.file().try_clone().ok()
}

/// The same with one process, which is gone when this returns.
///
/// # Errors
/// It did not start, or has ended: the oldest of the kernels that it was at is left out.
fn compile(compiler: &Compiler, shared: &Shared, log: &CodeLog, compiled: &mut u32) -> io::Result<()> {
    let mut under_way = VecDeque::new();
    let outcome = compile_with(compiler, shared, log, compiled, &mut under_way);
    let Err(error) = outcome else { return Ok(()) };
    if error.kind() == io::ErrorKind::Interrupted {
        return Ok(());
    }
    let left_out = under_way.pop_front();
    shared.put_back(under_way.into_iter().map(|(_, kernel)| kernel));
    drop(left_out);
    shared.is_done();
    Err(error)
}

/// The same. `under_way`: the kernels that the process has, by its numbers, oldest first.
fn compile_with(
    compiler: &Compiler,
    shared: &Shared,
    log: &CodeLog,
    compiled: &mut u32,
    under_way: &mut VecDeque<(u64, Waiting)>,
) -> io::Result<()> {
    let Compiler { name, launcher, start, limit, .. } = compiler;
    let mut process = None;
    loop {
        while under_way.len() < MOST_UNDER_WAY
            && let Some(kernel) = shared.next(under_way.is_empty())
        {
            // It is at this one, whatever comes of it.
            under_way.push_back((0, kernel));
            let process = match &mut process {
                Some(process) => process,
                none => none.insert(CompileProcess::start(&**launcher, start, log, &shared.stop)?),
            };
            if let Some((number, Waiting { language, entry, bytes, .. })) = under_way.back_mut() {
                let text = KernelText { language: *language, entry: entry.as_deref(), bytes };
                *number = process.begin(text, *limit, &shared.stop)?;
            }
        }
        let Some(process) = process.as_mut().filter(|_| !under_way.is_empty()) else { return Ok(()) };
        let (number, outcome) = process.finish(*limit, &shared.stop)?;
        under_way.retain(|(of, _)| *of != number);
        shared.is_done();
        match outcome {
            Ok(()) => *compiled += 1,
            Err(reason) => log::debug!("{name}: a kernel is not compiled ahead: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests;
