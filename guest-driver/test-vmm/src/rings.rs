//! The rings of a VM: all the same queues of memory, over every daemon that the device comes to.

use std::sync::Arc;

use campanile_protocol::fs::REQUEST_QUEUE;
use campanile_protocol::virtio_gpu::CONTROL_QUEUE;
use campanile_protocol::virtio_gpu::QUEUE_COUNT;

use super::guest_ram::GuestRam;
use super::options::DeviceKind;
use super::options::VmOptions;
use super::request::Loss;
use super::split_ring::SplitRing;
use super::virt_queue::VirtQueue;
use super::virt_queue::Wiring;
use campanile_guest_driver::transport::error::TransportError;

/// The queues of the device, by number.
pub(super) struct Rings {
    queues: Vec<Arc<VirtQueue>>,
    device: DeviceKind,
}

impl Rings {
    /// New ones in guest RAM.
    pub(super) fn new(ram: &Arc<GuestRam>, options: &VmOptions) -> Result<Self, TransportError> {
        let queue = |_| VirtQueue::new(SplitRing::new(ram, options.queue_size, false)?);
        Ok(Self { queues: (0..QUEUE_COUNT).map(queue).collect::<Result<_, _>>()?, device: options.device })
    }

    pub(super) fn all(&self) -> &[Arc<VirtQueue>] {
        &self.queues
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn queue(&self, index: u16) -> Result<&Arc<VirtQueue>, TransportError> {
        self.queues
            .get(usize::from(index))
            .ok_or(TransportError::Missing { feature: "a queue of that number" })
    }

    /// The queue of commands, or of requests.
    pub(super) fn control(&self) -> &Arc<VirtQueue> {
        let queue = match self.device {
            DeviceKind::Gpu => CONTROL_QUEUE,
            DeviceKind::Fs => REQUEST_QUEUE,
        };
        &self.queues[usize::from(queue)]
    }

    pub(super) fn wirings(&self) -> Vec<Wiring> {
        self.queues.iter().map(|queue| queue.wiring()).collect()
    }

    /// What is under way ends with this loss.
    pub(super) fn lose(&self, loss: Loss) {
        self.queues.iter().for_each(|queue| queue.lose(loss));
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        self.queues.iter().for_each(|queue| queue.set_paused(is_paused));
    }

    /// Each begins anew, for a device that boots.
    pub(super) fn restart(
        &self,
        ram: &Arc<GuestRam>,
        size: u16,
        event_idx: bool,
    ) -> Result<(), TransportError> {
        for queue in &self.queues {
            queue.restart(SplitRing::new(ram, size, event_idx)?);
        }
        Ok(())
    }
}
