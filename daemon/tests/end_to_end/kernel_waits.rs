//! Waits in kernel-mode buffers: they hold up their own context, and nobody else.

use std::sync::atomic::Ordering;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::kernel_queue::Ticket;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::message::SUBMIT;
use campanile_protocol::control::message::Submit;
use campanile_protocol::device_page;

use crate::native_fences::process;
use crate::processes::kill_engine_at_rest;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::NEVER;

/// A process with one kernel-mode queue and memory to mark.
struct Ordinary {
    memory: Buffer,
    queue: KernelQueue,
    context: Context,
    device: Device,
}

impl Ordinary {
    fn new(device: Device) -> Self {
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_kernel_queue().unwrap();
        Self { memory: device.create_buffer(4096).unwrap(), queue, context, device }
    }

    fn word(&self, index: u64) -> u64 {
        self.memory.memory().word(8 * index).unwrap().load(Ordering::Acquire)
    }

    fn set(&self, index: u64, value: u64) {
        self.memory.memory().word(8 * index).unwrap().store(value, Ordering::Release);
    }

    /// Work that stores `value` in word `to` once word `from` is `value`.
    fn pass_on(&mut self, from: u64, to: u64, value: u64) -> Ticket {
        let (from, to) = (self.memory.va() + 8 * from, self.memory.va() + 8 * to);
        let mut commands = CommandBuffer::new();
        commands.wait(from, value).unwrap().signal(to, value).unwrap();
        self.queue.submit(&commands).unwrap()
    }

    fn run(&mut self, value: u32) {
        let mut commands = CommandBuffer::new();
        commands.fill(self.memory.va() + 4088, 8, value).unwrap();
        let ticket = self.queue.submit(&commands).unwrap();
        self.queue.wait(ticket, Some(NEVER)).unwrap();
        assert_eq!(self.word(511), u64::from(value) << 32 | u64::from(value));
    }
}

#[test]
fn pre_56_mcdm_18_waits_of_some_processes_do_not_stop_the_kernel_mode_work_of_others() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let mut waiting: Vec<Ordinary> = (0..5).map(|_| Ordinary::new(process(&vm))).collect();
    let mut other = Ordinary::new(process(&vm));
    let mut tickets = Vec::new();
    for guest in &mut waiting {
        // The second must not overtake the first, whoever runs meanwhile.
        tickets.push((guest.pass_on(0, 1, 7), guest.pass_on(1, 2, 7)));
    }
    for value in 1..=50 {
        other.run(value);
    }
    assert!(waiting.iter().all(|guest| (guest.word(1), guest.word(2)) == (0, 0)));
    for (guest, (first, second)) in waiting.iter_mut().zip(tickets) {
        assert!(!guest.queue.is_done(first));
        guest.set(0, 7);
        guest.queue.wait(second, Some(NEVER)).unwrap();
        assert_eq!((guest.word(1), guest.word(2)), (7, 7));
        other.run(51);
    }
}

#[test]
fn mcdm_04_mcdm_14_buffers_of_a_context_run_in_order_though_one_was_handed_back() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let mut guest = Ordinary::new(process(&vm));
    let mut other = Ordinary::new(process(&vm));
    // Two queues of one context, whose buffers take turns.
    let mut second = guest.context.create_kernel_queue().unwrap();
    for round in 1..=20u32 {
        let gate = guest.pass_on(0, 1, u64::from(round));
        let mut commands = CommandBuffer::new();
        commands.copy(guest.memory.va() + 8, guest.memory.va() + 64, 8).unwrap();
        let behind = second.submit(&commands).unwrap();
        other.run(round);
        guest.set(0, u64::from(round));
        second.wait(behind, Some(NEVER)).unwrap();
        guest.queue.wait(gate, Some(NEVER)).unwrap();
        assert_eq!(guest.word(8), u64::from(round), "it saw what the buffer before it stored");
    }
}

