//! What an engine that has its node runs next, and what it tells of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling::LATENCY_BOOSTS;
use campanile_protocol::engine::scheduling::PREEMPT_REQUEST;
use campanile_protocol::engine::scheduling::REALTIME;
use campanile_protocol::engine::scheduling::REALTIME_LASTS;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::power;

use super::execution::Execution;
use super::progress;
use super::run_list::Next;
use super::user_queue::Outcome;
use super::words::load;
use crate::ids::ContextIndex;
use crate::ids::QueueIndex;
use crate::memory::bits;
use crate::node::buffer::Node;
use crate::node::clock;
use crate::sched::parameters::Band;

impl Execution {
    /// Has the run list know whose kernel-mode buffer is next.
    pub(super) fn list_kernel(&mut self) {
        // Before the look below: what is submitted after it ends the turn of others, and is listed then.
        self.submitted = load(&self.machine.shared, block::HW_QUEUE_SUBMITTED);
        let is_there = self.kernel_has_work();
        if !is_there && !self.run_list.has_kernel() {
            return;
        }
        let context = self.kernel_queue.context(&self.machine.shared).filter(|_| is_there);
        self.run_list.set_kernel(context, clock::monotonic());
    }

    pub(super) fn kernel_has_work(&self) -> bool {
        !self.kernel_blocked && self.kernel_queue.has_work(&self.machine.shared)
    }

    /// One buffer, or what is run of it until others must be asked, of the context whose turn it is.
    pub(super) fn step(&mut self) {
        let begin = clock::monotonic();
        self.look_for_latency_boost();
        let Some(turn) = self.run_list.next(begin) else { return };
        self.show_context(turn.context);
        if std::mem::take(&mut self.peeks_are_stale) {
            self.peeks = self.watch.peeks(&self.machine.tables, &self.machine.segments);
        }
        let shared = Arc::clone(&self.machine.shared);
        // By what was acted on, and not by what is there now: what came since then ends this turn, too.
        let (sequence, generation) = (self.watch.sequence(), self.generation);
        let (preempted, submitted) = (self.preempted, self.submitted);
        let pending = Arc::clone(&self.commands.pending);
        let peeks = std::mem::take(&mut self.peeks);
        let own = match turn.next {
            Next::Queue(queue) => Some(queue),
            Next::Kernel => None,
        };
        let is_realtime = self.run_list.urgency_of(turn.context).band == Band::Realtime as u8;
        let word = shared.word(REALTIME).filter(|_| is_realtime);
        // No other thread stores there.
        let realtime = word.map(|word| (word, Duration::from_nanos(word.load(Ordering::Relaxed))));
        let mut should_pause = || {
            progress::step(&shared);
            if let Some((word, _)) = realtime {
                word.store(clock::nanoseconds(clock::monotonic()), Ordering::Release);
            }
            let turn_is_over = || turn.until.is_some_and(|until| clock::monotonic() >= until);
            grant::Grant::from_word(load(&shared, block::GRANT)).phase == grant::Phase::Revoking
                || load(&shared, block::WATCH_SEQUENCE) != sequence
                || load(&shared, block::PAGE_TABLE_GENERATION) != generation
                || load(&shared, PREEMPT_REQUEST) != preempted
                || (own.is_some() && load(&shared, block::HW_QUEUE_SUBMITTED) != submitted)
                || peeks.has_other_ring(own)
                || pending.load(Ordering::Acquire)
                || turn_is_over()
        };
        match turn.next {
            Next::Kernel => self.run_kernel_queue(&mut should_pause),
            Next::Queue(index) => self.run_user_queue(index, &mut should_pause),
        }
        self.peeks = peeks;
        let end = clock::monotonic();
        self.run_list.ran(turn.context, begin, end);
        if let Some((word, before)) = realtime {
            word.store(clock::nanoseconds(end), Ordering::Release);
            // The supervisor looks by itself as long as more comes sooner. Only now: what it does is for the next one.
            if begin.saturating_sub(before) >= REALTIME_LASTS / 2 {
                self.events.grant.signal();
            }
        }
        self.list_kernel();
        let is_over = self.run_list.settle(turn.context, end);
        let properties = self.run_list.properties(turn.context);
        self.log.ran(&self.machine.shared, turn.context, &properties, (begin, end), !is_over);
        self.end_if_lost();
    }

