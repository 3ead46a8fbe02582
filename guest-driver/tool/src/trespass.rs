//! What a guest process must not be able to do, tried: reach another process's buffer. And how much memory there is.

use std::io::Read;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;

use crate::target::Target;

/// What the secret is made of.
const SECRET: [u8; 16] = *b"the other's data";
/// Bytes of the secret's buffer.
const BYTES: u64 = 4096;
/// Bytes that `fill` asks for at a time.
const STEP: u64 = 1 << 20;

fn pattern() -> Vec<u8> {
    SECRET.iter().copied().cycle().take(4096).collect()
}

/// Writes the secret, says where it is, and after standard input has ended whether it is intact.
pub fn keep_secret(device: &Device) -> anyhow::Result<()> {
    let buffer = device.create_buffer(BYTES)?;
    buffer.write(0, &pattern())?;
    println!("secret in resource {} at {:#x}", buffer.resource_id(), buffer.va());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let mut found = vec![0; pattern().len()];
    buffer.read(0, &mut found)?;
    anyhow::ensure!(found == pattern(), "the secret was changed");
    println!("the secret is intact");
    Ok(())
}

/// Three ways in: by the resource's name, by its address with memory of one's own there, and without.
pub fn trespass(target: &Target, resource: u32, va: u64) -> anyhow::Result<()> {
    let machine = target.machine()?;
    let device = machine.open()?;
    match device.map_resource(resource, BYTES) {
        Err(DriverError::Refused { status, .. }) => println!("by its name: refused, {status:?}"),
        Err(error) => return Err(error.into()),
        Ok(address) => anyhow::bail!("resource {resource} of another process was mapped at {address:#x}"),
    }
    let own = device.create_buffer(BYTES)?;
    let read = copy_from(&device, va)?;
    anyhow::ensure!(read != Some(pattern()), "address {va:#x} shows the other process's data");
    let shown = |read: Option<Vec<u8>>| read.map_or("device lost", |_| "own data");
    println!("by its address {va:#x}, own buffer at {:#x}: {}", own.va(), shown(read));
    drop(own);

    let other = machine.open()?;
    let read = copy_from(&other, va + (1 << 30))?;
    anyhow::ensure!(read.is_none(), "an address where nothing is mapped was read");
    println!("by an address that is not mapped: {}", shown(read));
    Ok(())
}

/// Has the copy node copy from `va` into a buffer of this process; `None` when the device was lost over it.
fn copy_from(device: &Device, va: u64) -> anyhow::Result<Option<Vec<u8>>> {
    let target = device.create_buffer(BYTES)?;
    let mut queue = device.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    let mut commands = CommandBuffer::new();
    commands.copy(va, target.va(), BYTES)?;
    match queue.submit(&commands).and_then(|point| point.wait(None)) {
        Err(DriverError::DeviceLost(_)) => return Ok(None),
        done => done?,
    }
    let mut found = vec![0; pattern().len()];
    target.read(0, &mut found)?;
    Ok(Some(found))
}

/// Takes video memory a MiB at a time until there is none, or no room in the window onto it.
pub fn fill(device: &Device) -> anyhow::Result<()> {
    let mut held = Vec::new();
    let end = loop {
        match device.create_buffer(STEP) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    println!("{} MiB, then: {end}", held.len());
    Ok(())
}
