//! Slices that are handed over ahead of their turn, and called off when others must be asked.
//!
//! ```text
//!   primary    ├─ 0 ─┼─ 2 ─┼─ 4 ─┼─ 6 ─┼ …     one submission each: the driver starts the next slice by itself
//!   secondary  ├─ 1 ──┼─ 3 ─┼─ 5 ─┼─ 7 ─┼ …
//!   engine        ╵     ╵     ╵     ╵          looks before a slice ends whether it should pause
//!                             └ it should: gates close, 3 and 4 end, 5 and all after it never begin
//! ```
//!
//! What one slice costs beside its groups is mostly that an engine has to wake up for it, on a CPU on which kernels run, and
//! to wake up the driver. It need not, as long as no other engine wants the node. An instance may be ahead of the other one
//! by some slices when all is called off; then what is missing between is run, so that what is done stays one number.
//!
//! While urgent work comes, slices are started one by one: they are shorter then, and the thread that starts them looks
//! more often.

use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::packet::Fault;

use super::compute::ComputeNode;
use super::compute::Part;
use super::compute::Started;
use super::device_instance::DeviceInstance;
use super::device_instance::DispatchRequest;
use super::flight::Running;
use super::slices;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::vulkan::gates::BATCH;
use crate::vulkan::gates::Fate;
use crate::vulkan::request::IN_FLIGHT;
use crate::vulkan::request::Slice;

/// Fewer slices than this are started one by one.
const WORTH: u64 = 3;
/// Slices on both device instances.
const MOST: usize = 2 * BATCH;
/// Two slices in a row that take so many times as long as was likely call off those after them: they were cut too long.
const LATE: u32 = 3;
/// One that takes so many times as long does. A host that is busy for a moment is not that late.
const TOO_LATE: u32 = 12;
/// What counts as likely at the least, when it is about being late.
const NEVER_LATE: Duration = Duration::from_millis(1);
/// By how many slices one instance may be ahead of the other before the rest is called off: half of them would have to be run
/// by themselves, should another engine want the node.
const AHEAD: usize = 5;
/// How long to sleep where a slice takes longer than was likely.
const AGAIN: Duration = Duration::from_micros(100);

/// What a look at the oldest slice found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Ended,
    EndedLate,
    TakesTooLong,
}

impl ComputeNode {
    /// Whether slices of this kernel may be handed over ahead of their turn.
    pub(super) fn may_run_ahead(&self, kernel: KernelName) -> bool {
        let is_known = self.kernels.get(&kernel).is_some_and(|kernel| kernel.pace.is_known());
        let has_two = self.instances.len() == 2;
        let can = |instance: &DeviceInstance| instance.can_call_off() && instance.has_kernel(kernel);
        is_known && has_two && self.instances.iter().all(can) && !self.latency_boost.is_active(Instant::now())
    }

