//! Checks of the driver's API: what a program does with a device.

use std::time::Duration;

use anyhow::ensure;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::NODE_COMPUTE;
use campanile_protocol::capset::NODE_FLAG_AVAILABLE;
use zerocopy::IntoBytes;

use super::check::Check;
use crate::target::Machine;

/// How long any of these may take before it counts as never.
const NEVER: Option<Duration> = Some(Duration::from_secs(60));

/// The checks.
pub(super) const CHECKS: &[Check] = &[
    Check { claim: "a user-mode queue copies between video memory and guest RAM", holds: user_copy },
    Check { claim: "a kernel-mode queue copies between video memory and guest RAM", holds: kernel_copy },
    Check { claim: "a queue whose ring lies in guest RAM works", holds: guest_ring },
    Check { claim: "a ring that is submitted to many times over loses nothing", holds: wraps },
    Check { claim: "user-mode work sends no commands", holds: no_commands },
    Check { claim: "a kernel computes, in both kinds of memory", holds: kernel },
    Check { claim: "a kernel that does not compile is refused, in words", holds: bad_kernel },
    Check { claim: "a wait that is not reached ends in time", holds: timeout },
    Check { claim: "an address that is not mapped loses this device, and no other", holds: fault },
];

/// Whether the machine's GPU computes.
fn computes(device: &Device) -> bool {
    device.capset().nodes[NODE_COMPUTE as usize].flags & NODE_FLAG_AVAILABLE != 0
}

fn numbers(count: u32, factor: u32) -> Vec<u8> {
    (0..count).flat_map(|index| index.wrapping_mul(factor).to_le_bytes()).collect()
}

/// Copies there and back, in the way that `submit` submits and waits.
fn copy(
    device: &Device,
    submit: impl FnOnce(&CommandBuffer) -> Result<(), DriverError>,
) -> anyhow::Result<()> {
    let bytes = numbers(4096, 2_654_435_761);
    let length = bytes.len() as u64;
    let [source, target] = [device.create_guest_buffer(length)?, device.create_guest_buffer(length)?];
    let between = device.create_buffer(length)?;
    source.write(0, &bytes)?;
    let mut commands = CommandBuffer::new();
    commands.copy(source.va(), between.va(), length)?.barrier()?;
    commands.copy(between.va(), target.va(), length)?;
    submit(&commands)?;
    let mut found = vec![0; bytes.len()];
    target.read(0, &mut found)?;
    ensure!(found == bytes, "the copy is not the original");
    between.read(0, &mut found)?;
    ensure!(found == bytes, "the copy in video memory is not the original");
    Ok(())
}

fn user_copy(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    copy(&device, |commands| queue.submit(commands)?.wait(NEVER))
}

fn kernel_copy(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let mut queue = device.create_context(Node::Copy)?.create_kernel_queue()?;
    copy(&device, |commands| {
        let ticket = queue.submit(commands)?;
        queue.wait(ticket, NEVER)
    })
}

fn guest_ring(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let options = QueueOptions { memory: BlobMemory::GuestRam, ..QueueOptions::default() };
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&options)?;
    copy(&device, |commands| queue.submit(commands)?.wait(NEVER))
}

fn wraps(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let buffer = device.create_buffer(4096)?;
    let options = QueueOptions { entries: 4, arena_bytes: 4096, ..QueueOptions::default() };
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&options)?;
    for round in 1..=200_u32 {
        let mut commands = CommandBuffer::new();
        commands.fill(buffer.va() + u64::from(round) * 4, 4, round)?;
        queue.submit(&commands)?;
    }
    queue.last().wait(NEVER)?;
    let mut found = vec![0; 804];
    buffer.read(0, &mut found)?;
    ensure!(found == numbers(201, 1), "a submission was lost or came late");
    Ok(())
}

fn no_commands(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    let empty = CommandBuffer::new();
    queue.submit(&empty)?.spin()?;
    // The engine sleeps where this thread is kept from running for longer than it spins: then the doorbell is connected again.
    let (before, connecting) = (device.control_commands(), queue.connect_commands());
    for _ in 0..1000 {
        queue.submit(&empty)?.spin()?;
    }
    let connecting = queue.connect_commands() - connecting;
    let sent = device.control_commands() - before;
    ensure!(sent == connecting, "{sent} commands, of which {connecting} connect the doorbell");
    Ok(())
}

fn kernel(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    if !computes(&device) {
        return Ok(());
    }
    let kernel = device.create_kernel(&KernelSource::wgsl(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
         var<immediate> factor: u32;
         @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
             data[id.x] = id.x * factor;
         }",
    ))?;
    let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    for (factor, buffer) in [(3_u32, device.create_buffer(4096)?), (5, device.create_guest_buffer(4096)?)] {
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [16, 1, 1], &[buffer.binding(0)], factor.as_bytes())?;
        queue.submit(&commands)?.wait(NEVER)?;
        let mut found = vec![0; 4096];
        buffer.read(0, &mut found)?;
        ensure!(found == numbers(1024, factor), "the results are wrong");
    }
    Ok(())
}

fn bad_kernel(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    if !computes(&device) {
        return Ok(());
    }
    match device.create_kernel(&KernelSource::wgsl("this is no kernel")) {
        Err(DriverError::Refused { text, .. }) if !text.is_empty() => Ok(()),
        other => anyhow::bail!("it came to {other:?}"),
    }
}

fn timeout(machine: &Machine) -> anyhow::Result<()> {
    let device = machine.open()?;
    let gate = device.create_buffer(4096)?;
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    let mut commands = CommandBuffer::new();
    commands.wait(gate.va(), 1)?;
    let point = queue.submit(&commands)?;
    let waited = point.wait(Some(Duration::from_millis(20)));
    ensure!(matches!(waited, Err(DriverError::Timeout)), "it came to {waited:?}");
    gate.write(0, &1_u64.to_le_bytes())?;
    Ok(point.wait(NEVER)?)
}

fn fault(machine: &Machine) -> anyhow::Result<()> {
    let [device, other] = [machine.open()?, machine.open()?];
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    let mut commands = CommandBuffer::new();
    commands.fill(1 << 37, 4096, 0)?;
    let waited = queue.submit(&commands).and_then(|point| point.wait(NEVER));
    ensure!(matches!(waited, Err(DriverError::DeviceLost(_))), "it came to {waited:?}");
    let mut queue = other.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    copy(&other, |commands| queue.submit(commands)?.wait(NEVER))
}
