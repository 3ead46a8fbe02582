//! The next process of an engine that was reset.

use std::io;

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::handshake::power;
use campanile_protocol::packet::Fault;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::process::EngineProcess;
use super::program::Memory;
use super::program::Program;
use super::program::launch;
use crate::engine::message::Start;

impl EngineProcess {
    /// Starts another process in the place of one that was reset. Processes, queues, doorbells and kernel-mode
    /// buffers stay what they were: it goes on where the other stopped (TDR-57). Segments and kernels are not: it
    /// must be told of them before it is given its node.
    pub fn revive(&mut self, program: &Program, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        self.store(block::POWER, power::ACTIVE);
        let generation = Grant::from_word(self.load(block::GRANT)).generation;
        self.store(block::GRANT, Grant { phase: Phase::Idle, generation }.word());
        self.store(block::PROGRESS, 0);
        self.report_suspends();
        (self.child, self.channel) = launch(program, start, memory, &self.block, &self.event, &self.wake)?;
        self.lost = false;
        Ok(())
    }

    /// What it runs, or ran when it was reset.
    pub fn work(&self) -> Work {
        Progress::from_word(self.load(block::PROGRESS)).work
    }

    /// Ends the oldest kernel-mode buffer with a fault, after the process that ran it was reset. False when
    /// there is none.
    pub fn abort_command(&mut self, fault: Fault) -> bool {
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        if completed >= self.submitted {
            return false;
        }
        let mut bytes = [0; size_of::<HwSubmission>()];
        let slot = hw_queue::slot(completed);
        let submission = self.shared.slice(slot, bytes.len() as u64).and_then(|slice| {
            slice.copy_to(&mut bytes);
            HwSubmission::read_from_bytes(&bytes).ok()
        });
        let fence_id = submission.map_or(0, |submission| submission.fence_id);
        let result = HwResult { fence_id, fault: fault as u32, ..HwResult::default() };
        if let Some(slice) = self.shared.slice(slot + hw_queue::RESULT, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        self.store(block::HW_QUEUE_COMPLETED, completed + 1);
        true
    }
}
