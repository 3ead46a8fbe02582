//! An epoll instance: what each event loop of the daemon waits on.
//!
//! The `epoll` crate takes and gives descriptors as numbers. Here they have owners: an instance is closed once, by its own
//! [`Poller`], and what is added is open while it is added.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use epoll::ControlOptions;
use epoll::Event;
use epoll::Events;

/// What a place of a buffer for [`Poller::wait`] holds before anything was reported.
pub const NO_EVENT: Event = Event { events: 0, data: 0 };

/// An epoll instance, closed on exec. It is readable while one of its descriptors is ready, so that it can be part of another.
#[derive(Debug)]
pub struct Poller {
    descriptor: OwnedFd,
}

impl Poller {
    /// An instance without descriptors.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        let number = epoll::create(true)?;
        // SAFETY: epoll_create1 has just returned this descriptor, and no other owner knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self { descriptor })
    }

    /// Reports `events` of a descriptor from now on, as `token`; with `EPOLLET` each edge once.
    ///
    /// # Errors
    /// It is added already, cannot be polled, or the user has no watches left.
    pub fn add(&self, descriptor: impl AsFd, token: u64, events: Events) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_ADD, &descriptor, Event::new(events, token))
    }

    /// Reports other events of a descriptor, or as another token.
    ///
    /// # Errors
    /// It is not added.
    pub fn modify(&self, descriptor: impl AsFd, token: u64, events: Events) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_MOD, &descriptor, Event::new(events, token))
    }

    /// Reports nothing of a descriptor any more.
    ///
    /// # Errors
    /// It is not added.
    pub fn delete(&self, descriptor: impl AsFd) -> io::Result<()> {
        self.control(ControlOptions::EPOLL_CTL_DEL, &descriptor, NO_EVENT)
    }

    fn control(&self, option: ControlOptions, descriptor: &impl AsFd, event: Event) -> io::Result<()> {
        epoll::ctl(self.descriptor.as_raw_fd(), option, descriptor.as_fd().as_raw_fd(), event)
    }

    /// Waits until a descriptor is ready, or for `limit`, in whole milliseconds and never shorter; without one as long as it
    /// takes. The tokens of those that are ready, at most as many as `room` has places; the others come the next time.
    ///
    /// # Errors
    /// A signal came (`Interrupted`), or `room` has no place.
    pub fn wait<'a>(
        &self,
        room: &'a mut [Event],
        limit: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = u64> + use<'a>> {
        let count = epoll::wait(self.descriptor.as_raw_fd(), limit.map_or(-1, milliseconds), room)?;
        Ok(room.iter().take(count).map(|event| event.data))
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A limit as epoll counts: what is less than a millisecond is one, so that a loop that waits does not spin.
fn milliseconds(limit: Duration) -> i32 {
    i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::event::Event;
    use epoll::Events;
    use rustix::io::FdFlags;
    use rustix::io::fcntl_getfd;

    use super::NO_EVENT;
    use super::Poller;
    use super::milliseconds;

    /// What is ready now.
    fn ready(poller: &Poller) -> Vec<u64> {
        poller.wait(&mut [NO_EVENT; 4], Some(Duration::ZERO)).unwrap().collect()
    }

    #[test]
    fn an_edge_is_reported_once_and_a_level_as_long_as_it_is_there() {
        let poller = Poller::new().unwrap();
        let [edge, level] = [(); 2].map(|()| Event::new().unwrap());
        poller.add(&edge, 1, Events::EPOLLIN | Events::EPOLLET).unwrap();
        poller.add(&level, 2, Events::EPOLLIN).unwrap();
        assert!(ready(&poller).is_empty());
        edge.signal();
        level.signal();
        let mut first = ready(&poller);
        first.sort_unstable();
        assert_eq!(first, [1, 2]);
        assert_eq!(ready(&poller), [2]);
        edge.signal();
        level.drain();
        assert_eq!(ready(&poller), [1], "another edge, though the first was not read");
        poller.modify(&edge, 3, Events::empty()).unwrap();
        edge.signal();
        assert!(ready(&poller).is_empty());
        poller.modify(&edge, 3, Events::EPOLLIN).unwrap();
        assert_eq!(ready(&poller), [3]);
        poller.delete(&edge).unwrap();
        assert!(ready(&poller).is_empty());
        assert!(poller.delete(&edge).is_err());
    }

    #[test]
    fn a_program_that_is_started_does_not_have_it() {
        let poller = Poller::new().unwrap();
        assert!(fcntl_getfd(&poller).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn a_limit_is_never_shortened() {
        let counted =
            [0, 1, 999_999, 1_000_000, 1_000_001].map(|nanos| milliseconds(Duration::from_nanos(nanos)));
        assert_eq!(counted, [0, 1, 1, 1, 2]);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
    }
}
