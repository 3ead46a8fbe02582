//! What a guest does while the operator looks.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

use crate::served::NEVER;
use crate::served::Served;
use crate::served::until;

pub(crate) fn vm(socket: &Path) -> Arc<LoopbackVm> {
    until("the vGPU's socket", || UnixStream::connect(socket).is_ok());
    LoopbackVm::connect(socket, &VmOptions::default()).unwrap()
}

/// A copy by a kernel-mode queue and one by a doorbell; the VM and its device live on in `then`.
pub(crate) fn work(served: &Served, then: impl FnOnce()) {
    let vm = vm(&served.folder.file("a.sock"));
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let buffer = device.create_buffer(1 << 20).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), 1 << 20, 7).unwrap();
    let mut by_kernel = context.create_kernel_queue().unwrap();
    let ticket = by_kernel.submit(&commands).unwrap();
    by_kernel.wait(ticket, Some(NEVER)).unwrap();
    let mut by_doorbell = context.create_user_queue(&QueueOptions::default()).unwrap();
    by_doorbell.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    then();
}
