//! How long an innocent process waits when the engine that it shares is reset.

use std::fmt;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::loopback::options::VmOptions;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;
use campanile_guest_driver::user_queue::QueueOptions;
use serde::Serialize;

use super::round_trips::can_compute;

/// Runs until somebody stores 7, and nobody does.
const ENDLESS: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {
        loop { data[0] = data[0] + 1u; if data[1] == 7u { break; } }
    }";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recovery {
    /// Hangs that were measured.
    pub hangs: usize,
    /// TDR timeout, milliseconds.
    pub timeout_ms: u64,
    /// From the submission of a kernel without end to the loss of its device: detection and reset.
    pub submission_to_loss_ns: Percentiles,
    /// From that loss, which is told when the next process of the engine is started, to the next completion of a
    /// process that did nothing wrong and had work waiting.
    pub loss_to_innocent_completion_ns: Percentiles,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "hangs                      {} with a timeout of {} ms", self.hangs, self.timeout_ms)?;
        writeln!(f, "submission to loss         {}", self.submission_to_loss_ns)?;
        writeln!(f, "loss to innocent's packet  {}", self.loss_to_innocent_completion_ns)
    }
}

/// Hangs the compute node of the daemon at `socket`, `hangs` times.
pub fn measure(socket: &Path, hangs: usize, timeout_ms: u64) -> anyhow::Result<Recovery> {
    let vm = LoopbackVm::connect(socket, &VmOptions::default()).context("attaching a guest")?;
    let innocent = Device::open(vm.open("innocent")?)?;
    anyhow::ensure!(can_compute(&innocent), "no compute node, so nothing hangs");
    let mut queue = innocent.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    let empty = CommandBuffer::new();
    queue.submit(&empty)?.wait(Some(LIMIT))?;
    let (mut losses, mut waits) = (Vec::with_capacity(hangs), Vec::with_capacity(hangs));
    for _ in 0..hangs {
        let guilty = Device::open(vm.open("guilty")?)?;
        let kernel = guilty.create_kernel(&KernelSource::wgsl(ENDLESS))?;
        let data = guilty.create_buffer(4096)?;
        let context = guilty.create_context(Node::Compute)?;
        let mut its_queue = context.create_user_queue(&QueueOptions::default())?;
        let mut forever = CommandBuffer::new();
        forever.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[])?;
        let begun = Instant::now();
        let hangs = its_queue.submit(&forever)?;
        let counts = data.memory().word(0).context("a buffer without memory")?;
        while counts.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            anyhow::ensure!(begun.elapsed() < LIMIT, "the kernel without end does not run");
            std::thread::yield_now();
        }
        let point = queue.submit(&empty)?;
        match hangs.wait(Some(LIMIT)) {
            Err(DriverError::DeviceLost(_)) => losses.push(begun.elapsed()),
            other => anyhow::bail!("a kernel without end came to {other:?}"),
        }
        let lost = Instant::now();
        point.wait(Some(LIMIT))?;
        waits.push(lost.elapsed());
    }
    Ok(Recovery {
        hangs,
        timeout_ms,
        submission_to_loss_ns: Percentiles::of(losses),
        loss_to_innocent_completion_ns: Percentiles::of(waits),
    })
}
