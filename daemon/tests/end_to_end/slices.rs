//! Long dispatches, which make room between two slices.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::user_queue::QueueOptions;

use crate::operator::Operated;
use crate::processes::engines;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;

/// A group takes a while, and counts itself: in the first word all of them, behind that each for itself.
const COUNT: &str = "
    struct Counts { started: atomic<u32>, unused: u32, groups: array<atomic<u32>> }
    var<immediate> turns: u32;
    @group(0) @binding(0) var<storage, read_write> counts: Counts;
    @compute @workgroup_size(1) fn main(
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
    ) {
        atomicAdd(&counts.started, 1u);
        var x = group.x;
        for (var i = 0u; i < turns; i++) { x = (x * 1664525u + 1013904223u) ^ (x >> 7u); }
        // Never so; the loop must not be dropped.
        if x == 0xffffffffu && turns == 0u { atomicAdd(&counts.started, x); }
        let at = (group.z * groups.y + group.y) * groups.x + group.x;
        atomicAdd(&counts.groups[at], 1u + groups.x);
    }";

const GRID: [u32; 3] = [50, 30, 2];
pub(crate) const GROUPS: u32 = 3000;
/// About 0.5 ms of a CPU.
const LONG: [u8; 4] = 130_000_u32.to_le_bytes();
const BYTES: u64 = 16 * 1024;

pub(crate) struct Long {
    kernel: Kernel,
    counts: Buffer,
    grid: Buffer,
}

impl Long {
    pub(crate) fn new(device: &Device) -> Self {
        let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
        let (counts, grid) = (device.create_buffer(BYTES).unwrap(), device.create_buffer(4096).unwrap());
        Self { kernel, counts, grid }
    }

    pub(crate) fn commands(&self, is_indirect: bool) -> CommandBuffer {
        self.counts.write(0, &vec![0; usize::try_from(BYTES).unwrap()]).unwrap();
        self.grid.write(0, &GRID.map(u32::to_le_bytes).concat()).unwrap();
        let mut commands = CommandBuffer::new();
        let bindings = [self.counts.binding(0)];
        if is_indirect {
            commands.dispatch_indirect(&self.kernel, self.grid.va(), &bindings, &LONG).unwrap();
        } else {
            commands.dispatch(&self.kernel, GRID, &bindings, &LONG).unwrap();
        }
        commands
    }

    pub(crate) fn started(&self) -> u64 {
        self.counts.memory().word(0).unwrap().load(Ordering::Acquire) & 0xffff_ffff
    }

    pub(crate) fn check(&self) {
        self.check_runs(1);
    }

    /// What the same commands leave behind that ran so many times.
    pub(crate) fn check_runs(&self, runs: u32) {
        assert_eq!(self.started(), u64::from(runs * GROUPS));
        let mut bytes = vec![0; usize::try_from(GROUPS).unwrap() * 4];
        self.counts.read(8, &mut bytes).unwrap();
        for (group, count) in bytes.chunks_exact(4).enumerate() {
            assert_eq!(
                count,
                (runs * (1 + GRID[0])).to_le_bytes(),
                "group {group} ran once a run, and knew the grid"
            );
        }
    }
}

// conformance: one long dispatch between slices, seen by its own guest and by the other
#[test]
fn pre_25_pre_74_mcdm_27_mcdm_32_a_long_dispatch_makes_room_for_another_vgpu_and_loses_nothing() {
    let daemon = Daemon::with_vgpus(2, &["--tdr-timeout", "2000"]);
    let (patient, urgent) = (daemon.vm(0), daemon.vm(1));
    let patient = Device::open(patient.open("patient").unwrap()).unwrap();
    let urgent = Device::open(urgent.open("urgent").unwrap()).unwrap();
    let long = Long::new(&patient);
    let context = patient.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let short = urgent.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let counts = urgent.create_buffer(4096).unwrap();
    let mut its_queue = urgent.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&short, [1; 3], &[counts.binding(0)], &[0; 4]).unwrap();

    let point = queue.submit(&long.commands(false)).unwrap();
    until("the long dispatch", || long.started() > 0);
    for round in 0..5 {
        let ticket = its_queue.submit(&commands).unwrap();
        its_queue.wait(ticket, Some(NEVER)).unwrap();
        assert!(long.started() < u64::from(GROUPS), "round {round} came after all of the other's work");
    }
    // Longer than the timeout under contention: it makes progress.
    point.wait(Some(NEVER)).unwrap();
    long.check();
}

