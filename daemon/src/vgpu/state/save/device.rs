//! The device of a guest process, as data.

use super::snapshot::Collected;
use super::snapshot::Saver;
use crate::ids::GuestProcess;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::ids::Name;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::process::Context;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Doorbell;
use crate::vgpu::objects::process::Queue;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::table::Table;
use crate::vgpu::state::saved::process::SavedBuffer;
use crate::vgpu::state::saved::process::SavedContext;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedDoorbell;
use crate::vgpu::state::saved::process::SavedQueue;
use crate::vgpu::state::saved::process::SavedQueuePlace;
use crate::vgpu::state::saved::process::SavedScheduling;
use crate::vgpu::state::saved::row::SavedChange;
use crate::vgpu::state::saved::row::SavedGpuWait;
use crate::vgpu::state::saved::row::SavedMapping;
use crate::vgpu::state::saved::row::SavedOpenFence;
use crate::vgpu::state::saved::row::SavedOperation;
use crate::vgpu::state::saved::row::SavedProgress;
use crate::vgpu::state::saved::row::SavedTable;
use crate::vgpu::state::saved::row::SavedWait;

fn save_table<T, S, N: Name>(table: &Table<T, N>, mut save: impl FnMut(&T) -> S) -> SavedTable<S> {
    SavedTable(table.places().map(|(generation, object)| (generation, object.map(&mut save))).collect())
}

fn save_mapping(va: u64, mapping: &GpuMapping) -> SavedMapping {
    SavedMapping(va, mapping.size, mapping.allocation.0, mapping.offset, mapping.writable)
}

fn save_change(change: &Change) -> SavedChange {
    match change {
        Change::Map(va, mapping) => SavedChange::Map(save_mapping(*va, mapping)),
        Change::Unmap(va, mapped) => SavedChange::Unmap(save_mapping(*va, mapped)),
        Change::Evict(allocations) => SavedChange::Evict(allocations.iter().map(|id| id.0).collect()),
    }
}

fn save_buffer(context: GuestProcess, buffer: &Buffer, collected: &mut Collected) -> SavedBuffer {
    SavedBuffer {
        queue: buffer.queue.0,
        va: buffer.va,
        length: buffer.length,
        fence_value: buffer.fence_value,
        is_exempt: buffer.is_exempt,
        is_resubmitted: buffer.is_resubmitted,
        paging: buffer.paging,
        order: buffer.order,
        ring: buffer.ring,
        item: collected.claim(context, buffer.ring, buffer.item.map(|item| item.0)),
        is_saved: buffer.is_saved,
        progress: SavedProgress::default(),
    }
}

fn save_queue(queue: &Queue) -> SavedQueue {
    let (is_user_mode, value, doorbell) = match queue.kind {
        QueueKind::Ordinary { issued } => (false, issued, None),
        QueueKind::UserMode { doorbell, completed } => (true, completed, doorbell),
    };
    SavedQueue {
        context: queue.context.get().0,
        is_user_mode,
        is_exempt: queue.is_exempt,
        value,
        doorbell: doorbell.map(|handle| handle.0),
    }
}

