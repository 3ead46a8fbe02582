//! What the scheduler and the object layer ask of an engine, in the terms of the field (design §1).

use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;

use super::debug_info::DebugInfo;
use super::error::AdapterError;
use super::scheduling::Preemption;
use super::scheduling::PreemptionReport;
use crate::ids::ContextIndex;
use crate::ids::DoorbellIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::sched::parameters::Parameters;
use crate::sched::parameters::Settings;

/// One engine of one node, in the terms of the field (design §1). Implemented by the engine process, and by
/// whatever stands in for it in tests.
pub trait Adapter {
    /// Makes a guest process known: its root page table and device page (MCDM-51 "set root page table"), and where in
    /// that page its global cell lies; zero in the dedicated model. `entry.generation` is filled in.
    fn create_process(&mut self, entry: ProcessEntry) -> Result<ProcessIndex, AdapterError>;
    /// Forgets it.
    fn destroy_process(&mut self, process: ProcessIndex);
    /// Makes a context known; resumed (UMS-114). Its save area lies at `area_va` of the address space that the entry of its
    /// process names.
    fn create_context(&mut self, area_va: u64) -> Result<ContextIndex, AdapterError>;
    /// Forgets it. Nothing of it is left with the engine.
    fn destroy_context(&mut self, context: ContextIndex);
    /// Stops a context as soon as can be (UMS-108); the fence that the engine reports then (UMS-109).
    fn suspend_context(&mut self, context: ContextIndex) -> u64;
    /// Lets it run again.
    fn resume_context(&mut self, context: ContextIndex);
    /// Makes a user-mode queue known. `entry.generation` is filled in.
    fn create_hw_queue(&mut self, entry: QueueEntry) -> Result<QueueIndex, AdapterError>;
    /// Forgets it.
    fn destroy_hw_queue(&mut self, queue: QueueIndex);
    /// Points physical doorbell `slot` at a cell (UMS-56); for a process with a global cell, has a ring of that one
    /// stand for `queue` as well. An engine that sleeps is not woken: the caller does that, once it has told the guest
    /// that the doorbell is connected.
    fn connect_doorbell(&mut self, slot: DoorbellIndex, queue: QueueIndex, process: ProcessIndex, cell: u16);
    /// Takes the cell away from `slot` (UMS-66).
    fn disconnect_doorbell(&mut self, slot: DoorbellIndex);
    /// Connects a queue whose rings are announced by NOTIFY (UMS-51).
    fn connect_notified(&mut self, queue: QueueIndex);
    /// Ends that.
    fn disconnect_notified(&mut self, queue: QueueIndex);
    /// A queue connected that way was rung (UMS-94).
    fn notify(&mut self, queue: QueueIndex);
    /// Hands a kernel-mode buffer over.
    fn submit_command(&mut self, submission: HwSubmission) -> Result<(), AdapterError>;
    /// The next finished kernel-mode buffer, in order (MCDM-17).
    fn completed_command(&mut self) -> Option<HwResult>;
    /// Sets how a context is scheduled; in force at the engine's next decision (PRE-69).
    fn set_scheduling_properties(&mut self, context: ContextIndex, parameters: &Parameters);
    /// Sets the bands up: before the first work, or later, in force at the next decision (PRE-69).
    fn setup_priority_bands(&mut self, settings: &Settings);
    /// Has the engine put back all that is in its hardware queue, at the next boundary (PRE-19). Nothing is submitted
    /// until [`Self::preemption_report`]. Never fails (PRE-23); one that is under way stands for another.
    fn preempt_command(&mut self) -> Preemption;
    /// The report of the preempt command, once all results before it were taken by [`Self::completed_command`]
    /// (PRE-26, MCDM-33).
    fn preemption_report(&mut self) -> Option<PreemptionReport>;
    /// Whether the engine makes progress (TDR-26): bit 0, all others zero. Always succeeds.
    fn query_engine_status(&mut self) -> u32;
    /// Nodes that a reset of this one takes down with it, one bit an ordinal; its own is always among them (TDR-31).
    /// Always succeeds (TDR-34).
    fn query_dependent_engine_group(&self) -> u64;
    /// What there is to say of the engine, before it is reset (TDR-81). Changes nothing, and does not wait.
    fn collect_debug_info(&self) -> DebugInfo;
    /// Stops the engine for good; when this returns nothing touches memory any more (TDR-46). Returns the id of the
    /// buffer that it ran and did not finish, or of the last one that completed (TDR-47, TDR-48).
    ///
    /// # Errors
    /// The process does not end (TDR-15, TDR-49).
    fn reset_engine(&mut self) -> Result<u64, AdapterError>;
}