#[test]
fn pre_40_mcdm_31_a_dispatch_put_aside_in_the_middle_goes_on_in_another_process() {
    let operated = Operated::with(1, &[]);
    let vm = operated.daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let long = Long::new(&device);
    let context = device.create_context(Node::Compute).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut ordinary = context.create_kernel_queue().unwrap();
    // On a busy machine a dispatch may be done before the order to put it aside is there: then another one is tried.
    let mut put_aside = |is_indirect, through_doorbell| {
        let commands = long.commands(is_indirect);
        let (point, ticket) = if through_doorbell {
            (Some(user.submit(&commands).unwrap()), None)
        } else {
            (None, Some(ordinary.submit(&commands).unwrap()))
        };
        until("the dispatch", || long.started() > 0);
        operated.ask(&["power", "--vgpu", "v0", "d3"]);
        assert!(engines(&operated.daemon).is_empty());
        let done = long.started();
        // Read once, and not again.
        long.grid.write(0, &[0xff; 12]).unwrap();
        operated.ask(&["power", "--vgpu", "v0", "d0"]);
        if let Some(point) = point {
            point.wait(Some(NEVER)).unwrap();
        }
        if let Some(ticket) = ticket {
            ordinary.wait(ticket, Some(NEVER)).unwrap();
        }
        long.check();
        done > 0 && done < u64::from(GROUPS)
    };
    for is_indirect in [false, true] {
        for through_doorbell in [true, false] {
            until("a dispatch in the middle", || put_aside(is_indirect, through_doorbell));
        }
    }
}

#[test]
fn engines_of_the_latency_profile_have_a_driver_without_threads_and_compute_the_same() {
    let daemon = Daemon::with(&["--profile", "latency"]);
    let (_vm, device) = daemon.device();
    let long = Long::new(&device);
    let mut queue =
        device.create_context(Node::Compute).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    let point = queue.submit(&long.commands(false)).unwrap();
    until("the dispatch", || long.started() > 0);
    for pid in engines(&daemon) {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.split(|byte| *byte == 0).any(|variable| variable == b"LP_NUM_THREADS=0"));
    }
    point.wait(Some(NEVER)).unwrap();
    long.check();
}

