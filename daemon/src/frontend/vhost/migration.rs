//! Freezing, saving, restoring and logging: the steps of a migration, on the connection thread.
//!
//! ```text
//!             ENABLE 0 of the last ring, or GET_VRING_BASE: waits for the worker, bounded
//!   running ──────────────────────────────────────────────────▶ frozen ── SAVE, CHECK ──▶ frozen, saved
//!      ▲                                                           │                           │
//!      └────── a ring is live again: source resumes, or target starts ─────────────────────────┘
//!                                                                  ▲
//!   new, or nothing runs ── LOAD, CHECK ── as if reset, then frozen┘   rings start only after a good CHECK
//! ```
//!
//! | connection of | asks GET_PROTOCOL_FEATURES | LOAD | device |
//! |---|---|---|---|
//! | a VM that boots | yes | no | new |
//! | a migrated or restored VM | QEMU: yes, cloud-hypervisor: no | yes | as saved |
//! | the same, of cloud-hypervisor, with a state that is of no use here | no | yes | new; the guest finds its objects gone |
//! | a VM whose device was lost | no | no | new; the guest finds its objects gone |
//!
//! A load that fails leaves QEMU's guest at its source. cloud-hypervisor's has no device there any more: the source has hung up.
//!
//! **Barrier.** When the reply to the request that freezes is out, nothing changes guest RAM any more, and the log that
//! was current has every mark, or the one that came later has it: marks name no log, they go to the newest.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::FREEZE_BOUND;
use super::counters::Count;
use super::gate::Step;
use super::motion::Load;
use super::motion::Motion;
use super::refusal::Refusal;
use super::saved::SavedShell;
use super::session::Negotiated;
use super::session::Session;
use super::state_transfer;
use super::state_transfer::Direction;
use super::state_transfer::Done;
use super::state_transfer::SaveOrder;
use super::state_transfer::Target;
use super::state_transfer::Transfer;
use crate::guest_ram::dirty_log::LogPages;

/// How often a wait for a transfer looks whether the front-end is there still.
const LOOK: Duration = Duration::from_millis(100);

impl Session {
    /// Freezes the device, and waits until it is.
    pub(super) fn freeze(&self) -> Result<(), Refusal> {
        if self.negotiated().motion.is_frozen {
            return Ok(());
        }
        let serial = self.shared.mailbox.post_numbered(|mail| mail.frozen = true);
        self.shared.gate.wait(Step::Frozen(serial), FREEZE_BOUND)?;
        self.negotiated().motion.is_frozen = true;
        Ok(())
    }

    /// Has a frozen device go on. A state that is being saved is of no use any more.
    pub(super) fn thaw(&self) {
        let mut negotiated = self.negotiated();
        let motion = &mut negotiated.motion;
        if motion.is_taken_up || !std::mem::take(&mut motion.is_frozen) {
            return;
        }
        motion.is_saved = false;
        drop(negotiated);
        self.look_at_all(|mail| (mail.frozen, mail.save) = (false, None));
    }

    /// ENABLE 0: the VM is paused when no ring is live any more.
    pub(super) fn disabled(&self) -> Result<(), Refusal> {
        let rings = || self.shared.rings.iter();
        if rings().any(|ring| ring.lock().is_started()) && !rings().any(|ring| ring.lock().is_live()) {
            self.freeze()?;
        }
        Ok(())
    }

    /// Whether rings may start: not on a device that should have been restored, and was not.
    pub(super) fn may_start(&self, queue: u16) -> Result<(), Refusal> {
        let load = match self.negotiated().motion.load {
            Load::None | Load::Done | Load::Anew => return Ok(()),
            Load::Unchecked => "the front-end has not asked whether its state was loaded",
            Load::Failed => "its state could not be loaded",
        };
        Err(Refusal::NotRestored { queue, load })
    }

    /// The first ring starts: says what kind of connection this is.
    pub(super) fn greet(&self, negotiated: &mut Negotiated) {
        if std::mem::replace(&mut negotiated.is_greeted, true) {
            return;
        }
        if negotiated.motion.load == Load::Done {
            self.shared.counters.add(Count::Restores);
            log::info!("{}: the guest goes on with its saved device", self.name);
        } else if !negotiated.is_fresh {
            self.shared.counters.add(Count::Reconnects);
            log::warn!(
                "{}: the VMM had a device before, which is lost: the guest finds a new one",
                self.name
            );
        }
    }

