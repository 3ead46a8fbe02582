//! Times that a queue notes between the dispatches of a submission.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::instance::Clock;

/// Places for times, in rows: one for the beginning of a submission, and one for the end of each of its dispatches.
pub(in crate::vulkan) struct Stamps {
    gpu: Arc<Gpu>,
    clock: Clock,
    pool: vk::QueryPool,
    row: u32,
}

/// A row for one submission, forgotten until the queue notes times in it.
#[derive(Clone, Copy)]
pub(in crate::vulkan) struct Row<'a> {
    stamps: &'a Stamps,
    first: u32,
}

impl Stamps {
    /// So many rows for as many dispatches each; none where the queue has no clock.
    pub(in crate::vulkan) fn new(
        gpu: &Arc<Gpu>,
        rows: usize,
        dispatches: usize,
    ) -> Result<Option<Self>, VulkanError> {
        let Some(clock) = gpu.clock else { return Ok(None) };
        let row = number(dispatches + 1);
        let count = number(rows).saturating_mul(row);
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
        // SAFETY: `info` outlives the call.
        let pool =
            unsafe { gpu.device.create_query_pool(&info, None) }.map_err(failed("vkCreateQueryPool"))?;
        Ok(Some(Self { gpu: Arc::clone(gpu), clock, pool, row }))
    }

    /// Forgets what row `index` has; nothing is in flight that notes times there.
    pub(in crate::vulkan) fn clear(&self, index: usize) -> Row<'_> {
        let first = self.first(index);
        // SAFETY: the device resets queries by the host, and none of these is in use.
        unsafe { self.gpu.device.reset_query_pool(self.pool, first, self.row) };
        Row { stamps: self, first }
    }

    fn first(&self, index: usize) -> u32 {
        number(index).saturating_mul(self.row)
    }

    /// How long each of the first dispatches took that have ended, up to `count`, of the submission that has row `index`; none where
    /// it has not begun.
    pub(in crate::vulkan) fn read(
        &self,
        index: usize,
        count: usize,
    ) -> Result<Option<Vec<Duration>>, VulkanError> {
        // Each with whether it is there.
        let mut noted = vec![[0_u64; 2]; count.min(self.row as usize - 1) + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WITH_AVAILABILITY;
        let first = self.first(index);
        // SAFETY: the row is in the pool, and `noted` has two words for each of its queries.
        let read = unsafe { self.gpu.device.get_query_pool_results(self.pool, first, &mut noted, flags) };
        if let Err(error) = read
            && error != vk::Result::NOT_READY
        {
            return Err(failed("vkGetQueryPoolResults")(error));
        }
        Ok(lengths(&noted, self.clock))
    }
}

/// Queries are few.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Row<'_> {
    /// Has the queue note when all that was recorded before is done, as dispatch `index`; the beginning is 0.
    pub(super) fn note(self, commands: vk::CommandBuffer, index: usize) {
        let query = self.first + number(index).min(self.stamps.row - 1);
        let (device, pool) = (&self.stamps.gpu.device, self.stamps.pool);
        // The beginning too: a stage that comes first would be noted while work of an earlier submission runs.
        let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
        // SAFETY: recording, for a queue that has a clock; the query is in the pool and was reset.
        unsafe { device.cmd_write_timestamp(commands, stage, pool, query) };
    }
}

/// What lies between the times that are there, up to the first that is not; none where the beginning is not.
fn lengths(noted: &[[u64; 2]], clock: Clock) -> Option<Vec<Duration>> {
    let mask = u64::MAX >> (64 - clock.bits.clamp(1, 64));
    let mut times = noted.iter().take_while(|[_, is_there]| *is_there != 0).map(|[time, _]| time & mask);
    let mut last = times.next()?;
    let length = |time: u64| {
        let ticks = time.wrapping_sub(std::mem::replace(&mut last, time)) & mask;
        // A time that runs backwards, as between two engines of a GPU, is none that was taken.
        let ticks = if ticks > mask / 2 { 0 } else { ticks };
        Duration::from_secs_f64(ticks as f64 * f64::from(clock.nanoseconds) / 1e9)
    };
    Some(times.map(length).collect())
}

impl Drop for Stamps {
    fn drop(&mut self) {
        // SAFETY: slots are dropped before this, and wait for what is pending.
        unsafe { self.gpu.device.destroy_query_pool(self.pool, None) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Clock;
    use super::lengths;

    fn nanoseconds(noted: &[[u64; 2]], clock: Clock) -> Option<Vec<u128>> {
        Some(lengths(noted, clock)?.iter().map(Duration::as_nanos).collect())
    }

    #[test]
    fn what_dispatches_took_is_between_the_times_that_are_there() {
        let clock = Clock { nanoseconds: 2.0, bits: 64 };
        assert_eq!(nanoseconds(&[[9, 0], [10, 1]], clock), None, "it has not begun");
        assert_eq!(nanoseconds(&[[10, 1], [0, 0], [40, 1]], clock), Some(vec![]));
        assert_eq!(nanoseconds(&[[10, 1], [15, 1], [15, 1], [40, 1]], clock), Some(vec![10, 0, 50]));
        assert_eq!(nanoseconds(&[[10, 1], [4, 1], [6, 1]], clock), Some(vec![0, 4]), "backwards");
    }

    #[test]
    fn a_clock_that_starts_again_meanwhile_loses_no_time() {
        let clock = Clock { nanoseconds: 1.0, bits: 36 };
        let most = (1 << 36) - 1;
        // Bits that do not count are whatever they are.
        assert_eq!(nanoseconds(&[[most - 4, 1], [5 | 1 << 40, 1]], clock), Some(vec![10]));
    }
}
