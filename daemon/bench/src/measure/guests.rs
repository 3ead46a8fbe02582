//! Guests on a daemon that is measured, and round trips of their queues.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::capset::NODE_COMPUTE;
use campanile_protocol::capset::NODE_FLAG_AVAILABLE;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

/// How long a daemon may take to listen.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A guest process on the daemon at `socket`.
pub fn open_guest(socket: &Path) -> anyhow::Result<Device> {
    Ok(Device::open(attach(socket)?.open("campanile-bench")?)?)
}

/// A guest VM on the daemon at `socket`.
pub fn attach(socket: &Path) -> anyhow::Result<Arc<LoopbackVm>> {
    let begun = Instant::now();
    loop {
        match LoopbackVm::connect(socket, &VmOptions::default()) {
            // The socket has its name before anybody listens.
            Err(TransportError::Connect { source, .. })
                if source.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < TIMEOUT =>
            {
                std::thread::yield_now();
            }
            connected => return connected.context("attaching a guest"),
        }
    }
}

/// Whether the device has a compute node.
pub fn can_compute(device: &Device) -> bool {
    device.capset().nodes[NODE_COMPUTE as usize].flags & NODE_FLAG_AVAILABLE != 0
}

/// A user-mode queue of a context of its own.
pub fn user_queue(device: &Device, node: Node) -> anyhow::Result<UserQueue> {
    Ok(device.create_context(node)?.create_user_queue(&QueueOptions::default())?)
}

/// Round trips of a queue, each submission polled for.
pub fn user_round_trips(
    queue: &mut UserQueue,
    commands: &CommandBuffer,
    rounds: u64,
) -> anyhow::Result<Vec<Duration>> {
    let mut samples = Vec::with_capacity(usize::try_from(rounds)?);
    for _ in 0..rounds {
        let begun = Instant::now();
        queue.submit(commands)?.spin()?;
        samples.push(begun.elapsed());
    }
    Ok(samples)
}
