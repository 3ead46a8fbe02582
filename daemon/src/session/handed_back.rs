//! Kernel-mode buffers that wait: handed back by the engine, so that they hold up their own context alone.
//!
//! ```text
//!   engine: blocked, and another behind it ──▶ front of its context's software queue, with how far it is
//!                                               ├─ waits for a native fence ─▶ PARKED until the value is there:
//!                                               │                              MonitoredValue, interrupt, run list
//!                                               └─ waits for any other word ─▶ run list: tried again in turn
//! ```
//!
//! A buffer that nobody stands behind stays in the engine, which looks at its word. The engine slows itself down
//! where all that there is waits, so that two blocked contexts are not handed to and fro all the time.

use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::handle::Handle;

use super::objects::Buffer;
use super::objects::GpuWait;
use super::objects::node_index;
use super::state::Session;

impl Session {
    /// The engine has handed a buffer back.
    pub(super) fn buffer_handed_back(&mut self, node: NodeKind, of: u32, buffer: Buffer, result: &HwResult) {
        let buffer = Buffer { at: result.at, done_in_packet: result.done_in_packet, ..buffer };
        let wanted = self.device_mut(of).ok().filter(|device| device.is_active()).and_then(|device| {
            let handle = device.queues.get(buffer.queue)?.context;
            let fence = device.fences.iter().find(|(_, fence)| fence.va == result.fault_va);
            let index = fence.map(|(_, fence)| fence.index);
            let context = device.contexts.get_mut(handle)?;
            // In the order of submission: the one before it may have been handed back too.
            let place = context.software_queue.partition_point(|other| other.order < buffer.order);
            context.software_queue.insert(place, buffer);
            Some((handle, index.filter(|_| place == 0), context.is_parked))
        });
        match wanted {
            None => self.end_item(of, buffer.ring, buffer.item),
            // What is parked waits for the first buffer, whatever comes behind it.
            Some((_, _, true)) => {}
            Some((handle, Some(index), false)) => {
                self.engines[node_index(node)].run_list.retain(|entry| *entry != (of, handle));
                if let Ok(device) = self.device_mut(of) {
                    device.gpu_waits.push(GpuWait { context: handle, index, value: result.value });
                    if let Some(context) = device.contexts.get_mut(handle) {
                        // Listed or not: nothing but the fence brings it back.
                        (context.is_parked, context.listed) = (true, true);
                    }
                }
                self.release_native_waiters(index);
            }
            Some((handle, None, false)) => self.list_context(node, of, handle),
        }
    }

    /// Puts a context on the run list of its node, unless it is there.
    fn list_context(&mut self, node: NodeKind, of: u32, handle: Handle) {
        let Ok(device) = self.device_mut(of) else { return };
        let Some(context) = device.contexts.get_mut(handle) else { return };
        if !std::mem::replace(&mut context.listed, true) {
            self.engines[node_index(node)].run_list.push_back((of, handle));
        }
    }

    /// What a parked context waits for is there, or never will be: it takes its turn again.
    pub(super) fn unpark(&mut self, of: u32, handle: Handle) {
        let Ok(device) = self.device_mut(of) else { return };
        let Some(context) = device.contexts.get_mut(handle) else { return };
        if std::mem::take(&mut context.is_parked) {
            let node = context.node;
            context.listed = false;
            self.list_context(node, of, handle);
            self.fill_hw_queue(node);
        }
    }
}
