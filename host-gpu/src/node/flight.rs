//! Slices in flight, and when the thread that starts them should come back.
//!
//! ```text
//!   driver     ├── slice 1 ──┼── slice 2 ──┼── slice 3 ──┼─
//!   engine    start 2 ╵·········start 3 ╵·········start 4 ╵         asleep by the clock between
//!                                       └ a part of slice 2 is left, and slice 1 is done: unseen
//! ```
//!
//! So it is in a node of one device instance, and where slices are handed over ahead of their turn. The driver wakes a thread that
//! waits for the end of a slice in the moment in which the driver should start the next one; on a CPU driver that thread takes its
//! core. So most ends are not waited for: a slice *passes* when it
//! is found done later. One in [`SEEN_EVERY`] is waited for, and what took since the last end that was seen is what those
//! slices took, together. Where two instances get slices one by one every end is waited for: the CPUs have the other one to do.

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use crate::kernel::name::KernelName;

/// Of so many slices, the end of one is waited for.
const SEEN_EVERY: u64 = 8;
/// The part of a slice that is left when the next one is started.
const LEAD_PART: u32 = 4;
/// What is left at the least: this thread must wake up and start it meanwhile, on CPUs that may be busy.
const LEAD: Duration = Duration::from_micros(500);
/// A sleep may last longer than asked for by as much.
const SHORTEST_NAP: Duration = Duration::from_micros(100);

/// A slice in flight; `T` is the driver's name for it.
#[derive(Debug)]
pub struct Running<T> {
    /// What the driver names it by.
    pub ticket: T,
    /// The kernel that runs.
    pub kernel: KernelName,
    /// How many groups of it; zero for what is not to be measured.
    pub groups: u64,
    /// When the driver was given it.
    pub started: Instant,
    /// How long it is likely to take.
    pub likely: Duration,
}

/// Slices that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The kernel that ran.
    pub kernel: KernelName,
    /// How many slices.
    pub slices: u64,
    /// Groups of all of them.
    pub groups: u64,
    /// How long all of them took.
    pub took: Duration,
    /// Groups of the last, how long it was likely to take, and how long it took if those before it did as was likely.
    pub last: (u64, Duration, Duration),
}

/// What is in flight, oldest first.
#[derive(Debug)]
pub struct Flight<T> {
    running: VecDeque<Running<T>>,
    /// When the one before the oldest ended: seen, or as was likely.
    end: Option<Instant>,
    /// Since when no end was seen, and the slices and groups that passed.
    unseen: Option<(Instant, u64, u64)>,
    /// When the oldest was last seen to go on.
    went_on: Option<Instant>,
}

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self { running: VecDeque::new(), end: None, unseen: None, went_on: None }
    }
}