    /// Has slices be shorter where realtime work came since the last look, to this engine or to another one of its node.
    fn look_for_latency_boost(&mut self) {
        let latency_boosts = load(&self.machine.shared, LATENCY_BOOSTS);
        let others = std::mem::replace(&mut self.latency_boosts, latency_boosts) != latency_boosts;
        if let Node::Compute(compute) = &mut self.machine.node
            && (others || self.run_list.wants_latency_boost())
        {
            compute.latency_boost.begin(Instant::now());
        }
    }

    /// Says whose state is on the engine from here on, before its work starts.
    fn show_context(&self, context: ContextIndex) {
        let last = u64::from(context.get()) + 1;
        if let Some(word) = self.machine.shared.word(block::LAST_CONTEXT)
            && word.load(Ordering::Relaxed) != last
        {
            word.store(last, Ordering::Release);
        }
    }

    fn run_kernel_queue(&mut self, should_pause: &mut dyn FnMut() -> bool) {
        let outcome = self.kernel_queue.turn(&mut self.machine, &mut self.watch, should_pause);
        progress::end(&self.machine.shared);
        match outcome {
            Outcome::Blocked => self.kernel_blocked = true,
            outcome => self.tell_of_results(outcome),
        }
    }

    fn run_user_queue(&mut self, index: QueueIndex, should_pause: &mut dyn FnMut() -> bool) {
        let Some((queue, process)) = self.watch.queue(index) else { return };
        let shared = Arc::clone(&self.machine.shared);
        progress::begin(&shared, Work::UserQueue(index.get()), queue.is_exempt());
        let outcome = queue.turn(&mut self.machine, process, should_pause);
        let more = queue.has_work();
        let drained = !more && queue.report_drained(&shared);
        progress::end(&shared);
        match outcome {
            Outcome::Blocked => {
                self.blocked.push(index);
                return;
            }
            Outcome::Faulted | Outcome::WakeWaiter => self.ask_attention(index),
            Outcome::Idle | Outcome::More => {}
        }
        if more && let Some((queue, _)) = self.watch.queue(index) {
            self.run_list.queue_ready(queue.context(), index);
        }
        if drained {
            self.ask_attention(index);
        }
    }

    /// Where the driver is lost, reports that (UMS-121, TDR-23) and waits for the end: the next context to run would
    /// pay for it.
    fn end_if_lost(&self) {
        let has_failed = matches!(&self.machine.node, Node::Compute(compute) if compute.is_lost());
        if !has_failed && !self.machine.segments.is_device_lost() {
            return;
        }
        if let Some(word) = self.machine.shared.word(block::POWER) {
            // An engine that runs is ACTIVE.
            let _reported = power::report_hung(word);
        }
        self.events.event.signal();
        loop {
            std::thread::park();
        }
    }

    /// Interrupts the daemon for a result of the hardware queue, unless it looks for it anyway.
    pub(super) fn tell_of_results(&self, outcome: Outcome) {
        // PAIRS WITH adapter/hw_queue.rs `stop_listening`.
        if outcome == Outcome::WakeWaiter
            && self.machine.shared.word(block::LISTENER).is_none_or(power::needs_poke)
        {
            self.events.event.signal();
        }
    }

    pub(super) fn ask_attention(&self, queue: QueueIndex) {
        bits::raise(&self.machine.shared, block::ATTENTION, u32::from(queue.get()));
        self.events.event.signal();
    }
}