#[test]
fn kernel_mode_queues_of_one_node_wait_for_each_other() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (one, other) = (process(&vm), process(&vm));
    let fence = one.create_fence(FenceKind::Default, 0).unwrap();
    let same = other.open_fence(fence.global()).unwrap();
    let (mut one, mut other) = (Ordinary::new(one), Ordinary::new(other));
    let mut last = None;
    for turn in 0..200 {
        let mut commands = CommandBuffer::new();
        commands.wait(fence.va(), 2 * turn).unwrap().signal(fence.va(), 2 * turn + 1).unwrap();
        last = Some(one.queue.submit(&commands).unwrap());
        let mut commands = CommandBuffer::new();
        commands.wait(same.va(), 2 * turn + 1).unwrap().signal(same.va(), 2 * turn + 2).unwrap();
        other.queue.submit(&commands).unwrap();
    }
    one.queue.wait(last.unwrap(), Some(NEVER)).unwrap();
    fence.wait(400, Some(NEVER)).unwrap();
}

#[test]
fn a_buffer_that_was_handed_back_outlives_its_engine() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let fence = {
        let device = process(&vm);
        let fence = device.create_fence(FenceKind::Default, 0).unwrap();
        (fence, device)
    };
    let mut guest = Ordinary::new(process(&vm));
    let opened = guest.device.open_fence(fence.0.global()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.signal(guest.memory.va(), 1).unwrap();
    commands.wait(opened.va(), 1).unwrap().copy(guest.memory.va(), guest.memory.va() + 8, 8).unwrap();
    let ticket = guest.queue.submit(&commands).unwrap();
    let mut other = Ordinary::new(process(&vm));
    other.run(1);
    other.run(2);
    guest.set(0, 5);
    kill_engine_at_rest(&daemon);
    other.run(3);
    fence.0.signal(1).unwrap();
    guest.queue.wait(ticket, Some(NEVER)).unwrap();
    assert_eq!(guest.word(1), 5, "what it had done was not done again");
}

#[test]
fn a_process_that_ends_or_faults_while_parked_leaves_nothing_behind() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let mut other = Ordinary::new(process(&vm));
    for round in 1..=10 {
        let (guest, context) = copy_guest(&vm);
        let queue = guest.queue(context, 0).unwrap().queue;
        let memory = guest.vram(4096);
        memory.memory.write(0, wait_for(memory.va + 2048, 1).bytes()).unwrap();
        let submit = Submit {
            queue,
            buffer_va: memory.va,
            length: u32::try_from(wait_for(0, 0).bytes().len()).unwrap(),
            flags: 0,
        };
        let blocked = guest.send(1, SUBMIT, &submit);
        other.run(round);
        if round % 2 == 0 {
            let context = guest.context(Node::Copy);
            let bad = guest.queue(context, 0).unwrap().queue;
            let submit = Submit { queue: bad, buffer_va: 1 << 40, length: 8, flags: 0 };
            guest.call(SUBMIT, &submit).unwrap();
            assert_eq!(guest.device_status(), device_page::DEVICE_PAGE_FAULT);
            blocked.finish().unwrap();
        } else {
            assert!(!blocked.is_done());
        }
        drop(guest);
        other.run(round);
    }
}

#[test]
fn a_context_whose_waiting_buffer_is_cancelled_runs_what_else_it_has() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let mut guest = Ordinary::new(process(&vm));
    let mut other = Ordinary::new(process(&vm));
    let never = guest.device.create_fence(FenceKind::Default, 0).unwrap();
    let mut waiting = guest.context.create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.wait(never.va(), 1).unwrap();
    waiting.submit(&commands).unwrap();
    // Behind it, so that the engine hands it back; it is parked then.
    for value in 1..5 {
        other.run(value);
    }
    guest.context.suspend().unwrap();
    drop(waiting);
    guest.context.resume().unwrap();
    guest.run(7);
}
