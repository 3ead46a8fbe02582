//! A driver that fails each call in turn: what a node says of it, what it leaves, and that the next node works.

#![allow(clippy::unwrap_used, reason = "a failing test stops here")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::Once;
use std::sync::PoisonError;
use std::time::Duration;

use ash::vk;
use campanile_fault_layer::entries::ENTRIES;
use campanile_fault_layer::entries::index;
use campanile_fault_layer::faults::Faults;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::memory::local::LocalDevice;
use campanile_host_gpu::memory::local::LocalMemory;
use campanile_host_gpu::memory::local::Side;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::node::buffer::Node;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::node::compute::ComputeNode;
use campanile_host_gpu::node::device_instance::Compiled;
use campanile_host_gpu::node::device_instance::DeviceInstance;
use campanile_host_gpu::node::local_copies::LocalCopies;
use campanile_host_gpu::node::local_copies::allocate;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::info::Handle;
use campanile_host_gpu::vulkan::local::Copier;
use campanile_host_gpu::vulkan::options::Executor;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::request::Slice;
use campanile_protocol::page_table::SegmentId;

use crate::bench::bind;
use crate::bench::map;
use crate::bench::memfd;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::run_again;
use crate::bench::word;
use crate::kernels::SPIN;
use crate::scene::Scene;
use crate::scene::dispatch;
use crate::scene::dispatch_texels;
use crate::texels;

const FOLDER: &str = "CAMPANILE_TEST_FAULTS";
const BYTES: u64 = 0x10_0000;
/// Where local memory begins: behind the scene's.
const START: u64 = 0x10_0000;
const SLICE: Duration = Duration::from_millis(1);

const ADD: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    cells[id.x] = cells[id.x] + n.x;
}";

/// The layer, where it is under this process. None where the test whose closure `F` is has been run in one that has it.
fn layer<F>() -> Option<Faults> {
    if let Some(folder) = env::var_os(FOLDER) {
        return Some(Faults::at(Path::new(&folder)).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let faults = Faults::install(folder.path()).unwrap();
    let [path, layers] = faults.environment();
    run_again::<F>(&[path, layers, (FOLDER, folder.path().to_string_lossy().into_owned())]);
    None
}

/// Runs the test with the layer under it.
pub(crate) fn with_faults<F: FnOnce(&Faults)>(body: F) {
    if let Some(faults) = layer::<F>() {
        body(&faults);
    }
}

/// Runs the test on a device that can import no host memory.
pub(crate) fn without_imports<F: FnOnce(Driver)>(body: F) {
    if let Some(faults) = layer::<F>() {
        faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        let driver = Driver::open(&Options::default()).unwrap();
        assert!(driver.copies_memory());
        body(driver);
    }
}

/// What was logged.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

fn logged() -> MutexGuard<'static, Vec<String>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

impl log::Log for Collector {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            logged().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| log::set_logger(&Collector).unwrap());
    log::set_max_level(log::LevelFilter::Warn);
    logged().clear();
}

/// The life of an engine: a device is opened and tested, memory is shared with it, kernels run in slices and in chains, on host memory
/// and on its own, and all of it ends. Everything that it says was computed is looked at.
fn life(executor: Executor) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let options = Options { executor: Some(executor), ..Options::default() };
    let driver = Driver::open(&options).map_err(|error| text(&error))?;
    let exported = allocate(&driver, BYTES).map_err(|error| text(&error))?;
    let local =
        LocalMemory { start: START, bytes: BYTES, evicted_bytes: 4096, passport: exported.passport() };
    let other = driver.secondary().map_err(|error| text(&error))?;
    let descriptor = exported.descriptor.try_clone().unwrap();
    let mut copies = LocalCopies::new(other, local, descriptor).map_err(|error| text(&error))?;
    copy(&mut copies)?;
    share(&driver)?;
    let has_two = executor == Executor::Cpu && !driver.copies_memory();
    let secondary = has_two.then(|| driver.secondary()).transpose().map_err(|error| text(&error))?;
    let kernel = sanitize(&Source::wgsl(ADD)).unwrap();
    let scene = Scene::new();
    let name = KernelName { root: scene.root(), handle: 1 };
    let first = driver.pipeline(&kernel).map_err(|error| text(&error))?;
    let counting = texels::sanitize(&driver, &texels::counting());
    let counting = driver.pipeline(&counting).map_err(|error| text(&error))?;
    let second = secondary.as_ref().map(|driver| driver.pipeline(&kernel)).transpose();
    let second = second.map_err(|error| text(&error))?;
    let mut instances: Vec<_> = std::iter::once(driver).chain(secondary).map(DeviceInstance::new).collect();
    for instance in &mut instances {
        let descriptor = exported.descriptor.try_clone().unwrap();
        instance.import_local(local, descriptor).map_err(|error| text(&error))?;
    }
    let mut node = ComputeNode::new(instances, Arc::clone(&scene.shared), SLICE);
    node.add_kernel(name, Compiled { serial: 1, pipeline: first, candidate: None });
    let of_texels = KernelName { handle: 2, ..name };
    node.add_kernel(of_texels, Compiled { serial: 2, pipeline: counting, candidate: None });
    if let Some(pipeline) = second {
        node.add_secondary_kernel(name, Compiled { serial: 1, pipeline, candidate: None });
    }
    compute(&scene, &mut Node::Compute(Box::new(node)))
}

