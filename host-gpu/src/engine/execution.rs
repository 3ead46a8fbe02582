//! The execution thread: the loop from ring to fence.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::engine::block;
use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::LATENCY_BOOSTS;
use campanile_protocol::engine::scheduling::PREEMPT_REPORT;
use campanile_protocol::engine::scheduling::PREEMPT_REQUEST;
use campanile_protocol::engine::scheduling::Urgency;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Turn;

use super::commands::Change;
use super::commands::Command;
use super::commands::Commands;
use super::events::Events;
use super::idle::Idle;
use super::kernel_queue::KernelQueue;
use super::log::Log;
use super::machine::Machine;
use super::residency::Asker;
use super::run_list::RunList;
use super::watch::Peeks;
use super::watch::Watch;
use super::words::load;
use super::words::store;
use crate::ids::QueueIndex;
use crate::node::buffer::Node;
use crate::node::clock;
use crate::sched::policy::Policy;

/// All state of an engine.
#[derive(Debug)]
pub struct Execution {
    pub(super) machine: Machine,
    pub(super) watch: Watch,
    pub(super) kernel_queue: KernelQueue,
    pub(super) kernel_blocked: bool,
    pub(super) run_list: RunList,
    pub(super) peeks: Peeks,
    pub(super) peeks_are_stale: bool,
    pub(super) log: Log,
    pub(super) asker: Asker,
    pub(super) preempted: u64,
    pub(super) urgency: Urgency,
    /// How many latency boosts the supervisor asked for, as far as was seen.
    pub(super) latency_boosts: u64,
    /// What [`Self::collect`] found, kept so that no loop allocates.
    pub(super) rung: Vec<(QueueIndex, Option<u64>)>,
    pub(super) blocked: Vec<QueueIndex>,
    pub(super) generation: u64,
    pub(super) commands: Commands,
    pub(super) events: Events,
    pub(super) idle: Idle,
    /// The daemon must be told that something was acknowledged.
    pub(super) owes_event: bool,
    /// Kernel-mode buffers that the run list was last filled by.
    pub(super) submitted: u64,
    #[cfg(test)]
    pub(super) gate: super::held::Gate,
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
            latency_boosts: 0,
            rung: Vec::new(),
            blocked: Vec::new(),
            generation: 0,
            commands,
            events,
            idle: Idle::new(spin),
            owes_event: false,
            submitted: 0,
            #[cfg(test)]
            gate: super::held::Gate::default(),
        }
    }

    /// Runs until the process ends.
    pub fn run(mut self) -> ! {
        // Only now is it this process's turn to look at what is shared.
        self.kernel_queue = KernelQueue::new(&self.machine.shared);
        self.log = Log::new(&self.machine.shared);
        self.preempted = load(&self.machine.shared, PREEMPT_REPORT);
        self.latency_boosts = load(&self.machine.shared, LATENCY_BOOSTS);
        self.run_list.begin(&self.machine.shared, clock::monotonic());
        loop {
            self.round();
        }
    }

    /// Looks at everything once, and runs one turn where there is work and the node.
    pub(super) fn round(&mut self) {
        self.catch_up();
        self.collect();
        #[cfg(test)]
        self.gate.pass(super::held::Point::CaughtUp);
        if !self.has_runnable() {
            self.pay_event();
            self.rest();
            return;
        }
        // The daemon lets work go when all that it needs has been announced, which may have been after the looks above and
        // before the work was seen: kernels, segments, the tables, how its context is scheduled. These come first.
        if self.is_stale() {
            return;
        }
        let is_new = self.show_urgency();
        let Some(turn) = self.machine.shared.word(block::GRANT).map(grant::take_turn) else { return };
        // Copies end by themselves, so what an engine that wakes owes to others can wait for the first of them:
        // each of these wakes a thread that may take this CPU.
        let comes_first = turn == Turn::Resume && matches!(self.machine.node, Node::Copy);
        if !comes_first {
            self.pay_event();
        }
        // An engine that asks for the node signals anyway; one that runs alone needs no decision.
        if is_new && (turn == Turn::Wait || load(&self.machine.shared, scheduling::CONTENDED) != 0) {
            self.events.grant.signal();
        }
        match turn {
            Turn::Run => {
                self.idle.work(&self.machine.shared);
                self.step();
            }
            Turn::Resume => {
                // A kernel may never end: an engine that runs one is watched.
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

    /// Says how urgent the work is, before the grant word says that there is some: the supervisor decides by that. Whether
    /// it is another urgency than before.
    fn show_urgency(&mut self) -> bool {
        let urgency = self.run_list.urgency();
        if urgency == self.urgency {
            return false;
        }
        self.urgency = urgency;
        if let Some(word) = self.machine.shared.word(scheduling::URGENCY) {
            word.store(urgency.word(), Ordering::Release);
        }
        true
    }

    /// Acts on what the daemon changed: commands, tables, page-table generation.
    pub(super) fn catch_up(&mut self) {
        if self.commands.pending.swap(false, Ordering::Acquire) {
            self.drain_commands();
        }
        let generation = load(&self.machine.shared, block::PAGE_TABLE_GENERATION);
        if generation != self.generation {
            self.generation = generation;
            self.watch.drop_resolved();
            self.kernel_queue.drop_resolved();
            self.machine.segments.writes.let_go();
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
            let now = clock::monotonic();
            self.run_list.refresh(&self.machine.shared, now);
            let gone = self.watch.refresh(&self.machine.shared, |queue| look.push(queue));
            // Their numbers are free from here on: no turn of theirs is for the queues that have them next.
            for (context, index) in gone {
                self.run_list.forget_queue(context, index, now);
                self.blocked.retain(|&blocked| blocked != index);
            }
            // With that acknowledged, the entry of a context that has ended may be another's, with areas of its own.
            self.kernel_queue.drop_resolved();
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
            // PAIRS WITH adapter/hw_queue.rs `take_preemption`: results and LastCompletedFenceId are there first.
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
        let mut taken = None;
        while let Ok(command) = self.commands.receiver.try_recv() {
            match command {
                Command::AddSegment(serial, id, mapping) => {
                    self.machine.segments.insert(id, mapping);
                    taken = Some(serial);
                }
                Command::RemoveSegment(serial, id) => {
                    self.machine.segments.remove(id);
                    taken = Some(serial);
                    if let Node::Compute(compute) = &mut self.machine.node {
                        compute.forget_segment(id);
                    }
                }
                // Between two turns, so that all that has begun is in its save area, and the progress word says that nothing runs: a
                // daemon that follows goes on from there.
                Command::End => std::process::exit(0),
            }
        }
        if let Node::Compute(compute) = &mut self.machine.node {
            for (name, Change { is_gone, added, secondary }) in self.commands.kernels.take() {
                if is_gone {
                    compute.remove_kernel(name);
                }
                if let Some(kernel) = added {
                    compute.add_kernel(name, *kernel);
                }
                if let Some(secondary) = secondary {
                    compute.add_secondary_kernel(name, *secondary);
                }
            }
        }
        if let Some(serial) = taken {
            // PAIRS WITH adapter/segments.rs `segments_acknowledged`: all that is resolved from here on, is so with these.
            store(&self.machine.shared, block::SEGMENT_ACK, serial);
            self.owes_event = true;
        }
    }

    pub(super) fn collect(&mut self) {
        let mut found = std::mem::take(&mut self.rung);
        self.watch.collect(&self.machine.tables, &self.machine.segments, |queue, value| {
            found.push((queue, value));
        });
        for (index, value) in found.drain(..) {
            if let Some((queue, process)) = self.watch.queue(index) {
                let space = process.space(&self.machine.tables, &self.machine.segments);
                match value {
                    Some(value) => queue.rung(value, &space),
                    None => queue.recheck(&space),
                }
                if queue.has_work() && !self.blocked.contains(&index) {
                    self.run_list.queue_ready(queue.context(), index);
                }
            }
        }
        self.rung = found;
    }

    pub(super) fn has_runnable(&mut self) -> bool {
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
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::Duration;

    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::block;
    use campanile_protocol::page_table::SegmentId;

    use super::Command;
    use super::Commands;
    use super::Events;
    use super::Execution;
    use super::Machine;
    use super::Node;
    use super::load;
    use crate::engine::commands::CommandSender;
    use crate::engine::signals::Signals;
    use crate::event::Event;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::segment::Segments;
    use crate::memory::vram::create_memfd;
    use crate::sched::choice::Choice;

    fn mapping(bytes: u64) -> Mapping {
        Mapping::new(create_memfd("test", bytes).unwrap(), 0, bytes, Access::ReadWrite).unwrap()
    }

    /// An execution thread that goes on when it is told to, and the way to it.
    fn stepped() -> (Execution, CommandSender) {
        let shared = Arc::new(mapping(block::BLOCK_BYTES));
        let event = || Event::new().unwrap();
        let events = Events { event: event(), grant: event(), wake: event() };
        let (sender, receiver) = mpsc::channel();
        let pending = Arc::new(AtomicBool::new(false));
        let wake = Arc::new(events.wake.try_clone().unwrap());
        let kernels = Arc::default();
        let sender =
            CommandSender { sender, kernels: Arc::clone(&kernels), pending: Arc::clone(&pending), wake };
        let signals = Signals::new(Arc::clone(&shared), events.event.try_clone().unwrap());
        let (tables, segments) = (mapping(PAGE_SIZE), Segments::default());
        let machine = Machine { shared, tables, segments, node: Node::Copy, signals };
        let commands = Commands { receiver, kernels, pending };
        let policy = Choice::default().make();
        (Execution::new(machine, policy, commands, events, Duration::ZERO), sender)
    }

    #[test]
    fn a_segment_is_acknowledged_when_the_execution_thread_has_it_and_not_when_it_was_sent() {
        let (mut execution, sender) = stepped();
        let acknowledged = |execution: &Execution| load(&execution.machine.shared, block::SEGMENT_ACK);
        let (id, first, second) = (SegmentId(1), Arc::new(mapping(PAGE_SIZE)), Arc::new(mapping(PAGE_SIZE)));
        let has = |execution: &Execution, mapping: &Arc<Mapping>| {
            execution.machine.segments.get(id).is_some_and(|it| Arc::ptr_eq(it, mapping))
        };
        execution.catch_up();
        execution.pay_event();
        execution.events.event.drain();
        sender.send(Command::AddSegment(5, id, Arc::clone(&first)));
        assert_eq!((acknowledged(&execution), has(&execution, &first)), (0, false), "it is held here");
        execution.catch_up();
        assert_eq!((acknowledged(&execution), has(&execution, &first)), (5, true));
        execution.pay_event();
        assert!(execution.events.event.drain(), "the daemon is told");
        // Its number is given to another one: the acknowledgement of that comes with that.
        sender.send(Command::RemoveSegment(6, id));
        sender.send(Command::AddSegment(7, id, Arc::clone(&second)));
        assert_eq!((acknowledged(&execution), has(&execution, &first)), (5, true), "and here");
        execution.catch_up();
        assert_eq!((acknowledged(&execution), has(&execution, &second)), (7, true));
        sender.send(Command::RemoveSegment(8, id));
        execution.catch_up();
        assert_eq!(acknowledged(&execution), 8);
        assert!(execution.machine.segments.get(id).is_none());
    }
}
