//! An execution thread that tests hold between two named points, and the daemon's side of its memory.
//!
//! ```text
//!   DaemonSide: shared block, page tables, video memory ◀── both ──▶ Execution: one call of `round`, or its parts by hand
//!                  ▲                                               │
//!                  └────── what a test does at a Point ◀───────────┘ Gate
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::packet;
use campanile_protocol::packet::Fill;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use super::commands::Command;
use super::commands::CommandSender;
use super::commands::Commands;
use super::events::Events;
use super::execution::Execution;
use super::machine::Machine;
use super::signals::Signals;
use super::words::load;
use crate::adapter::Adapter;
use crate::adapter::process::EngineProcess;
use crate::engine::message::NodeKind;
use crate::event::Event;
use crate::ids::ContextIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::writer::PageTables;
use crate::memory::page_table::writer::Root;
use crate::memory::segment::Segments;
use crate::memory::vram::create_memfd;
use crate::node::buffer::Node;
use crate::node::transfer::CHUNK_BYTES;
use crate::sched::choice::Choice;
use crate::sched::parameters::Band;
use crate::sched::parameters::Parameters;

/// Where an execution thread can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// Changes, commands and rings have been looked at; work has not.
    CaughtUp,
}

/// What a test does while the thread is held.
#[derive(Default)]
pub(super) struct Gate(Option<Box<dyn FnMut(Point)>>);

impl Gate {
    /// The thread has come to `point`.
    pub(super) fn pass(&mut self, point: Point) {
        if let Some(held) = &mut self.0 {
            held(point);
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Gate")
    }
}

/// Where video memory is in the address space.
const BASE: u64 = 0x1000_0000;
const RING: u64 = device_page::DEVICE_PAGE_BYTES;
const RING_ENTRIES: u32 = 8;
/// Two pages a queue: ring, and ring control.
const QUEUES: u64 = 4;
const BUFFERS: u64 = RING + QUEUES * 2 * PAGE_SIZE;
const DEVICE_AREA: u64 = BUFFERS + 16 * PAGE_SIZE;
const CONTEXT_AREAS: u64 = DEVICE_AREA + 16 * PAGE_SIZE;
const TARGET: u64 = CONTEXT_AREAS + 16 * PAGE_SIZE;
const VRAM: u64 = TARGET + 8 * CHUNK_BYTES;

fn mapping(bytes: u64) -> Mapping {
    Mapping::new(create_memfd("test", bytes).unwrap(), 0, bytes, Access::ReadWrite).unwrap()
}

/// The daemon's side.
struct DaemonSide {
    engine: EngineProcess,
    tables: PageTables,
    root: Root,
    vram: Arc<Mapping>,
    commands: CommandSender,
    areas: u64,
    buffers: u64,
    fences: u64,
}

impl Drop for DaemonSide {
    fn drop(&mut self) {
        self.engine.play(false);
    }
}

impl DaemonSide {
    /// An engine that has its node, and knows of nothing yet.
    fn new() -> (Self, Execution) {
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        engine.play(true);
        let shared = engine.grant_handle().shared;
        let granted = Grant { phase: Phase::Granted, generation: 1 };
        shared.word(block::GRANT).unwrap().store(granted.word(), Ordering::Release);
        let mut tables = PageTables::new().unwrap();
        let root = tables.create_root().unwrap();
        tables.map(root, BASE, SegmentId::VRAM, 0, VRAM, true).unwrap();
        let vram = Arc::new(mapping(VRAM));
        let mut segments = Segments::default();
        segments.insert(SegmentId::VRAM, Arc::clone(&vram));
        vram.word(DEVICE_AREA).unwrap().store(AreaKind::Device.header(), Ordering::Release);
        let (file, length) = (tables.file().try_clone().unwrap(), tables.mapping().len());
        let seen = Mapping::new(file, 0, length, Access::ReadOnly).unwrap();
        let event = || Event::new().unwrap();
        let events = Events { event: event(), grant: event(), wake: event() };
        let (sender, receiver) = mpsc::channel();
        let pending = Arc::new(AtomicBool::new(false));
        let wake = Arc::new(events.wake.try_clone().unwrap());
        let kernels = Arc::default();
        let commands =
            CommandSender { sender, kernels: Arc::clone(&kernels), pending: Arc::clone(&pending), wake };
        let signals = Signals::new(Arc::clone(&shared), events.event.try_clone().unwrap());
        let machine = Machine { shared, tables: seen, segments, node: Node::Copy, signals };
        let policy = Choice::default().make();
        let taken = Commands { receiver, kernels, pending };
        let execution = Execution::new(machine, policy, taken, events, Duration::ZERO);
        (Self { engine, tables, root, vram, commands, areas: 0, buffers: 0, fences: 0 }, execution)
    }

    fn process(&mut self) -> ProcessIndex {
        let entry = ProcessEntry {
            root: self.root.0,
            page_va: BASE,
            summary: device_page::SUMMARIES,
            area_root: self.root.0,
            area_va: BASE + DEVICE_AREA,
            ..ProcessEntry::default()
        };
        self.engine.create_process(entry).unwrap()
    }