/// Copies and fills by the device.
fn copy(copies: &mut LocalCopies) -> Result<(), String> {
    let host = map(&memfd(2 * START), 0, 2 * START, Access::ReadWrite);
    copies.fill(START + 4096, 4096, 7).map_err(|error| error.to_string())?;
    let to = Side::Segment(SegmentId(5), &host, 0);
    copies.copy(Side::Local(START + 4092), to, 8).map_err(|error| error.to_string())?;
    assert_eq!((word(&host, 0), word(&host, 1)), (0, 7));
    let range =
        HostRange { mapping: Arc::clone(&host), offset: 4096, length: 4096, access: Access::ReadWrite };
    copies.copy_with(&range, START + 4096, true).map_err(|error| error.to_string())?;
    assert_eq!(word(&host, 1024), 7);
    Ok(())
}

/// What a device exports as a dma-buf, where it does.
fn share(driver: &Driver) -> Result<(), String> {
    let Ok(memory) = driver.allocate(BYTES, Some(Handle::DmaBuf)) else { return Ok(()) };
    let exported = memory.export(Handle::DmaBuf).map_err(|error| error.to_string())?;
    driver.import_exported(exported).map(drop).map_err(|error| error.to_string())
}

fn finish(scene: &Scene, node: &mut Node, packets: &[u8]) -> Result<(), String> {
    let mut buffer = scene.buffer(packets);
    loop {
        match scene.run(&mut buffer, node, &mut || false) {
            Step::Done => return Ok(()),
            Step::Paused => {}
            step => return Err(format!("{step:?}")),
        }
    }
}

/// Brief dispatches, which go together, one of many slices, and one over texels.
fn compute(scene: &Scene, node: &mut Node) -> Result<(), String> {
    let mut expected = 0;
    let brief: Vec<u8> = (0..8).flat_map(|_| dispatch(1, [4, 1, 1], 0, 1024)).collect();
    let large = dispatch(1, [2000, 1, 1], 0, 512_000);
    for (packets, adds) in [(&brief, 32), (&brief, 32), (&large, 2000), (&brief, 32)] {
        finish(scene, node, packets)?;
        expected += adds;
        for at in [0, 255] {
            assert_eq!(word(&scene.memory, at), expected, "word {at}");
        }
    }
    finish(scene, node, &dispatch_texels(2, [4, 1, 1], 0xc_0000, 1024, texels::R32_UINT))?;
    assert_eq!(word(&scene.memory, 0xc_0000 / 4 + 3), 22);
    Ok(())
}

/// How often each entry point is called in a life without faults.
fn dry_run(faults: &Faults, executor: Executor) -> Vec<u32> {
    faults.reset();
    life(executor).unwrap();
    ENTRIES.iter().map(|entry| faults.calls(entry.name)).collect()
}

/// Lets one call fail in a life, and asks what was said.
fn fail(faults: &Faults, executor: Executor, name: &str, nth: u32, failure: vk::Result) -> Option<String> {
    faults.reset();
    assert!(faults.arm(name, nth, failure));
    collect();
    let outcome = life(executor);
    if faults.failed(name) == 0 {
        // How often some are called depends on how long work takes.
        return None;
    }
    let said = format!("{outcome:?} {:?}", logged());
    Some(said)
}

