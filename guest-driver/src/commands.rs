//! Command buffers: packets, one behind the other.

use campanile_protocol::packet;
use campanile_protocol::packet::Binding;
use campanile_protocol::packet::Copy;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::DispatchBase;
use campanile_protocol::packet::DispatchIndirect;
use campanile_protocol::packet::Fence;
use campanile_protocol::packet::Fill;
use campanile_protocol::packet::MAX_BINDINGS;
use campanile_protocol::packet::MAX_CONSTANTS;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::packet::Timestamp;
use zerocopy::IntoBytes;

use crate::error::DriverError;
use crate::kernel::Kernel;

/// A buffer of packets, to be submitted any number of times.
#[derive(Debug, Clone, Default)]
pub struct CommandBuffer {
    bytes: Vec<u8>,
}

impl CommandBuffer {
    /// Without packets. Submitted, it does nothing but raise its fence.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// The packets.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Packets made elsewhere, unchecked: the engine checks them.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    fn push(&mut self, opcode: u16, parts: &[&[u8]]) -> Result<&mut Self, DriverError> {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let size = (size_of::<PacketHeader>() + body).next_multiple_of(8);
        let end = self.bytes.len() + size;
        if end > MAX_DMA_BUFFER as usize {
            return Err(DriverError::Commands("more than 64 KiB of packets"));
        }
        let header = PacketHeader { opcode, flags: 0, size: u32::try_from(size).unwrap_or(u32::MAX) };
        self.bytes.extend_from_slice(header.as_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.resize(end, 0);
        Ok(self)
    }

    /// Copies `size` bytes between GPU addresses; the ranges may not overlap.
    pub fn copy(&mut self, source_va: u64, target_va: u64, size: u64) -> Result<&mut Self, DriverError> {
        self.push(packet::COPY, &[Copy { source_va, target_va, size }.as_bytes()])
    }

    /// Fills `size` bytes, a multiple of 4, with `value`.
    pub fn fill(&mut self, target_va: u64, size: u64, value: u32) -> Result<&mut Self, DriverError> {
        self.push(packet::FILL, &[Fill { target_va, size, value, reserved: 0 }.as_bytes()])
    }

    /// Runs `kernel` over `groups` thread groups.
    pub fn dispatch(
        &mut self,
        kernel: &Kernel,
        groups: [u32; 3],
        bindings: &[Binding],
        constants: &[u8],
    ) -> Result<&mut Self, DriverError> {
        let (binding_count, constant_bytes) = check(bindings, constants)?;
        let head = Dispatch { kernel: kernel.handle(), groups, binding_count, constant_bytes, reserved: 0 };
        self.push(packet::DISPATCH, &[head.as_bytes(), bindings.as_bytes(), constants])
    }

    /// Runs `kernel` over `groups` thread groups that are numbered from `base`. Daemons before version 1.1 refuse it.
    pub fn dispatch_base(
        &mut self,
        kernel: &Kernel,
        base: [u32; 3],
        groups: [u32; 3],
        bindings: &[Binding],
        constants: &[u8],
    ) -> Result<&mut Self, DriverError> {
        let (binding_count, constant_bytes) = check(bindings, constants)?;
        let dispatch =
            Dispatch { kernel: kernel.handle(), groups, binding_count, constant_bytes, reserved: 0 };
        let head = DispatchBase { dispatch, base, reserved: 0 };
        self.push(packet::DISPATCH_BASE, &[head.as_bytes(), bindings.as_bytes(), constants])
    }

    /// Runs `kernel` over the grid found at `groups_va` (three 32-bit words) when its turn comes.
    pub fn dispatch_indirect(
        &mut self,
        kernel: &Kernel,
        groups_va: u64,
        bindings: &[Binding],
        constants: &[u8],
    ) -> Result<&mut Self, DriverError> {
        let (binding_count, constant_bytes) = check(bindings, constants)?;
        let head = DispatchIndirect { kernel: kernel.handle(), groups_va, binding_count, constant_bytes };
        self.push(packet::DISPATCH_INDIRECT, &[head.as_bytes(), bindings.as_bytes(), constants])
    }

    /// What follows sees all that came before.
    pub fn barrier(&mut self) -> Result<&mut Self, DriverError> {
        self.push(packet::BARRIER, &[])
    }

    /// Stores `value` at a 64-bit word after all that came before.
    pub fn signal(&mut self, va: u64, value: u64) -> Result<&mut Self, DriverError> {
        self.push(packet::FENCE_SIGNAL, &[Fence { va, value }.as_bytes()])
    }

    /// Goes on once the 64-bit word is `value` or more; meanwhile other queues run.
    pub fn wait(&mut self, va: u64, value: u64) -> Result<&mut Self, DriverError> {
        self.push(packet::FENCE_WAIT, &[Fence { va, value }.as_bytes()])
    }

    /// Stores the host's monotonic nanoseconds at a 64-bit word.
    pub fn timestamp(&mut self, va: u64) -> Result<&mut Self, DriverError> {
        self.push(packet::TIMESTAMP, &[Timestamp { va }.as_bytes()])
    }

    /// Does nothing.
    pub fn nop(&mut self) -> Result<&mut Self, DriverError> {
        self.push(packet::NOP, &[])
    }
}

fn check(bindings: &[Binding], constants: &[u8]) -> Result<(u32, u32), DriverError> {
    let binding_count = u32::try_from(bindings.len()).ok().filter(|count| *count <= MAX_BINDINGS);
    let constant_bytes =
        u32::try_from(constants.len()).ok().filter(|bytes| *bytes <= MAX_CONSTANTS && bytes % 4 == 0);
    let bindings = binding_count.ok_or(DriverError::Commands("more than 64 bindings"))?;
    let constants = constant_bytes.ok_or(DriverError::Commands("constants over 256 bytes, or not words"))?;
    Ok((bindings, constants))
}
