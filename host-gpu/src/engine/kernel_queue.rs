//! The hardware queue in an engine: runs kernel-mode buffers in order.

use std::sync::atomic::Ordering;

use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_EXEMPT;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::packet::Fault;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::machine::Machine;
use super::progress;
use super::saved;
use super::user_queue::Outcome;
use super::watch::Watch;
use super::watch::load;
use crate::memory::mapping::Mapping;
use crate::node::buffer::Buffer;
use crate::node::buffer::Step;
use crate::node::space::Stop;

/// The consumer's side of the hardware queue.
#[derive(Debug, Default)]
pub struct KernelQueue {
    completed: u64,
    running: Option<(Buffer, HwSubmission)>,
}

impl KernelQueue {
    /// Goes on where the shared block says that an earlier process stopped.
    pub fn new(shared: &Mapping) -> Self {
        Self { completed: load(shared, block::HW_QUEUE_COMPLETED), running: None }
    }

    /// Whether a buffer is there.
    pub fn has_work(&self, shared: &Mapping) -> bool {
        self.running.is_some() || load(shared, block::HW_QUEUE_SUBMITTED) != self.completed
    }

    /// Whether a blocked buffer can go on.
    pub fn is_ready(&self, machine: &Machine, watch: &mut Watch) -> bool {
        let Some((buffer, submission)) = &self.running else { return true };
        watch
            .process(submission.process)
            .is_none_or(|process| buffer.is_ready(&process.space(&machine.tables, &machine.segments)))
    }

    /// Runs at most one buffer. `WakeWaiter` means: a result is there for the daemon.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        watch: &mut Watch,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        let Machine { shared, tables, segments, node, signals } = machine;
        if self.running.is_none() {
            if load(shared, block::HW_QUEUE_SUBMITTED) == self.completed {
                return Outcome::Idle;
            }
            let mut bytes = [0; size_of::<HwSubmission>()];
            let Some(slice) = shared.slice(hw_queue::slot(self.completed), bytes.len() as u64) else {
                return Outcome::Idle;
            };
            slice.copy_to(&mut bytes);
            let Ok(submission) = HwSubmission::read_from_bytes(&bytes) else { return Outcome::Idle };
            let Some(process) = watch.process(submission.process) else {
                if watch.is_stale(shared) {
                    // It came up after the tables were last read, and before this buffer.
                    return Outcome::More;
                }
                return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
            };
            let fetched =
                Buffer::fetch(&process.space(tables, segments), submission.buffer_va, submission.length)
                    .and_then(|buffer| saved::restore(shared, block::HW_QUEUE_SAVED, self.completed, buffer));
            match fetched {
                Ok(buffer) => self.running = Some((buffer, submission)),
                Err(Stop::Moving) => return Outcome::Blocked,
                Err(Stop::Fault(fault, address)) => {
                    return self.report(shared, &submission, Some((fault, address)));
                }
            }
        }
        let Some((buffer, submission)) = self.running.as_mut() else { return Outcome::Idle };
        let submission = *submission;
        progress::begin(shared, Work::HwQueue, submission.flags & HW_EXEMPT != 0);
        let Some(process) = watch.process(submission.process) else {
            return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
        };
        let step = buffer.run(node, &process.space(tables, segments), signals, should_pause);
        if matches!(step, Step::Blocked | Step::Paused) {
            saved::save(shared, block::HW_QUEUE_SAVED, self.completed, buffer);
        }
        let fault = match step {
            Step::Done => None,
            Step::Blocked => return Outcome::Blocked,
            Step::Paused => return Outcome::More,
            Step::Fault(fault, address) => Some((fault, address)),
        };
        if fault.is_some() {
            return self.report(shared, &submission, fault);
        }
        match process.page(tables, segments) {
            Ok(page) => {
                if let Some(word) = page.word(device_page::fence(submission.fence_index)) {
                    word.store(submission.fence_value, Ordering::Release);
                }
                self.report(shared, &submission, None)
            }
            // The buffer stays, done as it is.
            Err(Stop::Moving) => Outcome::Blocked,
            Err(Stop::Fault(fault, address)) => self.report(shared, &submission, Some((fault, address))),
        }
    }

    fn report(
        &mut self,
        shared: &Mapping,
        submission: &HwSubmission,
        fault: Option<(Fault, u64)>,
    ) -> Outcome {
        self.running = None;
        let (fault, fault_va) = fault.map_or((0, 0), |(fault, address)| (fault as u32, address));
        let result = HwResult { fence_id: submission.fence_id, fault_va, fault, reserved: 0 };
        let at = hw_queue::slot(self.completed) + hw_queue::RESULT;
        if let Some(slice) = shared.slice(at, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        self.completed += 1;
        if let Some(word) = shared.word(block::HW_QUEUE_COMPLETED) {
            // PAIRS WITH the daemon's load: the result is there first.
            word.store(self.completed, Ordering::Release);
        }
        Outcome::WakeWaiter
    }
}
