//! A guest process that does nothing wrong.

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::vm::LoopbackVm;
use std::sync::Arc;

use crate::daemon::NEVER;

const BYTES: usize = 64 * 1024;

/// It copies and fills, through both kinds of queue, and looks whether that is what it gets.
pub(crate) struct Bystander {
    user: UserQueue,
    kernel: KernelQueue,
    source: Buffer,
    target: Buffer,
    device: Device,
    round: u32,
}

impl Bystander {
    pub(crate) fn new(vm: &Arc<LoopbackVm>) -> Self {
        let device = Device::open(vm.open("bystander").unwrap()).unwrap();
        let source = device.create_buffer(BYTES as u64).unwrap();
        let target = device.create_guest_buffer(BYTES as u64).unwrap();
        let context = device.create_context(Node::Copy).unwrap();
        let options = QueueOptions { entries: 16, arena_bytes: 4096, ..QueueOptions::default() };
        let user = context.create_user_queue(&options).unwrap();
        let kernel = context.create_kernel_queue().unwrap();
        Self { user, kernel, source, target, device, round: 0 }
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether its device is in error.
    pub(crate) fn is_lost(&self) -> bool {
        self.device.check().is_err()
    }

    /// Computes, and checks the result.
    pub(crate) fn compute(&mut self) {
        self.round += 1;
        let pattern: Vec<u8> =
            (0..BYTES).map(|at| u8::try_from((at * 7 + self.round as usize) % 251).unwrap()).collect();
        self.source.write(0, &pattern).unwrap();
        let mut copy = CommandBuffer::new();
        copy.copy(self.source.va(), self.target.va(), BYTES as u64).unwrap();
        self.user.submit(&copy).unwrap().wait(Some(NEVER)).unwrap();
        let mut copied = vec![0; BYTES];
        self.target.read(0, &mut copied).unwrap();
        assert!(copied == pattern, "round {}: the copy is wrong", self.round);
        let mut fill = CommandBuffer::new();
        fill.fill(self.target.va(), 4096, self.round).unwrap();
        let ticket = self.kernel.submit(&fill).unwrap();
        self.kernel.wait(ticket, Some(NEVER)).unwrap();
        self.target.read(0, &mut copied).unwrap();
        assert!(
            copied[..4096].chunks_exact(4).all(|word| word == self.round.to_le_bytes()),
            "the fill is wrong"
        );
        assert!(copied[4096..] == pattern[4096..], "the fill went too far");
    }
}
