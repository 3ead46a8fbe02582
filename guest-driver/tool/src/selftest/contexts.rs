//! Checks of contexts and their queues together: which gives way, which waits.

use std::time::Duration;

use anyhow::ensure;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::NODE_COPY;

use super::check::Check;
use crate::target::Machine;

/// How long any of these may take before it counts as never.
const NEVER: Option<Duration> = Some(Duration::from_secs(60));

/// The checks.
pub(super) const CHECKS: &[Check] = &[
    Check { claim: "more queues than the node has doorbells take turns, and all get done", holds: victims },
    Check { claim: "a suspended context runs nothing, and everything when it is resumed", holds: suspend },
];

fn small() -> QueueOptions {
    QueueOptions { entries: 4, arena_bytes: 4096, ..QueueOptions::default() }
}

fn victims(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let doorbells = device.capset().nodes[NODE_COPY as usize].physical_doorbells.min(64);
    let context = device.create_context(Node::Copy)?;
    let buffer = device.create_buffer(4096)?;
    let mut queues = Vec::new();
    for _ in 0..doorbells + 3 {
        queues.push(context.create_user_queue(&small())?);
    }
    for round in 1..=4_u32 {
        for (place, queue) in (0_u64..).zip(&mut queues) {
            let mut commands = CommandBuffer::new();
            commands.fill(buffer.va() + place * 4, 4, round)?;
            queue.submit(&commands)?;
        }
        for queue in &queues {
            queue.last().wait(NEVER)?;
        }
        let mut found = vec![0; queues.len() * 4];
        buffer.read(0, &mut found)?;
        ensure!(found.chunks_exact(4).all(|word| word == round.to_le_bytes()), "round {round}: {found:?}");
    }
    let reconnects: u64 = queues.iter().map(|queue| queue.reconnects()).sum();
    ensure!(reconnects > queues.len() as u64, "no queue gave way: {reconnects} connects");
    Ok(())
}

fn suspend(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let (context, other) = (device.create_context(Node::Copy)?, device.create_context(Node::Copy)?);
    let buffer = device.create_buffer(4096)?;
    let (mut user, mut ordinary) = (context.create_user_queue(&small())?, context.create_kernel_queue()?);
    let mut works = other.create_kernel_queue()?;
    user.submit(&CommandBuffer::new())?.wait(NEVER)?;
    context.suspend()?;
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), 8, 1)?;
    user.submit(&commands)?;
    commands = CommandBuffer::new();
    commands.fill(buffer.va() + 8, 8, 1)?;
    let held = ordinary.submit(&commands)?;
    for _ in 0..20 {
        let ticket = works.submit(&CommandBuffer::new())?;
        works.wait(ticket, NEVER)?;
    }
    let mut found = [0; 16];
    buffer.read(0, &mut found)?;
    ensure!(found == [0; 16], "it ran: {found:?}");
    context.resume()?;
    user.last().wait(NEVER)?;
    ordinary.wait(held, NEVER)?;
    buffer.read(0, &mut found)?;
    ensure!(found.chunks_exact(4).all(|word| word == [1, 0, 0, 0]), "it did not run: {found:?}");
    Ok(())
}