impl<T> Flight<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The slice that was started first.
    pub fn oldest(&self) -> Option<&Running<T>> {
        self.running.front()
    }

    /// The slice that was started last.
    pub fn newest(&self) -> Option<&Running<T>> {
        self.running.back()
    }

    /// The driver was given a slice.
    pub fn push(&mut self, slice: Running<T>) {
        self.running.push_back(slice);
    }

    /// When the oldest began: with the end of the one before it, or when the driver was given it.
    fn began(&self) -> Option<Instant> {
        let started = self.running.front()?.started;
        Some(self.end.map_or(started, |end| end.max(started)))
    }

    /// Whether no wait for the end of the oldest is needed.
    pub fn may_pass(&self) -> bool {
        let is_late = self.unseen.is_some_and(|(_, slices, _)| slices + 1 >= SEEN_EVERY);
        let mut kernels = self.running.iter().map(|slice| slice.kernel);
        let first = kernels.next();
        !is_late && kernels.all(|kernel| Some(kernel) == first)
    }

    /// How long it is at `now` until the newest of the oldest `count` is nearly done, if each takes as long as is likely;
    /// none where that is not worth a sleep.
    pub fn nap(&self, count: usize, now: Instant) -> Option<Duration> {
        let all = self.running.iter().take(count).map(|slice| slice.likely).sum::<Duration>();
        let newest = self.running.iter().take(count).next_back()?.likely;
        // It is not for later than a part of it, lest the one before it be still there.
        let lead = (newest / LEAD_PART).max(LEAD).min(newest - newest / LEAD_PART);
        let then = self.began()? + all.saturating_sub(lead);
        Some(then.saturating_duration_since(now)).filter(|nap| *nap >= SHORTEST_NAP)
    }

    /// The oldest was found done `now`, and is likely to have ended when that was likely.
    pub fn pass(&mut self, now: Instant) {
        let Some(began) = self.began() else { return };
        let Some(slice) = self.running.pop_front() else { return };
        let (since, slices, groups) = self.unseen.unwrap_or((began, 0, 0));
        self.unseen = Some((since, slices + 1, groups.saturating_add(slice.groups)));
        let likely = began + slice.likely;
        self.end = Some(now.min(self.went_on.take().map_or(likely, |went_on| went_on.max(likely))));
    }

    /// The oldest was found not to be done `now`.
    pub fn go_on(&mut self, now: Instant) {
        self.went_on = Some(now);
    }

    /// Whether the oldest takes so many `times` as long as was likely, and as `least` is.
    pub fn is_late(&self, times: u32, least: Duration, now: Instant) -> bool {
        let late = self.oldest().zip(self.began());
        late.is_some_and(|(oldest, began)| {
            now.saturating_duration_since(began) > times * oldest.likely.max(least)
        })
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Running<T>> {
        self.running.iter()
    }

    /// Nothing is in flight any more. All that was, oldest first.
    pub fn take(&mut self) -> VecDeque<Running<T>> {
        (self.end, self.unseen, self.went_on) = (None, None, None);
        std::mem::take(&mut self.running)
    }

    /// The driver has failed: nothing is in flight any more.
    pub fn abandon(&mut self) {
        self.take();
    }

    /// The oldest was seen to end `now`. What ran since the last end that was seen.
    pub fn end(&mut self, now: Instant) -> Option<Ended> {
        let began = self.began()?;
        let Running { kernel, groups, likely, .. } = self.running.pop_front()?;
        let (since, slices, before) = self.unseen.take().unwrap_or((began, 0, 0));
        (self.end, self.went_on) = (Some(now), None);
        let took = now.saturating_duration_since(since);
        let last = (groups, likely, now.saturating_duration_since(began));
        Some(Ended { kernel, slices: slices + 1, groups: groups.saturating_add(before), took, last })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::Ended;
    use super::Flight;
    use super::Running;
    use super::SEEN_EVERY;
    use crate::kernel::name::KernelName;

    const KERNEL: KernelName = KernelName { root: 1, handle: 1 };
    const SLICE: Duration = Duration::from_millis(2);

    fn slice(kernel: KernelName, started: Instant, likely: Duration) -> Running<()> {
        Running { ticket: (), kernel, groups: 10, started, likely }
    }

    /// How long the thread that starts slices sleeps with one in flight, and with two, each likely to take `likely`.
    fn naps(likely: Duration) -> [Option<Duration>; 2] {
        let (begun, mut flight) = (Instant::now(), Flight::default());
        [(); 2].map(|()| {
            flight.push(slice(KERNEL, begun, likely));
            flight.nap(usize::MAX, begun)
        })
    }

    #[test]
    fn the_next_slice_is_started_when_a_part_of_the_last_one_is_left() {
        assert_eq!(naps(4 * SLICE), [Some(3 * SLICE), Some(7 * SLICE)]);
        assert_eq!(naps(SLICE), [Some(SLICE * 3 / 4), Some(SLICE * 7 / 4)]);
        // Half a millisecond would be all of it: the one before it would still be there.
        assert_eq!(naps(SLICE / 4), [Some(SLICE / 16), Some(SLICE * 5 / 16)]);
    }

    #[test]
    fn no_nap_is_shorter_than_a_sleep_may_be_wrong_by() {
        assert_eq!(naps(SLICE / 40), [None, None]);
        assert_eq!(Flight::<()>::default().nap(2, Instant::now()), None);
    }

    #[test]
    fn who_looks_at_the_oldest_sleeps_until_the_one_after_it_is_nearly_done() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        for _ in 0..9 {
            flight.push(slice(KERNEL, now, SLICE));
        }
        assert_eq!(flight.nap(2, now), Some(SLICE * 7 / 4));
        flight.pass(now + SLICE * 7 / 4);
        assert_eq!(flight.nap(2, now + SLICE * 7 / 4), Some(SLICE), "by when the first should have ended");
    }

    #[test]
    fn a_slice_that_was_seen_to_go_on_has_not_ended_before() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        for _ in 0..3 {
            flight.push(slice(KERNEL, now, SLICE));
        }
        flight.go_on(now + 3 * SLICE);
        flight.pass(now + 4 * SLICE);
        assert_eq!(
            flight.nap(1, now + 3 * SLICE),
            Some(SLICE * 3 / 4),
            "the next began when it was last seen"
        );
        flight.pass(now + 4 * SLICE);
        assert_eq!(
            flight.nap(1, now + 4 * SLICE),
            Some(SLICE * 3 / 4),
            "one that was not seen ended when likely"
        );
    }

    #[test]
    fn a_slice_is_late_after_some_times_what_was_likely_and_never_before_the_least() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        let after = Duration::from_nanos(1);
        assert!(!flight.is_late(3, SLICE, now));
        flight.push(slice(KERNEL, now, SLICE));
        assert!(!flight.is_late(3, SLICE / 2, now + 3 * SLICE));
        assert!(flight.is_late(3, SLICE / 2, now + 3 * SLICE + after));
        assert!(!flight.is_late(3, SLICE * 2, now + 6 * SLICE));
        assert!(flight.is_late(3, SLICE * 2, now + 6 * SLICE + after));
    }

    #[test]
    fn what_is_taken_is_in_flight_no_more() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        for _ in 0..3 {
            flight.push(slice(KERNEL, now, SLICE));
        }
        flight.pass(now);
        assert_eq!(flight.take().len(), 2);
        flight.push(slice(KERNEL, now + SLICE * 9, SLICE));
        let ended = flight.end(now + SLICE * 10).unwrap();
        assert_eq!((ended.slices, ended.took), (1, SLICE), "nothing of before is counted");
    }

    #[test]
    fn nothing_ends_that_is_not_in_flight() {
        assert_eq!(Flight::<()>::default().end(Instant::now()), None);
    }

    #[test]
    fn the_end_of_another_kernels_slice_is_waited_for() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        flight.push(slice(KERNEL, now, SLICE));
        assert!(flight.may_pass());
        flight.push(slice(KernelName { handle: 2, ..KERNEL }, now, SLICE));
        assert!(!flight.may_pass());
    }

    #[test]
    fn a_slice_that_passed_has_ended_by_now_however_long_it_was_likely_to_take() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        flight.push(slice(KERNEL, now, SLICE * 1000));
        flight.push(slice(KERNEL, now, SLICE));
        flight.pass(now + SLICE);
        assert_eq!(flight.nap(2, now + SLICE), Some(SLICE * 3 / 4), "the second is there from then on");
    }

    #[test]
    fn one_slice_that_is_dear_shows_beside_those_that_passed() {
        let (mut now, mut flight) = (Instant::now(), Flight::default());
        flight.push(slice(KERNEL, now, SLICE));
        for _ in 1..SEEN_EVERY {
            flight.push(slice(KERNEL, now, SLICE));
            now += SLICE;
            flight.pass(now);
        }
        let Ended { slices, took, last, .. } = flight.end(now + SLICE * 50).unwrap();
        assert_eq!((slices, took), (SEEN_EVERY, SLICE * 57));
        assert_eq!(last, (10, SLICE, SLICE * 50));
    }

    #[test]
    fn nothing_is_in_flight_once_the_driver_has_failed() {
        let (now, mut flight) = (Instant::now(), Flight::default());
        flight.push(slice(KERNEL, now, SLICE));
        flight.abandon();
        assert!(flight.is_empty());
        assert_eq!(flight.end(now), None);
    }

    proptest! {
        #[test]
        fn what_slices_took_is_learned_whether_their_ends_were_seen_or_not(
            guesses in proptest::collection::vec(0u64..5_000, 1..100),
        ) {
            let (mut now, mut flight) = (Instant::now(), Flight::default());
            let begun = now;
            let (mut slices, mut took, mut passed) = (0, Duration::ZERO, 0);
            flight.push(slice(KERNEL, now, SLICE));
            for guess in guesses {
                flight.push(slice(KERNEL, now, Duration::from_micros(guess)));
                now += SLICE;
                if flight.may_pass() {
                    flight.pass(now);
                    passed += 1;
                    prop_assert!(passed < SEEN_EVERY);
                } else {
                    let ended = flight.end(now).unwrap();
                    let Ended { kernel, .. } = ended;
                    prop_assert_eq!(kernel, KERNEL);
                    prop_assert_eq!(ended.groups, 10 * ended.slices);
                    (slices, took, passed) = (slices + ended.slices, took + ended.took, 0);
                }
            }
            now += SLICE;
            let last = flight.end(now).unwrap();
            prop_assert!(flight.is_empty());
            prop_assert_eq!(took + last.took, now - begun, "no time is left out, and none is counted twice");
            prop_assert_eq!(SLICE * u32::try_from(slices + last.slices).unwrap(), now - begun);
        }
    }
}
