//! Contexts of an engine, their properties and their suspends, from the daemon (UMS-102 to UMS-114).

use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::engine::block;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::suspension::Suspension;
use zerocopy::IntoBytes;

use super::error::AdapterError;
use super::indices::Indices;
use super::shared::SharedBlock;
use crate::engine::properties::properties;
use crate::ids::ContextIndex;
use crate::memory::bits;
use crate::sched::parameters::Parameters;

/// The context entries of an engine.
#[derive(Debug)]
pub struct Contexts {
    shared: Arc<SharedBlock>,
    indices: Indices,
    /// The truth that the request words are copies of.
    requests: Vec<Suspension>,
    /// How often each entry was given out.
    generations: Vec<u32>,
}

/// A suspend fence that an engine reports and that it was never given: a fatal error of the engine (UMS-113).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it reported suspend fence {fence} of context entry {context}, which has had {issued}")]
pub struct NeverIssued {
    /// The context entry.
    pub context: ContextIndex,
    /// The fence.
    pub fence: u64,
    /// The last fence that was issued.
    pub issued: u64,
}

impl Contexts {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        let indices = Indices::new(block::MAX_CONTEXTS);
        Self { shared, indices, requests: Vec::new(), generations: Vec::new() }
    }

    /// A free entry, and its generation: another one each time.
    fn take(&mut self) -> Option<(ContextIndex, u32)> {
        let (index, _) = self.indices.take(self.shared.acknowledged())?;
        let place = index as usize;
        if self.requests.len() <= place {
            self.requests.resize(place + 1, Suspension::default());
            self.generations.resize(place + 1, 0);
        }
        self.requests[place] = Suspension::default();
        self.generations[place] = self.generations[place].wrapping_add(1).max(1);
        Some((ContextIndex::new(index), self.generations[place]))
    }

    pub(super) fn create(&mut self, area_va: u64) -> Result<ContextIndex, AdapterError> {
        let (index, generation) = self.take().ok_or(AdapterError::Full("context entry"))?;
        self.write_properties(index, generation, &Parameters::default());
        // The engine has acknowledged the end of the context before it, and touches neither until it is asked.
        self.shared.store(block::context_request(index.get()), Suspension::default().word());
        self.shared.store(block::context_report(index.get()), 0);
        self.shared.store(block::context_area(index.get()), area_va);
        Ok(index)
    }

    pub(super) fn destroy(&mut self, context: ContextIndex) {
        self.shared.changed();
        self.indices.retire(context.get(), self.shared.sequence());
    }

    /// A context that another engine had, and its suspends so far, all of them reported.
    ///
    /// # Errors
    /// The table is full.
    pub fn take_over(&mut self, suspends: Suspension, area_va: u64) -> Result<ContextIndex, AdapterError> {
        let context = self.create(area_va)?;
        if let Some(request) = self.requests.get_mut(context.get() as usize) {
            *request = suspends;
        }
        self.shared.store(block::context_request(context.get()), suspends.word());
        self.shared.store(block::context_report(context.get()), suspends.fence);
        Ok(context)
    }

    pub(super) fn change_suspension(
        &mut self,
        context: ContextIndex,
        change: impl Fn(Suspension) -> Suspension,
    ) -> Suspension {
        let Some(request) = self.requests.get_mut(context.get() as usize) else {
            return Suspension::default();
        };
        *request = change(*request);
        let request = *request;
        self.shared.store(block::context_request(context.get()), request.word());
        // PAIRS WITH engine/suspension.rs `report`: the word is there first.
        bits::raise(&self.shared.mapping, block::SUSPENDS, context.get());
        self.shared.changed();
        request
    }

    /// Sets how a context is scheduled, where there is one.
    pub(super) fn set_properties(&self, context: ContextIndex, parameters: &Parameters) {
        if let Some(generation) = self.generation(context) {
            self.write_properties(context, generation, parameters);
            self.shared.poke();
        }
    }

    fn write_properties(&self, context: ContextIndex, generation: u32, parameters: &Parameters) {
        let properties = properties(parameters, generation);
        self.shared.write(scheduling::properties(context.get()), properties.as_bytes());
        // PAIRS WITH engine/run_list.rs `refresh`: the properties are there first.
        bits::raise(&self.shared.mapping, scheduling::RESCHEDULED, context.get());
        self.shared.change();
    }

    /// Which use of a context entry is the present one, as log entries say it; none of an entry that was never used.
    pub fn generation(&self, context: ContextIndex) -> Option<u32> {
        self.generations.get(context.get() as usize).copied()
    }

    /// How long a context has had the engine, by the engine's own word.
    pub fn used(&self, context: ContextIndex) -> Duration {
        Duration::from_nanos(self.shared.load(scheduling::used(context.get())))
    }

    /// Suspends of a context so far: what a submission of it must carry.
    pub fn suspends(&self, context: ContextIndex) -> u64 {
        self.requests.get(context.get() as usize).map_or(0, |request| request.fence)
    }

    /// The last suspend fence that the engine has reported for a context. One without a process holds nothing, so that
    /// all that was asked of it is done.
    pub fn suspend_reported(&self, context: ContextIndex) -> u64 {
        let issued = self.suspends(context);
        if self.shared.is_lost() {
            issued
        } else {
            self.shared.load(block::context_report(context.get())).min(issued)
        }
    }

    /// Reports all suspends in the place of the process that has ended: it runs nothing any more.
    pub(super) fn report_suspends(&self) {
        for (context, request) in (0..).zip(&self.requests) {
            self.shared.store(block::context_report(context), request.fence);
        }
    }

    /// Whether it has reported every suspend that it was asked for.
    pub fn has_reported_suspends(&self) -> bool {
        (0..)
            .zip(&self.requests)
            .all(|(context, request)| self.suspend_reported(ContextIndex::new(context)) >= request.fence)
    }

    /// The contexts whose suspend fence has moved since the last call.
    ///
    /// # Errors
    /// The engine reports one that was never issued.
    pub fn take_suspend_reports(&self) -> Result<Vec<ContextIndex>, NeverIssued> {
        let reports = bits::take(&self.shared.mapping, block::SUSPEND_REPORTS, block::SUSPEND_WORDS);
        let contexts: Vec<ContextIndex> = reports.into_iter().map(ContextIndex::new).collect();
        for &context in &contexts {
            let fence = self.shared.load(block::context_report(context.get()));
            let issued = self.suspends(context);
            if fence > issued {
                return Err(NeverIssued { context, fence, issued });
            }
        }
        Ok(contexts)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::suspension::Suspension;

    use super::Contexts;
    use super::NeverIssued;
    use super::SharedBlock;
    use crate::memory::bits;

    fn contexts() -> (Arc<SharedBlock>, Contexts) {
        let shared = Arc::new(SharedBlock::new().unwrap());
        shared.set_lost(false);
        (Arc::clone(&shared), Contexts::new(shared))
    }

    #[test]
    fn ums_113_a_suspend_fence_that_was_never_issued_is_an_error_of_the_engine() {
        let (shared, mut contexts) = contexts();
        let context = contexts.create(0).unwrap();
        assert_eq!(contexts.change_suspension(context, Suspension::suspend).fence, 1);
        assert!(!contexts.has_reported_suspends());
        let report = |fence| {
            shared.store(block::context_report(context.get()), fence);
            bits::raise(&shared.mapping, block::SUSPEND_REPORTS, context.get());
        };
        report(1);
        assert!(contexts.has_reported_suspends());
        assert_eq!(contexts.take_suspend_reports(), Ok(vec![context]));
        assert_eq!(contexts.take_suspend_reports(), Ok(Vec::new()), "once");
        report(2);
        assert_eq!(contexts.suspend_reported(context), 1, "no more is believed");
        assert_eq!(contexts.take_suspend_reports(), Err(NeverIssued { context, fence: 2, issued: 1 }));
    }

    #[test]
    fn ums_109_a_lost_engine_has_suspended_whatever_it_was_asked_to() {
        let (shared, mut contexts) = contexts();
        let context = contexts.create(0).unwrap();
        contexts.change_suspension(context, Suspension::suspend);
        assert_eq!(contexts.suspend_reported(context), 0);
        shared.set_lost(true);
        assert_eq!(contexts.suspend_reported(context), 1);
        contexts.report_suspends();
        shared.set_lost(false);
        assert_eq!(contexts.suspend_reported(context), 1, "and the next finds it so");
    }

    #[test]
    fn a_context_entry_has_another_generation_each_time_it_is_given_out() {
        let (shared, mut contexts) = contexts();
        let context = contexts.create(0).unwrap();
        let first = contexts.generation(context);
        contexts.destroy(context);
        shared.store(block::WATCH_ACK, shared.sequence());
        assert_eq!(contexts.create(0).unwrap(), context);
        assert_ne!(contexts.generation(context), first);
        let moved = contexts.take_over(Suspension { fence: 6, ..Suspension::default() }, 0).unwrap();
        assert_eq!((contexts.suspends(moved), contexts.suspend_reported(moved)), (6, 6));
    }
}
