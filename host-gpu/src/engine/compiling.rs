//! The threads that compile kernels: nothing else that the daemon asks for waits for the driver's compiler, and no kernel for another.
//!
//! ```text
//!   control ── CREATE_KERNEL, DESTROY_KERNEL, BEGIN ──▶ [orders] ──▶ one of these threads ── pipeline ──▶ execution
//!           ── segments, moves: answered there                              └── its answers ──▶ daemon
//! ```
//!
//! Orders of one kernel are answered in the order in which they came; which of two other answers comes first is not said.
//!
//! A CPU driver compiles on the thread of the device's queue, at the first dispatch. Where it keeps what it has compiled, each of these
//! threads has a device of its own, and compiles there first: for the one that work runs on the driver then finds it, which
//! is all that work waits for. Between two kernels one of them looks what the driver has written.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::message::LANGUAGE_SPIRV;
use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE;
use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE_DEFLATED;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::pipeline;
use campanile_protocol::control::pipeline::MAX_MODULE_BYTES;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::channel::Channel;
use super::channel::ChannelError;
use super::commands::CommandSender;
use super::message::Response;
use super::orders::Create;
use super::orders::Order;
use super::orders::Orders;
use crate::code_cache::store::Store;
use crate::essential_thread;
use crate::kernel::program::Kernel;
use crate::kernel::sanitizer::Sanitizer;
use crate::kernel::source::Fixed;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::node::candidate::Candidate;
use crate::node::device_instance::Compiled;
use crate::vulkan::pipeline::Compiler as PipelineCompiler;
use crate::vulkan::pipeline::Pipeline;

/// Fewest threads, and most.
const LEAST_THREADS: usize = 2;
const MOST_THREADS: usize = 4;
/// What a driver that is quicker than that did not compile, but find.
const FOUND: Duration = Duration::from_millis(10);
/// From one look at whether the driver has written what it compiled to the next; twice as long each time, up to the longest.
const FIRST_WAIT: Duration = Duration::from_micros(250);
const LONGEST_WAIT: Duration = Duration::from_millis(8);

/// How many threads compile: one a CPU, but two at the least, so that a kernel that takes long is not waited for, and a few at the most.
pub fn threads() -> usize {
    thread::available_parallelism()
        .map_or(LEAST_THREADS, |cpus| cpus.get().clamp(LEAST_THREADS, MOST_THREADS))
}

/// What compiles kernels, on a node that has any.
pub struct Compiler {
    /// Checks and re-emits.
    pub sanitizer: Sanitizer,
    /// Makes pipelines of the device that work runs on.
    pub pipelines: PipelineCompiler,
    /// The same of devices on which nothing runs: for each thread one, or none at all.
    pub apart: Vec<PipelineCompiler>,
    /// What it and processes before it have compiled, where the driver keeps that.
    pub cache: Option<Store>,
}

/// Starts the threads, which answer over `channel` and hand pipelines to `commands`. They live as long as the process.
///
/// # Errors
/// There is no thread to be had.
pub fn start(compiler: Compiler, channel: Arc<Channel>, commands: CommandSender) -> io::Result<Orders> {
    let Compiler { sanitizer, pipelines, apart, cache } = compiler;
    let orders = Orders::default();
    let cache = cache.map(|store| Mutex::new(Cache { store, has_watcher: false }));
    let (its, kernels) = (orders.clone(), AtomicU64::new(0));
    let pool = Arc::new(Pool { sanitizer, pipelines, cache, orders: its, channel, commands, kernels });
    let mut apart = apart.into_iter();
    for _ in 0..threads() {
        let compiling = Compiling { pool: Arc::clone(&pool), apart: apart.next() };
        essential_thread::spawn("compiler", move || compiling.run())?;
    }
    Ok(orders)
}

/// What the driver keeps.
struct Cache {
    store: Store,
    /// A thread that waits for an order looks at it meanwhile.
    has_watcher: bool,
}

/// What the threads have in common.
struct Pool {
    sanitizer: Sanitizer,
    pipelines: PipelineCompiler,
    cache: Option<Mutex<Cache>>,
    orders: Orders,
    channel: Arc<Channel>,
    commands: CommandSender,
    /// How many were compiled.
    kernels: AtomicU64,
}

