//! Kernels for the second lane of a node: made after those of the first, which are not delayed by them.
//!
//! ```text
//!   control   ── CREATE_KERNEL: pipeline ──▶ AddKernel ──▶ answer
//!                      └─ kernel ──▶ twins ── pipeline ──▶ AddTwin: a dispatch is in two lanes from its next slice on
//! ```
//!
//! A kernel whose name was given to another one meanwhile is known by its serial number. One that finds no room in the
//! line, or that the driver refuses this time, stays in one lane: its slices cost a little more. A driver may compile on
//! the thread of its queue, so the door of the lane is closed meanwhile, and slices of others stay in the first.

use std::io;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::thread;

use super::commands::CommandSender;
use crate::kernel::name::KernelName;
use crate::kernel::program::Kernel;
use crate::node::lane::Compiled;
use crate::node::lane::Door;
use crate::vulkan::pipeline::Compiler;

/// Kernels in line, at the most.
const LINE: usize = 64;

struct Wanted {
    name: KernelName,
    serial: u64,
    kernel: Kernel,
}

/// The way to the thread that makes twins. It ends with this.
#[derive(Debug)]
pub struct Twins {
    line: mpsc::SyncSender<Wanted>,
}

impl Twins {
    /// Starts the thread.
    pub fn start(compiler: Compiler, door: Door, commands: CommandSender) -> io::Result<Self> {
        let (line, wanted) = mpsc::sync_channel::<Wanted>(LINE);
        thread::Builder::new().name("twins".to_owned()).spawn(move || {
            for Wanted { name, serial, kernel } in wanted {
                let closed = door.lock().unwrap_or_else(PoisonError::into_inner);
                let compiled = compiler.pipeline(&kernel);
                drop(closed);
                match compiled {
                    Ok(pipeline) => {
                        commands.add_twin(name, Compiled { serial, pipeline });
                    }
                    Err(error) => log::debug!("a kernel stays in one lane: {error}"),
                }
            }
        })?;
        Ok(Self { line })
    }

    /// Has a kernel made once more, some time.
    pub fn make(&self, name: KernelName, serial: u64, kernel: Kernel) {
        if self.line.try_send(Wanted { name, serial, kernel }).is_err() {
            log::debug!("a kernel stays in one lane: too many are in line");
        }
    }
}
