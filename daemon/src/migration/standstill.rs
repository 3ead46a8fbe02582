//! A standstill for a snapshot: asked for by a thread of the control socket, made by the vGPU's own thread.

use std::sync::Mutex;
use std::sync::mpsc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::brownout::pass::locked;

/// Who asked for the state.
pub type Answer = SyncSender<Result<Vec<u8>, String>>;

/// What is wanted of the vGPU's thread.
#[derive(Debug, Default)]
pub enum Wanted {
    /// Nothing.
    #[default]
    Nothing,
    /// Stand still, and say the state.
    Save(Answer),
    /// Go on.
    GoOn,
}

/// The place where that is left; leaving something there rings the vGPU's bell.
#[derive(Debug, Default)]
pub struct Standstill {
    wanted: Mutex<Wanted>,
}

impl Standstill {
    /// Asks for a standstill and the state, and waits up to `limit`. Ends with [`Standstill::go_on`], whatever comes of it.
    ///
    /// # Errors
    /// It does not stand still in time, or cannot be saved.
    pub fn save(&self, ring: impl FnOnce(), limit: Duration) -> Result<Vec<u8>, String> {
        let (answer, receiver) = mpsc::sync_channel(1);
        *locked(&self.wanted) = Wanted::Save(answer);
        ring();
        receiver.recv_timeout(limit).map_err(|_| "the vGPU does not stand still in time".to_owned())?
    }

    /// The vGPU goes on.
    pub fn go_on(&self, ring: impl FnOnce()) {
        *locked(&self.wanted) = Wanted::GoOn;
        ring();
    }

    /// What is wanted, once.
    pub fn take(&self) -> Wanted {
        std::mem::take(&mut *locked(&self.wanted))
    }
}
