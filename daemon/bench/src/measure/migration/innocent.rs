//! A guest on the source that has nothing to do with the move.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

/// A small piece of work.
const KERNEL: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = id.x;
        for (var i = 0u; i < 200u; i++) { x = x * 1664525u + 1013904223u; }
        data[id.x] = x;
    }";
/// How long one piece may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A running guest that counts what it gets done.
pub struct Innocent {
    over: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Innocent {
    /// Attaches it to a socket.
    pub fn start(socket: &Path) -> anyhow::Result<Self> {
        let vm = LoopbackVm::connect(socket, &VmOptions::default())?;
        let (over, count): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let thread = {
            let (over, count) = (Arc::clone(&over), Arc::clone(&count));
            std::thread::Builder::new().name("innocent".to_owned()).spawn(move || run(&vm, &over, &count))?
        };
        Ok(Self { over, count, thread })
    }

    /// Pieces of work per second while `during` runs.
    pub fn rate<T>(&self, during: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(f64, T)> {
        let (begun, before) = (Instant::now(), self.count.load(Ordering::Relaxed));
        let result = during()?;
        let done = self.count.load(Ordering::Relaxed) - before;
        Ok((super::socket_copy::per_second(done, u64::try_from(begun.elapsed().as_micros())?), result))
    }

    /// Ends it.
    pub fn end(self) -> anyhow::Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the innocent guest panicked"))?
    }
}

fn run(vm: &Arc<LoopbackVm>, over: &AtomicBool, count: &AtomicU64) -> anyhow::Result<()> {
    let device = Device::open(vm.open("innocent")?)?;
    let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
    let data = device.create_buffer(4096 * 4)?;
    let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    while !over.load(Ordering::Relaxed) {
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [64, 1, 1], &[data.binding(0)], &[])?;
        queue.submit(&commands)?.wait(Some(LIMIT))?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Keeps so many CPUs busy while `during` runs: two threads, each for its part of every 10 ms.
pub fn beside_load<T>(cpus: f64, during: impl FnOnce() -> T) -> T {
    const PERIOD: Duration = Duration::from_millis(10);
    let busy = PERIOD.mul_f64((cpus / 2.0).clamp(0.0, 1.0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    while begun.elapsed() < busy {
                        std::hint::spin_loop();
                    }
                    std::thread::sleep(PERIOD.saturating_sub(begun.elapsed()));
                }
            });
        }
        let result = during();
        over.store(true, Ordering::Relaxed);
        result
    })
}