/// Calls of an entry point that are made to fail, of so many.
fn chosen(calls: u32) -> Vec<u32> {
    let all: BTreeSet<u32> = [1, 2, calls / 2, calls].into();
    all.into_iter().filter(|nth| (1..=calls).contains(nth)).collect()
}

fn each_call_fails_in_turn(faults: &Faults, executor: Executor) {
    let calls = dry_run(faults, executor);
    let unused = ENTRIES.iter().zip(&calls).filter(|(_, calls)| **calls == 0).map(|(entry, _)| entry.name);
    // Only the other executor asks for times, only a driver with dma-bufs for what one can be, and host memory is imported or copied.
    let of_times = ["vkCreateQueryPool", "vkGetQueryPoolResults"];
    let of_memory = if calls[index("vkMapMemory").unwrap()] == 0 {
        "vkMapMemory"
    } else {
        "vkGetMemoryHostPointerPropertiesEXT"
    };
    let is_known = |name: &str| {
        (executor == Executor::Cpu && of_times.contains(&name))
            || ["vkGetMemoryFdPropertiesKHR", of_memory].contains(&name)
    };
    assert_eq!(unused.filter(|name| !is_known(name)).collect::<Vec<_>>(), [""; 0], "not called in a life");
    let mut unsaid = Vec::new();
    for (entry, calls) in ENTRIES.iter().zip(calls) {
        println!("{}: {calls} calls", entry.name);
        for nth in chosen(calls) {
            for (of, failure) in entry.failures.iter().enumerate() {
                // Most failures make no difference: the first of them, and a lost device.
                if of > 0 && *failure != vk::Result::ERROR_DEVICE_LOST && nth > 1 {
                    continue;
                }
                println!("  call {nth}: {failure}");
                let Some(said) = fail(faults, executor, entry.name, nth, *failure) else { continue };
                if !said.contains(entry.name) && !said.contains(outer(entry.name)) {
                    unsaid.push(format!("call {nth} of {} with {failure}: {said}", entry.name));
                }
            }
        }
        faults.reset();
        life(executor).unwrap();
    }
    assert!(unsaid.is_empty(), "no word of the call that failed:\n{}", unsaid.join("\n"));
}

/// The call within which the loader makes this one by itself.
fn outer(name: &str) -> &str {
    if name == "vkEnumerateDeviceExtensionProperties" { "vkCreateDevice" } else { name }
}

#[test]
fn a_driver_that_takes_no_pages_of_files_copies_host_memory_and_says_so() {
    with_faults(|faults| {
        let open = |name: &str, failure| {
            faults.reset();
            assert!(faults.arm(name, 1, failure));
            collect();
            Driver::open(&Options::default()).map(|driver| driver.copies_memory())
        };
        for name in ["vkGetMemoryHostPointerPropertiesEXT", "vkAllocateMemory"] {
            assert_eq!(open(name, vk::Result::ERROR_INVALID_EXTERNAL_HANDLE).ok(), Some(true));
            assert!(
                logged().iter().any(|line| line.contains(name) && line.contains("copied")),
                "{:?}",
                logged()
            );
            // What passes is no reason.
            assert!(open(name, vk::Result::ERROR_OUT_OF_HOST_MEMORY).is_err());
        }
        faults.reset();
        assert!(!Driver::open(&Options::default()).unwrap().copies_memory());
    });
}

#[test]
fn a_driver_that_runs_on_cpus_fails_each_call_in_turn() {
    with_faults(|faults| each_call_fails_in_turn(faults, Executor::Cpu));
}

#[test]
fn a_driver_of_a_gpu_fails_each_call_in_turn() {
    with_faults(|faults| each_call_fails_in_turn(faults, Executor::Gpu));
}

#[test]
fn a_driver_that_imports_no_host_memory_fails_each_call_in_turn() {
    with_faults(|faults| {
        faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        each_call_fails_in_turn(faults, Executor::Gpu);
        assert!(faults.calls("vkMapMemory") > 0);
        faults.hide(&[]).unwrap();
    });
}

