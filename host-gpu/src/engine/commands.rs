//! From the control thread, and the one that compiles twins, to the execution thread.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use campanile_protocol::page_table::SegmentId;

use crate::event::Event;
use crate::kernel::name::KernelName;
use crate::memory::mapping::Mapping;
use crate::node::lane::Compiled;

/// What the control thread asks of the execution thread.
#[derive(Debug)]
pub enum Command {
    /// A segment is mapped. The first word is the serial of its request, which is acknowledged once buffers reach it.
    AddSegment(u64, SegmentId, Arc<Mapping>),
    /// A segment is gone; likewise.
    RemoveSegment(u64, SegmentId),
    /// A kernel is compiled, for the first lane of its node.
    AddKernel(KernelName, Box<Compiled>),
    /// The same for the second lane.
    AddTwin(KernelName, Box<Compiled>),
    /// A kernel is gone.
    RemoveKernel(KernelName),
}

/// The sending end of commands, for any thread.
#[derive(Debug, Clone)]
pub struct CommandSender {
    /// The commands.
    pub sender: mpsc::Sender<Command>,
    /// Raised after each.
    pub pending: Arc<AtomicBool>,
    /// Wakes the execution thread.
    pub wake: Arc<Event>,
}

impl CommandSender {
    /// Asks for this, some time.
    pub fn send(&self, command: Command) {
        // The receiver lives as long as the process.
        let _sent = self.sender.send(command);
        self.pending.store(true, Ordering::Release);
        self.wake.signal();
    }
}

/// The receiving end of commands, with the flag that says that some are there.
#[derive(Debug)]
pub struct Commands {
    /// The commands.
    pub receiver: mpsc::Receiver<Command>,
    /// Raised after each is sent.
    pub pending: Arc<AtomicBool>,
}
