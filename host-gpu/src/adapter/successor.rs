//! The next process of an engine that was reset.

use std::io;
use std::os::fd::AsFd;
use std::process::Child;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::handshake::power;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::process::EngineProcess;
use super::program::Memory;
use super::program::Own;
use super::program::Program;
use super::program::launch;
use super::teardown::bury;
use super::tracking::Tracking;
use crate::engine::channel::Channel;
use crate::engine::message::Start;

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

impl EngineProcess {
    /// How far the spare is. It is not listened to before it is taken, so what it has said is still there.
    pub fn spare(&self) -> Spare {
        let Some((_, channel)) = &self.spare else { return Spare::Missing };
        let mut ends = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        match poll(&mut ends, Some(&Timespec::default())) {
            Ok(0) | Err(_) => Spare::Starting,
            Ok(_) if ends[0].revents().contains(PollFlags::HUP) => Spare::Missing,
            Ok(_) => Spare::Ready,
        }
    }

    /// Starts the process that will take this one's place when it is reset, so that its driver is open by then.
    ///
    /// # Errors
    /// It cannot be started; a reset will start one.
    pub fn prepare_spare(&mut self, program: &Program, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        if self.spare.is_some() {
            return Ok(());
        }
        self.begin_tracking(start, memory)?;
        self.spare = Some(self.launch(program, start, memory)?);
        Ok(())
    }

    /// Before the first process, or spare, of all is started.
    pub(super) fn begin_tracking(&mut self, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.tracking = Tracking::new(start.tracking, memory.tracker, start.vram_bytes)?;
        }
        Ok(())
    }

    pub(super) fn launch(
        &self,
        program: &Program,
        start: &Start,
        memory: Memory<'_>,
    ) -> io::Result<(Option<Child>, Channel)> {
        let planes = self.tracking.planes.as_ref().map(|planes| planes.file());
        let (event, asks, wake) = (&self.event, &self.asks, &self.wake);
        let own = Own { block: &self.block, planes, event, asks, wake, allowance: &self.allowance };
        launch(program, start, memory, own)
    }

    /// The spare, which says that it has come up once it is listened to; none where there is none, or where it has died
    /// meanwhile.
    fn take_spare(&mut self) -> Option<(Option<Child>, Channel)> {
        let is_there = self.spare() != Spare::Missing;
        let (mut child, channel) = self.spare.take()?;
        let lives = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if is_there && child.as_mut().is_none_or(lives) {
            return Some((child, channel));
        }
        child.into_iter().for_each(end);
        None
    }

    /// Ends the spare, if there is one.
    pub fn drop_spare(&mut self) {
        if let Some((Some(child), _)) = self.spare.take() {
            end(child);
        }
    }

    /// Starts another process in the place of one that was reset. Processes, queues, doorbells and kernel-mode
    /// buffers stay what they were: it goes on where the other stopped (TDR-57). Segments and kernels are not: it
    /// must be told of them before it is given its node.
    pub fn revive(&mut self, program: &Program, start: &Start, memory: Memory<'_>) -> io::Result<()> {
        self.store(block::POWER, power::ACTIVE);
        // As the supervisor expects it of a new process; what the last one stored there counts for nothing.
        self.store(block::GRANT, Grant { phase: Phase::Idle, generation: 0 }.word());
        self.store(block::PROGRESS, 0);
        self.report_suspends();
        self.report_preemption();
        self.store(block::LAUNCHED, 0);
        self.store(block::LAST_CONTEXT, 0);
        self.forget_announcements();
        self.begin_tracking(start, memory)?;
        let (child, channel) = match self.take_spare() {
            Some(spare) => spare,
            None => self.launch(program, start, memory)?,
        };
        (self.child, self.channel) = (child, channel);
        self.tracking.renew();
        self.owes_begin.set(false);
        self.answers.take();
        self.lost = false;
        self.snapshot = None;
        Ok(())
    }
}

/// Ends a spare, which has touched nothing and is not waited for.
fn end(mut child: Child) {
    // Fails only when it is gone already.
    if let Err(error) = child.kill() {
        log::debug!("killing spare engine {}: {error}", child.id());
    }
    bury(child);
}
