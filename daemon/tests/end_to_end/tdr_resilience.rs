//! The TDR-resilience test (TDR-85) and the soak: hangs on purpose, under load of those who do nothing wrong.
//!
//! `ci/tdr-resilience` and `ci/soak` run these at length; here they run in their short form. What is seen is printed, a
//! line a claim.

use std::env;
use std::fs;
use std::fs::DirEntry;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Signal;

use crate::dirty::is_in_device;
use crate::operator::Operated;
use crate::processes::engines;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::signals::signal;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_support::hang;

const COUNT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = data[id.x] + 1u;
    }";

/// Work whose every round is checked: were one lost, or run twice, the count would not be right.
pub(crate) struct Load {
    rounds: AtomicU64,
}

impl Load {
    pub(crate) const fn new() -> Self {
        Self { rounds: AtomicU64::new(0) }
    }

    pub(crate) fn run(&self, vm: &Arc<LoopbackVm>, node: Node, ends: &AtomicBool) {
        let device = Device::open(vm.open("load").unwrap()).unwrap();
        let data = device.create_buffer(4096).unwrap();
        let target = device.create_buffer(4096).unwrap();
        let kernel =
            (node == Node::Compute).then(|| device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap());
        let context = device.create_context(node).unwrap();
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        for round in 1u32.. {
            if ends.load(Ordering::Acquire) {
                return;
            }
            let mut commands = CommandBuffer::new();
            match &kernel {
                Some(kernel) => commands.dispatch(kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap(),
                None => commands.fill(data.va(), 4096, round).unwrap(),
            };
            commands.copy(data.va(), target.va(), 4096).unwrap();
            queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            let mut bytes = [0; 4096];
            target.read(0, &mut bytes).unwrap();
            assert!(
                bytes.chunks_exact(4).all(|word| word == round.to_le_bytes()),
                "round {round} on {node:?}"
            );
            device.check().unwrap();
            self.rounds.store(u64::from(round), Ordering::Release);
        }
    }

    pub(crate) fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Acquire);
        until("load that goes on", || self.rounds.load(Ordering::Acquire) > before + 3);
    }
}

fn pid(operated: &Operated, node: usize) -> u32 {
    let status = operated.ask(&["status"]);
    u32::try_from(status["vgpus"][0]["session"]["engines"][node]["pid"].as_u64().unwrap()).unwrap()
}

/// Has the copy engine stand still while it runs a process's work, until that process is lost for it.
fn hang_copies(operated: &Operated, vm: &Arc<LoopbackVm>) {
    until("copies that stand still", || {
        // One that stood still between two buffers was nobody's fault, and goes on: another then.
        let (guest, context) = copy_guest(vm);
        let memory = guest.vram(16 << 20);
        let half = memory.size() / 2;
        let mut long = CommandBuffer::new();
        for _ in 0..7 {
            long.copy(memory.va, memory.va + half, half).unwrap();
        }
        let mut queue = RawQueue::new(&guest, context);
        let engine = pid(operated, 1);
        for _ in 0..40 {
            queue.submit(&long);
        }
        // An engine without work sleeps soon, and then its doorbells say RETRY.
        until("the first of many copies", || {
            assert_eq!(queue.connect(), Ok(CONNECTED));
            queue.fence() > 0
        });
        signal(engine, Signal::STOP);
        let is_hung = || guest.device_status() == DEVICE_HUNG;
        until("a reset", || is_hung() || pid(operated, 1) != engine);
        is_hung()
    });
}

