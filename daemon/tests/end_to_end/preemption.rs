//! Preemption of kernel-mode buffers.

use std::sync::atomic::Ordering;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::kernel_queue::Ticket;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_protocol::control::message::QUEUE_DISABLE_GPU_TIMEOUT;
use campanile_protocol::control::message::SUBMIT;
use campanile_protocol::control::message::Submit;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_test_vmm::vm::LoopbackVm;

use crate::native_fences::process;
use crate::operator::Operated;
use crate::raw_queue::copy_guest;
use crate::support::NEVER;
use crate::support::until;

pub(crate) const REALTIME: Properties = Properties {
    band: Band::Realtime(0),
    in_process_priority: 0,
    quantum: None,
    grace_same: None,
    grace_lower: None,
};

/// Bytes that a long buffer fills again and again: some milliseconds each time.
const ROOM: u64 = 16 << 20;
/// How often it does: long enough that nothing else fits behind it by chance.
const TIMES: u32 = 100;

/// A process with a context on the copy node.
struct Guest {
    words: Buffer,
    room: Option<Buffer>,
    queue: KernelQueue,
    context: Context,
    device: Device,
}

impl Guest {
    fn new(vm: &std::sync::Arc<LoopbackVm>) -> Self {
        let device = process(vm);
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_kernel_queue().unwrap();
        Self { words: device.create_buffer(4096).unwrap(), room: None, queue, context, device }
    }

    /// One that has room for long buffers.
    fn patient(vm: &std::sync::Arc<LoopbackVm>) -> Self {
        let mut guest = Self::new(vm);
        guest.room = Some(guest.device.create_buffer(ROOM).unwrap());
        guest
    }

    fn word(&self, index: u64) -> u64 {
        self.words.memory().word(8 * index).unwrap().load(Ordering::Acquire)
    }

    fn va(&self, index: u64) -> u64 {
        self.words.va() + 8 * index
    }

    /// Work that takes long: says that it has begun, copies word `from` to `from + 1` and changes `from`, so that who did
    /// that twice would show, fills, and says that it is done.
    fn long(&self, from: u64, begun: u64, done: u64) -> CommandBuffer {
        let mut commands = CommandBuffer::new();
        commands.signal(self.va(begun), 1).unwrap();
        commands.copy(self.va(from), self.va(from + 1), 8).unwrap();
        commands.fill(self.va(from), 8, 0xdddd_dddd).unwrap();
        for value in 1..=TIMES {
            commands.fill(self.room.as_ref().unwrap().va(), ROOM, value).unwrap();
        }
        commands.signal(self.va(done), 1).unwrap();
        commands
    }

    fn short(&mut self, value: u32) -> Ticket {
        let mut commands = CommandBuffer::new();
        commands.fill(self.va(0), 8, value).unwrap();
        self.queue.submit(&commands).unwrap()
    }

    fn run_short(&mut self, value: u32) {
        let ticket = self.short(value);
        self.queue.wait(ticket, Some(NEVER)).unwrap();
        assert_eq!(self.word(0), u64::from(value) << 32 | u64::from(value));
    }
}

fn preemptions(operated: &Operated, vgpu: usize) -> u64 {
    operated.ask(&["metrics"])["vgpus"][vgpu]["counters"]["preemptions"].as_u64().unwrap()
}

fn resets(operated: &Operated, vgpu: usize) -> u64 {
    let counters = operated.ask(&["metrics"])["vgpus"][vgpu]["counters"].clone();
    ["engines_reset", "engines_lost"].iter().map(|name| counters[name].as_u64().unwrap()).sum()
}