#[test]
fn what_may_still_run_is_not_freed_where_no_wait_succeeds() {
    with_faults(|faults| {
        collect();
        let mut driver = Driver::open(&Options::default()).unwrap();
        let (import, seen) = memory(&driver, 4096);
        let kernel = pipeline(&driver, SPIN);
        let turns = 50_000_000_u32.to_ne_bytes();
        let bounds = [bind(0, &import, 0, 4096)];
        let ticket = driver.dispatch(&kernel, &bounds, &turns, &Slice::whole([1; 3])).unwrap();
        assert!(faults.arm_from("vkWaitSemaphores", 1, vk::Result::ERROR_OUT_OF_HOST_MEMORY));
        let failed = driver.wait(ticket).unwrap_err().to_string();
        assert!(failed.contains("vkWaitSemaphores"), "{failed}");
        drop((driver, kernel, import));
        assert!(logged().iter().any(|line| line.contains("what a device runs is kept")), "{:?}", logged());
        while word(&seen, 0) == 0 {
            std::thread::yield_now();
        }
        faults.reset();
        let driver = Driver::open(&Options::default()).unwrap();
        let [(from, _), (to, _)] = [(); 2].map(|()| memory(&driver, 4096));
        let mut copier = Copier::new(&driver).unwrap();
        assert!(faults.arm_from("vkWaitSemaphores", 1, vk::Result::ERROR_OUT_OF_HOST_MEMORY));
        assert!(copier.copy(&from, &to, 4096).is_err());
        drop((copier, from, to, driver));
        assert!(logged().iter().any(|line| line.contains("what a device copies is kept")), "{:?}", logged());
        faults.reset();
    });
}

#[test]
fn every_call_whose_failure_is_told_by_name_is_one_that_can_be_made_to_fail() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/vulkan/raw");
    let mut named = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let after = |before: &str| text.split(before).skip(1).map(str::to_owned).collect::<Vec<_>>();
        for rest in after("failed(\"")
            .into_iter()
            .chain(after("format!(\"").into_iter().filter(|it| it.starts_with("vk")))
            .chain(after("not_imported(\""))
        {
            named.insert(rest.split(['"', ' ']).next().unwrap().to_owned());
        }
    }
    assert!(named.len() > 20, "{named:?}");
    let known: BTreeSet<String> = ENTRIES.iter().map(|entry| entry.name.to_owned()).collect();
    assert_eq!(named, known);
}

#[test]
fn a_device_without_an_extension_that_engines_need_is_refused_by_the_name_of_that() {
    with_faults(|faults| {
        faults.hide(&["VK_EXT_robustness2"]).unwrap();
        let refused = Driver::open(&Options::default()).unwrap_err().to_string();
        assert!(refused.contains(" lacks VK_EXT_robustness2"), "{refused}");
        // Without what it may lack it works: one slice at a time, and no memory of its own to share.
        faults.hide(&["VK_EXT_conditional_rendering", "VK_KHR_external_memory_fd"]).unwrap();
        let mut driver = Driver::open(&Options::default()).unwrap();
        driver.self_test().unwrap();
        assert!(!driver.can_call_off());
        let refused = driver.allocate(BYTES, Some(Handle::OpaqueFd)).unwrap_err().to_string();
        assert!(refused.contains("exports none as opaque fd"), "{refused}");
        faults.hide(&[]).unwrap();
        assert!(Driver::open(&Options::default()).unwrap().can_call_off());
    });
}

#[test]
fn all_of_a_new_local_memory_is_zeroed_by_the_device_piece_by_piece() {
    with_faults(|faults| {
        let driver = Driver::open(&Options::default()).unwrap();
        // Its contents are undefined, and on a CPU driver zero all the same: what is seen is that the device is told to.
        let submits = |bytes| {
            faults.reset();
            drop(allocate(&driver, bytes).unwrap());
            faults.calls("vkQueueSubmit")
        };
        assert_eq!([submits(4096), submits(64 << 20), submits(129 << 20)], [1, 1, 3]);
        assert!(faults.arm("vkQueueSubmit", 1, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY));
        let refused = allocate(&driver, 4096).unwrap_err().to_string();
        assert!(refused.contains("vkQueueSubmit"), "memory that is not zero is not handed out: {refused}");
    });
}
