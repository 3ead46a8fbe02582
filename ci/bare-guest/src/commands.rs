//! Packets of a DMA buffer, one behind the other, in memory that engines read.

use campanile_protocol::packet;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::Copy;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::Fill;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::packet::Timestamp;
use zerocopy::IntoBytes;

use crate::memory::Memory;

/// A DMA buffer that is being written.
pub(crate) struct Commands {
    memory: Memory,
    length: u64,
}

impl Commands {
    /// An empty one.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, length: 0 }
    }

    fn push(&mut self, opcode: u16, parts: [&[u8]; 3]) {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let size = (size_of::<PacketHeader>() + body).next_multiple_of(8);
        let header = PacketHeader { opcode, flags: 0, size: u32::try_from(size).unwrap_or(u32::MAX) };
        let mut at = self.length;
        for part in [header.as_bytes(), parts[0], parts[1], parts[2]] {
            self.memory.write(at, part);
            at += part.len() as u64;
        }
        self.length += size as u64;
    }

    /// Runs a kernel; the counts in `head` are those of `bindings` and `constants`.
    pub(crate) fn dispatch(&mut self, head: &Dispatch, bindings: &[Binding], constants: &[u8]) {
        self.push(packet::DISPATCH, [head.as_bytes(), bindings.as_bytes(), constants]);
    }

    /// What follows sees what came before.
    pub(crate) fn barrier(&mut self) {
        self.push(packet::BARRIER, [&[], &[], &[]]);
    }

    /// Copies between GPU addresses.
    pub(crate) fn copy(&mut self, source_va: u64, target_va: u64, size: u64) {
        self.push(packet::COPY, [Copy { source_va, target_va, size }.as_bytes(), &[], &[]]);
    }

    /// Fills with a 32-bit value.
    pub(crate) fn fill(&mut self, target_va: u64, size: u64, value: u32) {
        self.push(packet::FILL, [Fill { target_va, size, value, reserved: 0 }.as_bytes(), &[], &[]]);
    }

    /// Stores the host's clock at a 64-bit word.
    pub(crate) fn timestamp(&mut self, va: u64) {
        self.push(packet::TIMESTAMP, [Timestamp { va }.as_bytes(), &[], &[]]);
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> u32 {
        u32::try_from(self.length).unwrap_or(u32::MAX)
    }
}
