//! A process that runs a kernel without end, or one that would have been.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::fence::FencePoint;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::vm::LoopbackVm;

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs until somebody stores [`ENOUGH`].
const ENDLESS: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {
        loop { data[0] = data[0] + 1u; if data[1] == 7u { break; } }
    }";
/// What ends it.
const ENOUGH: u32 = 7;

/// A device of its own, whose kernel runs.
pub struct Guilty {
    data: Buffer,
    commands: CommandBuffer,
    /// Its packets name it for as long as they are submitted.
    _kernel: Kernel,
    queue: UserQueue,
    /// When its kernel was submitted.
    pub begun: Instant,
    running: FencePoint,
}

impl Guilty {
    /// Opens a device on `vm`, and starts the kernel there; returns when it runs.
    pub fn start(vm: &Arc<LoopbackVm>) -> anyhow::Result<Self> {
        let device = Device::open(vm.open("guilty")?)?;
        let kernel = device.create_kernel(&KernelSource::wgsl(ENDLESS))?;
        let data = device.create_buffer(4096)?;
        let mut queue = device.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[])?;
        let begun = Instant::now();
        let running = queue.submit(&commands)?;
        let guilty = Self { data, commands, _kernel: kernel, queue, begun, running };
        guilty.see_it_run()?;
        Ok(guilty)
    }

    fn see_it_run(&self) -> anyhow::Result<()> {
        let counts = self.data.memory().word32(0).context("a buffer without memory")?;
        let begun = Instant::now();
        while counts.load(Ordering::Relaxed) == 0 {
            anyhow::ensure!(begun.elapsed() < LIMIT, "the kernel without end does not run");
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until it has lost its device.
    pub fn lose(self) -> anyhow::Result<()> {
        match self.running.wait(Some(LIMIT)) {
            Err(DriverError::DeviceLost(_)) => Ok(()),
            other => anyhow::bail!("a kernel without end came to {other:?}"),
        }
    }

    /// As much work for `time`, which does no harm: the kernel is ended and started again each `piece`.
    pub fn behave(mut self, time: Duration, piece: Duration) -> anyhow::Result<()> {
        let enough = |data: &Buffer| {
            data.memory().word32(4).map(|word| word.store(ENOUGH, Ordering::Relaxed)).context("no memory")
        };
        while self.begun.elapsed() < time {
            std::thread::sleep(piece);
            enough(&self.data)?;
            self.running.wait(Some(LIMIT))?;
            for word in [0, 4] {
                self.data.memory().word32(word).context("no memory")?.store(0, Ordering::Relaxed);
            }
            self.running = self.queue.submit(&self.commands)?;
            self.see_it_run()?;
        }
        enough(&self.data)?;
        self.running.wait(Some(LIMIT))?;
        Ok(())
    }
}
