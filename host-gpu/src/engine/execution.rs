//! The execution thread: the loop from ring to fence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::PREEMPT_REPORT;
use campanile_protocol::engine::scheduling::PREEMPT_REQUEST;
use campanile_protocol::engine::scheduling::Urgency;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Turn;
use campanile_protocol::handshake::power;

use super::commands::Command;
use super::commands::Commands;
use super::idle::Idle;
use super::idle::Quiet;
use super::kernel_queue::KernelQueue;
use super::log::Log;
use super::machine::Machine;
use super::progress;
use super::residency::Asker;
use super::run_list::Next;
use super::run_list::RunList;
use super::user_queue::Outcome;
use super::watch::Peeks;
use super::watch::Watch;
use super::watch::load;
use crate::event::Event;
use crate::memory::bits;
use crate::node::buffer::Node;
use crate::node::clock;
use crate::scheduling::policy::Policy;

/// How long an engine keeps a node that others want, while its guest may be about to ring again.
const LINGER: Duration = Duration::from_micros(20);

/// How often an engine that waits for its turn looks for rings that could be more urgent.
const URGENT_LOOK: Duration = Duration::from_micros(200);

/// The eventfds of an engine.
#[derive(Debug)]
pub struct Events {
    /// Engine → its vGPU's thread.
    pub event: Event,
    /// Engine → supervisor.
    pub grant: Event,
    /// Anybody → engine.
    pub wake: Event,
}

/// All state of an engine.
#[derive(Debug)]
pub struct Execution {
    machine: Machine,
    watch: Watch,
    kernel_queue: KernelQueue,
    kernel_blocked: bool,
    run_list: RunList,
    peeks: Peeks,
    peeks_are_stale: bool,
    log: Log,
    asker: Asker,
    preempted: u64,
    urgency: Urgency,
    /// What [`Self::collect`] found, kept so that no loop allocates.
    rung: Vec<(u16, Option<u64>)>,
    blocked: Vec<u16>,
    generation: u64,
    commands: Commands,
    events: Events,
    idle: Idle,
    /// The daemon must be told that something was acknowledged.
    owes_event: bool,
}

impl Execution {
    /// An engine over its mapped memory.
    pub fn new(
        machine: Machine,
        policy: Box<dyn Policy>,
        commands: Commands,
        events: Events,
        spin: Duration,
    ) -> Self {
        let kernel_queue = KernelQueue::new(&machine.shared);
        Self {
            machine,
            watch: Watch::default(),
            kernel_queue,
            kernel_blocked: false,
            run_list: RunList::new(policy),
            peeks: Peeks::default(),
            peeks_are_stale: true,
            log: Log::default(),
            asker: Asker::default(),
            preempted: 0,
            urgency: Urgency::default(),
            rung: Vec::new(),
            blocked: Vec::new(),
            generation: 0,
            commands,
            events,
            idle: Idle::new(spin),
            owes_event: false,
        }
    }

    /// Runs until the process ends.
    pub fn run(mut self) -> ! {
        // Only now is it this process's turn to look at what is shared.
        self.kernel_queue = KernelQueue::new(&self.machine.shared);
        self.log = Log::new(&self.machine.shared);
        self.preempted = load(&self.machine.shared, PREEMPT_REPORT);
        self.run_list.begin(&self.machine.shared, clock::monotonic());
        loop {
            self.catch_up();
            self.collect();
            if !self.has_runnable() {
                self.pay_event();
                self.rest();
                continue;
            }
            // The daemon lets work go when the segments and kernels that it needs have been announced, which may have
            // been after the look above and before the work was seen.
            if self.commands.pending.swap(false, Ordering::Acquire) {
                self.drain_commands();
            }
            let Some(turn) = self.machine.shared.word(block::GRANT).map(grant::take_turn) else { continue };
            // Copies end by themselves, so what an engine that wakes owes to others can wait for the first of them:
            // each of these wakes a thread that may take this CPU.
            let comes_first = turn == Turn::Resume && matches!(self.machine.node, Node::Copy);
            if !comes_first {
                self.pay_event();
            }
            self.show_urgency(turn);
            match turn {
                Turn::Run => {
                    self.idle.work(&self.machine.shared);
                    self.step();
                }
                Turn::Resume => {
                    // A kernel may never end: who runs one is watched.
                    if !comes_first {
                        self.events.grant.signal();
                    }
                    self.idle.work(&self.machine.shared);
                    self.step();
                    if comes_first {
                        self.pay_event();
                        self.events.grant.signal();
                    }
                }
                Turn::Stop => {
                    if self.machine.shared.word(block::GRANT).is_some_and(grant::yield_turn) {
                        self.events.grant.signal();
                    }
                }
                Turn::Ask => {
                    self.events.grant.signal();
                    self.wait_for_grant();
                }
                Turn::Wait => self.wait_for_grant(),
            }
        }
    }

