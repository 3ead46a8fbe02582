//! The operations of [`Adapter`], by the parts of an engine's handle that do them.

use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::suspension::Suspension;

use super::ddi::Adapter;
use super::debug_info::DebugInfo;
use super::debug_info::debug_info;
use super::error::AdapterError;
use super::process::EngineProcess;
use super::scheduling::Preemption;
use super::scheduling::PreemptionReport;
use crate::engine::message::NodeKind;
use crate::ids::ContextIndex;
use crate::ids::DoorbellIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::Settings;

impl Adapter for EngineProcess {
    fn create_process(&mut self, entry: ProcessEntry) -> Result<ProcessIndex, AdapterError> {
        self.tables.create_process(entry)
    }

    fn destroy_process(&mut self, process: ProcessIndex) {
        self.tables.destroy_process(process);
    }

    fn create_context(&mut self, area_va: u64) -> Result<ContextIndex, AdapterError> {
        self.contexts.create(area_va)
    }

    fn destroy_context(&mut self, context: ContextIndex) {
        self.contexts.destroy(context);
    }

    fn suspend_context(&mut self, context: ContextIndex) -> u64 {
        self.contexts.change_suspension(context, Suspension::suspend).fence
    }

    fn resume_context(&mut self, context: ContextIndex) {
        let _resumed = self.contexts.change_suspension(context, Suspension::resume);
    }

    fn create_hw_queue(&mut self, entry: QueueEntry) -> Result<QueueIndex, AdapterError> {
        self.tables.put_queue(entry, false)
    }

    fn destroy_hw_queue(&mut self, queue: QueueIndex) {
        self.tables.destroy_queue(queue);
    }

    fn connect_doorbell(&mut self, slot: DoorbellIndex, queue: QueueIndex, process: ProcessIndex, cell: u16) {
        self.tables.connect_doorbell(slot, queue, process, cell);
    }

    fn disconnect_doorbell(&mut self, slot: DoorbellIndex) {
        self.tables.disconnect_doorbell(slot);
    }

    fn connect_notified(&mut self, queue: QueueIndex) {
        self.tables.connect_notified(queue);
    }

    fn disconnect_notified(&mut self, queue: QueueIndex) {
        self.tables.disconnect_notified(queue);
    }

    fn notify(&mut self, queue: QueueIndex) {
        self.tables.notify(queue);
    }

    fn submit_command(&mut self, submission: HwSubmission) -> Result<(), AdapterError> {
        self.hw_queue.submit(submission)
    }

    fn completed_command(&mut self) -> Option<HwResult> {
        self.hw_queue.collect()
    }

    fn set_scheduling_properties(&mut self, context: ContextIndex, parameters: &Parameters) {
        self.contexts.set_properties(context, parameters);
    }

    fn setup_priority_bands(&mut self, settings: &Settings) {
        self.schedule.write_bands(settings);
    }

    fn preempt_command(&mut self) -> Preemption {
        self.hw_queue.preempt()
    }

    fn preemption_report(&mut self) -> Option<PreemptionReport> {
        self.hw_queue.take_preemption()
    }

    fn query_engine_status(&mut self) -> u32 {
        u32::from(self.power.is_responsive())
    }

    fn query_dependent_engine_group(&self) -> u64 {
        // Every node is a process of its own: none takes another down.
        match self.node {
            NodeKind::Compute => 1,
            NodeKind::Copy => 2,
        }
    }

    fn collect_debug_info(&self) -> DebugInfo {
        debug_info(&self.shared, &self.hw_queue)
    }

    fn reset_engine(&mut self) -> Result<u64, AdapterError> {
        self.end_and_abort()
    }
}
