//! What a driver has compiled is there for the next process of an engine, and for no other VM's.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_host_gpu::code_cache::log::Log;
use campanile_host_gpu::code_cache::log::Reader;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_test_vmm::vm::LoopbackVm;

use crate::operator::Operated;
use crate::support::NEVER;
use crate::support::until;

/// Bytes of an entry's key.
const KEY: usize = 40;

/// The log of a vGPU's compute engine, as its process has it.
pub(crate) struct Observed {
    pub(crate) log: Log,
    identity: u64,
    pub(crate) inode: u64,
}

fn engine_of(operated: &Operated, vgpu: usize) -> serde_json::Value {
    operated.ask(&["status"])["vgpus"][vgpu]["session"]["engines"][0].clone()
}

fn observe(operated: &Operated, vgpu: usize) -> Observed {
    let pid = engine_of(operated, vgpu)["pid"].as_u64().unwrap();
    observe_process(u32::try_from(pid).unwrap()).expect("an engine with a log")
}

/// The log that a process has; none where it has none.
pub(crate) fn observe_process(pid: u32) -> Option<Observed> {
    let is_log = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:campanile-code"))
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path());
    let path = descriptors.into_iter().find(is_log)?;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let mapping = Arc::new(Mapping::new(file, 0, metadata.len(), Access::ReadWrite).unwrap());
    let identity = mapping.word(0).unwrap().load(Ordering::Acquire);
    Some(Observed { log: Log::new(mapping).unwrap(), identity, inode: metadata.ino() })
}

impl Observed {
    /// Code by key.
    fn entries(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut reader = Reader::default();
        let all = std::iter::from_fn(|| reader.next(&self.log));
        all.map(|entry| (entry[..KEY].to_vec(), entry[KEY..].to_vec())).collect()
    }

    /// As if the processes before had compiled this.
    fn replace(&self, entries: &BTreeMap<Vec<u8>, Vec<u8>>) {
        self.log.claim(!self.identity);
        self.log.claim(self.identity);
        for (key, code) in entries {
            assert!(self.log.put(&[key.clone(), code.clone()].concat()));
        }
    }
}

/// Writes a number of its own.
pub(crate) fn kernel(device: &Device, number: u32) -> Kernel {
    let text = format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
         @compute @workgroup_size(1) fn main() {{ data[0] = {number}u; }}"
    );
    device.create_kernel(&KernelSource::wgsl(&text)).unwrap()
}

/// A guest with a kernel that writes 1, another that writes 2, and so on.
pub(crate) struct Guest {
    pub(crate) vm: Arc<LoopbackVm>,
    pub(crate) device: Device,
    buffer: Buffer,
    pub(crate) kernels: Vec<Kernel>,
}

impl Guest {
    fn new(operated: &Operated, vgpu: usize, numbers: std::ops::RangeInclusive<u32>) -> Self {
        Self::of(operated.daemon.vm(vgpu), numbers)
    }

    /// In this VM.
    pub(crate) fn of(vm: Arc<LoopbackVm>, numbers: std::ops::RangeInclusive<u32>) -> Self {
        let device = Device::open(vm.open("guest").unwrap()).unwrap();
        let buffer = device.create_buffer(4096).unwrap();
        let kernels = numbers.map(|number| kernel(&device, number)).collect();
        Self { vm, device, buffer, kernels }
    }

    /// What each kernel writes.
    pub(crate) fn run(&self) -> Vec<u32> {
        let mut queue = self.device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
        let mut run = |kernel| {
            let mut commands = CommandBuffer::new();
            commands.dispatch(kernel, [1; 3], &[self.buffer.binding(0)], &[]).unwrap();
            let ticket = queue.submit(&commands).unwrap();
            queue.wait(ticket, Some(NEVER)).unwrap();
            let word = self.buffer.memory().word(0).unwrap().load(Ordering::Acquire);
            u32::try_from(word & 0xffff_ffff).unwrap()
        };
        self.kernels.iter().map(&mut run).collect()
    }
}

fn reset(operated: &Operated, name: &str) {
    operated.ask(&["reset", "--vgpu", name, "--node", "compute"]);
}

