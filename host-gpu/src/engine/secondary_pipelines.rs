//! Compiles kernels for the secondary device instance of a node, once they have earned it there.
//!
//! ```text
//!   control    ── CREATE_KERNEL: pipeline ──▶ AddKernel ──▶ answer
//!   execution  ── slices … kernel ──▶ this thread ── pipeline ──▶ AddSecondary: a dispatch uses both from its next slice on
//! ```
//!
//! A kernel's serial number tells it from another one that was given the same name meanwhile. A kernel that
//! the driver refuses this time runs on the primary instance only: its slices cost a little more. A driver
//! may compile on the thread of its queue, so the queue is locked meanwhile, and slices of other kernels use the primary.

use std::io;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::thread;

use super::commands::CommandSender;
use crate::node::candidate::Request;
use crate::node::device_instance::Compiled;
use crate::node::device_instance::QueueLock;
use crate::vulkan::pipeline::Compiler;

/// Most kernels that wait to be compiled.
const MOST_WAITING: usize = 64;

/// Starts the thread, which serves requests until their sender is dropped.
pub fn start(
    compiler: Compiler,
    queue_lock: QueueLock,
    commands: CommandSender,
) -> io::Result<mpsc::SyncSender<Request>> {
    let (requests, received) = mpsc::sync_channel::<Request>(MOST_WAITING);
    thread::Builder::new().name("2nd-pipelines".to_owned()).spawn(move || {
        for Request { name, serial, program } in received {
            let locked = queue_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = compiler.pipeline(&program);
            drop(locked);
            match compiled {
                Ok(pipeline) => {
                    let compiled = Compiled { serial, pipeline, candidate: None };
                    commands.add_secondary_kernel(name, compiled);
                }
                Err(error) => log::debug!("a kernel has no secondary pipeline: {error}"),
            }
        }
    })?;
    Ok(requests)
}
