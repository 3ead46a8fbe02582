//! When a kernel is compiled for the secondary instance, too.
//!
//! ```text
//!   primary   ── compiled: took `price` ── slices, slices, slices … ran for `price` ──┐ asks
//!   secondary                                                                        └── compiled ── slices take turns
//! ```
//!
//! A program may compile a thousand kernels and run most of them once, whole: a second compilation of each would double what it
//! waits for. So a kernel has to earn it: one whose slices have run for as long as its compilation took gets another. Until then,
//! what it lacks is the overlap of two queues, so that what it loses is less than what a compilation costs.

use std::sync::Arc;
use std::sync::mpsc;

use super::candidate::Candidate;
use super::candidate::Request;
use super::compute::ComputeNode;
use super::compute::Kernel;
use super::device_instance::Compiled;
use super::device_instance::QueueLock;
use crate::kernel::name::KernelName;
use crate::vulkan::pipeline::Compiler;

impl ComputeNode {
    /// What compiles kernels for the secondary instance, where there is one, and the lock to hold meanwhile.
    pub fn second_compiler(&self) -> Option<(Compiler, QueueLock)> {
        Some((self.instances.get(1)?.compiler(), Arc::clone(&self.queue_lock)))
    }

    /// Where kernels go that are to be compiled with that.
    pub fn ask_second_compiler(&mut self, requests: mpsc::SyncSender<Request>) {
        self.second_compiler = Some(requests);
    }

    /// Adds the same kernel for the secondary instance, if it is still there.
    pub fn add_secondary_kernel(&mut self, name: KernelName, compiled: Compiled) {
        let Compiled { serial, pipeline, .. } = compiled;
        if let (Some(kernel), Some(second)) = (self.kernels.get(&name), self.instances.get_mut(1))
            && kernel.serial == serial
        {
            second.add_kernel(name, pipeline);
        }
    }

    /// A slice of so many groups was started, and is not the last of its dispatch. Asks for the kernel's other pipeline where that is
    /// due; where too many wait for theirs, with a later slice.
    pub(super) fn earn_secondary(&mut self, name: KernelName, groups: u64) {
        let (Some(kernel), Some(requests)) = (self.kernels.get_mut(&name), &self.second_compiler) else {
            return;
        };
        let Kernel { serial, pace, candidate } = kernel;
        let ran = pace.likely(groups);
        let Some(earned) = candidate.take_if(|it| it.has_earned(ran)) else { return };
        let request = Request { name, serial: *serial, program: earned.into_program() };
        if let Err(mpsc::TrySendError::Full(request)) = requests.try_send(request) {
            *candidate = Some(Candidate::that_waits(request.program));
        }
    }
}