// conformance: one buffer from preemption to completion; each line says what holds at one step
#[test]
fn pre_44_pre_46_pre_49_pre_51_pre_55_mcdm_13_mcdm_30_mcdm_33_a_preempted_buffer_comes_back_by_itself_and_is_done_once()
 {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let (mut patient, mut urgent) = (Guest::patient(&vm), Guest::new(&vm));
    urgent.context.set_scheduling(&REALTIME).unwrap();
    patient.words.write(8 * 10, &7_u64.to_le_bytes()).unwrap();
    let long = patient.long(10, 20, 21);
    let ticket = patient.queue.submit(&long).unwrap();
    // Behind it in the hardware queue, and preempted with it.
    let mut commands = CommandBuffer::new();
    commands.copy(patient.va(21), patient.va(22), 8).unwrap();
    let behind = patient.queue.submit(&commands).unwrap();
    until("the long buffer", || patient.word(20) == 1);
    for round in 1..=5 {
        urgent.run_short(round);
        assert_eq!(patient.word(21), 0, "the long buffer was done before the {round}. urgent one");
        assert!(!patient.queue.is_done(ticket));
    }
    patient.queue.wait(ticket, Some(NEVER)).unwrap();
    assert_eq!((patient.word(11), patient.word(10)), (7, 0xdddd_dddd_dddd_dddd), "no packet ran twice");
    patient.queue.wait(behind, Some(NEVER)).unwrap();
    assert_eq!(patient.word(22), 1, "what was behind it came after it");
    assert!(preemptions(&operated, 0) >= 1);
    let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1].clone();
    let submitted = engine["last_submitted_fence"].as_u64().unwrap();
    assert!(submitted > 7, "7 buffers under {submitted} fence ids: the repeated ones have new ids");
    until("all results", || {
        let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1].clone();
        engine["last_submitted_fence"] == engine["last_completed_fence"]
    });
    assert_eq!(resets(&operated, 0), 0, "reports were in order: an engine that mixes them up is reset");
}

#[test]
fn mcdm_14_mcdm_25_put_back_buffers_stay_ahead_of_newer_ones_of_their_context() {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let (mut patient, mut urgent) = (Guest::patient(&vm), Guest::new(&vm));
    urgent.context.set_scheduling(&REALTIME).unwrap();
    let room = patient.room.as_ref().unwrap().va();
    patient.words.write(0, &1_u64.to_le_bytes()).unwrap();
    let mut last = None;
    for step in 0..40_u64 {
        let mut commands = CommandBuffer::new();
        commands.fill(room, ROOM, 1).unwrap();
        // Only in this order does the one reach the last place.
        commands.copy(patient.va(step), patient.va(step + 1), 8).unwrap();
        last = Some(patient.queue.submit(&commands).unwrap());
        urgent.short(1);
    }
    patient.queue.wait(last.unwrap(), Some(NEVER)).unwrap();
    assert_eq!(patient.word(40), 1);
    assert!(preemptions(&operated, 0) >= 1);
    assert_eq!(resets(&operated, 0), 0);
}

#[test]
fn pre_01_pre_06_long_work_makes_room_whatever_its_queue_says_and_never_is_a_hang() {
    let operated = Operated::with(2, &["--tdr-timeout", "300"]);
    let vms = [operated.daemon.vm(0), operated.daemon.vm(1)];
    let small = ROOM / 4;
    let mut other = Guest::new(&vms[1]);
    for flags in [0, QUEUE_DISABLE_GPU_TIMEOUT] {
        let (guest, context) = copy_guest(&vms[0]);
        let created = guest.queue(context, flags).unwrap();
        let room = guest.vram(small);
        let packets = guest.vram(1 << 20);
        let begun = guest.vram(4096);
        let mut commands = CommandBuffer::new();
        commands.signal(begun.va, 1).unwrap();
        for value in 1..=16 * TIMES {
            commands.fill(room.va, small, value).unwrap();
        }
        packets.memory.write(0, commands.bytes()).unwrap();
        let length = u32::try_from(commands.bytes().len()).unwrap();
        let submit = Submit { queue: created.queue, buffer_va: packets.va, length, flags: 0 };
        std::thread::scope(|scope| {
            // Answered when the buffer is done.
            let long = scope.spawn(|| guest.call(SUBMIT, &submit).unwrap());
            until("the long buffer", || begun.word(0).load(Ordering::Acquire) == 1);
            for round in 1..=3 {
                other.run_short(round);
                assert_eq!(guest.load(created.fence_offset), 0, "it was done before the other's turn");
            }
            long.join().unwrap();
        });
        assert_eq!((guest.load(created.fence_offset), guest.device_status()), (1, DEVICE_ACTIVE));
    }
    assert_eq!((resets(&operated, 0), resets(&operated, 1)), (0, 0));
}

