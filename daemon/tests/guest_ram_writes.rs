//! What an engine process writes to guest RAM, without a session around it, by both methods.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use campanile_protocol::named_profile::GpuProfile;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::launcher::Memory;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::protect::Guard;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::RunRecord;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::CONTEXT_AREA_BYTES;
use campanile_protocol::engine::save_area::DEVICE_AREA_BYTES;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

const NEVER: Duration = Duration::from_secs(60);
const VRAM: u64 = 1 << 20;
/// Pages of the segment of guest RAM: each is a part of its own of the planes.
const RAM_PAGES: u64 = 64;
const SEGMENT: SegmentId = SegmentId(5);
/// Where the space shows the device page, the buffer and guest RAM.
const PAGE_VA: u64 = 1 << 30;
const BUFFER_VA: u64 = 2 << 30;
const RAM_VA: u64 = 3 << 30;
/// Save areas, in a space of their own: the device-wide one, and behind it that of the context.
const AREA_VA: u64 = 1 << 20;
/// Where they lie in video memory.
const AREA_AT: u64 = VRAM / 2 + PAGE_SIZE;

fn methods() -> Vec<Method> {
    let all = [Method::BoundRanges, Method::WriteProtect, Method::ShadowCompare];
    all.into_iter().filter(|method| method.has_planes() || Guard::new().is_ok()).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "this never came: {what}");
        std::thread::yield_now();
    }
}

struct Bench {
    engine: EngineProcess,
    tracker: Arc<Tracker>,
    vram: File,
    ram: File,
    tables: PageTables,
    fences: File,
    given: Given,
    program: Program,
    start: Start,
    entry: ProcessEntry,
    process: ProcessIndex,
    submitted: u64,
}

impl Bench {
    /// A copy engine with one guest process, which has guest RAM in two pieces mapped, the higher one first.
    fn new(method: Method) -> Self {
        let program = Program::new(PathBuf::from(env!("CARGO_BIN_EXE_campanile")), Vec::new());
        let mut tables = PageTables::new().unwrap();
        let root = tables.create_root().unwrap();
        tables.map(root, PAGE_VA, SegmentId::VRAM, 0, DEVICE_PAGE_BYTES, true).unwrap();
        tables.map(root, BUFFER_VA, SegmentId::VRAM, VRAM / 2, PAGE_SIZE, false).unwrap();
        let areas = tables.create_root().unwrap();
        let area_bytes = DEVICE_AREA_BYTES + CONTEXT_AREA_BYTES;
        tables.map(areas, AREA_VA, SegmentId::VRAM, AREA_AT, area_bytes, true).unwrap();
        tables.map(root, RAM_VA, SEGMENT, 0, RAM_PAGES * PAGE_SIZE, true).unwrap();
        let start = Start {
            node: NodeKind::Copy,
            vram_bytes: VRAM,
            table_bytes: tables.mapping().len(),
            spin_microseconds: 600_000_000,
            slice_microseconds: 0,
            sandbox: true,
            policy: "fair".to_owned(),
            vulkan_device: None,
            profile: GpuProfile::Host,
            tracking: method,
            local: Local::Host,
            code_mib: 0,
            is_realtime: false,
            is_ahead: false,
        };
        let vram = create_memfd("vram", VRAM).unwrap();
        let ram = create_memfd("ram", 2 * RAM_PAGES * PAGE_SIZE).unwrap();
        let fences = create_memfd("fences", u64::from(MAX_FENCES) * PAGE_SIZE).unwrap();
        let tracker = Arc::new(Tracker::new(0, &vram, VRAM, PAGE_SIZE, method).unwrap());
        let memory = Memory {
            vram: &vram,
            tables: tables.file(),
            fences: &fences,
            local: None,
            code: None,
            tracker: Some(&tracker),
        };
        for (at, kind) in [(0, AreaKind::Device), (DEVICE_AREA_BYTES, AreaKind::Context)] {
            vram.write_all_at(&kind.header().to_ne_bytes(), AREA_AT + at).unwrap();
        }
        let mut engine = EngineProcess::spawn(&program, &start, memory).unwrap();
        engine.tracking.log_guest_writes(true);
        let entry = ProcessEntry {
            root: root.0,
            page_va: PAGE_VA,
            area_root: areas.0,
            area_va: AREA_VA,
            ..ProcessEntry::default()
        };
        let process = engine.create_process(entry).unwrap();
        // Entry 0, which all of its work names.
        assert_eq!(engine.create_context(AREA_VA + DEVICE_AREA_BYTES).unwrap().get(), 0);
        let mut bench = Self {
            engine,
            tracker,
            vram,
            ram,
            tables,
            fences,
            given: Given::default(),
            program,
            start,
            entry,
            process,
            submitted: 0,
        };
        bench.come_up();
        bench
    }

