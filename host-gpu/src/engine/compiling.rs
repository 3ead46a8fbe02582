//! The thread that compiles kernels: nothing else that the daemon asks for waits for the driver's compiler.
//!
//! ```text
//!   control ── CREATE_KERNEL, DESTROY_KERNEL, BEGIN, in order ──▶ [orders, bounded] ──▶ this thread ── pipeline ──▶ execution
//!           ── segments, moves: answered there                                              └── its answers ──▶ daemon
//! ```
//!
//! Kernels are answered in the order in which they were asked for, and so is all else; which of two answers of different kinds
//! comes first is not said. Between two kernels it looks what the driver has written of the last one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::message::LANGUAGE_SPIRV;
use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::pipeline;

use super::channel::Channel;
use super::commands::CommandSender;
use super::message::Response;
use crate::code_cache::store::Store;
use crate::essential_thread;
use crate::kernel::name::KernelName;
use crate::kernel::program::Kernel;
use crate::kernel::sanitizer::Sanitizer;
use crate::kernel::source::Fixed;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::node::candidate::Candidate;
use crate::node::device_instance::Compiled;
use crate::vulkan::pipeline::Compiler as PipelineCompiler;
use crate::vulkan::pipeline::Pipeline;

/// Bytes of kernels that wait before the control thread has to: what a guest asks for and gives up again is kept by the daemon no more.
const MOST_WAITING: usize = 4 << 20;
/// Bytes that each of them takes besides.
const ORDER_BYTES: usize = 256;

/// What it is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// CREATE_KERNEL.
    Create {
        /// Its name.
        kernel: KernelName,
        /// `LANGUAGE_*` of the protocol.
        language: u32,
        /// Entry point, where there are several.
        entry: Option<String>,
        /// Text or words.
        bytes: Vec<u8>,
    },
    /// DESTROY_KERNEL.
    Destroy {
        /// Its name.
        kernel: KernelName,
    },
    /// The process runs from here on: what the driver compiles is kept for the next.
    Begin,
}

