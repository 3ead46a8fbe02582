//! SUBMIT, and what engines report: completions, preemptions, suspends, faults, signalled fences.

use crate::sched::meter::Preemption;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::counters::count;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::recorder::Kind;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::vm::Vm;
use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::reply::Submitted;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a submission to an idle engine waits for its completion before the thread goes on: a short buffer is
/// done sooner than a sleep and a wake-up would take.
const LINGER: Duration = Duration::from_micros(5);

/// Results that are taken of one engine before everything else is looked at again. An engine that gives each buffer back as
/// soon as it has it would have its session do nothing else.
const RESULTS: usize = 64;

/// Takes one result after the other until there is none. False after [`RESULTS`] of them, when more may be there.
fn take_all(mut take: impl FnMut() -> bool) -> bool {
    (0..RESULTS).any(|_| !take())
}

/// Ends the listening that was begun before the submission, with a last look. True when a completion is there.
fn engine_lingers(engine: Option<&EngineProcess>, lingers: bool) -> bool {
    engine.is_some_and(|engine| engine.hw_queue.stop_listening(if lingers { LINGER } else { Duration::ZERO }))
}

/// What engines report, and what follows for the work that they were given.
#[derive(Debug)]
pub struct EngineReports<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> EngineReports<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl EngineReports<'_> {
    /// Acts on what an engine has reported until now, but for what it says of itself: also right before it is reset (TDR-39).
    pub(in crate::vgpu) fn flush_reports(&mut self, at: EngineAddress) {
        let Some(process) = self.vm.engines[at.index()].process_mut() else { return };
        let attention = process.tables.take_attention();
        self.vm.counters.found_by_look.fetch_add(process.power.take_found_by_look(), Ordering::Relaxed);
        self.collect_completions(at);
        self.collect_suspends(at);
        for queue in attention {
            self.queue_wants_attention(at, queue);
        }
        Waits::of(self.vm).read_signalled(at);
        Pager::of(self.vm).read_wanted(at);
    }

    /// A user-mode queue has a fault, or a waiter is due.
    pub(in crate::vgpu) fn queue_wants_attention(&mut self, at: EngineAddress, hw_queue: QueueIndex) {
        let Some((context, queue)) = self.vm.objects.owner_of_hw_queue(at, hw_queue) else { return };
        let fault =
            self.vm.engines[at.index()].process().and_then(|process| process.tables.queue_fault(hw_queue));
        match fault {
            Some((fault, address)) => Devices::of(self.vm).fault_device(context, queue, fault, address),
            None => {
                Waits::of(self.vm).release_waiters(context, queue);
                Deferred::of(self.vm).look_at_drains();
            }
        }
    }

    /// SUBMIT: answered when the software queue has it; its timeline waits for its completion.
    pub(in crate::vgpu) fn submit_buffer(&mut self, origin: Origin, message: &Submit) -> Outcome {
        let aligned = message.buffer_va.is_multiple_of(8) && message.length.is_multiple_of(8);
        (aligned && message.flags == 0 && message.length <= MAX_DMA_BUFFER).or(Status::InvalidParameter)?;
        let device = self.vm.objects.device(origin.context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let (context, at, is_exempt) = (queue.context, queue.at, queue.is_exempt);
        // UMS-26: a user-mode queue takes work from its doorbell alone.
        let QueueKind::Ordinary { issued } = queue.kind else { return Err(Status::InvalidParameter.into()) };
        let paging = device.paging.issued();
        let depth = device.contexts.get(context).map_or(0, |context| context.software_queue.len());
        (depth < MAX_SOFTWARE_QUEUE).or(Status::OutOfResources)?;
        Submission::of(self.vm).ensure_presence(origin.context, at)?;
        let item = self.vm.objects.park(origin)?.item;
        let taken = &mut self.vm.engines[at.index()].taken;
        *taken += 1;
        let order = *taken;
        let fence_value = issued + 1;
        let device = self.vm.objects.device_mut(origin.context)?;
        if let Some(queue) = device.queues.get_mut(message.queue) {
            queue.kind = QueueKind::Ordinary { issued: fence_value };
        }
        let buffer = Buffer {
            queue: message.queue,
            context,
            is_saved: false,
            va: message.buffer_va,
            length: message.length,
            fence_value,
            is_exempt,
            is_resubmitted: false,
            paging,
            order,
            submitted: self.vm.engines.now(),
            ring: origin.ring,
            item,
        };
        if let Some(context) = device.contexts.get_mut(context) {
            context.software_queue.push_back(buffer);
        }
        self.vm.objects.spans.submitted(&self.vm.config.name, origin.context, at, &buffer);
        Submission::of(self.vm).list_context(origin.context, context);
        count(&self.vm.counters.submissions);
        let engine = self.vm.engines[at.index()].process();
        let lingers = self.vm.engines[at.index()].in_flight.is_empty()
            && engine.is_some_and(|process| process.hw_queue.listen());
        Submission::of(self.vm).fill_hw_queue(at);
        if engine_lingers(self.vm.engines[at.index()].process(), lingers) {
            self.collect_completions(at);
        }
        Ok(Handled::with(&Submitted { fence_value }))
    }

    /// Takes the results that are there, up to [`RESULTS`], and then the report of a preemption (PRE-26, MCDM-33).
    pub(in crate::vgpu) fn collect_completions(&mut self, at: EngineAddress) {
        let has_taken_all = take_all(|| {
            // What comes after a lie is believed no more.
            let is_believed = !self.vm.engines.is_condemned(at);
            let process = self.vm.engines[at.index()].process_mut().filter(|_| is_believed);
            let result = process.and_then(Adapter::completed_command);
            result.map(|result| self.buffer_completed(at, result)).is_some()
        });
        if has_taken_all {
            self.collect_preemption(at);
        } else if let Some(process) = self.vm.engines[at.index()].process() {
            process.look_again();
        }
    }

    fn collect_preemption(&mut self, at: EngineAddress) {
        if self.vm.engines.is_condemned(at) {
            return;
        }
        let slot = &mut self.vm.engines[at.index()];
        let asked = slot.process().and_then(|process| process.hw_queue.preempting_since());
        let Some(report) = slot.process_mut().and_then(Adapter::preemption_report) else { return };
        if let Some(asked) = asked {
            self.vm.config.meters.note_preemption(at, Preemption::Command, clock::since(asked));
        }
        self.vm.objects.spans.yielded(at);
        if report.last_completed > slot.fences.submitted() {
            let text = format!(
                "it reported the preemption after a buffer {} that it was not given",
                report.last_completed
            );
            return self.vm.engines.condemn_for(at, Reason::InvalidFence, &text);
        }
        Submission::of(self.vm).fill_hw_queue(at);
    }

    /// The engine has finished a buffer (MCDM-16, MCDM-17).
    pub(in crate::vgpu) fn buffer_completed(&mut self, at: EngineAddress, result: HwResult) {
        let now = self.vm.engines.now();
        let slot = &mut self.vm.engines[at.index()];
        let Some(flight) = slot.in_flight.pop_front() else { return };
        // TDR-83: never on with a fence that cannot be.
        let is_handed_back = result.is_handed_back();
        let ended = if is_handed_back {
            slot.fences.hand_back(result.fence_id)
        } else {
            slot.fences.complete(result.fence_id)
        };
        if let Err(error) = ended {
            slot.in_flight.push_front(flight);
            let text = format!("it reported a buffer that it was not given: {error}");
            return self.vm.engines.condemn_for(at, Reason::InvalidFence, &text);
        }
        let head = slot.head();
        let used = slot.process().map_or(Duration::ZERO, |process| process.contexts.used(flight.entry));
        match flight.owner {
            Some(_) => slot.run_list.returned(flight.entry, used, head, now),
            None => slot.run_list.forgotten(head, now),
        }
        if let Some((context, buffer)) = flight.owner {
            if is_handed_back {
                self.vm.objects.spans.handed_back(context, &buffer);
                self.buffer_handed_back(at, flight.suspends, context, buffer, &result);
                Submission::of(self.vm).fill_hw_queue(at);
                return;
            }
            if result.fault != 0 {
                Devices::of(self.vm).fault_device(context, buffer.queue, result.fault, result.fault_va);
            }
            let took = self.vm.engines.now().saturating_sub(buffer.submitted);
            self.vm.counters.measures.submit_to_fence.note(took);
            self.vm.counters.measures.recorder.note(Kind::Submission, at, Some(context), None, took);
            self.vm.objects.spans.ran(context, &buffer, result.fault);
            self.vm.objects.end_item(context, buffer.ring, buffer.item);
            Waits::of(self.vm).release_waiters(context, buffer.queue);
            Submission::of(self.vm).list_context(context, buffer.context);
        }
        Submission::of(self.vm).fill_hw_queue(at);
    }
}

#[cfg(test)]
mod tests {
    use super::take_all;

    #[test]
    fn of_an_engine_that_always_has_another_result_64_are_taken_in_one_look() {
        for (there, taken, is_all) in
            [(0, 0, true), (1, 1, true), (63, 63, true), (64, 64, false), (u64::MAX, 64, false)]
        {
            let mut left = there;
            let all = take_all(|| {
                let is_there = left > 0;
                left -= u64::from(is_there);
                is_there
            });
            assert_eq!((there - left, all), (taken, is_all), "{there} are there");
        }
    }
}