    fn context(&mut self, band: Band) -> ContextIndex {
        let area = CONTEXT_AREAS + self.areas * PAGE_SIZE;
        self.areas += 1;
        self.vram.word(area).unwrap().store(AreaKind::Context.header(), Ordering::Release);
        let context = self.engine.create_context(BASE + area).unwrap();
        let parameters = Parameters { band, ..Parameters::default() };
        self.engine.set_scheduling_properties(context, &parameters);
        context
    }

    /// A user-mode queue, the `place`-th of its device.
    fn queue(&mut self, process: ProcessIndex, context: ContextIndex, place: u32) -> QueueIndex {
        let ring = RING + u64::from(place) * 2 * PAGE_SIZE;
        self.vram.word(ring + PAGE_SIZE).unwrap().store(0, Ordering::Release);
        let entry = QueueEntry {
            ring_va: BASE + ring,
            control_va: BASE + ring + PAGE_SIZE,
            ring_entries: RING_ENTRIES,
            process: process.get(),
            context: context.get(),
            fence_index: place,
            ..QueueEntry::default()
        };
        self.engine.create_hw_queue(entry).unwrap()
    }

    /// A buffer that fills so many chunks of the target.
    fn buffer(&mut self, chunks: u64) -> (u64, u32) {
        let fill = Fill { target_va: BASE + TARGET, size: chunks * CHUNK_BYTES, value: 7, reserved: 0 };
        let size = size_of::<PacketHeader>() + size_of::<Fill>();
        let header = PacketHeader { opcode: packet::FILL, flags: 0, size: u32::try_from(size).unwrap() };
        let at = BUFFERS + self.buffers * 64;
        self.buffers += 1;
        let bytes = [header.as_bytes(), fill.as_bytes()].concat();
        self.vram.slice(at, bytes.len() as u64).unwrap().copy_from(&bytes[..]);
        (BASE + at, header.size)
    }

    /// Puts a buffer into the ring of the `place`-th queue of the device, and has the engine look.
    fn ring(&mut self, queue: QueueIndex, place: u32, chunks: u64) {
        let (buffer_va, length) = self.buffer(chunks);
        let base = RING + u64::from(place) * 2 * PAGE_SIZE;
        let pointer = self.vram.word(base + PAGE_SIZE + ring::CONTROL_WRITE_POINTER).unwrap();
        let count = pointer.load(Ordering::Acquire);
        let entry = RingEntry { buffer_va, length, fence_value: count + 1, ..RingEntry::default() };
        let at = base + ring::place(count, RING_ENTRIES);
        self.vram.slice(at, ring::RING_ENTRY_BYTES).unwrap().copy_from(entry.as_bytes());
        pointer.store(count + 1, Ordering::Release);
        self.engine.notify(queue);
    }

    fn submit(&mut self, process: ProcessIndex, context: ContextIndex, buffer: (u64, u32)) {
        self.fences += 1;
        let (buffer_va, length) = buffer;
        let submission = HwSubmission {
            fence_id: self.fences,
            buffer_va,
            length,
            fence_value: self.fences,
            number: self.fences,
            process: process.get(),
            context: context.get(),
            fence_index: 100,
            ..HwSubmission::default()
        };
        self.engine.submit_command(submission).unwrap();
    }

    fn completed(&self, queue: QueueIndex) -> u64 {
        let shared = self.engine.grant_handle().shared;
        load(&shared, block::queue(u32::from(queue.get())) + block::QUEUE_COMPLETED)
    }
}

/// Everything is looked at, and then the daemon does something before the turn.
fn look(execution: &mut Execution) {
    execution.catch_up();
    execution.collect();
    assert!(execution.has_runnable());
}

#[test]
fn a_change_of_the_tables_between_the_last_look_and_the_turn_ends_that_at_its_first_boundary() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    let context = daemon.context(Band::Normal);
    let queue = daemon.queue(process, context, 0);
    daemon.ring(queue, 0, 4);
    look(&mut execution);
    // A suspend, a connect, the end of a doorbell: whatever the daemon waits for.
    let other = daemon.queue(process, context, 1);
    assert!(!daemon.engine.is_up_to_date());
    execution.step();
    assert_eq!(daemon.completed(queue), 0, "it runs to its end while the daemon waits");
    look(&mut execution);
    assert!(daemon.engine.is_up_to_date());
    execution.step();
    assert_eq!((daemon.completed(queue), daemon.completed(other)), (1, 0), "and goes on where it was");
}

