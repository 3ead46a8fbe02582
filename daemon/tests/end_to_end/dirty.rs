//! Dirty tracking of a vGPU that works: whatever was written, whoever wrote it, a reader who asks, clears and copies has
//! it in the end. Each test with all methods.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_daemon::cli::args::Arguments;
use campanile_daemon::cli::args::Command;
use campanile_daemon::cli::options::host_options;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::protect::Guard;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use clap::Parser;
use tempfile::TempDir;

use crate::raw_queue::copy;
use crate::raw_queue::fill;
use crate::support::Ends;
use crate::support::LOCAL_MEMORY;
use crate::support::NEVER;
use crate::support::until;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const VRAM: u64 = 32 * MIB;

/// One word in each of many pages, chosen by what it is given.
pub(crate) const SCATTER: &str = "
    var<immediate> round: u32;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(16) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        let at = ((id.x + round * 7919u) * 2654435761u) % arrayLength(&data);
        atomicless(at, round);
    }
    fn atomicless(at: u32, round: u32) { data[at] = round; }";

/// Methods that work here. No kernel notes what a device writes to memory of its own.
pub(crate) fn methods() -> Vec<Method> {
    let all = [Method::BoundRanges, Method::WriteProtect, Method::ShadowCompare];
    let has_guard = !is_in_device() && Guard::new().is_ok();
    all.into_iter().filter(|method| method.has_planes() || has_guard).collect()
}

/// Whether local memory is a device's own in all tests that do not ask for a place.
pub(crate) fn is_in_device() -> bool {
    std::env::var_os(LOCAL_MEMORY).is_some_and(|place| place == "device")
}

/// What `campanile serve --dirty-tracking METHOD` would be, with engines that stay awake.
pub(crate) fn options(vgpus: Vec<VgpuOptions>, method: Method) -> HostOptions {
    let place = if is_in_device() { "device" } else { "host" };
    let line = ["campanile", "serve", "--spin", "600000000", "--dirty-tracking", method.name()];
    let line = line.into_iter().chain(["--local-memory", place]);
    let Command::Serve(arguments) = Arguments::try_parse_from(line).unwrap().command else {
        panic!("not serve")
    };
    let mut options = host_options(vgpus, &arguments.engine).unwrap();
    options.engines.spares = false;
    options.engines.program.path = PathBuf::from(env!("CARGO_BIN_EXE_campanile"));
    options
}

/// A host in this process, whose vGPUs have 32 MiB and allocate up to 96.
pub(crate) struct Watched {
    pub(crate) host: Host,
    pub(crate) folder: TempDir,
}

impl Watched {
    pub(crate) fn start(method: Method) -> Self {
        Self::with(method, 1, |_| ())
    }

    pub(crate) fn with(method: Method, vgpus: usize, change: impl FnOnce(&mut HostOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vgpu = |index: usize| {
            let socket = folder.path().join(format!("{index}.sock"));
            VgpuOptions { vram_max: Some(96 * MIB), ..VgpuOptions::new(format!("v{index}"), socket, VRAM) }
        };
        let mut options = options((0..vgpus).map(vgpu).collect(), method);
        change(&mut options);
        Self { host: Host::start(options).unwrap(), folder }
    }

    pub(crate) fn vm(&self, index: usize) -> Arc<LoopbackVm> {
        let socket = self.folder.path().join(format!("{index}.sock"));
        LoopbackVm::connect(socket, &VmOptions::default()).unwrap()
    }

    pub(crate) fn device(&self) -> Device {
        Device::open(self.vm(0).open("test").unwrap()).unwrap()
    }

    pub(crate) fn readers(&self, index: usize) -> [Reader; 2] {
        let board = &self.host.vgpus[index].trackers;
        until("the session", || board.trackers().is_some());
        board.trackers().unwrap().map(Reader::new)
    }
}

/// Keeps a copy of a memory, as a migration does.
pub(crate) struct Reader {
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) basis: BasisHandle,
    pub(crate) copy: Vec<u8>,
    /// Pages that the last pull brought.
    pub(crate) pulled: usize,
}

impl Reader {
    /// From here on, with all that is there.
    pub(crate) fn new(tracker: Arc<Tracker>) -> Self {
        let all = Range { offset: 0, length: tracker.length() };
        let basis = tracker.create_memory_basis(tracker.segment(), &[all]).unwrap();
        tracker.start_dirty_tracking(basis).unwrap();
        let mut copy = vec![0; usize::try_from(tracker.length()).unwrap()];
        tracker.read(basis, 0, &mut copy).unwrap();
        Self { tracker, basis, copy, pulled: 0 }
    }