    /// Says how urgent the work is, before the supervisor is asked or looks again: it decides by that.
    fn show_urgency(&mut self, turn: Turn) {
        let urgency = self.run_list.urgency();
        if urgency == self.urgency {
            return;
        }
        self.urgency = urgency;
        if let Some(word) = self.machine.shared.word(scheduling::URGENCY) {
            word.store(urgency.word(), Ordering::Release);
        }
        // Who asks signals by itself; who runs alone is not decided about.
        if turn == Turn::Wait || load(&self.machine.shared, scheduling::CONTENDED) != 0 {
            self.events.grant.signal();
        }
    }

    /// Acts on what the daemon changed: commands, tables, page-table generation.
    fn catch_up(&mut self) {
        if self.commands.pending.swap(false, Ordering::Acquire) {
            self.drain_commands();
        }
        let generation = load(&self.machine.shared, block::PAGE_TABLE_GENERATION);
        if generation != self.generation {
            self.generation = generation;
            self.watch.drop_resolved();
            self.peeks_are_stale = true;
            if let Some(ack) = self.machine.shared.word(block::PAGE_TABLE_ACK) {
                ack.store(generation, Ordering::Release);
            }
            self.owes_event = true;
        }
        let request = load(&self.machine.shared, PREEMPT_REQUEST);
        if request != self.preempted {
            self.put_back(request);
        }
        if self.watch.is_stale(&self.machine.shared) {
            // Segments that new queues lie in come before the queues.
            self.drain_commands();
            let mut look = Vec::new();
            self.peeks_are_stale = true;
            self.run_list.refresh(&self.machine.shared, clock::monotonic());
            self.watch.refresh(&self.machine.shared, |queue| look.push(queue));
            let mut found = 0;
            for index in look {
                if let Some((queue, process)) = self.watch.queue(index) {
                    let space = process.space(&self.machine.tables, &self.machine.segments);
                    let had_work = queue.has_work();
                    queue.look(&space);
                    found += u64::from(!had_work && queue.has_work());
                    if queue.has_work() && !self.blocked.contains(&index) {
                        self.run_list.queue_ready(queue.context(), index);
                    }
                    if queue.report_drained(&self.machine.shared) {
                        self.ask_attention(index);
                    }
                }
            }
            if let Some(word) = self.machine.shared.word(block::FOUND_BY_LOOK)
                && found > 0
            {
                word.fetch_add(found, Ordering::Relaxed);
            }
            self.owes_event = true;
        }
    }

    /// The daemon wants back what is in the hardware queue (PRE-19): done at the boundary where this is called, and
    /// reported after the results.
    fn put_back(&mut self, request: u64) {
        self.preempted = request;
        self.kernel_queue.put_back(&self.machine.shared);
        self.kernel_blocked = false;
        if let Some(word) = self.machine.shared.word(PREEMPT_REPORT) {
            // PAIRS WITH adapter/scheduling.rs `preemption_is_done`: results and LastCompletedFenceId are there first.
            word.store(request, Ordering::Release);
        }
        self.events.event.signal();
    }

    /// Interrupts the daemon for what was acknowledged.
    fn pay_event(&mut self) {
        if std::mem::take(&mut self.owes_event) {
            self.events.event.signal();
        }
    }

