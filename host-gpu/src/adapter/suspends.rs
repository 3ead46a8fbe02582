//! Contexts of an engine and their suspends, from the daemon (UMS-102 to UMS-114).

use campanile_protocol::engine::block;
use campanile_protocol::engine::suspension::Suspension;

use super::indices::Indices;
use super::process::EngineProcess;
use crate::memory::bits;

/// The context entries of an engine.
#[derive(Debug)]
pub struct Contexts {
    indices: Indices,
    /// The truth that the request words are copies of.
    requests: Vec<Suspension>,
    /// How often each entry was given out.
    generations: Vec<u32>,
}

impl Default for Contexts {
    fn default() -> Self {
        Self { indices: Indices::new(block::MAX_CONTEXTS), requests: Vec::new(), generations: Vec::new() }
    }
}

impl Contexts {
    /// A free entry, and its generation: another one each time.
    pub(super) fn take(&mut self, acknowledged: u64) -> Option<(u32, u32)> {
        let (index, _) = self.indices.take(acknowledged)?;
        let place = index as usize;
        if self.requests.len() <= place {
            self.requests.resize(place + 1, Suspension::default());
            self.generations.resize(place + 1, 0);
        }
        self.requests[place] = Suspension::default();
        self.generations[place] = self.generations[place].wrapping_add(1).max(1);
        Some((index, self.generations[place]))
    }

    /// What was asked of a context that another engine had before.
    pub(super) fn put(&mut self, context: u32, request: Suspension) {
        if let Some(place) = self.requests.get_mut(context as usize) {
            *place = request;
        }
    }

    pub(super) fn generation(&self, context: u32) -> Option<u32> {
        self.generations.get(context as usize).copied()
    }

    pub(super) fn retire(&mut self, context: u32, sequence: u64) {
        self.indices.retire(context, sequence);
    }

    fn get(&self, context: u32) -> Suspension {
        self.requests.get(context as usize).copied().unwrap_or_default()
    }
}

/// A suspend fence that an engine reports and that it was never given: a fatal error of the engine (UMS-113).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it reported suspend fence {fence} of context entry {context}, which has had {issued}")]
pub struct NeverIssued {
    /// The context entry.
    pub context: u32,
    /// The fence.
    pub fence: u64,
    /// The last fence that was issued.
    pub issued: u64,
}

impl EngineProcess {
    pub(super) fn change_suspension(
        &mut self,
        context: u32,
        change: impl Fn(Suspension) -> Suspension,
    ) -> Suspension {
        let Some(request) = self.contexts.requests.get_mut(context as usize) else {
            return Suspension::default();
        };
        *request = change(*request);
        let request = *request;
        self.store(block::context_request(context), request.word());
        // PAIRS WITH engine/suspension.rs `report`: the word is there first.
        bits::raise(&self.shared, block::SUSPENDS, context);
        self.changed();
        request
    }

    /// Suspends of a context so far: what a submission of it must carry.
    pub fn suspends(&self, context: u32) -> u64 {
        self.contexts.get(context).fence
    }

    /// The last suspend fence that the engine has reported for a context. One without a process holds nothing, so that
    /// all that was asked of it is done.
    pub fn suspend_reported(&self, context: u32) -> u64 {
        let issued = self.contexts.get(context).fence;
        if self.lost { issued } else { self.load(block::context_report(context)).min(issued) }
    }

    /// Reports all suspends in the place of the process that has ended: it runs nothing any more.
    pub(super) fn report_suspends(&self) {
        for (context, request) in (0..).zip(&self.contexts.requests) {
            self.store(block::context_report(context), request.fence);
        }
    }

    /// Whether it has reported every suspend that it was asked for.
    pub fn has_reported_suspends(&self) -> bool {
        (0..)
            .zip(&self.contexts.requests)
            .all(|(context, request)| self.suspend_reported(context) >= request.fence)
    }

    /// The contexts whose suspend fence has moved since the last call.
    ///
    /// # Errors
    /// The engine reports one that was never issued.
    pub fn take_suspend_reports(&self) -> Result<Vec<u32>, NeverIssued> {
        let contexts = bits::take(&self.shared, block::SUSPEND_REPORTS, block::SUSPEND_WORDS);
        for &context in &contexts {
            let fence = self.load(block::context_report(context));
            let issued = self.contexts.get(context).fence;
            if fence > issued {
                return Err(NeverIssued { context, fence, issued });
            }
        }
        Ok(contexts)
    }
}
