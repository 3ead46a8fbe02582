//! Kernels whose results are known, and their dispatch.

use crate::kernel::program::BindingPoint;
use crate::kernel::sanitizer::sanitize;
use crate::kernel::source::Source;
use crate::memory::mapping::Mapping;
use crate::vulkan::driver::Driver;
use crate::vulkan::driver::Ticket;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::Import;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::Slice;

/// Invocations of a workgroup of [`STEP`].
const WIDTH: u64 = 256;
/// Workgroups of [`STEP`] in x.
const ROW: u32 = 1024;
/// Bytes that an invocation of [`STEP`] reads, and writes.
const ITEM: u64 = 16;
/// What the length of memory that [`STEP`] runs over must be a multiple of, bytes.
pub(super) const STEP_BYTES: u64 = WIDTH * ROW as u64 * ITEM;

/// Reads and writes all of a buffer once.
pub(super) const STEP: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<vec4<u32>>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.y * 262144u + id.x;
    cells[at] = cells[at] * 3u + vec4<u32>(at, 1u, 2u, 3u);
}";

/// The least that can be dispatched.
pub(super) const NOTHING: &str = "@compute @workgroup_size(1) fn main() {}";

/// What [`STEP`] makes of the words at index `at` of zeroed memory in `runs` runs.
pub(super) fn stepped(at: u32, runs: u32) -> [u32; 4] {
    let add = [at, 1, 2, 3];
    (0..runs).fold([0; 4], |cell: [u32; 4], _| {
        [0, 1, 2, 3].map(|lane| cell[lane].wrapping_mul(3).wrapping_add(add[lane]))
    })
}

/// Some items of memory of `length` bytes, first and last among them.
pub(super) fn samples(length: u64) -> impl Iterator<Item = u64> {
    let items = length / ITEM;
    (0..items).step_by(usize::try_from(items / 97).unwrap_or(1).max(1)).chain(items.checked_sub(1))
}

/// Whether `memory` holds what `runs` runs make of zeroes.
pub(super) fn check(memory: &Mapping, length: u64, runs: u32, what: &str) -> Result<(), VulkanError> {
    for at in samples(length) {
        let expected = stepped(u32::try_from(at).unwrap_or(u32::MAX), runs);
        let word = |lane: u64| memory.word32(at * ITEM + lane * 4);
        let found = [0, 1, 2, 3]
            .map(|lane| word(lane).map_or(0, |word| word.load(std::sync::atomic::Ordering::Relaxed)));
        if found != expected {
            let reason = format!("{what}: byte {} holds {found:?} instead of {expected:?}", at * ITEM);
            return Err(VulkanError::SelfTest { reason });
        }
    }
    Ok(())
}

/// A pipeline of one of these.
pub(super) fn pipeline(driver: &Driver, text: &str) -> Result<Pipeline, VulkanError> {
    let kernel =
        sanitize(&Source::wgsl(text)).map_err(|e| VulkanError::SelfTest { reason: e.to_string() })?;
    driver.pipeline(&kernel)
}

/// Starts [`NOTHING`].
pub(super) fn launch(driver: &mut Driver, pipeline: &Pipeline) -> Result<Ticket, VulkanError> {
    plain(driver.dispatch(pipeline, &[], &[], &Slice::whole([1; 3])))
}

/// Starts [`STEP`] over the first `length` bytes of `memory`.
pub(super) fn step(
    driver: &mut Driver,
    pipeline: &Pipeline,
    memory: &Import,
    length: u64,
) -> Result<Ticket, VulkanError> {
    let rows = u32::try_from(length / STEP_BYTES).unwrap_or(u32::MAX);
    let bounds = [Bound { binding: BindingPoint::plain(0), memory, offset: 0, length, format: 0 }];
    plain(driver.dispatch(pipeline, &bounds, &[], &Slice::whole([ROW, rows, 1])))
}

fn plain(started: Result<Ticket, DispatchError>) -> Result<Ticket, VulkanError> {
    started.map_err(|error| match error {
        DispatchError::Vulkan(error) => error,
        refused => VulkanError::SelfTest { reason: refused.to_string() },
    })
}

#[cfg(test)]
mod tests {
    use super::samples;
    use super::stepped;

    #[test]
    fn a_run_is_three_times_what_was_there_and_the_index() {
        assert_eq!(stepped(5, 0), [0; 4]);
        assert_eq!(stepped(5, 2), [5 * 3 + 5, 4, 8, 12]);
    }

    #[test]
    fn first_and_last_item_are_looked_at() {
        let all: Vec<u64> = samples(1 << 20).collect();
        assert_eq!((all.first(), all.last()), (Some(&0), Some(&0xffff)));
        assert!(all.len() > 90);
    }
}
