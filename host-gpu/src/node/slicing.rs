//! What it costs to cut dispatches into slices on a device, and how soon one in slices ends when something more urgent wants the node:
//! measured with a compute node as engines have it, for `campanile check-gpu`.
//!
//! ```text
//!   Scene (memory, address space, packets) ─┬─ node without slices   whole     a dispatch
//!                                           └─ node with slices      sliced    the same dispatch
//!                                                                    slice     stopped at each boundary, goes on from there
//!                                                                    preempt   stopped by another thread, at some moment
//! ```

use std::time::Duration;

use super::slicing_scene::Scene;
use crate::vulkan::check::figures::Spread;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::options::Executor;

/// How long a dispatch in one piece is to take at the least, in slices.
const SLICES: u32 = 50;
/// Runs of a dispatch in one piece, and in slices.
const RUNS: usize = 3;
/// How often a dispatch in slices is stopped.
const REQUESTS: u32 = 40;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slicing {
    /// How long a slice is to take.
    pub target: Duration,
    /// A dispatch in one piece, for the rest of which something urgent has to wait where there are no slices. The median.
    pub whole: Duration,
    /// The same dispatch in slices. The median.
    pub sliced: Duration,
    /// One slice by itself, from its start until its stores are visible.
    pub slice: Spread,
    /// From the moment in which a dispatch in slices is told to stop until it has, and its stores are visible.
    pub preempt: Spread,
}

impl Slicing {
    /// Throughput in slices over that in one piece.
    pub fn ratio(&self) -> f64 {
        self.whole.as_secs_f64() / self.sliced.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Measures slices of `target`, which is not zero, on the device of `driver`, which passed its self-test and waits as engines do. It is checked that
/// each thread group ran once.
///
/// # Errors
/// Vulkan's, memory cannot be had, or a group ran not at all, or twice.
pub fn measure(driver: Driver, target: Duration) -> Result<Slicing, VulkanError> {
    let mut scene = Scene::new()?;
    let most = driver.limits().groups[1];
    let mut whole_node = scene.node(vec![driver.secondary()?], Duration::ZERO)?;
    let has_two = driver.executor() == Executor::Cpu && !driver.copies_memory();
    let second = has_two.then(|| driver.secondary()).transpose()?;
    let mut sliced_node = scene.node(std::iter::once(driver).chain(second).collect(), target)?;
    let rows = scene.rows(&mut whole_node, target * SLICES, most)?;
    // What has never run begins with small slices.
    scene.run(&mut sliced_node, rows)?;
    let (mut whole, mut sliced) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        whole.push(scene.run(&mut whole_node, rows)?);
        sliced.push(scene.run(&mut sliced_node, rows)?);
    }
    let slices = scene.stop_at_each(&mut sliced_node, rows)?;
    let mut preempts = Vec::new();
    for request in 0..REQUESTS {
        // At all moments of a slice, of the first of its dispatch and of later ones.
        let after = target * (1 + request % 5) + target * request / REQUESTS;
        preempts.extend(scene.stop_after(&mut sliced_node, rows, after)?);
    }
    scene.check()?;
    if slices.is_empty() || preempts.is_empty() {
        let reason = format!("no dispatch of {rows} rows of groups could be stopped before its end");
        return Err(VulkanError::SelfTest { reason });
    }
    let [whole, sliced] = [whole, sliced].map(|times| Spread::of(times).p50);
    Ok(Slicing { target, whole, sliced, slice: Spread::of(slices), preempt: Spread::of(preempts) })
}
