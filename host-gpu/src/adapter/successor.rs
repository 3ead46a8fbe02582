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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::Ordering;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handshake::power;

    use super::EngineProcess;
    use super::Memory;
    use super::Program;
    use super::Start;
    use crate::adapter::Adapter;
    use crate::adapter::scheduling::Preemption;
    use crate::dirty::method::Method;
    use crate::engine::message::NodeKind;
    use crate::memory::vram::create_memfd;

    #[test]
    fn tdr_57_the_next_process_finds_the_tables_and_nothing_that_was_said_of_the_last() {
        let start = Start {
            node: NodeKind::Copy,
            vram_bytes: 4096,
            table_bytes: 4096,
            spin_microseconds: 0,
            slice_microseconds: 0,
            sandbox: true,
            policy: "fair".to_owned(),
            vulkan_device: None,
            tracking: Method::Off,
        };
        let [vram, tables, fences] =
            ["vram", "tables", "fences"].map(|name| create_memfd(name, 4096).unwrap());
        let memory = Memory { vram: &vram, tables: &tables, fences: &fences, tracker: None };
        // One that never answers.
        let program = Program::new(PathBuf::from("/usr/bin/yes"), Vec::new());
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        engine.revive(&program, &start, memory).unwrap();
        let context = engine.create_context(0).unwrap();
        let fence = engine.suspend_context(context);
        engine
            .submit_command(campanile_protocol::engine::hw_queue::HwSubmission {
                fence_id: 3,
                ..Default::default()
            })
            .unwrap();
        assert!(matches!(engine.preempt_command(), Preemption::Requested(_)));
        let progress = Progress { steps: 3, is_exempt: false, work: Work::HwQueue };
        for (place, value) in [
            (block::POWER, power::HUNG),
            (block::GRANT, u64::MAX),
            (block::PROGRESS, progress.word()),
            (block::LAUNCHED, 9),
            (block::LAST_CONTEXT, 9),
        ] {
            engine.store(place, value);
        }
        engine.snapshot();
        assert_eq!(engine.reset_engine().unwrap(), 3);
        engine.revive(&program, &start, memory).unwrap();
        for place in [block::GRANT, block::PROGRESS, block::LAUNCHED, block::LAST_CONTEXT] {
            assert_eq!(engine.load(place), 0, "{place:#x}");
        }
        assert_eq!(engine.load(block::POWER), power::ACTIVE);
        let word = engine.shared.word(block::context_report(context)).unwrap();
        assert_eq!(word.load(Ordering::Acquire), fence, "what was suspended is");
        assert!(engine.completed_command().is_some() && engine.preemption_report().is_some());
        // What the last one ran says nothing of the next reset.
        engine
            .submit_command(campanile_protocol::engine::hw_queue::HwSubmission {
                fence_id: 4,
                ..Default::default()
            })
            .unwrap();
        assert_eq!(engine.reset_engine().unwrap(), 3, "it ran nothing");
    }

    #[test]
    fn ums_64_ums_71_a_ring_is_looked_at_when_its_doorbell_comes_and_when_it_goes() {
        let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
        let looks = |engine: &EngineProcess| {
            crate::memory::bits::take(&engine.shared, block::LOOK, block::LOOK_WORDS)
        };
        let sequence = engine.watch_sequence();
        engine.connect_doorbell(2, 5, 1, 0);
        assert_eq!((looks(&engine), engine.watch_sequence()), (vec![5], sequence + 1));
        engine.disconnect_doorbell(2);
        assert_eq!((looks(&engine), engine.watch_sequence()), (vec![5], sequence + 2));
        engine.disconnect_doorbell(2);
        assert_eq!(looks(&engine), Vec::<u32>::new(), "no engine had it");
        engine.connect_notified(6);
        assert_eq!((looks(&engine), engine.load(block::NOTIFIED)), (vec![6], 1));
        let sequence = engine.watch_sequence();
        engine.notify(6);
        engine.notify(6);
        assert_eq!(
            (looks(&engine), engine.watch_sequence()),
            (vec![6], sequence + 1),
            "once asked is enough"
        );
        engine.disconnect_notified(6);
        assert_eq!((looks(&engine), engine.load(block::NOTIFIED)), (vec![6], 0));
    }
}
