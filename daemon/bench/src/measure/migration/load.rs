//! The guest that moves: it has filled its video memory, and writes part of it anew all the time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::IntoBytes;

/// What no compression shortens: a hash of place and turn.
const KERNEL: &str = "
    struct Turn { first: u32, words: u32, turn: u32 }
    var<immediate> turn: Turn;
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(
        @builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>
    ) {
        let stride = groups.x * 64u;
        for (var i = id.x; i < turn.words; i += stride) {
            var x = (i + turn.first) ^ (turn.turn * 2654435769u);
            x ^= x << 13u; x ^= x >> 17u; x ^= x << 5u;
            data[i] = x | 1u;
        }
    }";
/// Bytes of a buffer: bindings have an end.
const BUFFER: u64 = 64 << 20;
/// Between two writes.
const TICK: Duration = Duration::from_millis(10);
/// How long a write may take, pauses included.
const LIMIT: Duration = Duration::from_secs(300);
/// Groups of a dispatch.
const GROUPS: u32 = 256;

/// A running guest.
pub struct Load {
    over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
    filled: Arc<AtomicBool>,
}

impl Load {
    /// Fills `bytes`, and then writes `per_second` bytes of them anew in each second.
    pub fn start(vm: &Arc<LoopbackVm>, bytes: u64, per_second: u64) -> anyhow::Result<Self> {
        let (over, filled): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let thread = {
            let (vm, over, filled) = (Arc::clone(vm), Arc::clone(&over), Arc::clone(&filled));
            std::thread::Builder::new()
                .name("load".to_owned())
                .spawn(move || run(&vm, bytes, per_second, &over, &filled))?
        };
        let load = Self { over, thread, filled };
        while !load.filled.load(Ordering::Relaxed) {
            anyhow::ensure!(!load.thread.is_finished(), "the guest ended while it filled its memory");
            std::thread::sleep(TICK);
        }
        Ok(load)
    }

    /// Ends it; an error where it had lost anything.
    pub fn end(self) -> anyhow::Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the guest panicked"))?
    }
}

fn run(
    vm: &Arc<LoopbackVm>,
    bytes: u64,
    per_second: u64,
    over: &AtomicBool,
    filled: &AtomicBool,
) -> anyhow::Result<()> {
    let _cpu = vm.virtual_cpu()?;
    let device = Device::open(vm.open("load")?)?;
    let kernel = device.create_kernel(&KernelSource::wgsl(KERNEL))?;
    let buffers: Vec<LocalBuffer> =
        (0..bytes / BUFFER).map(|_| device.create_local_buffer(BUFFER)).collect::<Result<_, _>>()?;
    anyhow::ensure!(!buffers.is_empty(), "nothing to fill");
    let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    let mut write = |buffer: &LocalBuffer, offset: u64, length: u64, turn: u32| -> anyhow::Result<()> {
        let constants = [u32::try_from(offset / 4)?, u32::try_from(length / 4)?, turn];
        let mut commands = CommandBuffer::new();
        let binding = buffer.binding_range(0, offset, length)?;
        commands.dispatch(&kernel, [GROUPS, 1, 1], &[binding], constants.as_bytes())?;
        queue.submit(&commands)?.wait(Some(LIMIT))?;
        Ok(())
    };
    for (turn, buffer) in (1..).zip(&buffers) {
        write(buffer, 0, BUFFER, turn)?;
    }
    filled.store(true, Ordering::Relaxed);
    let chunk = (per_second / 100).next_multiple_of(4096).min(BUFFER);
    let (mut turn, mut at, mut next) = (1_000_u32, 0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        if per_second > 0 {
            if at + chunk > BUFFER {
                at = 0;
            }
            turn = turn.wrapping_add(1);
            let which = usize::try_from(turn)? % buffers.len();
            write(&buffers[which], at, chunk, turn)?;
            at += chunk;
        }
        next = (next + TICK).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