// conformance: one run of hangs under load; its lines of output name the rule that each step shows
#[test]
fn tdr_03_tdr_61_tdr_70_tdr_85_each_node_hangs_in_turn_under_load_on_the_others() {
    let rounds: u32 = env::var("CAMPANILE_TDR_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let operated = Operated::with(2, &["--tdr-timeout", "300", "--tdr-debug", "3"]);
    let (vm, other_vm) = (operated.daemon.vm(0), operated.daemon.vm(1));
    let ends = AtomicBool::new(false);
    // Beside who hangs: another process on each node it does not hang, and both nodes of another guest.
    let (beside_compute, elsewhere) = (Load::new(), [Load::new(), Load::new()]);
    thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| beside_compute.run(&vm, Node::Compute, &ends));
        scope.spawn(|| elsewhere[0].run(&other_vm, Node::Compute, &ends));
        scope.spawn(|| elsewhere[1].run(&other_vm, Node::Copy, &ends));
        let all = || [&beside_compute, &elsewhere[0], &elsewhere[1]].map(Load::goes_on);
        all();
        for round in 1..=rounds {
            let loss = hang(&Device::open(vm.open("hangs").unwrap()).unwrap());
            assert_eq!((loss.status, loss.is_collateral), (DEVICE_HUNG, false));
            all();
            println!("PASS TDR-61 TDR-70 compute hangs, its own device alone is lost (round {round})");
            hang_copies(&operated, &vm);
            all();
            println!("PASS TDR-03 TDR-61 TDR-70 copies hang, its own device alone is lost (round {round})");
        }
    });
    let reset = operated.ask(&["reset-adapter", "--vgpu", "v0"]);
    assert_eq!(reset["devices_lost"], 0, "all of them are closed");
    for engine in operated.ask(&["status"])["vgpus"][0]["session"]["engines"].as_array().unwrap() {
        assert_eq!(engine["last_completed_fence"], engine["last_submitted_fence"]);
    }
    println!("PASS TDR-55 after an adapter reset what was submitted last has completed");
    let counters = operated.ask(&["metrics"])["vgpus"][1]["counters"].clone();
    assert_eq!((&counters["adapters_reset"], &counters["engines_reset"]), (&0.into(), &0.into()));
    println!("PASS TDR-70 the other guest lost nothing");
}

#[derive(Debug, Clone, Copy)]
struct Footprint {
    descriptors: usize,
    mappings: usize,
    processes: usize,
    resident_kib: u64,
}

fn footprint(operated: &Operated) -> Footprint {
    let pid = operated.daemon.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    // What it reads of processes is open for a moment, several times a second.
    let is_kept = |entry: &DirEntry| fs::read_link(entry.path()).is_ok_and(|to| !to.starts_with("/proc"));
    Footprint {
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter(is_kept).count(),
        mappings: fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count(),
        processes: engines(&operated.daemon).len(),
        resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
    }
}

#[test]
fn soak_hangs_in_a_row_leak_nothing_and_lose_or_double_no_innocent_work() {
    let hangs: u32 = env::var("CAMPANILE_SOAK_HANGS").map_or(24, |hangs| hangs.parse().unwrap());
    let timeout = env::var("CAMPANILE_SOAK_TIMEOUT").unwrap_or_else(|_| "150".to_owned());
    let operated = Operated::with(1, &["--tdr-timeout", &timeout, "--tdr-debug", "3"]);
    let vm = operated.daemon.vm(0);
    let ends = AtomicBool::new(false);
    let innocent = Load::new();
    thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| innocent.run(&vm, Node::Compute, &ends));
        innocent.goes_on();
        let mut before = None;
        for number in 1..=hangs {
            let loss = hang(&Device::open(vm.open("hangs").unwrap()).unwrap());
            assert_eq!((loss.status, loss.is_collateral), (DEVICE_HUNG, false), "hang {number}");
            innocent.goes_on();
            // The allocator has what it needs after the first few.
            if number == hangs.min(8) {
                before = Some(footprint(&operated));
            }
            if number % 100 == 0 {
                println!(
                    "{number} hangs, {} rounds of the innocent, {:?}",
                    innocent.rounds.load(Ordering::Relaxed),
                    footprint(&operated)
                );
            }
        }
        let (before, after) = (before.unwrap(), footprint(&operated));
        assert!(after.descriptors <= before.descriptors + 2, "{before:?} became {after:?}");
        assert!(after.mappings <= before.mappings + 8, "{before:?} became {after:?}");
        assert!(after.resident_kib <= before.resident_kib + (8 << 10), "{before:?} became {after:?}");
        // With a device's own memory the copy engine is there, too: it moves and zeroes what hung programs had.
        assert_eq!(after.processes, if is_in_device() { 2 } else { 1 });
        println!(
            "PASS soak: {hangs} hangs, {} rounds of the innocent, each once; {before:?} became {after:?}",
            innocent.rounds.load(Ordering::Relaxed)
        );
    });
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    assert_eq!(counters["engines_reset"], hangs, "{counters}");
}
