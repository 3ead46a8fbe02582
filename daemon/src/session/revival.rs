//! An engine that hung or died is replaced, and who was in its way pays: nobody else notices (TDR-03, TDR-70).
//!
//! ```text
//!   hung, died ─▶ killed and reaped (TDR-46) ─▶ whose work did it run? ─▶ that device is in error (TDR-61)
//!                        │
//!                        └─▶ next process over the same shared block ─▶ told of segments and kernels
//!                                  ─▶ ready: takes part in turns, goes on where the other stopped (TDR-57)
//! ```
//!
//! An engine that is reset too often, or that ends again before it is ready, is lost with all its devices.

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Request;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;
use log::Level;

use super::counters::count;
use super::objects::node_index;
use super::reply::Refused;
use super::state::Session;

/// Resets of one engine within [`RESET_PERIOD`] that leave innocent devices alone (TDR-18, TDR-19).
const RESET_LIMIT: usize = 5;
/// See [`RESET_LIMIT`].
const RESET_PERIOD: Duration = Duration::from_secs(60);

/// When an engine was reset of late.
#[derive(Debug, Default)]
pub struct Resets {
    times: VecDeque<Instant>,
}

impl Resets {
    /// Whether one more, at `now`, is within the limit.
    fn admit(&mut self, now: Instant) -> bool {
        self.times.retain(|time| now.saturating_duration_since(*time) < RESET_PERIOD);
        let admitted = self.times.len() < RESET_LIMIT;
        if admitted {
            self.times.push_back(now);
        }
        admitted
    }
}

impl Session {
    /// Replaces the process of a running engine. False where that cannot be: then it is lost.
    pub(super) fn revive_engine(&mut self, node: NodeKind, reason: &str) -> bool {
        let index = node_index(node);
        if !self.engines[index].has_begun() || !self.engines[index].resets.admit(Instant::now()) {
            return false;
        }
        let Some(work) = self.reset_process(node) else { return false };
        if let Err(error) = self.start_next_process(node) {
            self.journal.line(Level::Error, format_args!("{node:?} engine: {error}"));
            return false;
        }
        count(&self.counters.engines_reset);
        let guilty = self.convict(node, work);
        match guilty {
            Some(context) => self.journal.line(
                Level::Warn,
                format_args!("{node:?} engine is reset: {reason}; context {context} is lost"),
            ),
            None => self.journal.line(Level::Warn, format_args!("{node:?} engine is reset: {reason}")),
        }
        self.run_pending();
        true
    }

    /// Kills and reaps; what it worked on.
    fn reset_process(&mut self, node: NodeKind) -> Option<Work> {
        self.unwatch_engine(node);
        let slot = &mut self.engines[node_index(node)];
        let process = slot.process_mut()?;
        process.reset_engine();
        process.forget_signalled();
        let work = process.work();
        if let Some(id) = slot.supervised.take() {
            self.config.supervisor.remove(id);
        }
        Some(work)
    }

    /// Starts the next process, and puts into its outbox what it has to know before it may run.
    pub(super) fn start_next_process(&mut self, node: NodeKind) -> std::io::Result<()> {
        self.refuse_compiling(node, "the engine ended while it compiled this kernel");
        let start = self.config.start_message(node, self.tables.mapping().len());
        let memory = Self::engine_memory(&self.config, &self.allocations, &self.tables, &self.fences);
        let slot = &mut self.engines[node_index(node)];
        slot.revive(&self.config.program, &start, memory)?;
        self.watch_engine(node)?;
        let segments: Vec<SegmentId> = self.segments.ids().collect();
        for segment in segments {
            self.announce_segment(node, segment);
        }
        self.look_again(node);
        if node == NodeKind::Compute {
            let devices = self.processes.values().filter_map(|process| process.device.as_ref());
            let kernels: Vec<_> = devices
                .flat_map(|device| {
                    let root = device.root.0;
                    device
                        .kernels
                        .iter()
                        .map(move |(handle, source)| (Self::kernel_name(root, handle), source.clone()))
                })
                .collect();
            for (kernel, source) in kernels {
                self.engines[node_index(node)].rebuilding.insert((kernel.root, kernel.handle));
                let request =
                    Request::CreateKernel { kernel, language: source.language, entry: source.entry };
                self.post(node, request, &source.bytes);
            }
        }
        Ok(())
    }

    /// What the last process had seen of rings, and not run, nobody would see otherwise: rings are not rung twice.
    fn look_again(&self, node: NodeKind) {
        let Some(process) = self.engines[node_index(node)].process() else { return };
        for device in self.processes.values().filter_map(|process| process.device.as_ref()) {
            let of_node = device.doorbells.iter().filter(|(_, bell)| bell.node == node && bell.was_connected);
            for hw_queue in of_node.filter_map(|(_, doorbell)| doorbell.hw_queue) {
                process.ask_look(hw_queue);
            }
        }
    }

    /// Puts the device in error whose work the engine ran (TDR-61); its context.
    fn convict(&mut self, node: NodeKind, work: Work) -> Option<u32> {
        // What was done before the end counts.
        self.collect_reports(node);
        let index = node_index(node);
        let guilty = match work {
            Work::Nothing => None,
            Work::HwQueue => {
                let oldest = self.engines[index].in_flight.front().and_then(|flight| flight.owner);
                if self.engines[index].process_mut()?.abort_command(Fault::Driver) {
                    self.collect_completions(node);
                }
                oldest.map(|(context, _)| context)
            }
            Work::UserQueue(hw_queue) => self.owner_of_hw_queue(node, hw_queue).map(|(context, _)| context),
        };
        if let Some(context) = guilty {
            self.put_device_in_error(context, DEVICE_HUNG);
        }
        guilty
    }

    /// Answers who waits for a kernel: the compiler may be what ended the engine.
    pub(super) fn refuse_compiling(&mut self, node: NodeKind, text: &str) {
        for kernel in std::mem::take(&mut self.engines[node_index(node)].compiling).into_values() {
            self.drop_kernel(kernel.origin.context, kernel.handle);
            let refused = Refused { status: Status::KernelRefused, text: text.to_owned() };
            self.answer(kernel.origin, Err(refused));
        }
    }

    /// Lets an engine that knows all it must take part in turns.
    pub(super) fn admit_engine(&mut self, node: NodeKind) {
        let slot = &mut self.engines[node_index(node)];
        if !slot.is_running() || slot.supervised.is_some() {
            return;
        }
        let Some(handle) = slot.process().map(|process| process.grant_handle()) else { return };
        // An alarm about the process before this one says nothing about this one.
        let _stale = slot.alarm().take();
        let alarm = std::sync::Arc::clone(slot.alarm());
        slot.supervised = Some(self.config.supervisor.add(node, handle, alarm));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::RESET_LIMIT;
    use super::RESET_PERIOD;
    use super::Resets;

    #[test]
    fn tdr_18_five_resets_in_a_minute_and_no_sixth() {
        let mut resets = Resets::default();
        let begun = Instant::now();
        assert!((0..RESET_LIMIT).all(|_| resets.admit(begun)));
        assert!(!resets.admit(begun));
        assert!(!resets.admit(begun + RESET_PERIOD / 2));
        assert!(resets.admit(begun + RESET_PERIOD));
    }
}
