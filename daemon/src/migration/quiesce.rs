//! A vGPU is quiesced for a snapshot: a thread of the control socket asks for it, the vGPU's own thread does it.

use std::sync::Mutex;
use std::sync::mpsc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::lock::locked;

/// Takes the state, for the thread that asked for it.
pub type Answer = SyncSender<Result<Vec<u8>, String>>;

/// What is wanted of the vGPU's thread.
#[derive(Debug, Default)]
pub enum Wanted {
    /// Nothing.
    #[default]
    Nothing,
    /// Quiesce, and say the state.
    Save(Answer),
    /// Go on.
    GoOn,
}

/// The request that is pending for the vGPU's thread, one at a time; each new one rings the vGPU's bell.
#[derive(Debug, Default)]
pub struct Quiesce {
    wanted: Mutex<Wanted>,
}

impl Quiesce {
    /// Asks the vGPU to quiesce and for its state, and waits up to `limit`. Ends with [`Quiesce::go_on`], whatever comes of it.
    ///
    /// # Errors
    /// It is not quiesced in time, or cannot be saved.
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