    fn drain_commands(&mut self) {
        while let Ok(command) = self.commands.receiver.try_recv() {
            match command {
                Command::AddSegment(id, mapping) => self.machine.segments.insert(id, mapping),
                Command::RemoveSegment(id) => {
                    self.machine.segments.remove(id);
                    if let Node::Compute(compute) = &mut self.machine.node {
                        compute.forget_segment(id);
                    }
                }
                Command::AddKernel(id, kernel) => {
                    if let Node::Compute(compute) = &mut self.machine.node {
                        compute.add_kernel(id, *kernel);
                    }
                }
                Command::RemoveKernel(id) => {
                    if let Node::Compute(compute) = &mut self.machine.node {
                        compute.remove_kernel(id);
                    }
                }
            }
        }
    }

    fn collect(&mut self) {
        let mut found = std::mem::take(&mut self.rung);
        self.watch.collect(&self.machine.tables, &self.machine.segments, |queue, value| {
            found.push((queue, value));
        });
        for (index, value) in found.drain(..) {
            if let Some((queue, process)) = self.watch.queue(index) {
                let space = process.space(&self.machine.tables, &self.machine.segments);
                match value {
                    Some(value) => queue.rung(value, &space),
                    None => queue.glance(&space),
                }
                if queue.has_work() && !self.blocked.contains(&index) {
                    self.run_list.queue_ready(queue.context(), index);
                }
            }
        }
        self.rung = found;
    }

    fn has_runnable(&mut self) -> bool {
        if self.asker.report(&self.machine.shared, &self.machine.segments.wants) {
            self.events.event.signal();
        }
        if !self.blocked.is_empty() {
            let (watch, tables, segments) = (&mut self.watch, &self.machine.tables, &self.machine.segments);
            let run_list = &mut self.run_list;
            self.blocked.retain(|&index| match watch.queue(index) {
                Some((queue, process)) if !queue.is_ready(&process.space(tables, segments)) => true,
                Some((queue, _)) => {
                    run_list.queue_ready(queue.context(), index);
                    false
                }
                None => false,
            });
        }
        if self.kernel_blocked && self.kernel_queue.is_ready(&self.machine, &mut self.watch) {
            self.kernel_blocked = false;
        }
        if self.kernel_blocked && self.kernel_queue.is_in_the_way(&self.machine.shared) {
            let outcome = self.kernel_queue.hand_back(&self.machine.shared);
            self.kernel_blocked = false;
            self.tell_of_results(outcome);
        }
        self.list_kernel();
        !self.run_list.is_empty()
    }

    /// Has the run list know whose kernel-mode buffer is next.
    fn list_kernel(&mut self) {
        let is_there = self.kernel_has_work();
        if !is_there && !self.run_list.has_kernel() {
            return;
        }
        let context = self.kernel_queue.context(&self.machine.shared).filter(|_| is_there);
        self.run_list.set_kernel(context, clock::monotonic());
    }

    fn kernel_has_work(&self) -> bool {
        !self.kernel_blocked && self.kernel_queue.has_work(&self.machine.shared)
    }