impl Saver<'_> {
    fn save_context(&self, of: GuestProcess, context: &Context, collected: &mut Collected) -> SavedContext {
        let process = self.vm.engines[context.at.index()].process();
        let scheduling = context.scheduling.map(|parameters| SavedScheduling {
            band: parameters.band as u32,
            level: parameters.level,
            priority: parameters.priority,
            quantum: u64::try_from(parameters.quantum.as_nanos()).unwrap_or(u64::MAX),
            grace_same: u64::try_from(parameters.grace_same.as_nanos()).unwrap_or(u64::MAX),
            grace_lower: u64::try_from(parameters.grace_lower.as_nanos()).unwrap_or(u64::MAX),
        });
        // Those that its engine has come first; of a session that stands still it has none.
        let with_engine = self.vm.engines[context.at.index()].in_flight.iter();
        let with_engine = with_engine.filter(|flight| Some(flight.entry) == context.entry);
        let with_engine =
            with_engine.filter_map(|flight| flight.owner.as_ref().filter(|owner| owner.0 == of));
        let mut buffers: Vec<_> =
            with_engine.map(|(_, buffer)| buffer).chain(&context.software_queue).collect();
        // Of two that are handed back one may be here already.
        buffers.sort_by_key(|buffer| buffer.order);
        SavedContext {
            engine: u32::try_from(context.at.index()).unwrap_or(u32::MAX),
            is_suspended: context.held.by_guest,
            suspends: process.zip(context.entry).map(|(process, entry)| process.contexts.suspends(entry)),
            area: Some(context.area.allocation.0),
            scheduling,
            buffers: buffers.into_iter().map(|buffer| save_buffer(of, buffer, collected)).collect(),
        }
    }

    fn save_doorbell(&self, doorbell: &Doorbell) -> SavedDoorbell {
        let process = self.vm.engines[doorbell.at.index()].process();
        let place = process.zip(doorbell.hw_queue).map(|(process, queue)| {
            let place = process.tables.queue_place(queue);
            SavedQueuePlace {
                consumed: place.consumed,
                completed: place.completed,
                is_saved: place.is_saved,
                progress: None,
            }
        });
        SavedDoorbell {
            queue: doorbell.queue.0,
            is_aborted: doorbell.state == DoorbellState::Abort,
            is_draining: doorbell.is_draining,
            was_connected: doorbell.was_connected,
            notify: doorbell.notify,
            ring: doorbell.ring.0,
            control: doorbell.control.0,
            ring_va: doorbell.shape.ring_va,
            control_va: doorbell.shape.control_va,
            entries: doorbell.shape.entries,
            place,
        }
    }

    pub(super) fn save_device(
        &self,
        of: GuestProcess,
        device: &Device,
        collected: &mut Collected,
    ) -> SavedDevice {
        let paging = device.paging.waiting().map(|operation| {
            SavedOperation(operation.value, operation.changes.iter().map(save_change).collect())
        });
        let wait = |wait: &crate::vgpu::objects::waits::Wait, collected: &mut Collected| {
            SavedWait(collected.origin(&wait.origin), wait.queue.0, wait.value)
        };
        let native = |wait: &crate::vgpu::objects::waits::NativeWait, collected: &mut Collected| {
            SavedWait(collected.origin(&wait.origin), wait.fence.0, wait.value)
        };
        let gpu_waits = device.gpu_waits.iter();
        SavedDevice {
            page_allocation: device.page.allocation.0,
            page_offset: device.page.offset,
            page_va: device.page.va,
            status: device.status,
            class: device.class.number(),
            mappings: device.mappings.iter().map(|(va, mapping)| save_mapping(*va, mapping)).collect(),
            paging_issued: device.paging.issued,
            paging_applied: device.paging.applied,
            paging: paging.collect(),
            holds: device.holds.iter().map(|(id, hold)| (id.0, hold.count)).collect(),
            area: device.area.map(|area| area.allocation.0),
            contexts: save_table(&device.contexts, |context| self.save_context(of, context, collected)),
            queues: save_table(&device.queues, save_queue),
            doorbells: save_table(&device.doorbells, |doorbell| self.save_doorbell(doorbell)),
            kernels: save_table(&device.kernels, |source| collected.source(source)),
            fences: save_table(&device.fences, |fence| SavedOpenFence(fence.index, fence.va)),
            waits: device.waits.iter().map(|it| wait(it, collected)).collect(),
            native_waits: device.native_waits.iter().map(|it| native(it, collected)).collect(),
            gpu_waits: gpu_waits.map(|it| SavedGpuWait(it.context.get().0, it.index, it.value)).collect(),
        }
    }
}