impl Pool {
    fn cache(&self) -> Option<MutexGuard<'_, Cache>> {
        // What a panic under the lock leaves is a cache that has less.
        self.cache.as_ref().map(|cache| cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the driver keeps what it compiles.
    fn keeps(&self) -> bool {
        self.cache().is_some_and(|cache| cache.store.keeps())
    }

    /// Waits until the driver has written the kernel that it has just compiled, or for `limit`. It does so on a thread of its own, and says
    /// nothing of it.
    fn wait_for_entry(&self, limit: Duration) {
        let Some(entries) = self.cache().and_then(|mut cache| cache.store.expect()) else { return };
        let (begun, mut wait) = (Instant::now(), FIRST_WAIT);
        while self.cache().is_some_and(|cache| !cache.store.has(entries)) {
            if begun.elapsed() >= limit {
                self.cache().into_iter().for_each(|mut cache| cache.store.give_up());
                return;
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// The next order. Where the driver is expected to write, and no other thread looks at that, this one does meanwhile.
    fn next(&self) -> Order {
        loop {
            let look = self.cache().and_then(|mut cache| {
                let look = cache.store.next_look().filter(|_| !cache.has_watcher);
                cache.has_watcher |= look.is_some();
                look
            });
            let order = self.orders.next(look);
            if look.is_some()
                && let Some(mut cache) = self.cache()
            {
                cache.has_watcher = false;
                if order.is_none() {
                    cache.store.look();
                }
            }
            if let Some(order) = order {
                return order;
            }
        }
    }
}

struct Compiling {
    pool: Arc<Pool>,
    /// Of a device on which nothing runs.
    apart: Option<PipelineCompiler>,
}

impl Compiling {
    /// Compiles until the daemon is gone, with which the process ends.
    fn run(self) {
        loop {
            let order = self.pool.next();
            let kernel = order.kernel();
            let answered = self.carry_out(order);
            // Not before it is answered: what comes next of this kernel is answered behind it.
            kernel.into_iter().for_each(|kernel| self.pool.orders.ended(kernel));
            if let Err(error) = answered {
                log::debug!("no kernel is compiled any more: {error}");
                return;
            }
        }
    }

    fn carry_out(&self, order: Order) -> Result<(), ChannelError> {
        let response = match order {
            Order::Begin => {
                self.pool.cache().into_iter().for_each(|mut cache| cache.store.begin());
                return Ok(());
            }
            Order::Create(create) => self.create(create),
            Order::Destroy { kernel } => {
                self.pool.commands.remove_kernel(kernel);
                Response::KernelDestroyed { kernel }
            }
        };
        self.pool.channel.send(&response, &[], &[], true)
    }

    fn create(&self, create: Create) -> Response {
        let Create { kernel, language, entry, bytes, alone: _ } = create;
        match self.compile(language, entry, bytes) {
            Ok((program, pipeline, took)) => {
                let serial = self.pool.kernels.fetch_add(1, Ordering::Relaxed) + 1;
                let created = Response::KernelCreated {
                    kernel,
                    workgroup: program.workgroup,
                    binding_count: u32::try_from(program.points().count()).unwrap_or(u32::MAX),
                    constant_bytes: program.constants,
                };
                let candidate = Some(Candidate::new(program, took));
                self.pool.commands.add_kernel(kernel, Compiled { serial, pipeline, candidate });
                created
            }
            Err(reason) => Response::KernelRefused { kernel, reason },
        }
    }

    /// Also says how long the driver took for it, on the device that work runs on.
    fn compile(
        &self,
        language: u32,
        entry: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<(Kernel, Pipeline, Duration), String> {
        let source = source(language, entry, bytes)?;
        let kernel = self.pool.sanitizer.sanitize(&source).map_err(|e| e.to_string())?;
        self.pool.cache().into_iter().for_each(|mut cache| cache.store.take());
        self.compile_apart(&kernel)?;
        let started = Instant::now();
        let pipeline = self.pool.pipelines.pipeline(&kernel).map_err(|e| e.to_string())?;
        let took = started.elapsed();
        self.pool.cache().into_iter().for_each(|mut cache| cache.store.compiled());
        Ok((kernel, pipeline, took))
    }

    /// Has the driver compile it where no work waits for that, and waits until it has written what it made; not much longer than that
    /// took, since it may have had it already.
    fn compile_apart(&self, kernel: &Kernel) -> Result<(), String> {
        let Some(apart) = self.apart.as_ref().filter(|_| self.pool.keeps()) else { return Ok(()) };
        let started = Instant::now();
        let pipeline = apart.pipeline(kernel).map_err(|e| e.to_string())?;
        let took = started.elapsed();
        if took >= FOUND {
            self.pool.wait_for_entry(took / 2);
        }
        drop(pipeline);
        Ok(())
    }
}

/// The words of a module that was deflated.
fn inflated(bytes: &[u8]) -> Result<Vec<u8>, String> {
    decompress_to_vec_with_limit(bytes, MAX_MODULE_BYTES as usize).map_err(|error| match error.status {
        TINFLStatus::HasMoreOutput => format!("the module has more than {MAX_MODULE_BYTES} bytes"),
        status => format!("the module is not deflated: {status:?}"),
    })
}

/// What CREATE_KERNEL brought, taken apart.
fn source(language: u32, entry: Option<String>, bytes: Vec<u8>) -> Result<Source, String> {
    let (language, bytes, fixed) = match language {
        LANGUAGE_WGSL => (Language::Wgsl, bytes, Fixed::default()),
        LANGUAGE_SPIRV => (Language::SpirV, bytes, Fixed::default()),
        LANGUAGE_SPIRV_PIPELINE | LANGUAGE_SPIRV_PIPELINE_DEFLATED => {
            let parts = pipeline::Parts::read(&bytes).map_err(|malformed| malformed.to_string())?;
            let constants = parts.constants().map(|constant| (constant.id, constant.value)).collect();
            let fixed = Fixed { constants, subgroup_size: parts.subgroup_size };
            let words = match language {
                LANGUAGE_SPIRV_PIPELINE => parts.words.to_vec(),
                _ => inflated(parts.words)?,
            };
            (Language::SpirV, words, fixed)
        }
        other => return Err(format!("kernel language {other} does not exist")),
    };
    Ok(Source { language, bytes, entry, fixed })
}

#[cfg(test)]
mod tests {
    use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE;
    use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE_DEFLATED;
    use campanile_protocol::control::pipeline::Constant;
    use campanile_protocol::control::pipeline::Head;
    use campanile_protocol::control::pipeline::MAX_MODULE_BYTES;
    use miniz_oxide::deflate::compress_to_vec;
    use zerocopy::IntoBytes;

    use super::source;

    fn pipeline(words: &[u8]) -> Vec<u8> {
        let head = Head { subgroup_size: 8, constant_count: 1, reserved: [0; 2] };
        [head.as_bytes(), Constant { id: 4, reserved: 0, value: 7 }.as_bytes(), words].concat()
    }

    #[test]
    fn a_module_that_was_deflated_is_the_one_that_was_not() {
        let words: Vec<u8> = (0..MAX_MODULE_BYTES).map(|at| (at / 1024).to_le_bytes()[0]).collect();
        let plain = source(LANGUAGE_SPIRV_PIPELINE, None, pipeline(&words)).unwrap();
        let deflated = pipeline(&compress_to_vec(&words, 6));
        assert!(deflated.len() < words.len() / 10);
        assert_eq!(source(LANGUAGE_SPIRV_PIPELINE_DEFLATED, None, deflated), Ok(plain));
    }

    #[test]
    fn a_module_that_inflates_to_more_than_is_looked_at_or_to_nothing_is_refused() {
        let says =
            |words: &[u8]| source(LANGUAGE_SPIRV_PIPELINE_DEFLATED, None, pipeline(words)).unwrap_err();
        let bomb = compress_to_vec(&vec![0; MAX_MODULE_BYTES as usize + 1], 9);
        assert_eq!(says(&bomb), "the module has more than 1048576 bytes");
        for cut in [&bomb[..bomb.len() / 2], &[0xff; 64], &[]] {
            assert!(says(cut).starts_with("the module "), "{}", says(cut));
        }
    }
}
