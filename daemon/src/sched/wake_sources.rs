//! What wakes the supervisor: an eventfd of its own, and one of each engine.
//!
//! Engines hold their eventfds too: they can signal and drain them, and make reads of them wait. So nothing is read of one: each is
//! watched edge-triggered, and another signal is another edge. What one engine does to its own eventfd no other engine notices.

use std::io;
use std::time::Duration;

use campanile_host_gpu::event::Event;
use epoll::Events;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

use super::turns::EngineId;
use crate::poller::NO_EVENT;
use crate::poller::Poller;

/// The token of the supervisor's own eventfd; engines have theirs from 1 on.
const OWN: u64 = 0;

/// Signals that are taken at a time; the kernel hands out the others first the next time.
const BATCH: usize = 32;

/// An epoll set with the supervisor's own eventfd and those of all engines.
#[derive(Debug)]
pub struct WakeSources {
    poller: Poller,
    own: Event,
}

impl WakeSources {
    /// With the supervisor's own eventfd only.
    ///
    /// # Errors
    /// No descriptors could be had.
    pub fn new() -> io::Result<Self> {
        let (poller, own) = (Poller::new()?, Event::new()?);
        poller.add(&own, OWN, Events::EPOLLIN)?;
        Ok(Self { poller, own })
    }

    /// Wakes the supervisor.
    pub fn wake(&self) {
        self.own.signal();
    }

    /// Watches the eventfd of an engine from now on; what it has signalled before counts.
    ///
    /// # Errors
    /// The kernel watches no more descriptors of this user.
    pub fn watch(&self, engine: EngineId, asks: &Event) -> io::Result<()> {
        self.poller.add(asks, engine.0, Events::EPOLLIN | Events::EPOLLET)
    }

    /// An engine is gone: its eventfd is watched no more.
    pub fn unwatch(&self, engine: EngineId, asks: &Event) {
        if let Err(error) = self.poller.delete(asks) {
            log::warn!("the eventfd of engine {} of the supervisor was not watched: {error}", engine.0);
        }
    }

    /// Watches the eventfd of an engine again, or not for now. A signal meanwhile wakes the supervisor later.
    ///
    /// # Errors
    /// It was never watched.
    pub fn set_watched(&self, engine: EngineId, asks: &Event, is_watched: bool) -> io::Result<()> {
        let events = if is_watched { Events::EPOLLIN } else { Events::empty() };
        self.poller.modify(asks, engine.0, events | Events::EPOLLET)
    }

    /// Waits until [`Self::wake`] is called or an engine signals, or for `limit`. Returns the engines that signalled.
    pub fn wait(&self, limit: Option<Duration>) -> Vec<EngineId> {
        // Not by `epoll_wait`, which counts in milliseconds.
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::new(&self.poller, PollFlags::IN)];
        if !matches!(rustix::event::poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0) {
            return Vec::new();
        }
        let mut events = [NO_EVENT; BATCH];
        let ready = match self.poller.wait(&mut events, Some(Duration::ZERO)) {
            Ok(ready) => ready,
            Err(error) => {
                // But for a signal that came it is not to be: the loop would spin.
                if error.kind() != io::ErrorKind::Interrupted {
                    log::error!("the supervisor cannot wait for engines: {error}");
                }
                return Vec::new();
            }
        };
        let (own, engines): (Vec<u64>, Vec<u64>) = ready.partition(|token| *token == OWN);
        if !own.is_empty() {
            self.own.drain();
        }
        engines.into_iter().map(EngineId).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::event::Event;

    use super::EngineId;
    use super::WakeSources;

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const NEVER: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn each_signal_of_an_engine_wakes_once_and_is_neither_read_nor_taken_from_another() {
        let wake_sources = WakeSources::new().unwrap();
        let [first, second] = [1, 2].map(|engine| (EngineId(engine), Event::new().unwrap()));
        first.1.signal();
        for (engine, asks) in [&first, &second] {
            wake_sources.watch(*engine, asks).unwrap();
        }
        assert_eq!(wake_sources.wait(NEVER), [first.0], "from before it was watched");
        assert_eq!(wake_sources.wait(NOW), []);
        first.1.signal();
        second.1.signal();
        let mut woken = wake_sources.wait(NEVER);
        woken.sort();
        assert_eq!(woken, [first.0, second.0]);
        // An engine drains its own, and signals again.
        assert!(first.1.drain(), "nothing was read of it");
        assert_eq!(wake_sources.wait(NOW), []);
        first.1.signal();
        assert_eq!(wake_sources.wait(NEVER), [first.0]);
        wake_sources.unwatch(first.0, &first.1);
        first.1.signal();
        wake_sources.wake();
        assert_eq!(wake_sources.wait(NEVER), []);
        assert!(!wake_sources.own.drain(), "the wake-up is consumed");
        assert_eq!(wake_sources.wait(NOW), []);
    }

    #[test]
    fn an_engine_that_is_not_watched_wakes_the_supervisor_later() {
        let wake_sources = WakeSources::new().unwrap();
        let (engine, asks) = (EngineId(1), Event::new().unwrap());
        wake_sources.watch(engine, &asks).unwrap();
        wake_sources.set_watched(engine, &asks, false).unwrap();
        asks.signal();
        assert_eq!(wake_sources.wait(NOW), []);
        wake_sources.set_watched(engine, &asks, true).unwrap();
        assert_eq!(wake_sources.wait(NEVER), [engine]);
    }
}