    /// One buffer, or what is run of it until others must be asked, of the context whose turn it is.
    fn step(&mut self) {
        let begin = clock::monotonic();
        let Some(turn) = self.run_list.next(begin) else { return };
        if std::mem::take(&mut self.peeks_are_stale) {
            self.peeks = self.watch.peeks(&self.machine.tables, &self.machine.segments);
        }
        let shared = Arc::clone(&self.machine.shared);
        let sequence = load(&shared, block::WATCH_SEQUENCE);
        let (generation, preempted) = (self.generation, self.preempted);
        let submitted = load(&shared, block::HW_QUEUE_SUBMITTED);
        let pending = Arc::clone(&self.commands.pending);
        let peeks = std::mem::take(&mut self.peeks);
        let own = match turn.next {
            Next::Queue(queue) => Some(queue),
            Next::Kernel => None,
        };
        let mut should_pause = || {
            progress::step(&shared);
            let turn_is_over = || turn.until.is_some_and(|until| clock::monotonic() >= until);
            grant::Grant::from_word(load(&shared, block::GRANT)).phase == grant::Phase::Revoking
                || load(&shared, block::WATCH_SEQUENCE) != sequence
                || load(&shared, block::PAGE_TABLE_GENERATION) != generation
                || load(&shared, PREEMPT_REQUEST) != preempted
                || (own.is_some() && load(&shared, block::HW_QUEUE_SUBMITTED) != submitted)
                || peeks.somebody_rang(own)
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
        self.list_kernel();
        let is_over = self.run_list.settle(turn.context, end);
        let properties = self.run_list.properties(turn.context);
        self.log.ran(&self.machine.shared, turn.context, &properties, (begin, end), !is_over);
        self.end_if_lost();
    }

    fn run_kernel_queue(&mut self, should_pause: &mut dyn FnMut() -> bool) {
        let outcome = self.kernel_queue.turn(&mut self.machine, &mut self.watch, should_pause);
        progress::end(&self.machine.shared);
        match outcome {
            Outcome::Blocked => self.kernel_blocked = true,
            outcome => self.tell_of_results(outcome),
        }
    }

    fn run_user_queue(&mut self, index: u16, should_pause: &mut dyn FnMut() -> bool) {
        let Some((queue, process)) = self.watch.queue(index) else { return };
        let shared = Arc::clone(&self.machine.shared);
        progress::begin(&shared, Work::UserQueue(index), queue.is_exempt());
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

    /// Where the driver is lost, reports that (UMS-121, TDR-23) and waits for the end: whoever ran next would pay for it.
    fn end_if_lost(&self) {
        let Node::Compute(compute) = &self.machine.node else { return };
        if !compute.is_lost() {
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
    fn tell_of_results(&self, outcome: Outcome) {
        // PAIRS WITH adapter/reports.rs `stop_listening`.
        if outcome == Outcome::WakeWaiter
            && self.machine.shared.word(block::LISTENER).is_none_or(power::needs_poke)
        {
            self.events.event.signal();
        }
    }

    fn ask_attention(&self, queue: u16) {
        bits::raise(&self.machine.shared, block::ATTENTION, u32::from(queue));
        self.events.event.signal();
    }

    fn is_stale(&self) -> bool {
        self.commands.pending.load(Ordering::Acquire)
            || self.watch.is_stale(&self.machine.shared)
            || load(&self.machine.shared, block::PAGE_TABLE_GENERATION) != self.generation
            || load(&self.machine.shared, PREEMPT_REQUEST) != self.preempted
    }

    /// Nothing to run: spin for a while, then sleep.
    fn rest(&mut self) {
        if let Some(word) = self.machine.shared.word(block::GRANT)
            && self.should_release(grant::Grant::from_word(word.load(Ordering::Relaxed)).phase)
            && grant::release(word)
        {
            self.events.grant.signal();
        }
        let quiet = Quiet {
            is_stale: self.is_stale() || self.kernel_has_work() || self.watch.owes_looks(),
            waits: !self.blocked.is_empty() || self.kernel_blocked,
            has_doorbells: self.watch.has_doorbells(),
            is_notified: self.watch.is_notified(),
        };
        self.idle.rest(&self.machine.shared, &self.events, quiet, || {
            self.commands.pending.load(Ordering::Acquire)
                || self.watch.is_stale(&self.machine.shared)
                || load(&self.machine.shared, block::PAGE_TABLE_GENERATION) != self.generation
                || load(&self.machine.shared, PREEMPT_REQUEST) != self.preempted
                || if self.kernel_blocked {
                    self.kernel_queue.is_in_the_way(&self.machine.shared)
                } else {
                    self.kernel_queue.has_work(&self.machine.shared)
                }
        });
    }

    /// Whether an engine without work gives its node back: at once where it is asked to, and after a moment where others
    /// want it.
    fn should_release(&self, phase: grant::Phase) -> bool {
        match phase {
            grant::Phase::Revoking => true,
            grant::Phase::Granted => {
                load(&self.machine.shared, scheduling::CONTENDED) != 0 && self.idle.has_lasted(LINGER)
            }
            _ => false,
        }
    }

    fn wait_for_grant(&mut self) {
        // Nobody announces a ring. One that would change whose turn it is must not wait for the turn.
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