    fn come_up(&mut self) {
        let serial = self.engine.segments.next_serial();
        self.announce(serial);
    }

    /// Tells the engine of its guest RAM, and waits until it has it.
    fn announce(&mut self, serial: u64) {
        let half = RAM_PAGES / 2 * PAGE_SIZE;
        let runs = [
            RunRecord { file: 0, offset: 3 * half, length: half },
            RunRecord { file: 0, offset: 0, length: half },
        ];
        let mut list = create_memfd("list", size_of_val(&runs) as u64).unwrap();
        list.write_all(runs.as_bytes()).unwrap();
        self.engine.announce_segment(SEGMENT, serial, 2 * half);
        let request = Request::AddSegment { segment: SEGMENT.0, serial, runs: 2 };
        self.engine.request(&request, &[], &[list.as_fd(), self.ram.as_fd()]).unwrap();
        until(
            "the segment",
            || matches!(self.engine.receive().unwrap(), Some(Response::SegmentAdded { segment, .. }) if segment == SEGMENT.0),
        );
    }

    fn revive(&mut self) {
        self.start_again();
        self.come_up();
    }

    fn start_again(&mut self) {
        let memory = Memory {
            vram: &self.vram,
            tables: self.tables.file(),
            fences: &self.fences,
            local: None,
            code: None,
            tracker: Some(&self.tracker),
        };
        self.engine.revive(&self.program, &self.start, memory).unwrap();
        self.given = Given::default();
    }

    /// Runs packets, to their end.
    fn run(&mut self, commands: &CommandBuffer) {
        self.submit(commands);
        assert_eq!(self.result().fault, 0);
    }

    fn submit(&mut self, commands: &CommandBuffer) {
        self.vram.write_all_at(commands.bytes(), VRAM / 2).unwrap();
        self.submitted += 1;
        let submission = HwSubmission {
            fence_id: self.submitted,
            fence_value: self.submitted,
            buffer_va: BUFFER_VA,
            length: u32::try_from(commands.bytes().len()).unwrap(),
            process: self.process.get(),
            ..HwSubmission::default()
        };
        self.engine.submit_command(submission).unwrap();
    }

    /// Lets the engine run, to the end of a buffer.
    fn result(&mut self) -> HwResult {
        let handle = self.engine.grant_handle();
        let word = handle.shared.word(block::GRANT).unwrap();
        until("a result", || {
            self.given.look(word).unwrap();
            let _given_before = self.given.give(word);
            handle.wake.signal();
            self.engine.hw_queue.stop_listening(Duration::from_millis(1))
        });
        self.engine.completed_command().unwrap()
    }

    fn fill(&mut self, page: u64, pages: u64) {
        let mut commands = CommandBuffer::new();
        commands.fill(RAM_VA + page * PAGE_SIZE, pages * PAGE_SIZE, 7).unwrap();
        self.run(&commands);
    }

