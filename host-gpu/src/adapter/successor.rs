//! The process that takes another's place, started ahead.

use std::os::fd::AsFd;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::launcher::Instance;
use super::launcher::Launched;

/// How far the process is that is to take another's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spare {
    /// There is none, or it has ended.
    Missing,
    /// It opens its driver, which takes CPUs.
    Starting,
    /// It has said that it is open, or that it cannot be, and waits.
    Ready,
}

/// The spare, where there is one.
#[derive(Debug, Default)]
pub(super) struct Successor(Option<Launched>);

impl Successor {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn put(&mut self, launched: Launched) {
        self.0 = Some(launched);
    }

    /// How far it is. It is not listened to before it is taken, so what it has said is still there.
    pub(super) fn state(&self) -> Spare {
        let Some(Launched { channel, .. }) = &self.0 else { return Spare::Missing };
        let mut ends = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        match poll(&mut ends, Some(&Timespec::default())) {
            Ok(0) | Err(_) => Spare::Starting,
            Ok(_) if ends[0].revents().contains(PollFlags::HUP) => Spare::Missing,
            Ok(_) => Spare::Ready,
        }
    }

    /// Takes it; it says that it has come up once it is listened to. None where there is none, or where it has died meanwhile.
    pub(super) fn take(&mut self) -> Option<Launched> {
        let is_there = self.state() != Spare::Missing;
        let mut spare = self.0.take()?;
        if is_there && spare.instance.as_mut().is_none_or(|instance| instance.is_there()) {
            return Some(spare);
        }
        spare.instance.into_iter().for_each(Instance::discard);
        None
    }

    /// Ends it: it has touched nothing, and is not waited for.
    pub(super) fn discard(&mut self) {
        self.0.take().and_then(|spare| spare.instance).into_iter().for_each(Instance::discard);
    }
}