    pub(crate) fn dirty(&self, clear: bool) -> Vec<usize> {
        let pages = self.copy.len() / 4096;
        let mut bits = vec![0; pages.div_ceil(8)];
        self.tracker.query_dirty_bit_data(self.basis, None, &mut bits, clear).unwrap();
        (0..pages).filter(|page| bits[page / 8] >> (page % 8) & 1 != 0).collect()
    }

    /// Clears first, and copies after (DIRTY-51).
    pub(crate) fn pull(&mut self) {
        let dirty = self.dirty(true);
        self.pulled = dirty.len();
        for page in dirty {
            let place = &mut self.copy[page * 4096..(page + 1) * 4096];
            self.tracker.read(self.basis, page as u64 * PAGE, place).unwrap();
        }
    }

    pub(crate) fn now(&self) -> Vec<u8> {
        let mut now = vec![0; self.copy.len()];
        // Of another basis: that settles nothing of this one's.
        self.tracker.read(self.tracker.whole(), 0, &mut now).unwrap();
        now
    }

    /// Whether the copy has all that is there. Who writes has stopped; what was lost never comes.
    pub(crate) fn catches_up(&mut self) {
        until("a copy that equals the memory", || {
            self.pull();
            self.copy == self.now()
        });
    }
}

pub(crate) fn run(queue: &mut campanile_guest_driver::user_queue::UserQueue, commands: &CommandBuffer) {
    queue.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
}

pub(crate) fn scatter(
    kernel: &campanile_guest_driver::kernel::Kernel,
    target: &Buffer,
    round: u32,
) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.dispatch(kernel, [8, 1, 1], &[target.binding(0)], &round.to_le_bytes()).unwrap();
    commands
}

#[test]
fn dirty_31_dirty_34_what_was_never_written_stays_clean_from_the_start() {
    for method in methods().into_iter().filter(|method| method.is_performant()) {
        let watched = Watched::start(method);
        let device = watched.device();
        let [vram, _] = watched.readers(0);
        let context = device.create_context(Node::Copy).unwrap();
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let buffer = device.create_local_buffer(MIB).unwrap();
        run(&mut queue, &fill(buffer.va(), 16 * PAGE, 1));
        let written = vram.tracker.pages_written();
        assert!((16..200).contains(&written), "{method}: {written} pages of {}", VRAM / PAGE);
    }
}

#[test]
fn dirty_35_dirty_52_what_each_kind_of_work_writes_is_found_and_little_else() {
    for method in methods() {
        let watched = Watched::start(method);
        let device = watched.device();
        let kernel = device.create_kernel(&KernelSource::wgsl(SCATTER)).unwrap();
        let contexts = [Node::Compute, Node::Copy].map(|node| device.create_context(node).unwrap());
        let mut queues = contexts.map(|context| context.create_user_queue(&QueueOptions::default()).unwrap());
        let [source, target] = [0, 1].map(|_| device.create_buffer(MIB).unwrap());
        let local = device.create_local_buffer(MIB).unwrap();
        run(&mut queues[1], &fill(source.va(), MIB, 0x1234_5678));
        let [mut vram, _] = watched.readers(0);
        let mut words = CommandBuffer::new();
        words.signal(target.va() + 5 * PAGE, 77).unwrap().timestamp(target.va() + 9 * PAGE).unwrap();
        let kinds = [
            ("a kernel", 0, scatter(&kernel, &target, 3)),
            ("a copy", 1, copy(source.va(), local.va() + 8 * PAGE, 4 * PAGE)),
            ("a fill", 0, fill(local.va() + 100 * PAGE, 3 * PAGE + 5 * 4, 9)),
            ("fences and time stamps", 1, words),
        ];
        vram.catches_up();
        for (kind, node, commands) in kinds {
            run(&mut queues[node], &commands);
            // What an engine stores behind a completion, such as the read pointer, may come after a first look.
            until(&format!("{method}: all that {kind} wrote"), || {
                vram.pull();
                vram.copy == vram.now()
            });
            // All of a binding where that is all that is known; rings and the device page beside it.
            let most = if method == Method::BoundRanges { 300 } else { 170 };
            assert!(vram.pulled <= most, "{method}: {kind} writes {} pages", vram.pulled);
        }
    }
}