    fn sweep(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        self.engine.tracking.sweep_guest_writes(None, |segment, at, length| {
            assert_eq!(segment, SEGMENT);
            pages.extend(at / PAGE_SIZE..(at + length).div_ceil(PAGE_SIZE));
        });
        pages
    }
}

#[test]
fn a_buffer_of_a_process_that_has_ended_does_not_run_in_the_one_that_has_its_entry_then() {
    let mut bench = Bench::new(Method::BoundRanges);
    let mut commands = CommandBuffer::new();
    commands.fill(RAM_VA, PAGE_SIZE, 7).unwrap();
    // It waits for the node, which the engine is not given.
    bench.submit(&commands);
    let entry = bench.entry;
    bench.engine.destroy_process(bench.process);
    until("the end of the process", || bench.engine.is_up_to_date());
    assert_eq!(bench.engine.create_process(entry).unwrap(), bench.process, "as it was used last");
    until("the next process", || bench.engine.is_up_to_date());
    assert_eq!(bench.result().fault, Fault::PageFault as u32);
    assert!(bench.sweep().is_empty());
    // What is its own runs.
    bench.fill(3, 1);
    assert_eq!(bench.sweep(), [3]);
}

#[test]
fn tdr_57_the_next_process_runs_nothing_before_it_has_the_segments_that_page_tables_name() {
    let mut bench = Bench::new(Method::BoundRanges);
    bench.engine.reset_engine().unwrap();
    bench.start_again();
    let mut commands = CommandBuffer::new();
    commands.fill(RAM_VA, PAGE_SIZE, 7).unwrap();
    bench.submit(&commands);
    // The channel has no room for it before the engine is told to begin.
    let serial = bench.engine.segments.next_serial();
    until("an engine that is up", || {
        matches!(bench.engine.receive().unwrap(), Some(Response::Started { .. }))
    });
    let handle = bench.engine.grant_handle();
    for round in 0..100 {
        let word = handle.shared.word(block::GRANT).unwrap();
        bench.given.look(word).unwrap();
        let _given_before = bench.given.give(word);
        handle.wake.signal();
        // Served after the request to begin.
        let kernel = KernelName { root: 0, handle: round };
        let request = Request::CreateKernel { kernel, language: 0, entry: None, alone: false };
        bench.engine.request(&request, &[], &[]).unwrap();
        until(
            "a refusal",
            || matches!(bench.engine.receive().unwrap(), Some(Response::KernelRefused { kernel: of, .. }) if of == kernel),
        );
    }
    bench.announce(serial);
    assert_eq!(bench.result().fault, 0);
    assert_eq!(bench.sweep(), [0]);
}

/// Where the space shows a ring of four entries, and its control: pages 60 and 61 of the segment, of the low half.
const RING: u64 = RAM_PAGES - 4;

