//! An engine without work: spin, then nap or F1 (design §5, UMS-115 to UMS-122).

use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::power;

use super::events::Events;
use super::words::load;
use crate::event::Event;
use crate::memory::mapping::Mapping;

/// Looks between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 64;
/// How long a nap lasts while a wait is open whose end is not announced.
const NAP: Duration = Duration::from_millis(1);
/// How long an engine keeps a node that others want, while its guest may be about to ring again.
pub const LINGER: Duration = Duration::from_micros(20);
/// A thread that yields the CPU, and has it back only after so long, has lost it: to a busy thread, or a hypervisor
/// took it.
const LOST: Duration = Duration::from_micros(500);
/// So many times in a row, it is a busy thread.
const TIMES: u32 = 2;
/// For how long that is believed.
const CROWDED: Duration = Duration::from_secs(1);
/// Between two looks on a crowded CPU: a thread that wakes up has it at once, one that has yielded waits for its turn.
const CROWDED_NAP: Duration = Duration::from_micros(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    Spinning(Instant),
    F1Wanted,
}

/// What an engine without work has, so that it knows how to rest.
#[derive(Debug, Clone, Copy)]
pub struct Quiet {
    /// The daemon has changed something: look again first.
    pub is_stale: bool,
    /// A fence wait is open: doorbells stay connected and naps are short.
    pub waits: bool,
    /// Doorbells are watched.
    pub has_doorbells: bool,
    /// Doorbells are connected in notify mode: each ring is announced, and no thread needs to poll for it (UMS-51).
    pub is_notified: bool,
}

/// How far an engine is on its way to sleep.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    spin: Duration,
    phase: Phase,
    looks: u32,
    crowd: Crowd,
}

/// Whether the CPU of an engine is crowded.
#[derive(Debug, Clone, Copy, Default)]
struct Crowd {
    /// How often it was lost in a row.
    times: u32,
    /// When that was last seen to be a crowd.
    seen: Option<Instant>,
}

impl Crowd {
    fn is_there(self, now: Instant) -> bool {
        self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < CROWDED)
    }

    /// The CPU was yielded at `then`, and is back `now`.
    fn note(&mut self, then: Instant, now: Instant) {
        let is_lost = now.saturating_duration_since(then) >= LOST;
        self.times = if is_lost { self.times.saturating_add(1) } else { 0 };
        self.seen = (self.times >= TIMES).then_some(now);
    }
}

impl Idle {
    /// An engine that spins for `spin` before it sleeps.
    pub fn new(spin: Duration) -> Self {
        Self { spin, phase: Phase::Working, looks: 0, crowd: Crowd::default() }
    }

    /// Whether there has been no work for at least `limit`.
    pub fn has_lasted(&self, limit: Duration) -> bool {
        match self.phase {
            Phase::Working => false,
            Phase::Spinning(since) => since.elapsed() >= limit,
            Phase::F1Wanted => true,
        }
    }

    /// There is work: whatever was begun on the way to sleep is taken back.
    pub fn work(&mut self, shared: &Mapping) {
        if self.phase == Phase::F1Wanted
            && let Some(word) = shared.word(block::POWER)
            && !power::cancel_f1(word)
        {
            // The daemon was faster and has disconnected the doorbells; guests reconnect.
            word.store(power::ACTIVE, Ordering::Release);
        }
        self.phase = Phase::Working;
    }