#[test]
fn dirty_44_dirty_52_dirty_53_many_writers_of_every_kind_and_a_reader_that_clears_lose_nothing() {
    for method in methods() {
        let watched = Watched::start(method);
        let vm = watched.vm(0);
        let [mut vram, mut evicted] = watched.readers(0);
        let over = AtomicBool::new(false);
        let rounds = [(); 4].map(|()| AtomicU64::new(0));
        std::thread::scope(|scope| {
            let ends = Ends(&over);
            let (over, rounds) = (&over, &rounds);
            let work = |index: usize, mut turn: Box<dyn FnMut(u32) + Send>| {
                scope.spawn(move || {
                    for round in 1.. {
                        if over.load(Ordering::Acquire) {
                            return;
                        }
                        turn(round);
                        rounds[index].store(u64::from(round), Ordering::Release);
                    }
                });
            };
            let open = |name: &str| Device::open(vm.open(name).unwrap()).unwrap();
            // Kernels, and the guest's CPU in the same memory.
            let device = open("kernels");
            let kernel = device.create_kernel(&KernelSource::wgsl(SCATTER)).unwrap();
            let target = device.create_buffer(2 * MIB).unwrap();
            let mut queue = device
                .create_context(Node::Compute)
                .unwrap()
                .create_user_queue(&QueueOptions::default())
                .unwrap();
            let memory = target.memory().clone();
            work(
                0,
                Box::new(move |round| {
                    let _alive = &device;
                    run(&mut queue, &scatter(&kernel, &target, round));
                }),
            );
            work(
                1,
                Box::new(move |round| {
                    let at = u64::from(round.wrapping_mul(0x9e37_79b1)) % (2 * MIB / 8) * 8;
                    memory.word(at).unwrap().store(u64::from(round), Ordering::Relaxed);
                }),
            );
            // Copies, fills, fences and time stamps, by kernel-mode buffers.
            let device = open("copies");
            let [source, target] = [0, 1].map(|_| device.create_local_buffer(MIB).unwrap());
            // What the engine itself stores is where a CPU sees it.
            let visible = is_in_device().then(|| device.create_buffer(MIB).unwrap());
            let words = visible.as_ref().map_or(target.va(), |visible| visible.va());
            let mut queue = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
            work(
                2,
                Box::new(move |round| {
                    let _alive = (&device, &visible);
                    let at = u64::from(round) * 37 % 200 * PAGE;
                    let mut commands = CommandBuffer::new();
                    commands.fill(source.va() + at, 2 * PAGE, round).unwrap();
                    commands.barrier().unwrap();
                    commands.copy(source.va() + at, target.va() + at, PAGE + 64).unwrap();
                    commands.signal(words + 250 * PAGE, u64::from(round)).unwrap();
                    commands.timestamp(words + 251 * PAGE).unwrap();
                    let ticket = queue.submit(&commands).unwrap();
                    queue.wait(ticket, Some(NEVER)).unwrap();
                }),
            );
            // More memory than there is, mapped, unmapped, zeroed, evicted and brought back.
            let device = open("paging");
            let mut queue = device
                .create_context(Node::Copy)
                .unwrap()
                .create_user_queue(&QueueOptions::default())
                .unwrap();
            let locals = [(); 6].map(|()| device.create_local_buffer(4 * MIB).unwrap());
            work(
                3,
                Box::new(move |round| {
                    let local = &locals[usize::try_from(round % 6).unwrap()];
                    run(&mut queue, &fill(local.va() + u64::from(round) % 1000 * PAGE, 2 * PAGE, round));
                    let passing = device.create_buffer(64 * 1024).unwrap();
                    passing.write(u64::from(round) % 8192, &[1; 999]).unwrap();
                }),
            );
            let least = || rounds.iter().map(|round| round.load(Ordering::Acquire)).min().unwrap();
            until("work of every kind, while somebody reads", || {
                vram.pull();
                evicted.pull();
                least() >= 40
            });
            drop(ends);
        });
        vram.catches_up();
        evicted.catches_up();
        assert!(
            watched.host.vgpus[0].counters.evictions.load(Ordering::Relaxed) > 0,
            "something was evicted"
        );
        drop(vm);
    }
}

#[test]
fn dirty_53_stores_through_the_window_are_found_without_a_word_from_anybody() {
    for method in methods() {
        let watched = Watched::start(method);
        let device = watched.device();
        let buffer = device.create_buffer(MIB).unwrap();
        let [mut vram, _] = watched.readers(0);
        vram.catches_up();
        for round in 1..20u64 {
            let word = buffer.memory().word(round * 11 * PAGE % MIB + 24).unwrap();
            word.store(round << 32, Ordering::Relaxed);
            vram.pull();
            assert!(vram.copy == vram.now(), "{method}");
        }
    }
}
