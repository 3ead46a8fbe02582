//! The thread that fills and copies through a kernel-mode queue.

use std::sync::atomic::Ordering;

use anyhow::Context;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;

use super::guest::LIMIT;
use super::guest::Progress;
use crate::target::Machine;

/// Bytes of each of its two buffers.
const BYTES: u64 = 256 << 10;

/// Copies until all are to end. The target of each copy lies in guest RAM, so that the device writes there.
pub fn run(machine: &Machine, progress: &Progress) -> anyhow::Result<()> {
    let device = machine.open()?;
    let (from, to) = (device.create_buffer(BYTES)?, device.create_guest_buffer(BYTES)?);
    let mut queue = device.create_context(Node::Copy)?.create_kernel_queue()?;
    let mut seen = vec![0; usize::try_from(BYTES)?];
    let mut round = 0_u32;
    while !progress.is_over() {
        round = round.wrapping_add(1);
        let mut commands = CommandBuffer::new();
        commands.fill(from.va(), BYTES, round)?.barrier()?.copy(from.va(), to.va(), BYTES)?;
        let ticket = queue.submit(&commands)?;
        queue.wait(ticket, Some(LIMIT)).with_context(|| format!("copy {round}"))?;
        to.read(0, &mut seen)?;
        let wrong = seen.chunks_exact(4).filter(|word| **word != round.to_le_bytes()).count();
        anyhow::ensure!(wrong == 0, "WRONG COPY {round}: {wrong} words");
        progress.copies.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
