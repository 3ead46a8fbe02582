//! Looks at engines that run nothing: a process that is stopped looks as idle as any, until it is asked for something.
//!
//! Only while an engine is awake or owes something, so that an idle daemon costs nothing.

use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_index;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::engine::progress::Work;

use super::state::Session;
use crate::recovery::liveness::Observation;
use crate::recovery::liveness::Verdict;
use crate::recovery::reason::Reason;

/// How long an engine may take to come up: it starts a driver and tests it.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Session {
    /// Has engines looked at that are awake. To be called when something was asked of one.
    pub(super) fn keep_looking(&mut self) {
        self.serve_residency();
        if self.look_at.is_some() || !self.addresses().any(|at| self.is_to_be_looked_at(at)) {
            return;
        }
        let periods = NODES.map(|node| self.config.timeouts[node_index(node)]);
        let period = periods[0].min(periods[1]).min(self.config.policy.compile_timeout) / 2;
        self.look_at = Some(Instant::now() + period);
        self.set_timer();
    }

    fn is_to_be_looked_at(&self, at: EngineAddress) -> bool {
        let slot = &self.engines[at.index()];
        let Some(process) = slot.process().filter(|_| slot.hears()) else { return false };
        !slot.has_begun()
            || slot.owes_kernels()
            || !process.is_asleep()
            || !slot.in_flight.is_empty()
            || process.watch_acknowledged() < process.watch_sequence()
    }

    /// Looks, if it is time to.
    pub(super) fn look_at_engines(&mut self) {
        if self.look_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.look_at = None;
        for at in self.addresses() {
            self.look_at_engine(at);
        }
        self.keep_looking();
    }

    fn look_at_engine(&mut self, at: EngineAddress) {
        let now = self.begun.elapsed();
        let timeout = self.config.watched_timeout(at.node);
        let compile_timeout = self.config.policy.compile_timeout;
        let slot = &mut self.engines[at.index()];
        if !slot.hears() || slot.is_held {
            return;
        }
        if !slot.has_begun() {
            if slot.stirred.elapsed() >= START_LIMIT {
                self.lose_engine(at, "it did not come up in time");
            }
            return;
        }
        if slot.owes_kernels() && slot.stirred.elapsed() >= compile_timeout {
            return self.kernels_are_overdue(at);
        }
        let Some(timeout) = timeout else { return };
        let has_work = !slot.in_flight.is_empty();
        let (liveness, process) = slot.liveness_and_process();
        let Some(process) = process else { return };
        let info = process.collect_debug_info();
        let observed = Observation {
            progress: info.progress.word(),
            runs: info.progress.work != Work::Nothing,
            is_asleep: process.is_asleep() && !has_work,
            asked: process.watch_sequence(),
            acknowledged: process.watch_acknowledged(),
        };
        match liveness.look(observed, timeout, now) {
            Verdict::Fine => {}
            Verdict::Ask => process.ask_acknowledgement(),
            Verdict::Dead => self.engine_timeout(at, "it does not answer", None),
        }
    }

    /// The kernel that is compiled has taken too long: it is refused, and its owner pays for the reset. One that is not
    /// forgotten is like any hang.
    fn kernels_are_overdue(&mut self, at: EngineAddress) {
        let limit = self.config.policy.compile_timeout;
        let slot = &self.engines[at.index()];
        if slot.compiling.is_empty() && slot.rebuilding.is_empty() {
            return self.engine_timeout(at, &format!("it did not forget a kernel within {limit:?}"), None);
        }
        let first = slot.compiling.values().min_by_key(|kernel| kernel.number);
        let owner = first.map(|kernel| kernel.origin.context);
        self.refuse_compiling(at, &format!("it did not compile within {limit:?}"));
        let text = format!("a kernel did not compile within {limit:?}");
        let report = self.recover_engine(at, Reason::EngineTimeout, &text, None);
        if let Some(owner) = owner {
            self.note_offence(owner, report);
        }
    }
}
