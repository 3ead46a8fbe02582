//! Guests that hang, for tests of what follows.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::loss::DeviceLoss;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;

use crate::support::NEVER;
use crate::support::until;

/// A kernel that ends when somebody stores 7, and nobody does.
pub(crate) const ENDLESS: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {
        loop {
            data[0] = data[0] + 1u;
            if data[1] == 7u { break; }
        }
    }";

/// As [`hang_on`], on the first physical adapter.
pub(crate) fn hang_and(device: &Device, meanwhile: impl FnOnce()) -> DeviceLoss {
    hang_on(device, 0, meanwhile)
}

/// Runs a kernel without end on this device; calls `meanwhile` once it runs, and returns how the device was lost.
pub(crate) fn hang_on(device: &Device, engine: u32, meanwhile: impl FnOnce()) -> DeviceLoss {
    let endless = device.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let context = device.create_context_on(Node::Compute, engine).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&endless, [1, 1, 1], &[data.binding(0)], &[]).unwrap();
    let point = queue.submit(&commands).unwrap();
    until("the kernel without end", || data.memory().word(0).unwrap().load(Ordering::Relaxed) != 0);
    meanwhile();
    match point.wait(Some(NEVER)) {
        Err(DriverError::DeviceLost(loss)) => loss,
        other => panic!("a kernel without end came to {other:?}"),
    }
}

/// As [`hang_and`], with nothing else going on.
pub(crate) fn hang(device: &Device) -> DeviceLoss {
    hang_and(device, || ())
}
