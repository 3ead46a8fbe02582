//! From the control thread to the execution thread.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use campanile_protocol::page_table::SegmentId;

use crate::kernel::name::KernelName;
use crate::memory::mapping::Mapping;

use crate::vulkan::pipeline::Pipeline;

/// What the control thread asks of the execution thread.
#[derive(Debug)]
pub enum Command {
    /// A segment is mapped.
    AddSegment(SegmentId, Arc<Mapping>),
    /// A segment is gone.
    RemoveSegment(SegmentId),
    /// A kernel is compiled.
    AddKernel(KernelName, Box<Pipeline>),
    /// A kernel is gone.
    RemoveKernel(KernelName),
}

/// The receiving end of commands, with the flag that says that some are there.
#[derive(Debug)]
pub struct Commands {
    /// The commands.
    pub receiver: mpsc::Receiver<Command>,
    /// Raised after each is sent.
    pub pending: Arc<AtomicBool>,
}
