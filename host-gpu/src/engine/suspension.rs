//! Contexts that may not run, from the engine thread (UMS-102 to UMS-114).

use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::suspension::Suspension;

use super::words::load;
use crate::ids::ContextIndex;
use crate::memory::bits;
use crate::memory::mapping::Mapping;

/// What the daemon says of a context now; one that does not exist is not suspended.
pub fn of(shared: &Mapping, context: ContextIndex) -> Suspension {
    if context.get() >= block::MAX_CONTEXTS {
        return Suspension::default();
    }
    Suspension::from_word(load(shared, block::context_request(context.get())))
}

/// Reports each suspend that was asked for since the last call. Nothing of these contexts runs, or is held, when this
/// is called: their queues have been put aside. What was resumed by now is reported too, and says nothing.
pub fn report(shared: &Mapping) {
    // PAIRS WITH adapter/suspends.rs `change_suspension`.
    for context in
        bits::take(shared, block::SUSPENDS, block::SUSPEND_WORDS).into_iter().map(ContextIndex::new)
    {
        let fence = of(shared, context).fence;
        if let Some(word) = shared.word(block::context_report(context.get())) {
            word.store(fence, Ordering::Release);
        }
        // PAIRS WITH adapter/suspends.rs `take_suspend_reports`: the report is there first.
        bits::raise(shared, block::SUSPEND_REPORTS, context.get());
    }
}