    /// Goes on from `part` until all is started and no more is in flight than could be otherwise (true), or until
    /// `should_pause` (false); or until slices had better be started one by one (none), and then no more than one is in
    /// flight. No more may be when this is called, either.
    pub(super) fn run_ahead(
        &mut self,
        space: &Space<'_>,
        request: &DispatchRequest<'_>,
        grid: [u32; 3],
        part: &mut Part,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<bool>, Stop> {
        let total = slices::count(grid).unwrap_or(u64::MAX);
        while self.may_run_ahead(request.kernel) && self.deal(space, request, grid, part)? {
            let mut last = Look::Ended;
            while self.flight.len() > IN_FLIGHT {
                last = self.look(last).map_err(Stop::fault)?;
                if last == Look::TakesTooLong {
                    self.call_off(space, request, part, should_pause)?;
                    return Ok(should_pause().then_some(false));
                }
                if should_pause() {
                    self.call_off(space, request, part, should_pause)?;
                    return Ok(Some(false));
                }
            }
            if part.done >= total {
                return Ok(Some(true));
            }
            // Each instance has its last one: this end is waited for, and what all took is learned.
            self.finish_oldest(false).map_err(Stop::fault)?;
            if should_pause() {
                return Ok(Some(false));
            }
        }
        Ok(None)
    }

    /// Submits the next slices to the instances, by turns. False where that is not worth it, or the queue of the secondary is locked.
    fn deal(
        &mut self,
        space: &Space<'_>,
        request: &DispatchRequest<'_>,
        grid: [u32; 3],
        part: &mut Part,
    ) -> Result<bool, Stop> {
        let limit = self.limit(request.kernel);
        let left = slices::count(grid).unwrap_or(0).saturating_sub(part.done);
        let count = left.div_ceil(limit);
        let queue_lock = Arc::clone(&self.queue_lock);
        let Ok(_entered) = queue_lock.try_lock() else { return Ok(false) };
        if count < WORTH {
            return Ok(false);
        }
        // The last ones are all alike: a short one at the end would leave an instance without work.
        let limit = if count <= MOST as u64 { left.div_ceil(count) } else { limit };
        let mut done = part.done;
        let next = std::iter::from_fn(|| {
            let slice = slices::next(grid, done, limit)?;
            done += slice.count();
            Some(slice)
        });
        let dealt: Vec<Slice> = next.take(MOST).collect();
        for instance in &mut self.instances {
            request.resolved.iter().try_for_each(|resolved| instance.import(space, resolved))?;
        }
        let first = self.next_instance();
        let mut tickets = [None; 2];
        for (offset, ticket) in tickets.iter_mut().enumerate() {
            let instance = (first + offset) % 2;
            let batch: Vec<Slice> = dealt.iter().skip(offset).step_by(2).copied().collect();
            let handed = self.hand_over(space, instance, request, &batch);
            // Where the second is refused, nothing would look after the first.
            self.is_lost |= handed.is_err() && offset > 0;
            *ticket = Some((instance, handed?, batch.len()));
        }
        let started = Instant::now();
        for (index, slice) in dealt.iter().enumerate() {
            let Some((instance, ticket, of)) = tickets[index % 2] else { continue };
            let place =
                Started { instance, ticket, batch: (of > 1).then_some((index / 2, of)), slice: *slice };
            self.push(request.kernel, place, started);
        }
        part.done = done;
        Ok(true)
    }

    /// Looks whether the oldest slice has ended; if not, sleeps until it should have, and the one after it nearly, and looks
    /// until it has.
    fn look(&mut self, last: Look) -> Result<Look, Fault> {
        let least = NEVER_LATE.max(self.slice);
        let too_late = if last == Look::Ended { TOO_LATE } else { LATE };
        let mut has_slept = false;
        loop {
            let Some(oldest) = self.flight.oldest().map(|oldest| oldest.ticket) else {
                return Ok(Look::Ended);
            };
            let has_ended = self.has_ended(&oldest)?;
            let now = Instant::now();
            if has_ended {
                let was_late = self.flight.is_late(LATE, least, now);
                self.flight.pass(now);
                return Ok(if was_late { Look::EndedLate } else { Look::Ended });
            }
            if !std::mem::replace(&mut has_slept, true)
                && let Some(nap) = self.flight.nap(2, now)
            {
                thread::sleep(nap.min(2 * self.slice));
                continue;
            }
            self.flight.go_on(now);
            let far = self.flight.iter().nth(AHEAD).map(|slice| slice.ticket);
            let is_behind = far.is_some_and(|far| far.batch.is_some() && self.has_begun(&far));
            if is_behind || self.flight.is_late(too_late, least, now) {
                return Ok(Look::TakesTooLong);
            }
            thread::sleep(AGAIN);
        }
    }

    /// Whether a slice is done: the next one of its instance was begun, or called off, or there is none.
    fn has_ended(&mut self, slice: &Started) -> Result<bool, Fault> {
        let driver = self.instances.get_mut(slice.instance).ok_or(Fault::Driver)?.driver();
        if let Some((index, of)) = slice.batch
            && index + 1 < of
            && driver.fate(&slice.ticket, index + 1) != Fate::Waits
        {
            return Ok(true);
        }
        driver.is_done(&slice.ticket).map_err(|error| self.lose(&error))
    }

    /// Calls off what has not begun, waits for what has, and takes the former from what was done. What is missing before
    /// something that has begun is run, and `should_pause` asked after each slice of it, whatever it says.
    fn call_off(
        &mut self,
        space: &Space<'_>,
        request: &DispatchRequest<'_>,
        part: &mut Part,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<(), Stop> {
        while let Some(oldest) = self.flight.oldest().map(|oldest| oldest.ticket)
            && self.has_ended(&oldest).map_err(Stop::fault)?
        {
            self.flight.pass(Instant::now());
        }
        for Running { ticket: slice, .. } in self.flight.iter() {
            if let Some(instance) = self.instances.get_mut(slice.instance) {
                instance.driver().call_off(&slice.ticket);
            }
        }
        // What is left of the oldest's submission is the oldest.
        let oldest = self.flight.oldest().map(|oldest| oldest.ticket);
        if oldest.is_some_and(|oldest| self.has_begun(&oldest)) {
            self.finish_oldest(false).map_err(Stop::fault)?;
        }
        let rest: Vec<(Started, u64)> =
            self.flight.take().into_iter().map(|slice| (slice.ticket, slice.groups)).collect();
        for (slice, _) in &rest {
            let driver = self.instances.get_mut(slice.instance).ok_or(Stop::fault(Fault::Driver))?.driver();
            driver.sleep(slice.ticket).map_err(|error| Stop::fault(self.lose(&error)))?;
        }
        let begun: Vec<bool> = rest.iter().map(|(slice, _)| self.has_begun(slice)).collect();
        let (kept, missing) = gaps(&begun);
        part.done = part.done.saturating_sub(rest.iter().skip(kept).map(|(_, groups)| groups).sum());
        for (missing, groups) in missing.into_iter().filter_map(|index| rest.get(index)) {
            let mut at = missing.slice.first();
            let end = at + groups;
            // Cut anew, by what has been learned of these groups.
            while at < end
                && let Some(slice) =
                    slices::next(missing.slice.grid, at, self.limit(request.kernel).min(end - at))
            {
                self.start(space, 0, request, &slice)?;
                self.finish_oldest(false).map_err(Stop::fault)?;
                should_pause();
                at += slice.count();
            }
        }
        Ok(())
    }

    fn has_begun(&mut self, slice: &Started) -> bool {
        let Some(instance) = self.instances.get_mut(slice.instance) else { return true };
        slice.batch.is_none_or(|(index, _)| instance.driver().fate(&slice.ticket, index) == Fate::Begun)
    }
}

/// Of slices in order, some of which have begun: how many are not dropped, and which of those are missing.
fn gaps(begun: &[bool]) -> (usize, Vec<usize>) {
    let kept = begun.iter().rposition(|begun| *begun).map_or(0, |last| last + 1);
    let missing = begun.iter().take(kept).enumerate().filter(|(_, begun)| !**begun);
    (kept, missing.map(|(index, _)| index).collect())
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn what_a_device_instance_is_ahead_by_is_kept_and_what_is_missing_before_it_is_run() {
        assert_eq!(gaps(&[]), (0, vec![]));
        assert_eq!(gaps(&[false, false]), (0, vec![]));
        assert_eq!(gaps(&[true, true, false, false]), (2, vec![]));
        assert_eq!(gaps(&[true, false, true, false, true, false, false]), (5, vec![1, 3]));
    }
}
