//! Compiles kernels for the secondary device instance of a node, after those of the primary, which are not delayed by it.
//!
//! ```text
//!   control   ── CREATE_KERNEL: pipeline ──▶ AddKernel ──▶ answer
//!                      └─ kernel ──▶ this thread ── pipeline ──▶ AddSecondary: a dispatch uses both from its next slice on
//! ```
//!
//! A kernel's serial number tells it from another one that was given the same name meanwhile. A kernel that finds the
//! queue full, or that the driver refuses this time, runs on the primary instance only: its slices cost a little more. A driver
//! may compile on the thread of its queue, so the queue is locked meanwhile, and slices of other kernels use the primary.

use std::io;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::thread;

use super::commands::CommandSender;
use crate::kernel::name::KernelName;
use crate::kernel::program::Kernel;
use crate::node::device_instance::Compiled;
use crate::node::device_instance::QueueLock;
use crate::vulkan::pipeline::Compiler;

/// Most kernels that wait to be compiled.
const MOST_WAITING: usize = 64;

struct Request {
    name: KernelName,
    serial: u64,
    kernel: Kernel,
}

/// Sends kernels to the thread that compiles secondary pipelines. The thread ends when this is dropped.
#[derive(Debug)]
pub struct SecondaryPipelines {
    requests: mpsc::SyncSender<Request>,
}

impl SecondaryPipelines {
    /// Starts the thread.
    pub fn start(compiler: Compiler, queue_lock: QueueLock, commands: CommandSender) -> io::Result<Self> {
        let (requests, received) = mpsc::sync_channel::<Request>(MOST_WAITING);
        thread::Builder::new().name("2nd-pipelines".to_owned()).spawn(move || {
            for Request { name, serial, kernel } in received {
                let locked = queue_lock.lock().unwrap_or_else(PoisonError::into_inner);
                let compiled = compiler.pipeline(&kernel);
                drop(locked);
                match compiled {
                    Ok(pipeline) => {
                        commands.add_secondary_kernel(name, Compiled { serial, pipeline });
                    }
                    Err(error) => log::debug!("a kernel has no secondary pipeline: {error}"),
                }
            }
        })?;
        Ok(Self { requests })
    }

    /// Asks for the secondary pipeline of a kernel; does not wait for it.
    pub fn compile(&self, name: KernelName, serial: u64, kernel: Kernel) {
        if self.requests.try_send(Request { name, serial, kernel }).is_err() {
            log::debug!("a kernel has no secondary pipeline: too many wait to be compiled");
        }
    }
}