#[test]
fn tdr_57_an_engine_that_ended_between_two_stores_of_a_retirement_is_taken_over_without_a_gap() {
    // How far the last process got: the value is there; the place in the ring is, too.
    for consumed in [0, 1] {
        let mut bench = Bench::new(Method::BoundRanges);
        let (ring_va, control_va) = (RAM_VA + RING * PAGE_SIZE, RAM_VA + (RING + 1) * PAGE_SIZE);
        let ring_at = (RING - RAM_PAGES / 2) * PAGE_SIZE;
        let commands = {
            let mut commands = CommandBuffer::new();
            commands.fill(RAM_VA, PAGE_SIZE, 7).unwrap();
            commands
        };
        bench.vram.write_all_at(commands.bytes(), VRAM / 2).unwrap();
        let length = u32::try_from(commands.bytes().len()).unwrap();
        let entry = RingEntry { buffer_va: BUFFER_VA, length, fence_value: 9, ..RingEntry::default() };
        bench.ram.write_all_at(entry.as_bytes(), ring_at).unwrap();
        let write_pointer = ring_at + PAGE_SIZE + ring::CONTROL_WRITE_POINTER;
        bench.ram.write_all_at(&1u64.to_ne_bytes(), write_pointer).unwrap();
        let process = bench.process;
        let entry = QueueEntry {
            ring_va,
            control_va,
            ring_entries: 4,
            process: process.get(),
            ..QueueEntry::default()
        };
        bench.engine.reset_engine().unwrap();
        let queue = bench.engine.create_hw_queue(entry).unwrap();
        let handle = bench.engine.grant_handle();
        let word = |offset: u64| handle.shared.word(offset).unwrap();
        let at = block::queue(u32::from(queue.get()));
        word(at + block::QUEUE_COMPLETED).store(9, Ordering::Release);
        word(at + block::QUEUE_CONSUMED).store(consumed, Ordering::Release);
        bench.revive();
        bench.engine.ask_look(queue);
        bench.engine.ask_acknowledgement();
        let read = |file: &File, at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_ne_bytes(bytes)
        };
        until("the fence", || {
            bench.given.look(word(block::GRANT)).unwrap();
            let _given_before = bench.given.give(word(block::GRANT));
            handle.wake.signal();
            read(&bench.vram, device_page::fence(0)) == 9
        });
        assert_eq!(read(&bench.ram, ring_at + PAGE_SIZE + ring::CONTROL_READ_POINTER), 1);
        assert_eq!(word(at + block::QUEUE_CONSUMED).load(Ordering::Acquire), 1);
        assert_eq!(read(&bench.ram, 3 * RAM_PAGES / 2 * PAGE_SIZE), 0, "it is not run again");
    }
}

#[test]
fn dirty_55_what_an_engine_writes_to_guest_ram_is_swept_once_and_is_in_no_plane() {
    for method in methods() {
        let mut bench = Bench::new(method);
        assert!(bench.sweep().is_empty());
        bench.fill(3, 2);
        bench.fill(40, 1);
        assert_eq!(bench.sweep(), [3, 4, 40], "{method}");
        assert!(bench.sweep().is_empty());
        let mut commands = CommandBuffer::new();
        commands.signal(RAM_VA + 9 * PAGE_SIZE + 8, 1).unwrap().timestamp(RAM_VA + 50 * PAGE_SIZE).unwrap();
        bench.run(&commands);
        assert_eq!(bench.sweep(), [9, 50], "{method}");
        if !method.is_performant() {
            continue;
        }
        // The device page lies in video memory, and its fence was written.
        let mut bits = vec![0; usize::try_from(VRAM / PAGE_SIZE / 8).unwrap()];
        bench.tracker.query_dirty_bit_data(bench.tracker.whole(), None, &mut bits, true).unwrap();
        let pages: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
        assert!(
            (1..=u32::try_from(DEVICE_PAGE_BYTES / PAGE_SIZE).unwrap()).contains(&pages),
            "{method}: {pages}"
        );
    }
}

#[test]
fn dirty_55_dirty_56_what_an_engine_wrote_to_guest_ram_before_its_reset_is_swept_after_it() {
    for method in methods() {
        let mut bench = Bench::new(method);
        bench.fill(11, 1);
        bench.engine.reset_engine().unwrap();
        assert_eq!(bench.sweep(), [11], "{method}");
        bench.revive();
        assert!(bench.sweep().is_empty());
        bench.fill(12, 1);
        assert_eq!(bench.sweep(), [12], "{method}");
    }
}

#[test]
fn dirty_50_dirty_55_of_an_engine_that_died_all_of_its_guest_ram_counts_where_nobody_knows_better() {
    for method in methods() {
        let mut bench = Bench::new(method);
        bench.fill(11, 1);
        let pid = rustix::process::Pid::from_raw(i32::try_from(bench.engine.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        bench.engine.reset_engine().unwrap();
        let expected: Vec<u64> = match method {
            Method::WriteProtect => (0..RAM_PAGES).collect(),
            _ => vec![11],
        };
        assert_eq!(bench.sweep(), expected, "{method}");
    }
}
