//! The process that takes another's place, started ahead.

use std::os::fd::AsFd;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::conversation::Conversation;
use super::launcher::Instance;
use super::launcher::Launched;
use crate::engine::message::Request;
use crate::kernel::name::KernelName;

/// Most kernels that a spare is asked to compile ahead: what it answers waits in its channel until it takes its place.
const MOST_AHEAD: usize = 256;

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

/// A process that is not listened to yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) instance: Option<Box<dyn Instance>>,
    pub(super) conversation: Conversation,
    /// What it was asked to compile ahead, in order.
    pub(super) ahead: Vec<KernelName>,
}

impl From<Launched> for Waiting {
    fn from(Launched { instance, channel }: Launched) -> Self {
        Self { instance, conversation: Conversation::new(channel), ahead: Vec::new() }
    }
}

/// The spare, where there is one.
#[derive(Debug, Default)]
pub(super) struct Successor(Option<Waiting>);

impl Successor {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn put(&mut self, launched: Launched) {
        self.0 = Some(launched.into());
    }

    /// Has it compile a kernel. False where it is not open yet, was asked for that, or for as many as it may be, or has no room.
    pub(super) fn compile_ahead(
        &mut self,
        kernel: KernelName,
        language: u32,
        entry: Option<String>,
        source: &[u8],
    ) -> bool {
        if self.state() != Spare::Ready {
            return false;
        }
        let Some(Waiting { conversation, ahead, .. }) = &mut self.0 else { return false };
        if ahead.len() >= MOST_AHEAD || ahead.contains(&kernel) {
            return false;
        }
        // One that is gone meanwhile is found so when it is to take its place.
        let is_sent = conversation
            .send(&Request::CreateKernel { kernel, language, entry, alone: false }, source, &[])
            .is_ok();
        if is_sent {
            ahead.push(kernel);
        }
        is_sent
    }

    /// What it was asked to compile.
    pub(super) fn ahead(&self) -> &[KernelName] {
        self.0.as_ref().map_or(&[], |waiting| &waiting.ahead)
    }

    /// How far it is. It is not listened to before it is taken, so what it has said is still there.
    pub(super) fn state(&self) -> Spare {
        let Some(Waiting { conversation, .. }) = &self.0 else { return Spare::Missing };
        let mut ends = [PollFd::from_borrowed_fd(conversation.as_fd(), PollFlags::IN)];
        match poll(&mut ends, Some(&Timespec::default())) {
            Ok(0) | Err(_) => Spare::Starting,
            Ok(_) if ends[0].revents().contains(PollFlags::HUP) => Spare::Missing,
            Ok(_) => Spare::Ready,
        }
    }

    /// Takes it; it says that it has come up once it is listened to. None where there is none, or where it has died meanwhile.
    pub(super) fn take(&mut self) -> Option<Waiting> {
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
