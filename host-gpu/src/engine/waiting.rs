//! An engine that runs nothing: without work, or without its node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::engine::block;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::PREEMPT_REQUEST;
use campanile_protocol::handshake::grant;

use super::execution::Execution;
use super::idle::LINGER;
use super::idle::Quiet;
use super::words::load;

/// How often an engine that waits for its turn looks for rings that could be more urgent.
const URGENT_LOOK: Duration = Duration::from_micros(200);

impl Execution {
    /// Whether the daemon has changed something that was not acted on yet.
    pub(super) fn is_stale(&self) -> bool {
        self.commands.pending.load(Ordering::Acquire)
            || self.watch.is_stale(&self.machine.shared)
            || load(&self.machine.shared, block::PAGE_TABLE_GENERATION) != self.generation
            || load(&self.machine.shared, PREEMPT_REQUEST) != self.preempted
    }

    /// Nothing to run: spin for a while, then sleep.
    pub(super) fn rest(&mut self) {
        if self.should_release() && self.machine.shared.word(block::GRANT).is_some_and(grant::release) {
            self.events.grant.signal();
        }
        let quiet = Quiet {
            is_stale: self.is_stale() || self.kernel_has_work() || self.watch.owes_looks(),
            waits: !self.blocked.is_empty() || self.kernel_blocked,
            has_doorbells: self.watch.has_doorbells(),
            is_notified: self.watch.is_notified(),
        };
        let mut idle = self.idle;
        idle.rest(&self.machine.shared, &self.events, quiet, || {
            self.is_stale()
                || self.should_release()
                || if self.kernel_blocked {
                    self.kernel_queue.is_in_the_way(&self.machine.shared)
                } else {
                    self.kernel_queue.has_work(&self.machine.shared)
                }
        });
        self.idle = idle;
    }

    /// Whether an engine without work gives up its place among the engines that want its node, or the node: at once
    /// where it was asked to yield, and after a moment where others want it.
    fn should_release(&self) -> bool {
        match grant::Grant::from_word(load(&self.machine.shared, block::GRANT)).phase {
            grant::Phase::Want | grant::Phase::Revoking | grant::Phase::Yielded => true,
            grant::Phase::Granted => {
                load(&self.machine.shared, scheduling::CONTENDED) != 0 && self.idle.has_lasted(LINGER)
            }
            _ => false,
        }
    }

    /// Another engine has the node.
    pub(super) fn wait_for_grant(&mut self) {
        // No signal announces a ring. One that would change whose turn it is must not wait for the turn.
        let mut contexts = self.watch.contexts();
        let may_become_urgent = contexts.any(|context| self.run_list.urgency_of(context) > self.urgency);
        drop(contexts);
        let limit = may_become_urgent.then_some(URGENT_LOOK);
        self.idle.nap(&self.machine.shared, &self.events.wake, limit, || {
            let grant = grant::Grant::from_word(load(&self.machine.shared, block::GRANT));
            grant.holds() || self.is_stale()
        });
    }
}
