//! Kernel-mode submission: software queue → hardware queue → completion.
//!
//! ```text
//!   SUBMIT ─▶ context's software queue ─▶ run list of its engine ─▶ hardware queue (2) ─▶ engine
//!        ▲                                   policy                           completion, in order ─▶ fences
//!        └──────────── put back, where it is another's turn ◀──────────────────┘
//! ```

use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::scheduling::Preemption;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_protocol::engine::hw_queue::HW_EXEMPT;
use campanile_protocol::engine::hw_queue::HW_RESUBMISSION;
use campanile_protocol::engine::hw_queue::HW_SAVED;
use campanile_protocol::engine::hw_queue::HwSubmission;
use log::Level;

use crate::ids::GuestProcess;
use crate::vgpu::counters::count;
use crate::vgpu::engines::slot::InFlight;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::process::Device;
use crate::vgpu::recorder::Kind;
use crate::vgpu::vm::Vm;

const fn flag(is_set: bool, flag: u32) -> u32 {
    if is_set { flag } else { 0 }
}

/// Work on its way to engines: contexts with their software queues, run lists and hardware queues.
#[derive(Debug)]
pub struct Submission<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Submission<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Submission<'_> {
    /// Puts a context on the run list of its engine, where it has something to run and may run it. What an engine still
    /// has of it from before its last suspend comes back first.
    pub(in crate::vgpu) fn list_context(&mut self, of: GuestProcess, handle: ContextHandle) {
        let now = self.vm.engines.now();
        let Ok(device) = self.vm.objects.device_mut(of) else { return };
        let Device { contexts, paging, .. } = device;
        let Some(context) = contexts.get_mut(handle) else { return };
        let at = context.at.index();
        let may_run = !context.listed && !context.held.any() && context.has_ready(paging);
        let Some(entry) = context.entry.filter(|_| may_run) else { return };
        if self.vm.engines[at].has_stale(of, handle, entry) {
            return;
        }
        self.vm.engines[at].run_list.list(entry, true, now);
        if let Some(context) =
            self.vm.objects.device_mut(of).ok().and_then(|device| device.contexts.get_mut(handle))
        {
            context.listed = true;
        }
    }

    /// Takes a context off the run list until it is tried again: its first buffer waits.
    pub(in crate::vgpu) fn block_context(&mut self, of: GuestProcess, handle: ContextHandle) {
        let now = self.vm.engines.now();
        let context = self.vm.objects.device_mut(of).ok().and_then(|device| device.contexts.get_mut(handle));
        let Some(context) = context else { return };
        let Some(entry) = context.entry else { return };
        let at = context.at;
        // The run list sees to it that it is listed again.
        context.listed = true;
        self.vm.engines[at.index()].run_list.block(entry, now);
    }

    /// Takes a context off the run list of its node.
    pub(in crate::vgpu) fn unlist_context(&mut self, of: GuestProcess, handle: ContextHandle) {
        let now = self.vm.engines.now();
        let Ok(device) = self.vm.objects.device(of) else { return };
        let Some((at, entry)) = device.contexts.get(handle).and_then(|it| Some((it.at, it.entry?))) else {
            return;
        };
        self.vm.engines[at.index()].run_list.list(entry, false, now);
    }

    /// Gives buffers to the engine while its hardware queue has room, of the context whose turn it is; and has the one
    /// that runs make room, where it is not its turn any more.
    pub(in crate::vgpu) fn fill_hw_queue(&mut self, at: EngineAddress) {
        let now = self.vm.engines.now();
        self.vm.engines[at.index()].run_list.retry(now);
        while self.vm.engines[at.index()].has_room() {
            let Some((of, handle, entry)) = self.vm.engines[at.index()].run_list.next(now) else { break };
            // What it needs there comes before it (PRE-32).
            if !self.vm.memory.has_areas(&self.vm.objects, of, handle) {
                self.leave_out(of, handle, entry, now);
                continue;
            }
            let (buffer, has_more) = self.take_buffer(of, handle);
            let run_list = &mut self.vm.engines[at.index()].run_list;
            match buffer {
                Some(buffer) => {
                    run_list.give(entry, has_more);
                    self.hand_over(at, of, entry, buffer);
                }
                None => run_list.list(entry, false, now),
            }
        }
        self.look_at_head(at);
    }

    /// A context is not given to its engine before its save areas are there.
    fn leave_out(&mut self, of: GuestProcess, handle: ContextHandle, entry: ContextIndex, now: Duration) {
        let at = self.vm.objects.device_mut(of).ok().and_then(|device| {
            let context = device.contexts.get_mut(handle)?;
            context.listed = false;
            Some(context.at)
        });
        if let Some(at) = at {
            self.vm.engines[at.index()].run_list.list(entry, false, now);
        }
    }

    /// The first buffer of a context that may run, and whether there are more.
    fn take_buffer(&mut self, of: GuestProcess, handle: ContextHandle) -> (Option<Buffer>, bool) {
        let Ok(Device { contexts, paging, .. }) = self.vm.objects.device_mut(of) else {
            return (None, false);
        };
        let Some(context) = contexts.get_mut(handle) else { return (None, false) };
        let slot = &self.vm.engines[context.at.index()];
        // It may have been suspended and resumed while it stood on the run list.
        let may_run =
            context.entry.is_some_and(|entry| !slot.has_stale(of, handle, entry)) && !context.held.any();
        let buffer =
            if may_run && context.has_ready(paging) { context.software_queue.pop_front() } else { None };
        context.listed = may_run && context.has_ready(paging);
        (buffer, context.listed)
    }

    /// Gives one buffer to the engine, whose hardware queue has room.
    fn hand_over(&mut self, at: EngineAddress, of: GuestProcess, entry: ContextIndex, buffer: Buffer) {
        let now = self.vm.engines.now();
        let presence = self.vm.objects.device(of).ok().and_then(|device| device.presence[at.index()]);
        let slot = &mut self.vm.engines[at.index()];
        let fence_id = slot.fences.submit();
        let suspends = slot.process().map_or(0, |process| process.contexts.suspends(entry));
        let is_exempt = flag(buffer.is_exempt, HW_EXEMPT);
        let submission = HwSubmission {
            fence_id,
            buffer_va: buffer.va,
            fence_value: buffer.fence_value,
            suspends,
            number: buffer.order,
            length: buffer.length,
            process: presence.map_or(u32::MAX, ProcessIndex::get),
            context: entry.get(),
            fence_index: buffer.queue.index(),
            flags: is_exempt | flag(buffer.is_resubmitted, HW_RESUBMISSION) | flag(buffer.is_saved, HW_SAVED),
            ..HwSubmission::default()
        };
        match slot.process_mut().map(|process| process.submit_command(submission)) {
            Some(Ok(())) => {
                self.vm.objects.spans.given(of, &buffer);
                let flight = InFlight { fence_id, entry, suspends, owner: Some((of, buffer)) };
                slot.in_flight.push_back(flight);
                let head = slot.head();
                slot.run_list.submitted(entry, head, now);
            }
            Some(Err(error)) => {
                self.vm.journal.line(Level::Error, format_args!("{at} hardware queue: {error}"));
                self.vm.objects.end_item(of, buffer.ring, buffer.item);
            }
            None => self.vm.objects.end_item(of, buffer.ring, buffer.item),
        }
    }

    /// Preempts what the hardware queue runs, where it is another context's turn (PRE-05, MCDM-11, MCDM-12); or says when to
    /// look again.
    fn look_at_head(&mut self, at: EngineAddress) {
        let now = self.vm.engines.now();
        let begun = self.vm.engines.begun;
        let slot = &mut self.vm.engines[at.index()];
        slot.decide_at = slot.run_list.retry_at().and_then(|at| begun.checked_add(at));
        if slot.process().is_none_or(|process| process.hw_queue.is_preempting()) {
            return;
        }
        let must_yield = slot.run_list.must_yield(now);
        if let Err(until) = must_yield {
            let until = until.and_then(|until| begun.checked_add(until));
            slot.decide_at = until.into_iter().chain(slot.decide_at).min();
        }
        if must_yield.is_ok()
            && let Some(Preemption::Requested(_)) = slot.process_mut().map(Adapter::preempt_command)
        {
            count(&self.vm.counters.preemptions);
            self.vm.counters.measures.recorder.note(Kind::Preempt, at, None, None, Duration::ZERO);
            self.vm.objects.spans.preempted(&self.vm.config.name, at);
        }
        if let Some(at) = slot.decide_at {
            self.vm.timer.set(at);
        }
    }

    /// Decides again whose turn it is, if it is time to.
    pub(in crate::vgpu) fn decide_if_due(&mut self, at: EngineAddress) {
        if self.vm.engines[at.index()].decide_at.is_some_and(|due| due <= clock::now()) {
            self.fill_hw_queue(at);
        }
    }

    /// An allocation is where engines reach it: a context that waited for it as its save area may run.
    pub(in crate::vgpu) fn area_is_there(&mut self, allocation: AllocationId) {
        for (of, handle, at) in self.vm.memory.contexts_of_area(&self.vm.objects, allocation) {
            self.list_context(of, handle);
            self.fill_hw_queue(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::engine::hw_queue;
    use campanile_protocol::engine::hw_queue::HW_EXEMPT;
    use campanile_protocol::engine::hw_queue::HW_RESUBMISSION;
    use campanile_protocol::engine::hw_queue::HW_SAVED;
    use campanile_protocol::engine::hw_queue::HwSubmission;
    use zerocopy::FromBytes;

    use super::Submission;
    use crate::vgpu::objects::process::Buffer;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::entry;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::shared;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::take_buffer;

    #[test]
    fn tdr_22_pre_45_what_is_known_of_a_buffer_goes_with_it_to_its_engine() {
        let cases = [(HW_EXEMPT, [true, false, false]), (HW_RESUBMISSION, [false, true, false])];
        for (flags, [is_exempt, is_resubmitted, is_saved]) in
            cases.into_iter().chain([(HW_SAVED, [false, false, true]), (0, [false; 3])])
        {
            let mut session = restored(startable());
            let (buffer, entry) = (take_buffer(&mut session), entry(&mut session));
            let buffer = Buffer { is_exempt, is_resubmitted, is_saved, ..buffer };
            Submission::of(&mut session.vm).hand_over(COPY, OWNER, entry, buffer);
            let mut bytes = [0; size_of::<HwSubmission>()];
            let place = shared(&session, COPY);
            place.slice(hw_queue::slot(0), bytes.len() as u64).unwrap().copy_to(&mut bytes);
            let submission = HwSubmission::read_from_bytes(&bytes).unwrap();
            assert_eq!((submission.flags, submission.number), (flags, buffer.order));
            assert_eq!((submission.buffer_va, submission.length), (buffer.va, buffer.length));
            assert_eq!((submission.fence_value, submission.context), (buffer.fence_value, entry.get()));
            let process = session.vm.engines[COPY.index()].process().unwrap();
            assert_eq!(submission.suspends, process.contexts.suspends(entry));
            assert_eq!(
                submission.process,
                session.vm.objects.processes[&OWNER].device.as_ref().unwrap().presence[COPY.index()]
                    .unwrap()
                    .get()
            );
        }
    }
}