impl Order {
    fn bytes(&self) -> usize {
        match self {
            Self::Create { bytes, .. } => ORDER_BYTES + bytes.len(),
            Self::Destroy { .. } | Self::Begin => ORDER_BYTES,
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    orders: VecDeque<Order>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic under the lock cannot leave it half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where orders go.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    shared: Arc<Shared>,
}

impl Orders {
    /// One more, behind those before it. Waits where too much waits already.
    pub fn give(&self, order: Order) {
        let bytes = order.bytes();
        let is_full = |waiting: &mut Waiting| waiting.bytes > 0 && waiting.bytes + bytes > MOST_WAITING;
        let waiting = self.shared.lock();
        let mut waiting =
            self.shared.changed.wait_while(waiting, is_full).unwrap_or_else(PoisonError::into_inner);
        waiting.bytes += bytes;
        waiting.orders.push_back(order);
        self.shared.changed.notify_all();
    }

    /// The next one; none where none comes within `limit`, if that is given.
    fn next(&self, limit: Option<Duration>) -> Option<Order> {
        let waits = |waiting: &mut Waiting| waiting.orders.is_empty();
        let (waiting, changed) = (self.shared.lock(), &self.shared.changed);
        let mut waiting = match limit {
            None => changed.wait_while(waiting, waits).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                changed.wait_timeout_while(waiting, limit, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let order = waiting.orders.pop_front()?;
        waiting.bytes -= order.bytes();
        changed.notify_all();
        Some(order)
    }
}

/// What compiles kernels, on a node that has any.
pub struct Compiler {
    /// Checks and re-emits.
    pub sanitizer: Sanitizer,
    /// Makes pipelines.
    pub pipelines: PipelineCompiler,
    /// What it and processes before it have compiled, where the driver keeps that.
    pub cache: Option<Store>,
}

/// Starts the thread, which answers over `channel` and hands pipelines to `commands`. It lives as long as the process.
///
/// # Errors
/// There is no thread to be had.
pub fn start(compiler: Compiler, channel: Arc<Channel>, commands: CommandSender) -> io::Result<Orders> {
    let orders = Orders::default();
    let compiling = Compiling { compiler, orders: orders.clone(), channel, commands, kernels: 0 };
    essential_thread::spawn("compiler", move || compiling.run())?;
    Ok(orders)
}

struct Compiling {
    compiler: Compiler,
    orders: Orders,
    channel: Arc<Channel>,
    commands: CommandSender,
    /// How many were compiled.
    kernels: u64,
}

impl Compiling {
    /// Compiles until the daemon is gone, with which the process ends.
    fn run(mut self) {
        loop {
            let look = self.compiler.cache.as_ref().and_then(Store::next_look);
            let Some(order) = self.orders.next(look) else {
                self.cache(Store::look);
                continue;
            };
            let response = match order {
                Order::Begin => {
                    self.cache(Store::begin);
                    continue;
                }
                Order::Create { kernel, language, entry, bytes } => {
                    self.create(kernel, language, entry, bytes)
                }
                Order::Destroy { kernel } => {
                    self.commands.remove_kernel(kernel);
                    Response::KernelDestroyed { kernel }
                }
            };
            if let Err(error) = self.channel.send(&response, &[], &[], true) {
                log::debug!("no kernel is compiled any more: {error}");
                return;
            }
        }
    }

    fn cache(&mut self, act: impl FnMut(&mut Store)) {
        self.compiler.cache.as_mut().into_iter().for_each(act);
    }

    fn create(
        &mut self,
        kernel: KernelName,
        language: u32,
        entry: Option<String>,
        bytes: Vec<u8>,
    ) -> Response {
        match self.compile(language, entry, bytes) {
            Ok((program, pipeline, took)) => {
                self.kernels += 1;
                let created = Response::KernelCreated {
                    kernel,
                    workgroup: program.workgroup,
                    binding_count: u32::try_from(program.points().count()).unwrap_or(u32::MAX),
                    constant_bytes: program.constants,
                };
                let candidate = Some(Candidate::new(program, took));
                self.commands.add_kernel(kernel, Compiled { serial: self.kernels, pipeline, candidate });
                created
            }
            Err(reason) => Response::KernelRefused { kernel, reason },
        }
    }

    /// Also says how long the driver took for it.
    fn compile(
        &mut self,
        language: u32,
        entry: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<(Kernel, Pipeline, Duration), String> {
        let Compiler { sanitizer, pipelines, cache } = &mut self.compiler;
        let source = source(language, entry, bytes)?;
        let kernel = sanitizer.sanitize(&source).map_err(|e| e.to_string())?;
        cache.as_mut().into_iter().for_each(Store::take);
        let started = Instant::now();
        let pipeline = pipelines.pipeline(&kernel).map_err(|e| e.to_string())?;
        let took = started.elapsed();
        cache.as_mut().into_iter().for_each(Store::compiled);
        Ok((kernel, pipeline, took))
    }
}

/// What CREATE_KERNEL brought, taken apart.
fn source(language: u32, entry: Option<String>, bytes: Vec<u8>) -> Result<Source, String> {
    let (language, bytes, fixed) = match language {
        LANGUAGE_WGSL => (Language::Wgsl, bytes, Fixed::default()),
        LANGUAGE_SPIRV => (Language::SpirV, bytes, Fixed::default()),
        LANGUAGE_SPIRV_PIPELINE => {
            let parts = pipeline::Parts::read(&bytes).map_err(|malformed| malformed.to_string())?;
            let constants = parts.constants().map(|constant| (constant.id, constant.value)).collect();
            let fixed = Fixed { constants, subgroup_size: parts.subgroup_size };
            (Language::SpirV, parts.words.to_vec(), fixed)
        }
        other => return Err(format!("kernel language {other} does not exist")),
    };
    Ok(Source { language, bytes, entry, fixed })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::MOST_WAITING;
    use super::ORDER_BYTES;
    use super::Order;
    use super::Orders;
    use crate::kernel::name::KernelName;

    const KERNEL: KernelName = KernelName { root: 1, handle: 2 };

    fn create(bytes: usize) -> Order {
        Order::Create { kernel: KERNEL, language: 1, entry: None, bytes: vec![7; bytes] }
    }

    #[test]
    fn orders_come_in_order_and_none_where_none_is_given_in_time() {
        let orders = Orders::default();
        assert_eq!(orders.next(Some(Duration::ZERO)), None);
        orders.give(create(3));
        orders.give(Order::Begin);
        orders.give(Order::Destroy { kernel: KERNEL });
        assert_eq!(orders.next(None), Some(create(3)));
        assert_eq!(orders.next(Some(Duration::MAX / 4)), Some(Order::Begin));
        assert_eq!(orders.next(None), Some(Order::Destroy { kernel: KERNEL }));
        assert_eq!(orders.next(Some(Duration::ZERO)), None);
    }

    #[test]
    fn what_is_beyond_the_bound_waits_until_there_is_room_and_one_alone_never_does() {
        let orders = Orders::default();
        orders.give(create(MOST_WAITING));
        assert_eq!(orders.next(None), Some(create(MOST_WAITING)), "larger than all of it");
        orders.give(create(MOST_WAITING - ORDER_BYTES));
        let (given_tx, given) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                orders.give(Order::Begin);
                given_tx.send(()).unwrap();
            });
            assert_eq!(given.try_recv(), Err(mpsc::TryRecvError::Empty), "nothing takes no room");
            assert_eq!(orders.next(None), Some(create(MOST_WAITING - ORDER_BYTES)));
            given.recv().unwrap();
        });
        assert_eq!(orders.shared.lock().bytes, ORDER_BYTES);
        assert_eq!(orders.next(None), Some(Order::Begin));
        assert_eq!(orders.shared.lock().bytes, 0);
    }
}