#[test]
fn a_kernel_mode_buffer_that_comes_between_the_last_look_and_a_turn_ends_that_at_its_first_boundary() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    let [background, urgent] = [Band::Normal, Band::Realtime].map(|band| daemon.context(band));
    let queue = daemon.queue(process, background, 0);
    daemon.ring(queue, 0, 4);
    look(&mut execution);
    let buffer = daemon.buffer(1);
    daemon.submit(process, urgent, buffer);
    execution.step();
    assert_eq!(daemon.completed(queue), 0, "the buffer waits for the end of another's");
    look(&mut execution);
    execution.step();
    let result = daemon.engine.completed_command().unwrap();
    assert_eq!((result.fence_id, result.fault), (1, 0));
    assert_eq!(daemon.completed(queue), 0);
}

#[test]
fn a_queue_with_the_number_of_one_that_is_gone_does_not_wait_for_the_turn_of_that_ones_context() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    let [idle, normal, urgent] = [Band::Idle, Band::Normal, Band::Realtime].map(|band| daemon.context(band));
    let steady = daemon.queue(process, normal, 1);
    let first = daemon.queue(process, idle, 0);
    daemon.ring(first, 0, 1);
    look(&mut execution);
    // It has work, and is taken away while that waits for its turn.
    daemon.engine.destroy_hw_queue(first);
    execution.catch_up();
    let second = daemon.queue(process, urgent, 2);
    assert_eq!(first, second, "the number is free once the engine has acknowledged that");
    for _ in 0..4 {
        daemon.ring(steady, 1, 1);
    }
    daemon.ring(second, 2, 1);
    look(&mut execution);
    execution.step();
    assert_eq!((daemon.completed(second), daemon.completed(steady)), (1, 0), "it is the most urgent");
}

#[test]
fn a_blocked_queue_that_is_gone_does_not_keep_the_next_of_its_number_from_running() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    let context = daemon.context(Band::Normal);
    let first = daemon.queue(process, context, 0);
    daemon.ring(first, 0, 1);
    let (root, at) = (daemon.root, BASE + TARGET);
    daemon.tables.start_move(root, at, PAGE_SIZE).unwrap();
    look(&mut execution);
    execution.step();
    assert_eq!(execution.blocked, [first], "what it fills is on the move");
    daemon.engine.destroy_hw_queue(first);
    execution.catch_up();
    assert!(execution.blocked.is_empty());
}

#[test]
fn a_segment_that_is_announced_before_work_is_there_when_that_runs() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    let context = daemon.context(Band::Normal);
    execution.catch_up();
    let shared = daemon.engine.grant_handle().shared;
    let vram = Arc::clone(&daemon.vram);
    let mut once = Some(daemon);
    execution.gate = Gate(Some(Box::new(move |point| {
        assert_eq!(point, Point::CaughtUp);
        let Some(mut daemon) = once.take() else { return };
        let segment = Arc::new(mapping(PAGE_SIZE));
        let (va, length) = daemon.buffer(1);
        let mut bytes = vec![0; length as usize];
        daemon.vram.slice(va - BASE, u64::from(length)).unwrap().copy_to(&mut bytes[..]);
        segment.slice(0, u64::from(length)).unwrap().copy_from(&bytes[..]);
        let id = SegmentId(1);
        daemon.commands.send(Command::AddSegment(1, id, segment));
        let (root, at) = (daemon.root, BASE + VRAM);
        daemon.tables.map(root, at, id, 0, PAGE_SIZE, true).unwrap();
        daemon.submit(process, context, (at, length));
    })));
    execution.round();
    execution.round();
    assert_eq!(load(&shared, block::HW_QUEUE_COMPLETED), 1);
    let at = campanile_protocol::engine::hw_queue::slot(0) + campanile_protocol::engine::hw_queue::RESULT;
    let mut result = [0; size_of::<HwResult>()];
    shared.slice(at, result.len() as u64).unwrap().copy_to(&mut result[..]);
    let result: HwResult = zerocopy::FromBytes::read_from_bytes(&result).unwrap();
    assert_eq!((result.fault, result.fence_id), (0, 1), "the address {:#x}", result.fault_va);
    assert_eq!(vram.word(TARGET).unwrap().load(Ordering::Acquire), 7 << 32 | 7);
}

#[test]
fn pre_70_how_a_context_is_scheduled_is_known_before_its_first_buffer_asks_for_the_node() {
    let (mut daemon, mut execution) = DaemonSide::new();
    let process = daemon.process();
    execution.catch_up();
    let shared = daemon.engine.grant_handle().shared;
    let word = Arc::clone(&shared);
    let urgency = move || load(&word, campanile_protocol::engine::scheduling::URGENCY);
    let mut once = Some(daemon);
    execution.gate = Gate(Some(Box::new(move |_| {
        let Some(mut daemon) = once.take() else { return };
        let context = daemon.context(Band::Realtime);
        let buffer = daemon.buffer(1);
        daemon.submit(process, context, buffer);
    })));
    execution.round();
    assert_eq!(urgency(), 0, "nothing is said before it is known");
    execution.round();
    let of = execution.run_list.urgency_of(ContextIndex::new(0));
    assert_eq!(of.band, Band::Realtime as u8);
    assert_eq!(urgency(), of.word());
    assert_eq!(load(&shared, block::HW_QUEUE_COMPLETED), 1);
}
