//! How long an innocent process waits when the engine that it shares is reset.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use campanile_guest::percentiles::Percentiles;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use serde::Serialize;

use super::guilty::Guilty;
use super::guilty::LIMIT;
use crate::measure::guests::can_compute;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Loss {
    /// Hangs that were measured.
    pub hangs: usize,
    /// From the submission of a kernel without end to the loss of its device: detection and reset.
    pub submission_to_loss_ns: Percentiles,
    /// From that loss, which is told when the next process of the engine is started, to the next completion of a
    /// process that did nothing wrong and had work waiting.
    pub loss_to_innocent_completion_ns: Percentiles,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "hangs                      {}", self.hangs)?;
        writeln!(f, "submission to loss         {}", self.submission_to_loss_ns)?;
        writeln!(f, "loss to innocent's packet  {}", self.loss_to_innocent_completion_ns)
    }
}

/// Hangs the compute node of the daemon at `socket`, `hangs` times.
pub fn measure(socket: &Path, hangs: usize) -> anyhow::Result<Loss> {
    let vm = LoopbackVm::connect(socket, &VmOptions::default()).context("attaching a guest")?;
    let innocent = Device::open(vm.open("innocent")?)?;
    anyhow::ensure!(can_compute(&innocent), "no compute node, so nothing hangs");
    let mut queue = innocent.create_context(Node::Compute)?.create_user_queue(&QueueOptions::default())?;
    let empty = CommandBuffer::new();
    queue.submit(&empty)?.wait(Some(LIMIT))?;
    let (mut losses, mut waits) = (Vec::with_capacity(hangs), Vec::with_capacity(hangs));
    for _ in 0..hangs {
        let guilty = Guilty::start(&vm)?;
        let point = queue.submit(&empty)?;
        let begun = guilty.begun;
        guilty.lose()?;
        let lost = Instant::now();
        losses.push(lost.duration_since(begun));
        point.wait(Some(LIMIT))?;
        waits.push(lost.elapsed());
    }
    Ok(Loss {
        hangs,
        submission_to_loss_ns: Percentiles::of(losses),
        loss_to_innocent_completion_ns: Percentiles::of(waits),
    })
}
