//! Daemons with vGPUs behind the fs front, and VMs for them.

use std::sync::Arc;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::options::DeviceKind;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

use crate::raw::RawGuest;
use crate::support::Daemon;
use crate::support::NEVER;

/// What an ordinary VM has.
pub(crate) fn options() -> VmOptions {
    VmOptions { device: DeviceKind::Fs, ..VmOptions::default() }
}

pub(crate) fn daemon() -> Daemon {
    Daemon::with_specs(&["vram=64M,front=fs"], &[])
}

pub(crate) fn machine() -> (Daemon, Arc<LoopbackVm>) {
    let daemon = daemon();
    let vm = daemon.vm_with(0, &options());
    (daemon, vm)
}

pub(crate) fn session(vm: &Arc<LoopbackVm>) -> FuseContext {
    FuseContext::open(vm).unwrap()
}

pub(crate) fn raw(vm: &Arc<LoopbackVm>) -> Arc<RawGuest<FuseContext>> {
    RawGuest::over(session(vm), BlobMemory::GuestRam)
}

/// A guest process that computes, and knows what its memory holds.
pub(crate) struct Worker {
    pub(crate) user: UserQueue,
    pub(crate) kernel: KernelQueue,
    buffers: [Buffer; 2],
    _device: Device,
    expected: Vec<u8>,
}

impl Worker {
    pub(crate) fn new(vm: &Arc<LoopbackVm>, bytes: u64) -> Self {
        let device = Device::open(session(vm)).unwrap();
        let buffers = [0, 1].map(|_| device.create_guest_buffer(bytes).unwrap());
        let context = device.create_context(Node::Copy).unwrap();
        let queue = QueueOptions { entries: 16, arena_bytes: 4096, ..QueueOptions::default() };
        let user = context.create_user_queue(&queue).unwrap();
        let kernel = context.create_kernel_queue().unwrap();
        let expected = vec![0; usize::try_from(bytes).unwrap()];
        Self { user, kernel, buffers, _device: device, expected }
    }

    /// The CPU writes, the GPU copies, through both kinds of queue.
    pub(crate) fn work(&mut self, round: u8) {
        for (index, page) in self.expected.chunks_mut(4096).enumerate() {
            page.fill(round.wrapping_mul(7).wrapping_add(u8::try_from(index % 256).unwrap()));
        }
        self.buffers[0].write(0, &self.expected).unwrap();
        let (bytes, half) = (self.expected.len() as u64, self.expected.len() as u64 / 2);
        let mut commands = CommandBuffer::new();
        commands.copy(self.buffers[0].va(), self.buffers[1].va(), half).unwrap();
        self.user.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        let mut commands = CommandBuffer::new();
        commands.copy(self.buffers[0].va() + half, self.buffers[1].va() + half, bytes - half).unwrap();
        let ticket = self.kernel.submit(&commands).unwrap();
        self.kernel.wait(ticket, Some(NEVER)).unwrap();
        self.check();
    }

    pub(crate) fn check(&self) {
        for buffer in &self.buffers {
            let mut found = vec![0; self.expected.len()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == self.expected, "memory differs");
        }
    }
}
