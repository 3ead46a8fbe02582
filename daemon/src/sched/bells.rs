//! What wakes the supervisor: a bell of its own, and one eventfd an engine.
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

/// The token of the supervisor's own bell; engines have theirs from 1 on.
const OWN: u64 = 0;

/// Signals that are taken at a time; the kernel hands out the others first the next time.
const BATCH: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct Bells {
    poller: Poller,
    own: Event,
}

impl Bells {
    /// Only the supervisor's own.
    ///
    /// # Errors
    /// No descriptors could be had.
    pub fn new() -> io::Result<Self> {
        let (poller, own) = (Poller::new()?, Event::new()?);
        poller.add(&own, OWN, Events::EPOLLIN)?;
        Ok(Self { poller, own })
    }

    /// Wakes the supervisor.
    pub fn ring(&self) {
        self.own.signal();
    }

    /// Listens to an engine from now on; what it has signalled before counts.
    ///
    /// # Errors
    /// The kernel watches no more descriptors of this user.
    pub fn listen(&self, engine: EngineId, asks: &Event) -> io::Result<()> {
        self.poller.add(asks, engine.0, Events::EPOLLIN | Events::EPOLLET)
    }

    /// An engine is gone.
    pub fn forget(&self, engine: EngineId, asks: &Event) {
        if let Err(error) = self.poller.delete(asks) {
            log::warn!("engine {} of the supervisor was not listened to: {error}", engine.0);
        }
    }

    /// Goes on listening to an engine, or does not for now. What it signals meanwhile is heard later.
    ///
    /// # Errors
    /// It was never listened to.
    pub fn set_listens(&self, engine: EngineId, asks: &Event, listens: bool) -> io::Result<()> {
        let events = if listens { Events::EPOLLIN } else { Events::empty() };
        self.poller.modify(asks, engine.0, events | Events::EPOLLET)
    }

    /// Waits until the bell rings or an engine signals, or for `limit`. The engines that did.
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
                log::debug!("the supervisor waits for engines: {error}");
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

    use super::Bells;
    use super::EngineId;

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const NEVER: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn each_signal_of_an_engine_is_heard_once_and_neither_read_nor_taken_from_another() {
        let bells = Bells::new().unwrap();
        let [first, second] = [1, 2].map(|engine| (EngineId(engine), Event::new().unwrap()));
        first.1.signal();
        for (engine, asks) in [&first, &second] {
            bells.listen(*engine, asks).unwrap();
        }
        assert_eq!(bells.wait(NEVER), [first.0], "from before it was listened to");
        assert_eq!(bells.wait(NOW), []);
        first.1.signal();
        second.1.signal();
        let mut heard = bells.wait(NEVER);
        heard.sort();
        assert_eq!(heard, [first.0, second.0]);
        // An engine drains its own, and signals again.
        assert!(first.1.drain(), "nothing was read of it");
        assert_eq!(bells.wait(NOW), []);
        first.1.signal();
        assert_eq!(bells.wait(NEVER), [first.0]);
        bells.forget(first.0, &first.1);
        first.1.signal();
        bells.ring();
        assert_eq!(bells.wait(NEVER), []);
        assert!(!bells.own.drain(), "the bell is taken");
        assert_eq!(bells.wait(NOW), []);
    }

    #[test]
    fn a_muted_engine_wakes_the_supervisor_no_more_and_is_heard_afterwards() {
        let bells = Bells::new().unwrap();
        let (engine, asks) = (EngineId(1), Event::new().unwrap());
        bells.listen(engine, &asks).unwrap();
        bells.set_listens(engine, &asks, false).unwrap();
        asks.signal();
        assert_eq!(bells.wait(NOW), []);
        bells.set_listens(engine, &asks, true).unwrap();
        assert_eq!(bells.wait(NEVER), [engine]);
    }
}