/// How nice a thread is.
fn nice(thread: &Path) -> i64 {
    let stat = fs::read_to_string(thread.join("stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap()
}

#[test]
fn threads_that_run_kernels_are_nicer_than_those_that_say_what_comes_next() {
    // With a device's own memory an engine has device instances for copies, too, with threads of theirs.
    let daemon = Daemon::with(&["--local-memory", "host"]);
    let (_vm, device) = daemon.device();
    let _context = device.create_context(Node::Compute).unwrap();
    let threads = |pid: u32| -> Vec<(String, i64)> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
        tasks.map(|task| (fs::read_to_string(task.join("comm")).unwrap(), nice(&task))).collect()
    };
    let of_the_driver =
        |threads: &Vec<(String, i64)>| threads.iter().any(|(name, _)| name.starts_with("llvmpipe"));
    let all =
        engines(&daemon).into_iter().map(threads).find(of_the_driver).expect("an engine with the driver");
    let own = nice(Path::new("/proc/self"));
    for (name, nice) in &all {
        assert!(!name.starts_with("llvmpipe") || *nice == own + 5, "{name} {nice}");
    }
    // Those that bear the program's name: its first thread, those of the queues, and the driver's that run kernels.
    let (program, _) = all.first().unwrap();
    let [gives, runs] =
        [own, own + 5].map(|nice| all.iter().filter(|thread| **thread == (program.clone(), nice)).count());
    let queues = if std::thread::available_parallelism().unwrap().get() == 1 { 0 } else { 2 };
    assert_eq!(gives, 1 + queues, "{all:?}");
    assert!(runs > 0, "{all:?}");
}

/// What the newest slice of the first vGPU was to take.
fn slice_target(operated: &Operated) -> Duration {
    let engine = &operated.ask(&["status"])["vgpus"][0]["session"]["engines"][0];
    Duration::from_nanos(engine["slice_target_ns"].as_u64().unwrap_or_default())
}

#[test]
fn slices_are_half_as_long_while_realtime_work_comes_and_whole_again_afterwards() {
    const WHOLE: Duration = Duration::from_millis(2);
    let operated = Operated::with_shares(&["bands=realtime", "bands=realtime"], &[]);
    let (vm, other_vm) = (operated.daemon.vm(0), operated.daemon.vm(1));
    let patient = Device::open(vm.open("patient").unwrap()).unwrap();
    let long = Long::new(&patient);
    let context = patient.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let commands = long.commands(false);
    let is_over = AtomicBool::new(false);
    // Of another VM, whose engine asks for the node, and of the same one, whose engine sees it by itself.
    let urgent = [&other_vm, &vm].map(|vm| Device::open(vm.open("urgent").unwrap()).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            }
        });
        let _ends = Ends(&is_over);
        for urgent in urgent {
            until("a whole slice", || slice_target(&operated) == WHOLE);
            let context = urgent.create_context(Node::Compute).unwrap();
            context.set_scheduling(&Properties { band: Band::Realtime(0), ..Properties::default() }).unwrap();
            let mut its_queue = context.create_user_queue(&QueueOptions::default()).unwrap();
            until("a slice that is half as long", || {
                its_queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
                slice_target(&operated) == WHOLE / 2
            });
        }
        until("a whole slice again", || slice_target(&operated) == WHOLE);
    });
}

#[test]
fn pre_16_pre_74_with_slices_off_the_dispatch_that_runs_finishes_and_the_next_does_not_start() {
    let daemon = Daemon::with_shares(&["", "bands=realtime"], &["--slice", "0", "--tdr-level", "0"]);
    let (patient, urgent) = (daemon.vm(0), daemon.vm(1));
    let patient = Device::open(patient.open("patient").unwrap()).unwrap();
    let urgent = Device::open(urgent.open("urgent").unwrap()).unwrap();
    let long = [Long::new(&patient), Long::new(&patient), Long::new(&patient)];
    let mut commands = Vec::new();
    for dispatch in &long {
        commands.extend_from_slice(dispatch.commands(false).bytes());
        commands.extend_from_slice(CommandBuffer::new().barrier().unwrap().bytes());
    }
    let commands = CommandBuffer::from_bytes(commands);
    let mut queue = patient.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let context = urgent.create_context(Node::Compute).unwrap();
    let properties = Properties { band: Band::Realtime(0), ..Properties::default() };
    context.set_scheduling(&properties).unwrap();
    let mut its_queue = context.create_kernel_queue().unwrap();
    let ticket = queue.submit(&commands).unwrap();
    until("the first dispatch", || long[0].started() > 0);
    let its_ticket = its_queue.submit(&CommandBuffer::new()).unwrap();
    its_queue.wait(its_ticket, Some(NEVER)).unwrap();
    assert_eq!(long[0].started(), u64::from(GROUPS), "the dispatch that ran has finished");
    assert!(long[2].started() < u64::from(GROUPS), "and not all that was behind it");
    queue.wait(ticket, Some(NEVER)).unwrap();
    long.iter().for_each(Long::check);
}