    /// SET_DEVICE_STATE_FD.
    pub(super) fn begin_transfer(&self, direction: Direction, file: File) -> Result<(), Refusal> {
        if !self.migrates {
            return Err(Refusal::NoMigration);
        }
        let mut running = self.shared.rings.iter().enumerate().filter(|(_, ring)| ring.lock().is_started());
        if let Some((queue, _)) = running.next() {
            return Err(Refusal::StateOfRunning(queue));
        }
        let negotiated = self.negotiated();
        let Motion { load, transfer, .. } = &negotiated.motion;
        if *load == Load::Unchecked || transfer.as_ref().is_some_and(|transfer| !transfer.is_over()) {
            return Err(Refusal::StateTwice);
        }
        drop(negotiated);
        match direction {
            Direction::Save => self.begin_save(file),
            Direction::Load => self.begin_load(file),
        }
    }

    fn begin_save(&self, file: File) -> Result<(), Refusal> {
        // A device of which no ring ever ran is not frozen yet.
        self.freeze()?;
        let (transfer, promise) = Transfer::new(Direction::Save);
        let mut negotiated = self.negotiated();
        let shell = SavedShell {
            features: negotiated.features,
            config: self.config.clone(),
            smallest_answer: self.smallest_answer,
            rings: Vec::new(),
        };
        negotiated.motion.is_saved = true;
        negotiated.motion.transfer = Some(transfer);
        drop(negotiated);
        self.shared.mailbox.post(|mail| mail.save = Some(SaveOrder { file, shell, promise }));
        Ok(())
    }

    fn begin_load(&self, file: File) -> Result<(), Refusal> {
        // What was here before is replaced.
        if self.negotiated().is_greeted {
            self.begin_epoch();
        }
        self.freeze()?;
        let (transfer, promise) = Transfer::new(Direction::Load);
        let mut negotiated = self.negotiated();
        negotiated.is_greeted = false;
        negotiated.motion.load = Load::Unchecked;
        negotiated.motion.transfer = Some(transfer);
        let (epoch, may_begin_anew) = (negotiated.epoch, !negotiated.is_fresh);
        drop(negotiated);
        let target = Target {
            epoch,
            features: self.offered,
            config: self.config.clone(),
            smallest_answer: self.smallest_answer,
            queues: self.shared.rings.len(),
            // cloud-hypervisor, which hangs up at the source before it connects to the target.
            may_begin_anew,
        };
        let mailbox = Arc::clone(&self.shared.mailbox);
        let post = move |order| mailbox.post(|mail| mail.load = Some(order));
        state_transfer::load(file, target, promise, post).map_err(Refusal::StateThread)
    }

    /// CHECK_DEVICE_STATE: waits until the transfer is over, which is bounded by its own clocks.
    pub(super) fn end_transfer(&self) -> Result<(), Refusal> {
        let transfer = self.negotiated().motion.transfer.take().ok_or(Refusal::NoState)?;
        let outcome = loop {
            if let Some(outcome) = transfer.wait(LOOK) {
                break outcome;
            }
            if self.has_hung_up() {
                return Err(Refusal::HungUp);
            }
        };
        match (transfer.direction, &outcome) {
            (Direction::Load, Ok(Done::AsSaved)) => self.negotiated().motion.load = Load::Done,
            (Direction::Load, Ok(Done::Anew(why))) => {
                self.negotiated().motion.load = Load::Anew;
                log::error!("{}: the device's state is of no use here: {why}", self.name);
            }
            (Direction::Load, Err(_)) => self.negotiated().motion.load = Load::Failed,
            (Direction::Save, Ok(_)) => self.shared.counters.add(Count::Saves),
            (Direction::Save, Err(_)) => {}
        }
        outcome.map(drop).map_err(|text| {
            // The protocol has no room for a reason.
            log::error!("{}: {:?} of the device's state failed: {text}", self.name, transfer.direction);
            Refusal::State(text)
        })
    }

    /// Whether the front-end has gone, or this daemon is about to.
    fn has_hung_up(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut line = [PollFd::new(&self.line, PollFlags::RDHUP)];
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        poll(&mut line, Some(&now)).is_err() || line[0].revents().intersects(gone)
    }

    /// SET_LOG_BASE: from the reply on, nothing goes to the log before.
    pub(super) fn set_log(&self, pages: LogPages) -> Result<(), Refusal> {
        pages.covers(self.negotiated().memory.end())?;
        let log = &self.shared.log;
        let begins = !log.is_on();
        log.replace(Some(pages));
        if begins {
            // What is written without a log is written before the reply: rings are written under their locks, everything
            // else on the worker's thread.
            for ring in self.shared.rings.iter() {
                drop(ring.lock());
            }
            let told = Arc::clone(log);
            let serial = self.shared.mailbox.post_numbered(|mail| mail.log = Some(Some(told)));
            self.shared.gate.wait(Step::Read(serial), FREEZE_BOUND)?;
        }
        Ok(())
    }

    /// SET_FEATURES without LOG_ALL: the migration is over, or was given up.
    pub(super) fn end_log(&self) {
        if self.shared.log.is_on() {
            self.shared.log.replace(None);
            self.shared.mailbox.post(|mail| mail.log = Some(None));
        }
    }
}
