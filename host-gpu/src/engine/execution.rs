//! The execution thread: the loop from ring to fence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Turn;
use campanile_protocol::handshake::power;

use super::commands::Command;
use super::commands::Commands;
use super::idle::Idle;
use super::idle::Quiet;
use super::kernel_queue::KernelQueue;
use super::machine::Machine;
use super::progress;
use super::user_queue::Outcome;
use super::watch::Watch;
use super::watch::load;
use crate::event::Event;
use crate::memory::bits;
use crate::node::buffer::Node;

/// How long one queue may run on while others of the same vGPU wait.
const QUANTUM: Duration = Duration::from_millis(2);

/// How long an engine that was asked to yield may finish what is short: turns between vGPUs are not shorter.
const TURN: Duration = Duration::from_millis(2);

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
    runnable: VecDeque<u16>,
    /// What [`Self::collect`] found, kept so that no loop allocates.
    rung: Vec<(u16, Option<u64>)>,
    blocked: Vec<u16>,
    generation: u64,
    commands: Commands,
    events: Events,
    idle: Idle,
    turn_began: Option<Instant>,
    /// The daemon must be told that something was acknowledged.
    owes_event: bool,
}

impl Execution {
    /// An engine over its mapped memory.
    pub fn new(machine: Machine, commands: Commands, events: Events, spin: Duration) -> Self {
        let kernel_queue = KernelQueue::new(&machine.shared);
        Self {
            machine,
            watch: Watch::default(),
            kernel_queue,
            kernel_blocked: false,
            runnable: VecDeque::new(),
            rung: Vec::new(),
            blocked: Vec::new(),
            generation: 0,
            commands,
            events,
            idle: Idle::new(spin),
            turn_began: None,
            owes_event: false,
        }
    }

    /// Runs until the process ends.
    pub fn run(mut self) -> ! {
        // Only now is it this process's turn to look at what is shared.
        self.kernel_queue = KernelQueue::new(&self.machine.shared);
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
            match turn {
                Turn::Run => {
                    self.turn_began = None;
                    self.idle.work(&self.machine.shared);
                    self.step();
                }
                Turn::Resume => {
                    // A kernel may never end: who runs one is watched.
                    if !comes_first {
                        self.events.grant.signal();
                    }
                    self.turn_began = None;
                    self.idle.work(&self.machine.shared);
                    self.step();
                    if comes_first {
                        self.pay_event();
                        self.events.grant.signal();
                    }
                }
                Turn::Stop if self.turn_began.get_or_insert_with(Instant::now).elapsed() < TURN => {
                    self.idle.work(&self.machine.shared);
                    self.step();
                }
                Turn::Stop => {
                    self.turn_began = None;
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

    /// Acts on what the daemon changed: commands, tables, page-table generation.
    fn catch_up(&mut self) {
        if self.commands.pending.swap(false, Ordering::Acquire) {
            self.drain_commands();
        }
        let generation = load(&self.machine.shared, block::PAGE_TABLE_GENERATION);
        if generation != self.generation {
            self.generation = generation;
            self.watch.drop_resolved();
            if let Some(ack) = self.machine.shared.word(block::PAGE_TABLE_ACK) {
                ack.store(generation, Ordering::Release);
            }
            self.owes_event = true;
        }
        if self.watch.is_stale(&self.machine.shared) {
            // Segments that new queues lie in come before the queues.
            self.drain_commands();
            let mut look = Vec::new();
            self.watch.refresh(&self.machine.shared, |queue| look.push(queue));
            let mut found = 0;
            for index in look {
                if let Some((queue, process)) = self.watch.queue(index) {
                    let space = process.space(&self.machine.tables, &self.machine.segments);
                    let had_work = queue.has_work();
                    queue.look(&space);
                    found += u64::from(!had_work && queue.has_work());
                    if queue.has_work() && !self.runnable.contains(&index) && !self.blocked.contains(&index) {
                        self.runnable.push_back(index);
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
                if queue.has_work() && !self.runnable.contains(&index) && !self.blocked.contains(&index) {
                    self.runnable.push_back(index);
                }
            }
        }
        self.rung = found;
    }

    fn has_runnable(&mut self) -> bool {
        if !self.blocked.is_empty() {
            let (watch, tables, segments) = (&mut self.watch, &self.machine.tables, &self.machine.segments);
            let runnable = &mut self.runnable;
            self.blocked.retain(|&index| match watch.queue(index) {
                Some((queue, process)) if !queue.is_ready(&process.space(tables, segments)) => true,
                Some(_) => {
                    runnable.push_back(index);
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
        !self.runnable.is_empty() || self.kernel_has_work()
    }

    fn kernel_has_work(&self) -> bool {
        !self.kernel_blocked && self.kernel_queue.has_work(&self.machine.shared)
    }

    /// One buffer of the hardware queue, then one of the user-mode queue whose turn it is.
    fn step(&mut self) {
        let begun = Instant::now();
        let shared = Arc::clone(&self.machine.shared);
        let sequence = load(&shared, block::WATCH_SEQUENCE);
        let generation = self.generation;
        let others = self.runnable.len() > 1 || (self.kernel_has_work() && !self.runnable.is_empty());
        let pending = Arc::clone(&self.commands.pending);
        let mut should_pause = || {
            progress::step(&shared);
            let turn = grant::Grant::from_word(load(&shared, block::GRANT));
            (turn.phase == grant::Phase::Revoking && begun.elapsed() > TURN)
                || load(&shared, block::WATCH_SEQUENCE) != sequence
                || load(&shared, block::PAGE_TABLE_GENERATION) != generation
                || pending.load(Ordering::Acquire)
                || (others && begun.elapsed() > QUANTUM)
        };
        if self.kernel_has_work() {
            let outcome = self.kernel_queue.turn(&mut self.machine, &mut self.watch, &mut should_pause);
            progress::end(&shared);
            match outcome {
                Outcome::Blocked => self.kernel_blocked = true,
                outcome => self.tell_of_results(outcome),
            }
            self.end_if_lost();
        }
        let Some(index) = self.runnable.pop_front() else { return };
        let Some((queue, process)) = self.watch.queue(index) else { return };
        progress::begin(&shared, Work::UserQueue(index), queue.is_exempt());
        let outcome = queue.turn(&mut self.machine, process, &mut should_pause);
        let more = queue.has_work();
        let drained = !more && queue.report_drained(&shared);
        progress::end(&shared);
        match outcome {
            Outcome::Blocked => {
                self.blocked.push(index);
                return;
            }
            Outcome::Faulted => {
                self.ask_attention(index);
                self.end_if_lost();
            }
            Outcome::WakeWaiter => self.ask_attention(index),
            Outcome::Idle | Outcome::More => {}
        }
        if more {
            self.runnable.push_back(index);
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
    }

    /// Nothing to run: spin for a while, then sleep.
    fn rest(&mut self) {
        if let Some(word) = self.machine.shared.word(block::GRANT)
            && grant::Grant::from_word(word.load(Ordering::Relaxed)).phase == grant::Phase::Revoking
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
                || if self.kernel_blocked {
                    self.kernel_queue.is_in_the_way(&self.machine.shared)
                } else {
                    self.kernel_queue.has_work(&self.machine.shared)
                }
        });
    }

    fn wait_for_grant(&mut self) {
        self.idle.nap(&self.machine.shared, &self.events.wake, None, || {
            let grant = grant::Grant::from_word(load(&self.machine.shared, block::GRANT));
            grant.holds() || self.is_stale()
        });
    }
}
