//! Kernel-mode submission: software queue → hardware queue → completion.
//!
//! ```text
//!   SUBMIT ─▶ context's software queue ─▶ run list of its engine ─▶ hardware queue (2) ─▶ engine
//!                                            round robin                     completion, in order ─▶ fences
//! ```

use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::reply::Submitted;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::hw_queue::HW_BLOCKED;
use campanile_protocol::engine::hw_queue::HW_EXEMPT;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use log::Level;

use super::control::Checked;
use super::counters::count;
use super::engine_slot::InFlight;
use super::objects::Buffer;
use super::objects::MAX_SOFTWARE_QUEUE;
use super::objects::QueueKind;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::state::Session;
use crate::recovery::reason::Reason;

/// How long a submission to an idle engine waits for its completion before the thread goes on: a short buffer is
/// done sooner than a sleep and a wake-up would take.
const LINGER: Duration = Duration::from_micros(5);

/// Ends the listening that was begun before the submission, with a last look. True when a completion is there.
fn engine_lingers(engine: Option<&EngineProcess>, lingers: bool) -> bool {
    engine.is_some_and(|engine| engine.stop_listening(if lingers { LINGER } else { Duration::ZERO }))
}

impl Session {
    /// SUBMIT: answered when the software queue has it; its timeline waits for its completion.
    pub(super) fn submit_buffer(&mut self, origin: Origin, message: &Submit) -> Outcome {
        let aligned = message.buffer_va.is_multiple_of(8) && message.length.is_multiple_of(8);
        (aligned && message.flags == 0 && message.length <= MAX_DMA_BUFFER).or(Status::InvalidParameter)?;
        let device = self.device(origin.context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let (context, at, is_exempt) = (queue.context, queue.at, queue.is_exempt);
        // UMS-26: a user-mode queue takes work from its doorbell alone.
        let QueueKind::Ordinary { issued } = queue.kind else { return Err(Status::InvalidParameter.into()) };
        let depth = device.contexts.get(context).map_or(0, |context| context.software_queue.len());
        (depth < MAX_SOFTWARE_QUEUE).or(Status::OutOfResources)?;
        self.ensure_presence(origin.context, at)?;
        let item = self.park(origin).item;
        let taken = &mut self.engines[at.index()].taken;
        *taken += 1;
        let order = *taken;
        let fence_value = issued + 1;
        let device = self.device_mut(origin.context)?;
        if let Some(queue) = device.queues.get_mut(message.queue) {
            queue.kind = QueueKind::Ordinary { issued: fence_value };
        }
        let buffer = Buffer {
            queue: message.queue,
            context,
            saved: Saved::default(),
            va: message.buffer_va,
            length: message.length,
            fence_value,
            is_exempt,
            order,
            ring: origin.ring,
            item,
        };
        if let Some(context) = device.contexts.get_mut(context) {
            context.software_queue.push_back(buffer);
        }
        self.list_context(origin.context, context);
        count(&self.counters.submissions);
        let engine = self.engines[at.index()].process();
        let lingers =
            self.engines[at.index()].in_flight.is_empty() && engine.is_some_and(EngineProcess::listen);
        self.fill_hw_queue(at);
        if engine_lingers(self.engines[at.index()].process(), lingers) {
            self.collect_completions(at);
        }
        Ok(Handled::with(&Submitted { fence_value }))
    }

    /// Takes the results that are there.
    pub(super) fn collect_completions(&mut self, at: EngineAddress) {
        while let Some(result) = self.engines[at.index()].process_mut().and_then(Adapter::completed_command) {
            self.buffer_completed(at, result);
        }
    }

    /// Puts a context on the run list of its engine, where it has something to run and may run it. What an engine still
    /// has of it from before its last suspend comes back first.
    pub(super) fn list_context(&mut self, of: u32, handle: Handle) {
        let Ok(device) = self.device_mut(of) else { return };
        let Some(context) = device.contexts.get_mut(handle) else { return };
        let at = context.at.index();
        let may_run = !context.listed && !context.held.any() && !context.software_queue.is_empty();
        let Some(entry) = context.entry.filter(|_| may_run) else { return };
        let suspends = self.engines[at].process().map_or(0, |process| process.suspends(entry));
        let stale = self.engines[at].in_flight.iter().any(|flight| {
            flight.suspends != suspends
                && flight.owner.is_some_and(|(context, buffer)| context == of && buffer.context == handle)
        });
        if stale {
            return;
        }
        self.engines[at].run_list.push_back((of, handle));
        if let Some(context) = self.device_mut(of).ok().and_then(|device| device.contexts.get_mut(handle)) {
            context.listed = true;
        }
    }

    /// Gives buffers to the engine while its hardware queue has room, one context after the other.
    pub(super) fn fill_hw_queue(&mut self, at: EngineAddress) {
        let index = at.index();
        while (self.engines[index].in_flight.len() as u64) < HW_QUEUE_DEPTH {
            let Some((of, handle)) = self.engines[index].run_list.pop_front() else { return };
            let Ok(device) = self.device_mut(of) else { continue };
            let presence = device.presence[index];
            let Some(context) = device.contexts.get_mut(handle) else { continue };
            let entry = context.entry.filter(|_| !context.held.any());
            let Some((buffer, entry)) =
                entry.and_then(|entry| Some((context.software_queue.pop_front()?, entry)))
            else {
                context.listed = false;
                continue;
            };
            context.listed = !context.software_queue.is_empty();
            if context.listed {
                self.engines[index].run_list.push_back((of, handle));
            }
            let slot = &mut self.engines[index];
            let fence_id = slot.fences.submit();
            let suspends = slot.process().map_or(0, |process| process.suspends(entry));
            let submission = HwSubmission {
                fence_id,
                buffer_va: buffer.va,
                fence_value: buffer.fence_value,
                suspends,
                done_in_packet: buffer.saved.done_in_packet,
                at: buffer.saved.at,
                length: buffer.length,
                process: presence.unwrap_or(u32::MAX),
                context: entry,
                fence_index: buffer.queue.index(),
                flags: if buffer.is_exempt { HW_EXEMPT } else { 0 },
            };
            let submitted = slot.process_mut().map(|process| process.submit_command(submission));
            match submitted {
                Some(Ok(())) => {
                    slot.in_flight.push_back(InFlight { fence_id, suspends, owner: Some((of, buffer)) })
                }
                Some(Err(error)) => {
                    self.journal.line(Level::Error, format_args!("{at} hardware queue: {error}"));
                    self.end_item(of, buffer.ring, buffer.item);
                }
                None => self.end_item(of, buffer.ring, buffer.item),
            }
        }
    }

    /// The engine has finished a buffer (MCDM-16, MCDM-17).
    pub(super) fn buffer_completed(&mut self, at: EngineAddress, result: HwResult) {
        let Some(flight) = self.engines[at.index()].in_flight.pop_front() else { return };
        // TDR-83: never on with a fence that cannot be.
        if let Err(error) = self.engines[at.index()].fences.complete(result.fence_id) {
            self.engines[at.index()].in_flight.push_front(flight);
            let text = format!("it reported a buffer that it was not given: {error}");
            self.recover_engine(at, Reason::InvalidFence, &text, None);
            return;
        }
        if let Some((context, buffer)) = flight.owner {
            if [HW_BLOCKED, HW_SUSPENDED].contains(&result.fault) {
                self.buffer_handed_back(at, flight.suspends, context, buffer, &result);
                self.fill_hw_queue(at);
                return;
            }
            if result.fault != 0 {
                self.fault_device(context, buffer.queue, result.fault, result.fault_va);
            }
            self.end_item(context, buffer.ring, buffer.item);
            self.release_waiters(context, buffer.queue);
            self.list_context(context, buffer.context);
        }
        self.fill_hw_queue(at);
    }
}