#[test]
fn pre_69_a_context_that_becomes_urgent_in_the_middle_gets_its_turn() {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let mut first = Guest::patient(&vm);
    let second = first.device.create_context(Node::Copy).unwrap();
    let idle = Properties { band: Band::Idle, ..REALTIME };
    second.set_scheduling(&idle).unwrap();
    let mut its_queue = second.create_kernel_queue().unwrap();
    let long = first.long(10, 20, 21);
    let ticket = first.queue.submit(&long).unwrap();
    until("the long buffer", || first.word(20) == 1);
    let mut commands = CommandBuffer::new();
    commands.signal(first.va(30), 1).unwrap();
    let its_ticket = its_queue.submit(&commands).unwrap();
    second.set_scheduling(&REALTIME).unwrap();
    its_queue.wait(its_ticket, Some(NEVER)).unwrap();
    assert_eq!((first.word(30), first.word(21)), (1, 0), "the urgent one is done, and the long one is not");
    first.queue.wait(ticket, Some(NEVER)).unwrap();
}

#[test]
fn pre_50_a_buffer_is_put_aside_for_a_change_of_memory_too_and_goes_on() {
    let operated = Operated::with(1, &[]);
    let vm = operated.daemon.vm(0);
    let mut patient = Guest::patient(&vm);
    patient.words.write(8 * 10, &7_u64.to_le_bytes()).unwrap();
    let long = patient.long(10, 20, 21);
    let ticket = patient.queue.submit(&long).unwrap();
    until("the long buffer", || patient.word(20) == 1);
    // Each of these is freed only after the engine has put its buffer aside and acknowledged the new page tables.
    for _ in 0..20 {
        drop(patient.device.create_buffer(1 << 20).unwrap());
    }
    assert!(!patient.queue.is_done(ticket), "it was long enough");
    patient.queue.wait(ticket, Some(NEVER)).unwrap();
    assert_eq!((patient.word(11), patient.word(10)), (7, 0xdddd_dddd_dddd_dddd), "no packet ran twice");
    let mut bytes = vec![0; usize::try_from(ROOM).unwrap()];
    patient.room.as_ref().unwrap().read(0, &mut bytes).unwrap();
    assert!(bytes.chunks_exact(4).all(|word| word == TIMES.to_le_bytes()));
    assert_eq!(preemptions(&operated, 0), 0, "nobody asked for the node");
}

#[test]
fn pre_48_a_buffer_is_split_where_nothing_is_preempted_and_only_paging_comes_between_its_pieces() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let mut patient = Guest::patient(&vm);
    patient.words.write(8 * 10, &7_u64.to_le_bytes()).unwrap();
    let ticket = patient.queue.submit(&patient.long(10, 20, 21)).unwrap();
    until("the long buffer", || patient.word(20) == 1);
    // Its memory is free when the engine has acknowledged the new page tables: between two pieces.
    for _ in 0..20 {
        drop(patient.device.create_buffer(1 << 20).unwrap());
    }
    assert!(!patient.queue.is_done(ticket), "it was long enough");
    patient.queue.wait(ticket, Some(NEVER)).unwrap();
    assert_eq!((patient.word(11), patient.word(10)), (7, 0xdddd_dddd_dddd_dddd), "no piece ran twice");
    assert_eq!((preemptions(&operated, 0), resets(&operated, 0)), (0, 0));
    let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1].clone();
    let fences = ["last_submitted_fence", "last_completed_fence"].map(|field| engine[field].as_u64());
    assert_eq!(fences, [Some(1), Some(1)], "it was with the engine from its first piece to its last");
}

#[test]
fn pre_52_a_buffer_is_never_written() {
    let operated = Operated::with_shares(&["bands=realtime"], &[]);
    let vm = operated.daemon.vm(0);
    let mut urgent = Guest::new(&vm);
    urgent.context.set_scheduling(&REALTIME).unwrap();
    let (guest, context) = copy_guest(&vm);
    let created = guest.queue(context, 0).unwrap();
    let (room, packets) = (guest.vram(ROOM), guest.vram(1 << 20));
    let mut commands = CommandBuffer::new();
    for value in 1..=TIMES {
        commands.fill(room.va, ROOM, value).unwrap();
    }
    packets.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    let submit = Submit { queue: created.queue, buffer_va: packets.va, length, flags: 0 };
    std::thread::scope(|scope| {
        // Answered when the buffer is done.
        let long = scope.spawn(|| guest.call(SUBMIT, &submit).unwrap());
        while guest.load(created.fence_offset) == 0 {
            urgent.run_short(1);
        }
        long.join().unwrap();
    });
    let mut bytes = vec![0; commands.bytes().len()];
    packets.memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, commands.bytes());
    assert!(preemptions(&operated, 0) >= 1);
}
