//! The adapter's operations on an engine process: tables of the shared block, the hardware queue, the reset.

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::engine::suspension::Suspension;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::Adapter;
use super::debug_info::DebugInfo;
use super::error::AdapterError;
use super::process::EngineProcess;
use super::scheduling::Preemption;
use super::scheduling::PreemptionReport;
use crate::engine::message::NodeKind;
use crate::engine::process::low_half;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::Settings;

impl Adapter for EngineProcess {
    fn create_process(&mut self, entry: ProcessEntry) -> Result<u32, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let (index, generation) =
            self.processes.take(acknowledged).ok_or(AdapterError::Full("process entry"))?;
        let entry = ProcessEntry { generation: 0, ..entry };
        if let Some(slice) = self.shared.slice(block::process(index), size_of::<ProcessEntry>() as u64) {
            slice.copy_from(entry.as_bytes());
        }
        self.store(block::process(index), generation);
        self.uses(block::USED_PROCESSES, index);
        self.changed();
        Ok(index)
    }

    fn destroy_process(&mut self, process: u32) {
        self.store(block::process(process), 0);
        self.changed();
        self.processes.retire(process, self.sequence);
    }

    fn create_context(&mut self, area_va: u64) -> Result<u32, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let (index, generation) =
            self.contexts.take(acknowledged).ok_or(AdapterError::Full("context entry"))?;
        self.write_properties(index, generation, &Parameters::default());
        // The engine has acknowledged the end of the context before it, and touches neither until it is asked.
        self.store(block::context_request(index), Suspension::default().word());
        self.store(block::context_report(index), 0);
        self.store(block::context_area(index), area_va);
        Ok(index)
    }

    fn destroy_context(&mut self, context: u32) {
        self.changed();
        self.contexts.retire(context, self.sequence);
    }

    fn suspend_context(&mut self, context: u32) -> u64 {
        self.change_suspension(context, Suspension::suspend).fence
    }

    fn resume_context(&mut self, context: u32) {
        let _resumed = self.change_suspension(context, Suspension::resume);
    }

    fn create_hw_queue(&mut self, entry: QueueEntry) -> Result<u16, AdapterError> {
        self.put_hw_queue(entry, false)
    }

    fn destroy_hw_queue(&mut self, queue: u16) {
        self.store(block::queue(u32::from(queue)), 0);
        self.changed();
        self.queues.retire(u32::from(queue), self.sequence);
    }

    fn connect_doorbell(&mut self, slot: u32, queue: u16, process: u32, cell: u16) {
        self.doorbell_generation = self.doorbell_generation.wrapping_add(1);
        let process = u16::try_from(process).unwrap_or(u16::MAX);
        let watched = DoorbellSlot::watch(queue, process, cell, self.doorbell_generation);
        self.store(block::doorbell(slot), watched.0);
        self.uses(block::USED_DOORBELLS, slot);
        self.ask_look(queue);
        self.change();
    }

    fn disconnect_doorbell(&mut self, slot: u32) {
        // The engine could have changed the word, and then loses a look at a queue of its own.
        let held = DoorbellSlot(self.load(block::doorbell(slot)));
        self.store(block::doorbell(slot), DoorbellSlot::FREE.0);
        if held.is_watching() {
            self.ask_look(held.queue());
        }
        self.changed();
    }

    fn connect_notified(&mut self, queue: u16) {
        self.notified += 1;
        self.store(block::NOTIFIED, self.notified);
        self.ask_look(queue);
        self.changed();
    }

    fn disconnect_notified(&mut self, queue: u16) {
        self.notified = self.notified.saturating_sub(1);
        self.store(block::NOTIFIED, self.notified);
        self.ask_look(queue);
        self.changed();
    }

    fn notify(&mut self, queue: u16) {
        // Where it is owed already, the sequence has risen since, and the engine has not seen it yet.
        if self.ask_look(queue) {
            self.changed();
        }
    }

    fn submit_command(&mut self, submission: HwSubmission) -> Result<(), AdapterError> {
        if self.lost {
            return Err(AdapterError::Lost);
        }
        if self.submitted - self.completed >= HW_QUEUE_DEPTH {
            return Err(AdapterError::HwQueueFull);
        }
        let process_generation = match submission.process {
            process if process < block::MAX_PROCESSES => low_half(self.load(block::process(process))),
            _ => 0,
        };
        let submission = HwSubmission { process_generation, ..submission };
        let place = hw_queue::slot(self.submitted);
        if let Some(slice) = self.shared.slice(place, size_of::<HwSubmission>() as u64) {
            slice.copy_from(submission.as_bytes());
        }
        self.submitted += 1;
        self.fence_ids.push_back(submission.fence_id);
        self.last_submitted = submission.fence_id;
        // PAIRS WITH engine/kernel_queue.rs: the slot is there first.
        self.store(block::HW_QUEUE_SUBMITTED, self.submitted);
        self.poke();
        Ok(())
    }

    fn completed_command(&mut self) -> Option<HwResult> {
        // An engine that claims more than was submitted, or takes results back, is not believed.
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        if completed <= self.completed {
            return None;
        }
        let place = hw_queue::slot(self.completed) + hw_queue::RESULT;
        let mut bytes = [0; size_of::<HwResult>()];
        self.shared.slice(place, bytes.len() as u64)?.copy_to(&mut bytes);
        self.completed += 1;
        let fence_id = self.fence_ids.pop_front();
        let result = HwResult::read_from_bytes(&bytes).ok()?;
        // TDR-53: by what is returned here, however the engine changes its word.
        if !result.is_handed_back() {
            self.last_completed = fence_id.unwrap_or(self.last_completed);
        }
        Some(result)
    }

    fn set_scheduling_properties(&mut self, context: u32, parameters: &Parameters) {
        if let Some(generation) = self.contexts.generation(context) {
            self.write_properties(context, generation, parameters);
            self.poke();
        }
    }

    fn setup_priority_bands(&mut self, settings: &Settings) {
        self.write_bands(settings);
        self.poke();
    }

    fn preempt_command(&mut self) -> Preemption {
        self.preempt()
    }

    fn preemption_report(&mut self) -> Option<PreemptionReport> {
        self.take_preemption()
    }

    fn query_engine_status(&mut self) -> u32 {
        let progress = self.load(block::PROGRESS);
        let is_idle = Progress::from_word(progress).work == Work::Nothing;
        let responsive = progress != self.progress || is_idle;
        self.progress = progress;
        u32::from(responsive)
    }

    fn query_dependent_engine_group(&self) -> u64 {
        // Every node is a process of its own: none takes another down.
        match self.node {
            NodeKind::Compute => 1,
            NodeKind::Copy => 2,
        }
    }

    fn collect_debug_info(&self) -> DebugInfo {
        self.debug_info()
    }

    fn reset_engine(&mut self) -> Result<u64, AdapterError> {
        self.kill_and_abort()
    }
}