    /// One look without work.
    pub fn rest(&mut self, shared: &Mapping, events: &Events, quiet: Quiet, has_work: impl Fn() -> bool) {
        if quiet.is_stale {
            return;
        }
        if quiet.is_notified && !quiet.has_doorbells && !quiet.waits {
            // Nothing to poll, and doorbells stay connected: a sleep without F1, until a NOTIFY pokes.
            self.work(shared);
            self.block_without_node(shared, events, power::NAPPING, has_work);
            return;
        }
        match self.phase {
            Phase::Working => {
                self.phase = Phase::Spinning(Instant::now());
                self.looks = 0;
            }
            Phase::Spinning(since) => {
                std::hint::spin_loop();
                self.looks += 1;
                if self.looks < LOOKS_PER_CLOCK {
                    return;
                }
                self.looks = 0;
                let now = Instant::now();
                let lasted = now.saturating_duration_since(since);
                if lasted < self.spin {
                    if !self.crowd.is_there(now) {
                        // Where CPUs are short, the thread that the engine waits for needs this one.
                        std::thread::yield_now();
                        self.crowd.note(now, Instant::now());
                    } else if lasted >= LINGER {
                        self.nap(shared, &events.wake, Some(CROWDED_NAP), has_work);
                    }
                    return;
                }
                if quiet.waits {
                    self.nap(shared, &events.wake, Some(NAP), has_work);
                } else if let Some(word) = shared.word(block::POWER) {
                    // Nothing but this thread leaves ACTIVE.
                    let _wanted = power::want_f1(word);
                    events.event.signal();
                    self.phase = Phase::F1Wanted;
                }
            }
            Phase::F1Wanted => {
                if load(shared, block::POWER) == power::F1_ALLOWED && quiet.has_doorbells {
                    // Not disconnected yet, or a guest has connected since: its rings would be lost.
                    self.work(shared);
                } else if load(shared, block::POWER) == power::F1_ALLOWED {
                    self.sleep(shared, events, has_work);
                } else {
                    // The daemon pokes an engine that is not ACTIVE; rings wait for the nap at the most.
                    events.wake.wait(Some(NAP));
                }
            }
        }
    }

    /// F1: keeps the node only while no other engine wants it, and sleeps until poked.
    fn sleep(&mut self, shared: &Mapping, events: &Events, has_work: impl Fn() -> bool) {
        self.block_without_node(shared, events, power::ASLEEP, has_work);
        self.phase = Phase::Working;
    }

    fn block_without_node(&self, shared: &Mapping, events: &Events, state: u64, has_work: impl Fn() -> bool) {
        if let Some(word) = shared.word(block::GRANT)
            && !grant::park(word)
            && grant::release(word)
        {
            events.grant.signal();
        }
        self.block(shared, &events.wake, state, None, has_work);
    }

    /// A sleep with doorbells connected.
    pub fn nap(&self, shared: &Mapping, wake: &Event, limit: Option<Duration>, has_work: impl Fn() -> bool) {
        self.block(shared, wake, power::NAPPING, limit, has_work);
    }

    fn block(
        &self,
        shared: &Mapping,
        wake: &Event,
        state: u64,
        limit: Option<Duration>,
        has_work: impl Fn() -> bool,
    ) {
        let Some(word) = shared.word(block::POWER) else { return };
        // A poke that came before now stands for work that `has_work` will see.
        wake.drain();
        if power::may_block(word, state, has_work) {
            wake.wait(limit);
            word.store(power::ACTIVE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::CROWDED;
    use super::Crowd;
    use super::LOST;

    #[test]
    fn a_cpu_is_crowded_for_a_while_once_it_came_back_late_twice() {
        let (mut crowd, now) = (Crowd::default(), Instant::now());
        assert!(!crowd.is_there(now));
        crowd.note(now, now + LOST);
        crowd.note(now, now);
        crowd.note(now, now + LOST);
        assert!(!crowd.is_there(now + LOST), "a hypervisor had something to do, twice");
        let back = now + 2 * LOST;
        crowd.note(now + LOST, back);
        assert!(crowd.is_there(back) && crowd.is_there(back + CROWDED - Duration::from_nanos(1)));
        let later = back + CROWDED;
        assert!(!crowd.is_there(later), "then it is tried again");
        crowd.note(later, later + LOST);
        assert!(crowd.is_there(later + LOST), "and is as it was");
        crowd.note(later, later);
        assert!(!crowd.is_there(later), "or is free");
    }
}