#[test]
fn what_a_process_of_an_engine_compiled_is_what_the_next_one_runs_and_no_other_vm() {
    let operated = Operated::with(2, &["--tdr-timeout", "600000"]);
    let [first, second] =
        [(0, 1..=1), (1, 2..=2)].map(|(vgpu, numbers)| Guest::new(&operated, vgpu, numbers));
    let [of_first, of_second] = [0, 1].map(|vgpu| observe(&operated, vgpu));
    assert_ne!(of_first.inode, of_second.inode, "each vGPU has its own");
    assert_eq!(of_first.identity, of_second.identity, "one driver and device");
    // Each has what the driver compiles for itself, and its kernel.
    let own = |of: &Observed, other: &Observed| {
        let (mut entries, other) = (of.entries(), other.entries());
        let all = entries.len();
        entries.retain(|key, _| !other.contains_key(key));
        (entries, all)
    };
    until("the code of one kernel each", || {
        let [(first, all), (second, _)] = [own(&of_first, &of_second), own(&of_second, &of_first)];
        first.len() == 1 && second.len() == 1 && all > 1
    });
    let code = |of: &Observed, other: &Observed| own(of, other).0.into_iter().next().unwrap();
    let ((key, _), (_, other)) = (code(&of_first, &of_second), code(&of_second, &of_first));
    // The next process of the first engine finds the second one's code under the name of its kernel, and runs that.
    let mut entries = of_first.entries();
    entries.insert(key, other);
    of_first.replace(&entries);
    assert_eq!(first.run(), [1]);
    reset(&operated, "v0");
    assert_eq!(first.run(), [2]);
    assert_eq!(observe(&operated, 0).inode, of_first.inode, "the log stays");
    assert_eq!(second.run(), [2]);
    // The next VM has none of it.
    drop(first);
    let next = Guest::new(&operated, 0, 1..=1);
    assert_eq!(next.run(), [1]);
    assert_ne!(observe(&operated, 0).inode, of_first.inode);
}

#[test]
fn the_log_has_all_that_processes_compile_and_grows_only_by_what_is_new() {
    const KERNELS: u32 = 8;
    for arguments in [&["--spares", "off"], &["--spares", "on"]] {
        let operated = Operated::with(1, &[&["--tdr-timeout", "600000"][..], arguments].concat());
        let mut guest = Guest::new(&operated, 0, 1..=KERNELS);
        let all: Vec<u32> = (1..=KERNELS).collect();
        let log = observe(&operated, 0);
        // What is written last may come first.
        until("the code of all kernels", || log.log.claims().added > u64::from(KERNELS));
        assert_eq!(guest.run(), all);
        let mut last = 0;
        until("no code that is not there", || {
            let now = engine_of(&operated, 0)["code_entries"].as_u64().unwrap();
            std::mem::replace(&mut last, now) == now
        });
        for round in 1..=2 {
            reset(&operated, "v0");
            assert_eq!(guest.run(), all);
            guest.kernels.push(kernel(&guest.device, 100 + round));
            until("the code of one more", || log.log.claims().added > last);
            guest.kernels.pop();
            let now = log.log.claims().added;
            assert_eq!(now, last + 1, "round {round}");
            last = now;
        }
    }
}

#[test]
fn an_engine_without_a_log_compiles_all_anew() {
    let operated = Operated::with(1, &["--code-cache", "0"]);
    let guest = Guest::new(&operated, 0, 1..=2);
    reset(&operated, "v0");
    assert_eq!(guest.run(), [1, 2]);
    assert_eq!(engine_of(&operated, 0)["code_entries"], 0);
}

/// A kernel of some size, unlike every other number's.
pub(crate) fn large_kernel(device: &Device, number: u32) -> Kernel {
    let text = format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<f32>;
         var<workgroup> cells: array<f32, 64>;
         @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {{
             var x = data[i];
             var sums: array<f32, 8>;
             for (var k = 0u; k < 8u; k++) {{ sums[k] = x + f32(k) * {number}.0; }}
             for (var r = 0u; r < {number}u + 4u; r++) {{
                 for (var k = 0u; k < 8u; k++) {{
                     sums[k] = fma(sums[k], sin(x + sums[(k + 1u) & 7u]), exp2(sums[k]) * 0.5);
                     if (sums[k] > 10.0) {{ sums[k] = sqrt(sums[k]) + pow(abs(x), 1.3); }}
                 }}
                 cells[i] = sums[r & 7u];
                 workgroupBarrier();
                 x += cells[(i + 1u) & 63u];
                 workgroupBarrier();
             }}
             data[i] = x + sums[0] + sums[7];
         }}"
    );
    device.create_kernel(&KernelSource::wgsl(&text)).unwrap()
}

#[test]
#[ignore = "prints figures"]
fn how_long_a_reset_takes_with_64_kernels_with_a_log_and_without() {
    for (spares, cache) in [("off", "0"), ("off", "32"), ("on", "0"), ("on", "32")] {
        let arguments = ["--tdr-timeout", "600000", "--code-cache", cache, "--spares", spares];
        let operated = Operated::with(1, &arguments);
        let mut guest = Guest::new(&operated, 0, 1..=1);
        let begun = Instant::now();
        guest.kernels = (1..=64).map(|number| large_kernel(&guest.device, number)).collect();
        let made = begun.elapsed();
        let state = || engine_of(&operated, 0);
        until("all code", || cache == "0" || state()["code_entries"].as_u64() > Some(64));
        guest.run();
        let resets: Vec<Duration> = (0..3)
            .map(|_| {
                until("a spare", || spares == "off" || state()["spare"] == "ready");
                let begun = Instant::now();
                reset(&operated, "v0");
                guest.run();
                begun.elapsed()
            })
            .collect();
        let bytes = state()["code_bytes"].clone();
        println!("spares {spares}, log {cache} MiB: made in {made:?}, resets {resets:?}, {bytes} bytes");
    }
}
