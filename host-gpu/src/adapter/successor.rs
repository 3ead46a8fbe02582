//! The next process of an engine that was reset.

use std::io;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::handshake::power;

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
        self.store(block::LAUNCHED, 0);
        (self.child, self.channel) = launch(program, start, memory, &self.block, &self.event, &self.wake)?;
        self.lost = false;
        self.snapshot = None;
        Ok(())
    }
}
