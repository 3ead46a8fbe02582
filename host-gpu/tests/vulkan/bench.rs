//! A driver with memory, as the tests use it.

use std::any;
use std::env;
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::import::HostRange;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::options::Executor;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::pipeline::Pipeline;
use campanile_host_gpu::vulkan::request::Bound;
use campanile_host_gpu::vulkan::request::Slice;

/// Runs the test `body` on the driver that the caller or ci/setup chose.
///
/// The loader and the dynamic linker read their environment when a process starts, so where only the variables
/// of `.cache/vulkan/env` are set, the test runs itself once more with theirs. The closure's type names the test.
pub(crate) fn with_driver<F: FnOnce(Driver)>(body: F) {
    with_chosen::<F>(|| body(open(None)));
}

/// The same on the driver as either executor takes it: what a GPU is given has to come out right on a CPU driver, too.
pub(crate) fn with_each_executor<F: Fn(Driver)>(body: F) {
    with_chosen::<F>(|| {
        [Executor::Cpu, Executor::Gpu].into_iter().for_each(|executor| body(open(Some(executor))))
    });
}

/// The same as a GPU's executor takes it.
pub(crate) fn with_gpu_executor<F: FnOnce(Driver)>(body: F) {
    with_chosen::<F>(|| body(open(Some(Executor::Gpu))));
}

fn with_chosen<F>(run: impl FnOnce()) {
    let chosen = env::var_os("CAMPANILE_VULKAN_DRIVER").filter(|_| env::var_os("VK_DRIVER_FILES").is_none());
    if chosen.is_none() {
        return run();
    }
    run_again::<F>(&[]);
}

/// Has the test whose closure `F` is run once more in a process of its own, on the chosen driver and with more variables.
pub(crate) fn run_again<F>(variables: &[(&str, String)]) {
    let path = any::type_name::<F>();
    let test = path.strip_prefix("vulkan::").and_then(|path| path.strip_suffix("::{{closure}}"));
    let mut command = Command::new(env::current_exe().expect("a test has a file"));
    command
        .args(["--exact", test.expect("called with a closure of a test"), "--nocapture", "--include-ignored"])
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .envs(variables.iter().map(|(name, value)| (name, value)));
    if let Some(manifest) =
        env::var_os("CAMPANILE_VULKAN_DRIVER").filter(|_| env::var_os("VK_DRIVER_FILES").is_none())
    {
        let libraries = env::var_os("CAMPANILE_VULKAN_LIBRARY_PATH").unwrap_or_default();
        command.env("VK_DRIVER_FILES", manifest).env("LD_LIBRARY_PATH", libraries);
    }
    let output = command.output().expect("a test can run itself");
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "the run with the chosen driver failed");
}

fn open(executor: Option<Executor>) -> Driver {
    let options = Options { executor, ..Options::default() };
    let opened = Driver::open(&options).and_then(|mut driver| driver.self_test().map(|_| driver));
    opened.map_err(|e| format!("{e}: run ./ci/setup and source .cache/vulkan/env")).expect("a usable driver")
}

/// A sparse memfd of `length` bytes.
pub(crate) fn memfd(length: u64) -> File {
    let file = rustix::fs::memfd_create("vulkan-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let file = File::from(file);
    file.set_len(length).expect("length");
    file
}

/// A mapping of a range of `file`.
pub(crate) fn map(file: &File, offset: u64, length: u64, access: Access) -> Arc<Mapping> {
    let file = file.try_clone().expect("clone");
    Arc::new(Mapping::new(file, offset, length, access).expect("map"))
}

/// Memory of `length` bytes, imported whole, and a mapping to look at it.
pub(crate) fn memory(driver: &Driver, length: u64) -> (Import, Arc<Mapping>) {
    let file = memfd(length);
    let mapping = map(&file, 0, length, Access::ReadWrite);
    let import = driver.import(&HostRange::whole(&mapping, Access::ReadWrite)).expect("import");
    // Another mapping than the imported one, as the guest has it.
    (import, map(&file, 0, length, Access::ReadWrite))
}

/// The pipeline of a WGSL text.
pub(crate) fn pipeline(driver: &Driver, text: &str) -> Pipeline {
    driver.pipeline(&sanitize(&Source::wgsl(text)).expect("a good kernel")).expect("a pipeline")
}

/// `length` bytes of `memory` from `offset` at `binding`.
pub(crate) fn bind(binding: u32, memory: &Import, offset: u64, length: u64) -> Bound<'_> {
    Bound { binding: BindingPoint::plain(binding), memory, offset, length, format: 0 }
}

/// Dispatches from group zero and waits.
pub(crate) fn run(
    driver: &mut Driver,
    pipeline: &Pipeline,
    bounds: &[Bound<'_>],
    constants: &[u8],
    groups: [u32; 3],
) {
    let ticket = driver.dispatch(pipeline, bounds, constants, &Slice::whole(groups)).expect("dispatch");
    driver.wait(ticket).expect("wait");
}

/// The word at index `at`.
pub(crate) fn word(mapping: &Mapping, at: u64) -> u32 {
    mapping.word32(at * 4).expect("inside").load(Ordering::Relaxed)
}

/// Stores the word at index `at`.
pub(crate) fn set_word(mapping: &Mapping, at: u64, value: u32) {
    mapping.word32(at * 4).expect("inside").store(value, Ordering::Relaxed);
}
