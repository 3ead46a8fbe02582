//! A target that has everything, as the source sees it.

use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use campanile_host_gpu::event::Event;

use crate::migration::channel::line::Line;
use crate::migration::channel::line::Woken;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::lock::locked;
use crate::migration::ownership::holder::Duty;
use crate::migration::ownership::holder::Holder;
use crate::migration::settings::Timeouts;

#[derive(Debug)]
struct Inside {
    holder: Holder,
    words: Vec<Message>,
    is_up: bool,
    is_closed: bool,
}

/// What the vGPU's thread and the thread of the line share.
#[derive(Debug)]
pub struct Hold {
    inside: Mutex<Inside>,
    changed: Condvar,
    bell: Event,
}

impl Hold {
    /// The target has everything.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self, MigrationError> {
        let mut holder = Holder::default();
        let _nothing = holder.complete();
        let inside = Inside { holder, words: Vec::new(), is_up: true, is_closed: false };
        Ok(Self { inside: Mutex::new(inside), changed: Condvar::new(), bell: Event::new()? })
    }

    fn act(inside: &mut Inside, duty: Duty) {
        match duty {
            Duty::Nothing | Duty::Run | Duty::Lose => {}
            Duty::Grant => {
                log::info!("a target may run its bundle from here on");
                inside.words.push(Message::Granted);
            }
            Duty::Decline => inside.words.push(Message::Declined),
            Duty::RunAndRevoke | Duty::Recall => inside.words.push(Message::Revoke),
        }
    }

    /// The rings of the source run again: whether it may run. Where the target was let run already, asks it, and waits up to
    /// `limit`.
    pub fn thaw(&self, limit: Duration) -> bool {
        let mut inside = locked(&self.inside);
        let duty = inside.holder.thaw();
        Self::act(&mut inside, duty);
        self.bell.signal();
        match duty {
            Duty::Run | Duty::RunAndRevoke => return true,
            Duty::Recall | Duty::Nothing => {}
            Duty::Lose | Duty::Grant | Duty::Decline => return false,
        }
        let waits = |inside: &mut Inside| inside.is_up && inside.holder == Holder::Recalls;
        let waited = self.changed.wait_timeout_while(inside, limit, waits);
        let (mut inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // No answer: the guest may run there.
        let _lost = inside.holder.unreachable();
        inside.holder == Holder::Runs
    }

    /// The front-end has closed its connection: the target may run as soon as it likes.
    pub fn close(&self) {
        let mut inside = locked(&self.inside);
        let duty = inside.holder.closed();
        Self::act(&mut inside, duty);
        inside.is_closed = true;
        drop(inside);
        self.bell.signal();
    }

    /// Where it stands, for people.
    pub fn state(&self) -> &'static str {
        let inside = locked(&self.inside);
        match inside.holder {
            Holder::Runs => "runs here again",
            Holder::Offered if inside.is_up => "complete; the target may ask for it",
            Holder::Offered => "complete, but the target is gone",
            Holder::Granted => "the target may run",
            Holder::Recalls => "the target is asked whether it runs",
            Holder::Gone => "gone",
        }
    }

    /// Keeps the line until nothing more can be asked: what its thread does.
    pub fn keep(self: &Arc<Self>, mut line: Line, timeouts: &Timeouts) {
        let outcome = self.serve(&mut line, timeouts);
        let mut inside = locked(&self.inside);
        if let Err(error) = outcome {
            log::info!("the line to the target has ended: {error}");
        }
        inside.is_up = false;
        let _lost = inside.holder.unreachable();
        drop(inside);
        self.changed.notify_all();
    }

    fn serve(&self, line: &mut Line, timeouts: &Timeouts) -> Result<(), MigrationError> {
        loop {
            let (words, is_over) = {
                let mut inside = locked(&self.inside);
                let is_over = inside.is_closed || inside.holder == Holder::Runs;
                (std::mem::take(&mut inside.words), is_over)
            };
            for word in &words {
                line.send(word)?;
            }
            if is_over {
                if !words.is_empty() {
                    line.linger(timeouts.answer);
                }
                return Ok(());
            }
            if line.wait(&self.bell, Duration::from_secs(60)) == Woken::Peer {
                let said = line.hear()?;
                let mut inside = locked(&self.inside);
                let duty = match said {
                    Message::MayIRun => inside.holder.asked(),
                    Message::Revoked => inside.holder.revoked(),
                    Message::Committed => inside.holder.committed(),
                    Message::Still => Duty::Nothing,
                    other => return Err(MigrationError::Protocol(format!("{other:?} cannot be said now"))),
                };
                Self::act(&mut inside, duty);
                drop(inside);
                self.changed.notify_all();
            }
        }
    }
}
