//! A guest thread, and how it ended.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::transport::error::TransportError;

use crate::target::Machine;

/// Between two looks at what guest threads do: they do not say so.
pub const LOOK: Duration = Duration::from_millis(1);
/// How long any wait of the guest may take, pauses included.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What guest threads and VMM share.
#[derive(Debug, Default)]
pub struct Progress {
    /// Frames that were rendered and checked.
    pub frames: AtomicU64,
    /// Rounds of the copier.
    pub copies: AtomicU64,
    /// Rounds of the scribbler.
    pub scribbles: AtomicU64,
    /// The renderer has ended, or one of them has failed: all end.
    pub over: AtomicBool,
}

impl Progress {
    /// Whether all are to end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// How a guest thread ended.
#[derive(Debug)]
pub enum Ending {
    /// As it should.
    Done,
    /// Its device was lost, and it was told so.
    Lost(String),
    /// Something was wrong: a result, a refusal, a wait without end.
    Wrong(String),
}

/// Tells a device that is gone from everything else.
pub fn ending(result: anyhow::Result<()>) -> Ending {
    let Err(error) = result else { return Ending::Done };
    let text = format!("{error:#}");
    let gone = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(DriverError::DeviceLost(_)))
            || matches!(
                cause.downcast_ref(),
                Some(DriverError::Transport(TransportError::Disconnected | TransportError::DeviceReset))
            )
            || matches!(
                cause.downcast_ref(),
                Some(TransportError::Disconnected | TransportError::DeviceReset)
            )
    });
    if gone { Ending::Lost(text) } else { Ending::Wrong(text) }
}

/// Starts a guest thread; of a loopback VM it is a virtual CPU.
pub fn start(
    name: &'static str,
    machine: &Machine,
    progress: &Arc<Progress>,
    run: impl FnOnce(&Machine, &Progress) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<JoinHandle<Ending>> {
    let (machine, progress) = (machine.clone(), Arc::clone(progress));
    Ok(std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = machine.virtual_cpu().and_then(|_cpu| run(&machine, &progress));
        if result.is_err() {
            progress.over.store(true, Ordering::Relaxed);
        }
        ending(result.map_err(|error| error.context(name)))
    })?)
}
