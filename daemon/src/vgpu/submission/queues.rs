//! Queues: ordinary or user-mode, chosen when they are made (UMS-04, UMS-25).

use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::QUEUE_DISABLE_GPU_TIMEOUT;
use campanile_protocol::control::message::QUEUE_FLAGS_KNOWN;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;

use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::objects::process::Queue;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::waits::Wait;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;

/// Bytes of a queue.
pub(in crate::vgpu) const QUEUE_BYTES: u64 = 256;

impl Submission<'_> {
    /// CREATE_QUEUE.
    pub(in crate::vgpu) fn create_queue(&mut self, origin: Origin, message: &CreateQueue) -> Outcome {
        (message.flags & !QUEUE_FLAGS_KNOWN == 0 && message.reserved == 0).or(Status::InvalidParameter)?;
        let charge = self.vm.objects.charge(origin.context, Kind::Objects, QUEUE_BYTES)?;
        let device = self.vm.objects.device_mut(origin.context)?;
        let of = ContextHandle::new(message.context);
        let context = device.contexts.get_mut(of).ok_or(Status::InvalidHandle)?;
        let kind = if message.flags & QUEUE_USER_MODE_SUBMISSION != 0 {
            QueueKind::UserMode { doorbell: None, completed: 0 }
        } else {
            QueueKind::Ordinary { issued: 0 }
        };
        let is_exempt = message.flags & QUEUE_DISABLE_GPU_TIMEOUT != 0;
        let queue = Queue { context: of, at: context.at, kind, is_exempt };
        let handle = device.queues.insert(queue, charge).ok_or(Status::OutOfResources)?;
        if let Some(context) = device.contexts.get_mut(of) {
            context.queues += 1;
        }
        let fence_offset = device_page::fence(handle.index());
        let fence_va = device.page.va + fence_offset;
        self.vm.memory.store_page_word(&self.vm.objects, origin.context, fence_offset, 0);
        self.vm.memory.store_page_word(
            &self.vm.objects,
            origin.context,
            device_page::last_queued(handle.index()),
            0,
        );
        Ok(Handled::with(&QueueCreated { queue: handle, fence_offset, fence_va }))
    }
}

impl Waits<'_> {
    /// DESTROY_QUEUE; its doorbell must be gone and, if it is ordinary, its buffers done.
    pub(in crate::vgpu) fn destroy_queue(&mut self, origin: Origin, message: &Named) -> Outcome {
        self.vm.objects.cancel_held(origin.context, message.handle)?;
        let device = self.vm.objects.device_mut(origin.context)?;
        let queue = device.queues.get(message.handle).ok_or(Status::InvalidHandle)?;
        let busy = match queue.kind {
            QueueKind::UserMode { doorbell, .. } => doorbell.is_some(),
            QueueKind::Ordinary { .. } => {
                let queued = device.contexts.get(queue.context).is_some_and(|context| {
                    context.software_queue.iter().any(|buffer| buffer.queue == message.handle)
                });
                let flying = self.vm.engines.iter().flat_map(|engine| &engine.in_flight).any(|flight| {
                    flight.owner.is_some_and(|(context, buffer)| {
                        context == origin.context && buffer.queue == message.handle
                    })
                });
                queued || flying
            }
        };
        let device = self.vm.objects.device_mut(origin.context)?;
        (!busy || !device.is_active()).or(Status::Busy)?;
        if let Some(queue) = device.queues.remove(message.handle)
            && let Some(context) = device.contexts.get_mut(queue.context)
        {
            context.queues -= 1;
        }
        let (orphans, others): (Vec<Wait>, Vec<Wait>) =
            std::mem::take(&mut device.waits).into_iter().partition(|wait| wait.queue == message.handle);
        device.waits = others;
        for wait in orphans {
            self.vm.answer(wait.origin, Err(Status::InvalidHandle.into()));
        }
        Ok(Handled::done())
    }

    /// WAIT_FENCE: answered when the queue's progress fence is there.
    pub(in crate::vgpu) fn wait_fence(&mut self, origin: Origin, message: &WaitFence) -> Outcome {
        let device = self.vm.objects.device(origin.context)?;
        device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        (device.waits.len() + device.native_waits.len() < MAX_WAITS).or(Status::OutOfResources)?;
        let origin = self.vm.objects.park(origin)?;
        let wait = Wait { origin, queue: message.queue, value: message.value };
        self.vm.objects.device_mut(origin.context)?.waits.push(wait);
        self.release_waiters(origin.context, message.queue);
        Ok(Handled::Parked)
    }
}
